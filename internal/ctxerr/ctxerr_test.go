package ctxerr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

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

// It is in nothing different from what it stands for.
func TestOutliving(t *testing.T) {
	t.Parallel()
	type key struct{}
	own := errors.New("own")
	for name, outliving := range map[string]func(context.Context, time.Duration) (context.Context, context.CancelFunc){
		"real": func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.WithoutCancel(ctx), d)
		},
		"ours": func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
			o := ctxerr.Outlive(ctx, d)
			return o, o.Cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				parent, end := context.WithCancelCause(context.WithValue(t.Context(), key{}, 7))
				end(own)
				for _, asked := range []bool{false, true} {
					began := time.Now()
					ctx, cancel := outliving(parent, time.Second)
					if asked {
						child, cancelChild := context.WithCancel(ctx)
						defer cancelChild()
						defer func() {
							if child.Err() == nil {
								t.Error("the child lives")
							}
						}()
					}
					if err := ctxerr.Of(ctx); err != nil {
						t.Errorf("while its parent has ended: %v", err)
					}
					if deadline, ok := ctx.Deadline(); !ok || !deadline.Equal(began.Add(time.Second)) {
						t.Errorf("deadline %v, %v", deadline, ok)
					}
					time.Sleep(time.Second)
					synctest.Wait()
					if err := ctx.Err(); err != context.DeadlineExceeded {
						t.Errorf("in the end: %v", err)
					}
					<-ctx.Done()
					cancel()
					if err := context.Cause(ctx); err != context.DeadlineExceeded {
						t.Errorf("its cause: %v", err)
					}
					if v := ctx.Value(key{}); v != 7 {
						t.Errorf("value %v", v)
					}

					ctx, cancel = outliving(parent, time.Second)
					if asked {
						go func() { <-ctx.Done() }()
						synctest.Wait()
					}
					cancel()
					cancel()
					if err := ctxerr.Of(ctx); err != context.Canceled {
						t.Errorf("canceled: %v", err)
					}
					<-ctx.Done()
				}
			})
		})
	}
}
