package worklease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// background is longer than anything is given back in the background.
const background = time.Minute

// W2. What may pass is waited out, in either kind of call the same fault is told or
// not.
func TestTransientFaultsAreWaitedOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(background)
		w := newWire(only(opAcquire, first(20, refuse)))
		l := newLease(t, w, "a")
		_, err := l.Acquire(t.Context(), "other")
		wantIs(t, err, errLine)
		began := time.Now()
		token := acquire(t, l, "work", worklease.WithWaitForLease())
		if n := w.count(opAcquire); n != 21 {
			t.Errorf("%d attempts were made, want 21", n)
		}
		// Doubling from 20 ms to 5 s: no hot loop, and no pause above the cap.
		if took := time.Since(began); took < 30*time.Second || took > 2*time.Minute {
			t.Errorf("19 faults were waited out within %v", took)
		}
		must(t, l.Renew(t.Context(), token))
	})
}

// W2. No waiting mends these.
func TestPermanentFaultsEndAWait(t *testing.T) {
	for name, permanent := range map[string]error{
		"closed":      worklease.ErrClosed,
		"invalid":     worklease.ErrInvalid,
		"unsupported": errors.ErrUnsupported,
		"permanent":   &worklease.BackendError{Err: errLine, Permanent: true},
		"retired":     &worklease.RetiredError{},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				defer time.Sleep(background)
				w := newWire(only(opAcquire, func(context.Context, string, int, func() error) error { return permanent }))
				_, err := newLease(t, w, "a").Acquire(t.Context(), "work", worklease.WithWaitForLease())
				if !errors.Is(err, permanent) && !errors.Is(err, worklease.ErrLeaseRetired) {
					t.Errorf("got %v, want %v", err, permanent)
				}
				if n := w.count(opAcquire); n != 1 {
					t.Errorf("%d attempts were made", n)
				}
			})
		})
	}
}

// W2. The end of a wait is the context's, with its cause, at once.
func TestContextEndsAWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, newLease(t, b, "a"), "work")
		waiter := newLease(t, b, "b")
		cause := errors.New("shutting down")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(7*time.Second+1, func() { cancel(cause) })
		began := time.Now()
		_, err := waiter.Acquire(ctx, "work", worklease.WithWaitForLease())
		wantIs(t, err, context.Canceled, cause)
		wantIsNot(t, err, worklease.ErrLeaseHeld)
		if took := time.Since(began); took != 7*time.Second+1 {
			t.Errorf("the wait ended after %v", took)
		}

		ctx, cancelTimeout := context.WithTimeout(t.Context(), time.Second)
		defer cancelTimeout()
		_, err = waiter.Acquire(ctx, "work", worklease.WithWaitForLease())
		wantIs(t, err, context.DeadlineExceeded)
		wantIsNot(t, err, worklease.ErrLeaseHeld)

		_, err = waiter.Acquire(ctx, "free", worklease.WithWaitForLease())
		wantIs(t, err, context.DeadlineExceeded)
		acquire(t, newLease(t, b, "c"), "free")
	})
}

// A waiter takes over when the lease ends, however long the poll interval is.
func TestWaiterWakesAtTheExpiry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New()
		crashed := acquire(t, newLease(t, b, "a"), "work")
		began := time.Now()
		token := acquire(t, newLease(t, b, "b"), "work", worklease.WithWaitForLease(), worklease.WithPollInterval(time.Hour))
		if took := time.Since(began); took < ttl || took > ttl+10*time.Millisecond {
			t.Errorf("a lease of %v was taken over after %v", ttl, took)
		}
		if token.FencingToken() <= crashed.FencingToken() {
			t.Error("the token did not rise")
		}
	})
}

// Whatever the poll interval, a wait is no hot loop.
func TestWaitHasAFloor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		acquire(t, newLease(t, w, "a"), "work")
		before := w.count(opAcquire)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		// An interval of a nanosecond, were it kept, would mean 100 million attempts.
		w.fails(func(_ context.Context, _ string, n int, do func() error) error {
			if n > before+1000 {
				cancel()
			}
			return do()
		})
		_, err := newLease(t, w, "b").Acquire(ctx, "work", worklease.WithWaitForLease(), worklease.WithPollInterval(1))
		wantIs(t, err, context.DeadlineExceeded)
		if n := w.count(opAcquire) - before; n > 200 {
			t.Errorf("%d attempts were made in 100 ms", n)
		}
	})
}

// W6. A grant that arrives when its time is over is given back, without a trace.
func TestLateGrantIsNoGrant(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		acquire(t, l, "work")
		time.Sleep(ttl) // a crash before
		w.fails(only(opAcquire, first(2, delay(ttl))))
		_, err := l.Acquire(t.Context(), "work")
		wantIs(t, err, worklease.ErrLeaseExpired)
		if n := w.count(opRelease); n != 1 {
			t.Errorf("%d releases were sent, want the one that gives back", n)
		}
		token := acquire(t, l, "work")
		prior, err := l.Prior(t.Context(), token)
		must(t, err)
		if prior.Exit != worklease.ExitExpired || prior.Crashes != 1 || prior.FencingToken != 1 {
			t.Errorf("the next owner is told %+v", prior)
		}
	})
}

// W6. A waiting call goes on waiting.
func TestLateGrantKeepsAWaiterWaiting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opAcquire, first(3, delay(ttl+time.Second))))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work", worklease.WithWaitForLease())
		if n := w.count(opAcquire); n != 4 {
			t.Errorf("%d attempts were made, want 4", n)
		}
		prior, err := l.Prior(t.Context(), token)
		must(t, err)
		if prior.Exit != worklease.ExitNone || prior.Crashes != 0 {
			t.Errorf("the first owner that used its grant is told %+v", prior)
		}
	})
}

