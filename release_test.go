package worklease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// H3, S30.
func TestReleaseOutlivesItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New()
		l := newLease(t, b, "a")
		ctx, cancel := context.WithCancel(t.Context())
		token, err := l.Acquire(ctx, "work")
		must(t, err)
		renewCtx, stop := l.StartRenewal(ctx, token)
		defer stop()
		cancel()
		<-renewCtx.Done()
		must(t, l.Release(renewCtx, token, worklease.WithState([]byte("last"))))
		next := newLease(t, b, "b")
		wantState(t, next, acquire(t, next, "work"), "last")
	})
}

// H3. A context that is about to end is no reason to keep the work from others.
func TestReleaseUnderADeadlineThatIsNear(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRelease, delayFirst(100*time.Millisecond)))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		must(t, l.Release(ctx, token))
		acquire(t, newLease(t, w, "b"), "work")
	})
}

// delayFirst takes d to send a call, unless its context ends before.
func delayFirst(d time.Duration) fault {
	return func(ctx context.Context, _ string, _ int, do func() error) error {
		select {
		case <-time.After(d):
			return do()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// H3, S30. A backend that does not answer holds a Release up for five seconds.
func TestReleaseIsBounded(t *testing.T) {
	for name, f := range map[string]fault{"hanging": hang, "refusing": refuse} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWire(only(opRelease, f))
				l := newLease(t, w, "a")
				token := acquire(t, l, "work")
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				began := time.Now()
				if err := l.Release(ctx, token); err == nil {
					t.Error("Release succeeded")
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("Release took %v", took)
				}
				if n := w.count(opRelease); n > 100 {
					t.Errorf("Release was sent %d times", n)
				}
				if _, ok := l.Deadline(token); ok {
					t.Error("the token is trusted after a Release that may have happened")
				}
				// The caller may try again.
				w.fails(nil)
				must(t, l.Release(ctx, token))
				acquire(t, newLease(t, w, "b"), "work")
			})
		})
	}
}

// S35, N1. Lost replies are no lost leases.
func TestLostReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		lost := func(op string, do func() error) {
			t.Helper()
			w.fails(only(op, resetAfter))
			wantIs(t, do(), errLine)
			w.fails(nil)
			must(t, do())
		}
		lost(opCheckpoint, func() error { return l.Checkpoint(t.Context(), token, []byte("one")) })
		wantState(t, l, token, "one")
		lost(opRenew, func() error { return l.Renew(t.Context(), token) })
		w.fails(only(opRelease, first(2, resetAfter)))
		must(t, l.Release(t.Context(), token, worklease.WithState([]byte("two"))))
		if n := w.count(opRelease); n != 3 {
			t.Errorf("Release was sent %d times, want 3", n)
		}
		next := newLease(t, w, "b")
		token = acquire(t, next, "work")
		wantState(t, next, token, "two")
		lost(opForget, func() error { return next.Forget(t.Context(), token) })
	})
}

// N1. One successor on, with a state, and whatever the successor has done.
func TestLostReleaseOneSuccessorOn(t *testing.T) {
	for _, saved := range []bool{false, true} {
		bubbleNamed(t, map[bool]string{false: "successor has not saved", true: "successor saved"}[saved], func(t *testing.T) {
			w := newWire(nil)
			l, next := newLease(t, w, "a"), newLease(t, w, "b")
			token := acquire(t, l, "work")
			must(t, l.Checkpoint(t.Context(), token, []byte("first")))
			w.fails(only(opRelease, func(ctx context.Context, op string, n int, do func() error) error {
				_ = do()
				return context.DeadlineExceeded
			}))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			err := l.Release(ctx, token, worklease.WithState([]byte("last")))
			wantIs(t, err, context.DeadlineExceeded)
			w.fails(nil)
			nextToken := acquire(t, next, "work")
			wantState(t, next, nextToken, "last")
			if saved {
				must(t, next.Checkpoint(t.Context(), nextToken, []byte("next's")))
			}
			must(t, l.Release(t.Context(), token, worklease.WithState([]byte("last"))))
			must(t, l.Release(t.Context(), token))
			must(t, next.Renew(t.Context(), nextToken))
		})
	}
}

func bubbleNamed(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { bubble(t, f) })
}

// N2. A state that was sent again after a newer checkpoint is the last word.
func TestReleaseStateAfterANewerCheckpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRelease, refuse))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		wantIs(t, l.Release(t.Context(), token, worklease.WithState([]byte("last"))), errLine)
		must(t, l.Checkpoint(t.Context(), token, []byte("between")))
		w.fails(nil)
		must(t, l.Release(t.Context(), token, worklease.WithState([]byte("last"))))
		next := newLease(t, w, "b")
		wantState(t, next, acquire(t, next, "work"), "last")
	})
}

// N2. Another state is not acknowledged by what the row has.
func TestReleaseWithAnotherState(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRelease, resetAfter))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		if err := l.Release(ctx, token, worklease.WithState([]byte("one"))); err == nil {
			t.Fatal("the repeat came through")
		}
		w.fails(nil)
		wantIs(t, l.Release(t.Context(), token, worklease.WithState([]byte("two"))), worklease.ErrLeaseExpired)
		next := newLease(t, w, "b")
		wantState(t, next, acquire(t, next, "work"), "one")
	})
}

// H5. A renewal that is under way when the lease is released changes nothing.
func TestRenewalLandsAfterRelease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		w := newWire(only(opRenew, func(_ context.Context, _ string, _ int, do func() error) error {
			<-gate
			return do()
		}))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		time.Sleep(ttl/2 + time.Second)
		if w.count(opRenew) != 1 {
			t.Fatal("no renewal is under way")
		}
		must(t, l.Release(t.Context(), token))
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("after Release the cause is %v", context.Cause(ctx))
		}
		next := newLease(t, w, "b")
		nextToken := acquire(t, next, "work")
		close(gate)
		stop()
		prior, err := next.Prior(t.Context(), nextToken)
		must(t, err)
		if prior.Exit != worklease.ExitReleased {
			t.Errorf("the next owner is told %v", prior.Exit)
		}
		if _, ok := l.Deadline(token); ok {
			t.Error("a late renewal brought trust back")
		}
		must(t, next.Renew(t.Context(), nextToken))
	})
}

func TestForgetNeedsThePower(t *testing.T) {
	t.Parallel()
	l := newLease(t, struct{ worklease.Backend }{memory.New()}, "a")
	token := acquire(t, l, "work")
	err := l.Forget(t.Context(), token)
	wantIs(t, err, errors.ErrUnsupported)
	if _, ok := l.Deadline(token); !ok {
		t.Error("a Forget that cannot be has ended the hold")
	}
}
