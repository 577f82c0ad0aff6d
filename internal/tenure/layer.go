package tenure

import (
	"context"
	"time"

	"github.com/aetomala/worklease/internal/ctxerr"
)

// What the layers have in common beside a lifecycle.

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	_ = ctxerr.Sleep(ctx, d)
}