// R1. The window of a grant begins before the request leaves.
func TestGrantIsCountedFromBeforeTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opAcquire, func(_ context.Context, _ string, _ int, do func() error) error {
			err := do()
			time.Sleep(10 * time.Second)
			return err
		}))
		l := newLease(t, w, "a")
		sent := time.Now()
		token := acquire(t, l, "work")
		end, ok := l.Deadline(token)
		if !ok || !end.Equal(sent.Add(ttl)) {
			t.Errorf("the token is trusted until %v after the request, %t, want %v", end.Sub(sent), ok, ttl)
		}
		time.Sleep(ttl - 10*time.Second - 1)
		if _, ok := l.Deadline(token); !ok {
			t.Error("the token is not trusted to the end of its window")
		}
		time.Sleep(time.Nanosecond)
		if _, ok := l.Deadline(token); ok {
			t.Error("the token is trusted at the end of its window")
		}
	})
}

// W7, S34. A wait whose reply was lost recognises its own lease at the next attempt.
func TestLostReplyOfAcquire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opAcquire, first(1, resetAfter)))
		l := newLease(t, w, "a")
		began := time.Now()
		token := acquire(t, l, "work", worklease.WithWaitForLease())
		if token.FencingToken() != 1 || time.Since(began) > time.Second {
			t.Errorf("got token %d after %v", token.FencingToken(), time.Since(began))
		}
		end, ok := l.Deadline(token)
		if left := end.Sub(began); !ok || left > ttl {
			t.Errorf("%v are left of a lease of %v, counted from the first request", left, ttl)
		}
		// Another call of the same process is another.
		_, err := l.Acquire(t.Context(), "work")
		wantIs(t, err, worklease.ErrLeaseHeld)
	})
}

// W7. What a call that failed may have won is given back in the background.
func TestGrantOfAFailedCallIsGivenBack(t *testing.T) {
	for name, f := range map[string]fault{
		"reply lost":    resetAfter,
		"context ended": loseReply,
		"statement ran on for long": func(ctx context.Context, _ string, _ int, do func() error) error {
			<-ctx.Done()
			time.AfterFunc(250*time.Millisecond, func() { _ = do() })
			return ctx.Err()
		},
	} {
		for _, opts := range [][]worklease.AcquireOption{nil, {worklease.WithWaitForLease()}} {
			t.Run(name, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					defer time.Sleep(background)
					// The backend forgets the context: the statement is carried out anyway.
					w := newWire(only(opAcquire, f))
					l := newLease(t, w, "a")
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					w.backend = deafBackend{w.backend}
					began := time.Now()
					_, err := l.Acquire(ctx, "work", opts...)
					if err == nil {
						t.Fatal("a lost grant was delivered")
					}
					if took := time.Since(began); took > time.Second {
						t.Errorf("the call ended %v after its context", took-time.Second)
					}
					w.fails(nil)
					time.Sleep(6 * time.Second) // well within the TTL
					next := newLease(t, w, "b")
					prior, err := next.Prior(t.Context(), acquire(t, next, "work"))
					must(t, err)
					if prior.Exit != worklease.ExitNone {
						t.Errorf("what was given back left the trace %+v", prior)
					}
				})
			})
		}
	}
}

// deafBackend carries out what was sent, whatever became of the context.
type deafBackend struct{ worklease.Backend }

func (b deafBackend) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	return b.Backend.Acquire(context.WithoutCancel(ctx), a)
}

// The call ends with its context also while a late grant cannot be given back.
func TestGivingBackHoldsNobodyUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(background)
		w := newWire(func(ctx context.Context, op string, n int, do func() error) error {
			switch op {
			case opAcquire:
				return delay(ttl)(ctx, op, n, do)
			case opRelease:
				return hang(ctx, op, n, do)
			}
			return do()
		})
		ctx, cancel := context.WithTimeout(t.Context(), ttl+time.Second)
		defer cancel()
		_, err := newLease(t, w, "a").Acquire(ctx, "work", worklease.WithWaitForLease())
		wantIs(t, err, context.DeadlineExceeded)
		if late := time.Since(mustDeadline(t, ctx)); late > 100*time.Millisecond {
			t.Errorf("Acquire returned %v after its context had ended", late)
		}
	})
}

func mustDeadline(t *testing.T, ctx context.Context) time.Time {
	t.Helper()
	end, ok := ctx.Deadline()
	if !ok {
		t.Fatal("the context has no deadline")
	}
	return end
}

// What provably did nothing needs no giving back.
func TestNothingIsGivenBackWithoutCause(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opAcquire, func(context.Context, string, int, func() error) error {
			return &worklease.BackendError{Err: errLine, NotApplied: true}
		}))
		l := newLease(t, w, "a")
		_, err := l.Acquire(t.Context(), "work")
		wantIs(t, err, errLine)
		w.fails(nil)
		acquire(t, l, "work")
		_, err = l.Acquire(t.Context(), "work")
		wantIs(t, err, worklease.ErrLeaseHeld)
		time.Sleep(background)
		synctest.Wait()
		if n := w.count(opRelease); n != 0 {
			t.Errorf("%d releases were sent", n)
		}
	})
}

// S6. One Lease holds the same work twice, one after the other.
func TestTwoHoldsInOneProcess(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLease(t, memory.New(), "a")
		first := acquire(t, l, "work")
		time.Sleep(ttl)
		second := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), second)
		defer stop()
		wantIs(t, l.Release(t.Context(), first), worklease.ErrFenced)
		wantIs(t, l.Checkpoint(t.Context(), first, []byte("zombie")), worklease.ErrFenced)
		wantLive(t, ctx)
		must(t, l.Checkpoint(t.Context(), second, []byte("mine")))
		wantState(t, l, second, "mine")
	})
}
