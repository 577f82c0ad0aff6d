package ctxerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/aetomala/worklease/internal/ctxerr"
)

func TestOf(t *testing.T) {
	t.Parallel()
	own := errors.New("own")
	for _, cause := range []error{nil, own, context.DeadlineExceeded, fmt.Errorf("stopped: %w", context.Canceled)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if err := ctxerr.Of(ctx); err != nil {
			t.Errorf("Of a live context = %v", err)
		}
		cancel(cause)
		err := ctxerr.Of(ctx)
		if !errors.Is(err, context.Canceled) || !errors.Is(err, context.Cause(ctx)) {
			t.Errorf("Of = %v, want both Canceled and %v", err, context.Cause(ctx))
		}
	}
}
