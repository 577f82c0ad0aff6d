// Package ctxerr tells why a context ended so that both questions can be asked of
// one error: whether it is the context's own, and what the cause was. It also waits
// under a context.
package ctxerr

import (
	"context"
	"errors"
	"time"
)

// Of returns nil while ctx lives, and after that an error that Is both ctx.Err()
// and context.Cause(ctx).
func Of(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); !errors.Is(cause, err) {
		return &ended{err, cause}
	}
	return context.Cause(ctx)
}

type ended struct{ err, cause error }

func (e *ended) Error() string   { return e.err.Error() + ": " + e.cause.Error() }
func (e *ended) Unwrap() []error { return []error{e.err, e.cause} }

// Sleep waits for d. It returns what [Of] does if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return Of(ctx)
	}
}
