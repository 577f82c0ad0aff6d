package tenure

import (
	"context"
	"reflect"
	"time"

	"github.com/aetomala/worklease/internal/ctxerr"
)

// What the layers have in common beside a lifecycle.

// IsNil reports whether v, which is a Lease or an observer, is nil or a nil pointer.
func IsNil(v any) bool {
	r := reflect.ValueOf(v)
	return !r.IsValid() || r.Kind() == reflect.Pointer && r.IsNil()
}

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	_ = ctxerr.Sleep(ctx, d)
}
