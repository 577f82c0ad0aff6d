// Package ctxerr tells why a context ended so that both questions can be asked of
// one error: whether it is the context's own, and what the cause was.
package ctxerr

import (
	"context"
	"errors"
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
