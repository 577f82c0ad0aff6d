package worklease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// R2, S20. A renewed lease outlives its TTL by any time.
func TestRenewalKeepsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		time.Sleep(100*ttl + 1)
		wantLive(t, ctx)
		if n := w.count(opRenew); n != 200 {
			t.Errorf("%d renewals in 100 TTLs, want one every half TTL", n)
		}
		stop()
		time.Sleep(ttl)
		if n := w.count(opRenew); n != 200 {
			t.Errorf("%d renewals followed stopRenewal", n-200)
		}
		wantIs(t, context.Cause(ctx), context.Canceled)
		wantIs(t, l.Renew(t.Context(), token), worklease.ErrLeaseExpired)
	})
}

// R3, S19. The first renewal is planned from the acquisition.
func TestFirstRenewal(t *testing.T) {
	for _, c := range []struct {
		ttl, interval, delay, want time.Duration // want: after the acquisition
	}{
		{2 * time.Second, 0, 0, time.Second},
		{2 * time.Second, -1, 0, time.Second},
		{2 * time.Second, 5 * time.Second, 0, time.Second},
		{2 * time.Second, time.Second + 1, 0, time.Second},
		{2 * time.Second, 500 * time.Millisecond, 0, 500 * time.Millisecond},
		{2 * time.Second, 0, 900 * time.Millisecond, time.Second},
		{2 * time.Second, 0, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{2 * time.Second, 5 * time.Second, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{2 * time.Second, 100 * time.Millisecond, 1900 * time.Millisecond, 1900 * time.Millisecond},
		{worklease.MinTTL, 0, 0, worklease.MinTTL / 2},
		{worklease.MinTTL, time.Hour, worklease.MinTTL - 1, worklease.MinTTL - 1},
		{24 * time.Hour, 0, 0, 12 * time.Hour},
	} {
		t.Run(fmt.Sprint(c.ttl, c.interval, c.delay), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var began, sent time.Time
				w := newWire(only(opRenew, func(_ context.Context, _ string, n int, do func() error) error {
					if n == 1 {
						sent = time.Now()
					}
					return do()
				}))
				l := configured(t, w, worklease.Config{TTL: c.ttl, HolderID: "a"})
				began = time.Now()
				token := acquire(t, l, "work")
				time.Sleep(c.delay)
				ctx, stop := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(c.interval))
				time.Sleep(10 * c.ttl)
				wantLive(t, ctx)
				stop()
				if got := sent.Sub(began); got != c.want {
					t.Errorf("the first renewal left %v after the acquisition, want %v", got, c.want)
				}
			})
		})
	}
}

// S19. A renewal that begins too late keeps nothing.
func TestRenewalAfterTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		time.Sleep(ttl)
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		if ctx.Err() == nil {
			t.Error("a context stands on a window that is over")
		}
		wantIs(t, context.Cause(ctx), worklease.ErrLeaseWindowExhausted)
		wantIsNot(t, context.Cause(ctx), worklease.ErrLeaseExpired)
		if n := w.count(opRenew); n != 0 {
			t.Errorf("%d renewals were sent", n)
		}
	})
}

// S21. By default two renewals in a row may get lost, whichever way, and a third where
// the TTL leaves the time.
func TestLostRenewals(t *testing.T) {
	faults := map[string]fault{"hang": hang, "reply lost": loseReply, "refused": refuse, "reset": resetAfter}
	for name, f := range faults {
		for k := range 4 {
			for _, ttl := range []time.Duration{time.Second, 30 * time.Second, time.Hour} {
				if k == 3 && ttl == time.Second {
					continue
				}
				t.Run(fmt.Sprint(name, k, ttl), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						begun := 0
						latency := min(ttl/100, 50*time.Millisecond)
						w := newWire(only(opRenew, func(ctx context.Context, op string, _ int, do func() error) error {
							time.Sleep(latency)
							// Of every ten attempts, k in a row are lost.
							if begun++; begun%10 < k {
								return f(ctx, op, begun, do)
							}
							return do()
						}))
						l := configured(t, w, worklease.Config{TTL: ttl, HolderID: "a"})
						ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
						defer stop()
						time.Sleep(50 * ttl)
						wantLive(t, ctx)
					})
				})
			}
		}
	}
}

// R1. Nothing that a statement does holds up the end of the window.
func TestWindowEndsOnTime(t *testing.T) {
	deaf := func(context.Context, string, int, func() error) error {
		time.Sleep(3 * ttl)
		return nil
	}
	for name, f := range map[string]fault{"hang": hang, "reply lost": loseReply, "refused": refuse, "deaf to its context": deaf} {
		bubbleNamed(t, name, func(t *testing.T) {
			defer time.Sleep(background + 3*ttl)
			w := newWire(only(opRenew, f))
			l := newLease(t, w, "a")
			began := time.Now()
			token := acquire(t, l, "work")
			ctx, stop := l.StartRenewal(t.Context(), token)
			defer stop()
			<-ctx.Done()
			if took := time.Since(began); took != ttl {
				t.Errorf("the context ended after %v, want %v", took, ttl)
			}
			wantIs(t, context.Cause(ctx), worklease.ErrLeaseWindowExhausted)
			wantIsNot(t, context.Cause(ctx), worklease.ErrLeaseExpired)
			wantIsNot(t, context.Cause(ctx), worklease.ErrFenced)
			if _, ok := l.Deadline(token); ok {
				t.Error("a lost token has a deadline")
			}
		})
	}
}

// R1. The window is counted from when the renewal left, not from its reply.
func TestWindowIsCountedFromTheRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const latency = 5 * time.Second
		w := newWire(only(opRenew, func(_ context.Context, _ string, n int, do func() error) error {
			if n > 1 {
				return errLine
			}
			err := do()
			time.Sleep(latency)
			return err
		}))
		l := newLease(t, w, "a")
		began := time.Now()
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		time.Sleep(ttl/2 + latency + 1)
		end, ok := l.Deadline(token)
		if got, want := end.Sub(began), ttl/2+ttl; !ok || got != want {
			t.Errorf("after a renewal sent at %v the token is trusted until %v, %t, want %v", ttl/2, got, ok, want)
		}
		<-ctx.Done()
		if took := time.Since(began); took != ttl/2+ttl {
			t.Errorf("the context ended after %v, want %v", took, ttl/2+ttl)
		}
	})
}

// R1, R2. So it is for what the caller sends.
func TestWindowOfACallIsCountedFromTheRequest(t *testing.T) {
	for op, extend := range map[string]func(t *testing.T, l worklease.Lease, token worklease.Token) error{
		opCheckpoint: func(t *testing.T, l worklease.Lease, token worklease.Token) error {
			return l.Checkpoint(t.Context(), token, []byte("x"))
		},
		opRenew: func(t *testing.T, l worklease.Lease, token worklease.Token) error {
			return l.Renew(t.Context(), token)
		},
	} {
		bubbleNamed(t, op, func(t *testing.T) {
			l := newLease(t, newWire(only(op, delay(5*time.Second))), "a")
			token := acquire(t, l, "work")
			time.Sleep(ttl / 2)
			sent := time.Now()
			must(t, extend(t, l, token))
			if end, ok := l.Deadline(token); !ok || !end.Equal(sent.Add(ttl)) {
				t.Errorf("the token is trusted until %v after the request, %t, want %v", end.Sub(sent), ok, ttl)
			}
		})
	}
}

// S22. A success that comes when the window is over keeps nothing.
func TestReplyAfterTheWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRenew, delay(ttl)))
		l := newLease(t, w, "a")
		began := time.Now()
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		<-ctx.Done()
		if took := time.Since(began); took != ttl {
			t.Errorf("the context ended after %v, want %v", took, ttl)
		}
		time.Sleep(2 * ttl)
		if _, ok := l.Deadline(token); ok {
			t.Error("a late reply brought trust back")
		}
		again, stopAgain := l.StartRenewal(t.Context(), token)
		defer stopAgain()
		if again.Err() == nil {
			t.Error("a lost lease came back")
		}
		wantIs(t, context.Cause(again), worklease.ErrLeaseWindowExhausted)
	})
}

// S22, R4. An error is no loss: retried within the window, counted for the observer.
func TestRenewalErrorIsNoLoss(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var attempts []int
		o := &watcher{onRenew: func(e worklease.RenewEvent) { attempts = append(attempts, e.Attempt) }}
		w := newWire(only(opRenew, func(_ context.Context, _ string, n int, do func() error) error {
			if n == 2 || n == 3 || n == 4 {
				return errLine
			}
			return do()
		}))
		l := configured(t, w, worklease.Config{TTL: ttl, HolderID: "a", Observer: o})
		ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(2 * ttl)
		wantLive(t, ctx)
		stop()
		synctest.Wait()
		if got, want := fmt.Sprint(attempts), "[1 1 2 3 4 1]"; got != want && got != "[1 1 2 3 4]" {
			t.Errorf("the attempts were numbered %s, want %s", got, want)
		}
	})
}

// R4. Each attempt has a deadline of its own, never past the window.
func TestAttemptsAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var l worklease.Lease
		var token worklease.Token
		w := newWire(only(opRenew, func(ctx context.Context, op string, n int, do func() error) error {
			end, ok := ctx.Deadline()
			window, _ := l.Deadline(token)
			if !ok || end.After(window) {
				t.Errorf("attempt %d is bounded at %v, %t, the window ends at %v", n, end, ok, window)
			}
			return hang(ctx, op, n, do)
		}))
		l = newLease(t, w, "a")
		token = acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		<-ctx.Done()
		if n := w.count(opRenew); n < 3 || n > 50 {
			t.Errorf("%d attempts were made in one window", n)
		}
	})
}

// L7. The pauses between failed renewals.
func TestRenewalBackoff(t *testing.T) {
	for _, c := range []struct {
		initial, most time.Duration
		jitter        float64
		pauses        []time.Duration
	}{
		{time.Second, 4 * time.Second, 0, []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}},
		{-1, 0, -1, []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}},
		{time.Hour, time.Second, 0, []time.Duration{time.Second, time.Second, time.Second}},
	} {
		t.Run(fmt.Sprint(c.initial, c.most), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var sent []time.Time
				w := newWire(only(opRenew, func(context.Context, string, int, func() error) error {
					sent = append(sent, time.Now())
					return errLine
				}))
				l := newLease(t, w, "a")
				_, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"), worklease.WithRenewalBackoff(c.initial, c.most, c.jitter))
				time.Sleep(ttl/2 + ttl/4 + time.Millisecond)
				stop()
				if len(sent) < len(c.pauses)+1 {
					t.Fatalf("only %d attempts were made", len(sent))
				}
				for i, want := range c.pauses {
					if got := sent[i+1].Sub(sent[i]); got != want {
						t.Errorf("pause %d was %v, want %v", i+1, got, want)
					}
				}
			})
		})
	}
}

// R5. What ends a renewal is told.
func TestCauses(t *testing.T) {
	shutdown := errors.New("shutting down")
	for name, c := range map[string]struct {
		end  func(t *testing.T, w *wire, l worklease.Lease, token worklease.Token, cancel context.CancelCauseFunc, stop func())
		at   time.Duration // 0: at once, else when the renewal is due
		want []error
		not  error
	}{
		"fenced": {func(t *testing.T, w *wire, _ worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, w.backend.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
			acquire(t, newLease(t, w.backend, "b"), "work")
		}, ttl / 2, []error{worklease.ErrFenced}, worklease.ErrLeaseWindowExhausted},
		"expired": {func(t *testing.T, w *wire, _ worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, w.backend.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
		}, ttl / 2, []error{worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted}, worklease.ErrFenced},
		"window": {func(_ *testing.T, w *wire, _ worklease.Lease, _ worklease.Token, _ context.CancelCauseFunc, _ func()) {
			w.fails(refuse)
		}, ttl, []error{worklease.ErrLeaseWindowExhausted}, worklease.ErrLeaseExpired},
		"parent": {func(_ *testing.T, _ *wire, _ worklease.Lease, _ worklease.Token, cancel context.CancelCauseFunc, _ func()) {
			cancel(shutdown)
		}, 0, []error{shutdown}, worklease.ErrLeaseWindowExhausted},
		"stopped": {func(_ *testing.T, _ *wire, _ worklease.Lease, _ worklease.Token, _ context.CancelCauseFunc, stop func()) {
			stop()
		}, 0, []error{context.Canceled}, worklease.ErrLeaseWindowExhausted},
		"released": {func(t *testing.T, _ *wire, l worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, l.Release(t.Context(), token))
		}, 0, []error{context.Canceled}, worklease.ErrLeaseWindowExhausted},
		"forgotten": {func(t *testing.T, _ *wire, l worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, l.Forget(t.Context(), token))
		}, 0, []error{context.Canceled}, worklease.ErrLeaseWindowExhausted},
		"fenced checkpoint": {func(t *testing.T, w *wire, l worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, w.backend.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
			acquire(t, newLease(t, w.backend, "b"), "work")
			wantIs(t, l.Checkpoint(t.Context(), token, []byte("zombie")), worklease.ErrFenced)
		}, 0, []error{worklease.ErrFenced}, worklease.ErrLeaseWindowExhausted},
		"expired renewal by hand": {func(t *testing.T, w *wire, l worklease.Lease, token worklease.Token, _ context.CancelCauseFunc, _ func()) {
			must(t, w.backend.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
			wantIs(t, l.Renew(t.Context(), token), worklease.ErrLeaseExpired)
		}, 0, []error{worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted}, worklease.ErrFenced},
	} {
		bubbleNamed(t, name, func(t *testing.T) {
			w := newWire(nil)
			l := newLease(t, w, "a")
			began := time.Now()
			token := acquire(t, l, "work")
			parent, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			ctx, stop := l.StartRenewal(parent, token)
			child, cancelChild := context.WithCancel(ctx)
			defer cancelChild()
			wantLive(t, ctx)
			c.end(t, w, l, token, cancel, stop)
			<-ctx.Done()
			<-child.Done()
			if took := time.Since(began); took != c.at {
				t.Errorf("the context ended after %v, want %v", took, c.at)
			}
			wantIs(t, context.Cause(ctx), c.want...)
			wantIs(t, context.Cause(child), c.want...)
			wantIsNot(t, context.Cause(ctx), c.not)
			wantIs(t, ctx.Err(), context.Canceled)
			stop()
			stop()
			wantIs(t, context.Cause(ctx), c.want...)
		})
	}
}

// R5, S24. A parent that has ended already.
func TestRenewalUnderAnEndedParent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		cause := errors.New("over")
		parent, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		ctx, stop := l.StartRenewal(parent, token)
		<-ctx.Done()
		wantIs(t, context.Cause(ctx), cause)
		time.Sleep(ttl)
		stop()
		if n := w.count(opRenew); n != 0 {
			t.Errorf("%d renewals were sent", n)
		}
	})
}

// R2. A checkpoint moves the window and replaces the next renewal.
func TestCheckpointReplacesARenewal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		for range 20 {
			time.Sleep(ttl / 3)
			must(t, l.Checkpoint(t.Context(), token, nil))
		}
		if n := w.count(opRenew); n != 0 {
			t.Errorf("%d renewals were sent beside checkpoints", n)
		}
		time.Sleep(ttl/2 - 1)
		if n := w.count(opRenew); n != 0 {
			t.Error("a renewal came before half a TTL had passed since the checkpoint")
		}
		time.Sleep(2 * time.Nanosecond)
		if n := w.count(opRenew); n != 1 {
			t.Errorf("%d renewals came half a TTL after the checkpoint", n)
		}
		wantLive(t, ctx)
		stop()
	})
}

// R2. Checkpoints keep a lease whose renewals all fail.
func TestCheckpointsKeepTheLease(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRenew, hang))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		for range 20 {
			time.Sleep(ttl - time.Second)
			must(t, l.Checkpoint(t.Context(), token, nil))
			wantLive(t, ctx)
		}
	})
}

// R2. Lost is final; a late checkpoint may save all the same.
func TestLostIsFinal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRenew, refuse))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		<-ctx.Done()
		w.fails(nil)
		must(t, l.Checkpoint(t.Context(), token, []byte("late")))
		must(t, l.Renew(t.Context(), token))
		wantState(t, l, token, "late")
		if ctx.Err() == nil {
			t.Error("a context came back")
		}
		if _, ok := l.Deadline(token); ok {
			t.Error("trust came back")
		}
		again, stopAgain := l.StartRenewal(t.Context(), token)
		defer stopAgain()
		if again.Err() == nil {
			t.Error("a lost lease has a new context")
		}
		// The lease can be had again as any other.
		must(t, l.Release(t.Context(), token))
		ctx, stop = l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(3 * ttl)
		wantLive(t, ctx)
		stop()
	})
}

// R3. A resumed token is renewed first, and trusted from that reply on.
func TestResumedTokenRenewsFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		token := resumed(acquire(t, newLease(t, w, "a"), "work"))
		l := newLease(t, w, "a") // another process
		time.Sleep(ttl - time.Second)
		if _, ok := l.Deadline(token); ok {
			t.Error("a resumed token is trusted before its first renewal")
		}
		ctx, stop := l.StartRenewal(t.Context(), token)
		synctest.Wait()
		if n := w.count(opRenew); n != 1 {
			t.Errorf("%d renewals were sent at once, want 1", n)
		}
		if _, ok := l.Deadline(token); !ok {
			t.Error("a resumed token is not trusted after its renewal")
		}
		time.Sleep(10 * ttl)
		wantLive(t, ctx)
		stop()

		late := acquire(t, newLease(t, w, "b"), "late")
		time.Sleep(ttl)
		ctx, stop = newLease(t, w, "b").StartRenewal(t.Context(), resumed(late))
		defer stop()
		<-ctx.Done()
		wantIs(t, context.Cause(ctx), worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted)
	})
}

// R1, R3. The row knows the TTL: a Lease with a longer one renews a resumed token in
// time, and does not trust it for longer.
func TestResumedTokenOfAShorterTTL(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		short := configured(t, w, worklease.Config{TTL: ttl / 10, HolderID: "a"})
		token := resumed(acquire(t, short, "work"))
		l := newLease(t, w, "a")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		time.Sleep(3 * ttl)
		wantLive(t, ctx)
		w.fails(only(opRenew, hang))
		began := time.Now()
		<-ctx.Done()
		if took := time.Since(began); took > ttl/10 {
			t.Errorf("the context ended %v after the last renewal of a lease of %v", took, ttl/10)
		}
	})
}

// R1. Also when the first renewal, which tells what time is left, is the only one that
// comes through, and nobody looks at the context.
func TestResumedTokenOfAShorterTTLRenewedOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(2 * ttl)
		w := newWire(nil)
		short := configured(t, w, worklease.Config{TTL: ttl / 10, HolderID: "a"})
		token := resumed(acquire(t, short, "work"))
		w.fails(only(opRenew, func(_ context.Context, _ string, n int, do func() error) error {
			if n == 1 {
				return do()
			}
			time.Sleep(ttl)
			return errLine
		}))
		began := time.Now()
		ctx, stop := newLease(t, w, "a").StartRenewal(t.Context(), token)
		defer stop()
		ended := make(chan time.Duration, 1)
		context.AfterFunc(ctx, func() { ended <- time.Since(began) })
		if took := <-ended; took != ttl/10 {
			t.Errorf("the context ended %v after the renewal of a lease of %v", took, ttl/10)
		}
	})
}

// S23. In a process that was stopped and goes on, no timer may have fired before the
// work looks at its context: the look alone must do.
func TestContextOfAStalledProcess(t *testing.T) {
	for name, over := range map[string]func(context.Context) bool{
		"Err": func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
		"Cause": func(ctx context.Context) bool { return context.Cause(ctx) != nil },
	} {
		bubbleNamed(t, name, func(t *testing.T) {
			defer time.Sleep(3 * ttl)
			w := newWire(only(opRenew, func(context.Context, string, int, func() error) error {
				time.Sleep(3 * ttl)
				return nil
			}))
			l := newLease(t, w, "a")
			ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
			defer stop()
			worklease.StopTimers(ctx)
			time.Sleep(ttl - 1)
			if over(ctx) {
				t.Error("the context has ended before its window")
			}
			time.Sleep(time.Nanosecond)
			if !over(ctx) {
				t.Error("the context is alive after its window")
			}
			wantIs(t, ctx.Err(), context.Canceled)
			wantIs(t, context.Cause(ctx), worklease.ErrLeaseWindowExhausted)
		})
	}
}

// R6.
func TestStopRenewalTwiceAndByMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(nil)
		l := newLease(t, w, "a")
		_, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(ttl)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(stop)
		}
		wg.Wait()
		stop()
		before := w.count(opRenew)
		time.Sleep(10 * ttl)
		if n := w.count(opRenew) - before; n != 0 {
			t.Errorf("%d renewals followed stopRenewal", n)
		}
	})
}

// R6. stopRenewal waits for a statement under way, and not for ever.
func TestStopRenewalWaitsForTheStatement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var landed bool
		w := newWire(only(opRenew, func(_ context.Context, _ string, _ int, do func() error) error {
			time.Sleep(500 * time.Millisecond)
			landed = true
			return do()
		}))
		l := newLease(t, w, "a")
		_, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(ttl/2 + time.Millisecond)
		stop()
		if !landed {
			t.Error("stopRenewal returned while a statement was under way")
		}
	})
	bubbleNamed(t, "hanging", func(t *testing.T) {
		var underWay atomic.Int64
		w := newWire(only(opRenew, func(ctx context.Context, id string, n int, do func() error) error {
			underWay.Add(1)
			defer underWay.Add(-1)
			return hang(ctx, id, n, do)
		}))
		l := newLease(t, w, "a")
		_, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(ttl/2 + time.Millisecond)
		began := time.Now()
		stop()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("stopRenewal took %v", took)
		}
		if underWay.Load() > 0 {
			t.Error("stopRenewal left a call that may yet send its statement")
		}
		n := w.count(opRenew)
		time.Sleep(ttl)
		if w.count(opRenew) != n {
			t.Error("a renewal followed stopRenewal")
		}
	})
}

// Two renewals of one token have each their own end.
func TestTwoRenewalsOfOneToken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLease(t, memory.New(), "a")
		token := acquire(t, l, "work")
		first, stopFirst := l.StartRenewal(t.Context(), token)
		second, stopSecond := l.StartRenewal(t.Context(), token)
		time.Sleep(3 * ttl)
		stopFirst()
		time.Sleep(3 * ttl)
		if first.Err() == nil {
			t.Error("the stopped renewal's context lives")
		}
		wantLive(t, second)
		must(t, l.Release(t.Context(), token))
		<-second.Done()
		stopSecond()
	})
}

// S23, S27. An owner that lives but does not move loses its lease.
func TestProgressDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New()
		l := newLease(t, b, "a")
		token := acquire(t, l, "work")
		time.Sleep(ttl / 4)
		ctx, stop := l.StartRenewal(t.Context(), token, worklease.WithProgressDeadline(10*ttl))
		defer stop()
		for range 3 {
			time.Sleep(9 * ttl)
			wantLive(t, ctx)
			must(t, l.Checkpoint(t.Context(), token, nil))
		}
		moved := time.Now()
		<-ctx.Done()
		if took := time.Since(moved); took != 10*ttl {
			t.Errorf("the context ended %v after the last checkpoint, want %v", took, 10*ttl)
		}
		wantIs(t, context.Cause(ctx), worklease.ErrStalled)
		wantIsNot(t, context.Cause(ctx), worklease.ErrLeaseWindowExhausted)
		must(t, l.Release(t.Context(), token, worklease.WithExit(worklease.ExitAbandoned)))
	})
	bubbleNamed(t, "off", func(t *testing.T) {
		l := newLease(t, memory.New(), "a")
		ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"), worklease.WithProgressDeadline(-1))
		time.Sleep(1000 * ttl)
		wantLive(t, ctx)
		stop()
	})
	bubbleNamed(t, "no checkpoint, then the lease lapses", func(t *testing.T) {
		b := memory.New()
		l := newLease(t, b, "a")
		ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"), worklease.WithProgressDeadline(ttl))
		defer stop()
		<-ctx.Done()
		wantIs(t, context.Cause(ctx), worklease.ErrStalled)
		time.Sleep(ttl)
		acquire(t, newLease(t, b, "b"), "work")
	})
}

// R9, through a Lease: a success never shortens the time left.
func TestLateSuccessDoesNotShorten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRenew, first(1, delay(5*time.Second))))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		go func() { _ = l.Renew(t.Context(), token) }() // sent now, answered in 5 s
		time.Sleep(3 * time.Second)
		must(t, l.Renew(t.Context(), token))
		end, _ := l.Deadline(token)
		time.Sleep(3 * time.Second)
		if after, ok := l.Deadline(token); !ok || !after.Equal(end) {
			t.Errorf("an earlier renewal's late reply moved the deadline by %v", after.Sub(end))
		}
	})
}

// A renewal by hand that is answered when its time is over confirms nothing.
func TestRenewByHandAnsweredTooLate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWire(only(opRenew, delay(ttl)))
		l := newLease(t, w, "a")
		token := acquire(t, l, "work")
		wantIs(t, l.Renew(t.Context(), token), worklease.ErrLeaseWindowExhausted)
		if _, ok := l.Deadline(token); ok {
			t.Error("the token is trusted")
		}
	})
}

// S24. Whatever happens to leases, nothing of them stays behind: a goroutine that did
// would keep the bubble from ending.
func TestNothingStaysBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(background)
		random := rand.New(rand.NewPCG(1, 2))
		var mu sync.Mutex
		draw := func(n int) int {
			mu.Lock()
			defer mu.Unlock()
			return random.IntN(n)
		}
		faults := []fault{refuse, resetAfter, loseReply, hang}
		w := newWire(func(ctx context.Context, op string, n int, do func() error) error {
			if draw(5) > 0 {
				return do()
			}
			return faults[draw(len(faults))](ctx, op, n, do)
		})
		l := configured(t, w, worklease.Config{TTL: time.Second, HolderID: "a", Observer: worklease.NopObserver{}})
		rounds := 10_000
		if testing.Short() {
			rounds = 1_000
		}
		var wg sync.WaitGroup
		for worker := range 100 {
			wg.Go(func() {
				for i := range rounds / 100 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+draw(3000))*time.Millisecond)
					token, err := l.Acquire(ctx, fmt.Sprint(worker, i), worklease.WithWaitForLease())
					if err == nil {
						renewCtx, stop := l.StartRenewal(ctx, token)
						_ = l.Checkpoint(renewCtx, token, []byte("x"))
						switch draw(4) {
						case 0:
							<-renewCtx.Done()
						case 1:
							stop()
						case 2:
							cancel()
						}
						if draw(2) == 0 {
							_ = l.Release(ctx, token)
						}
						stop()
						if renewCtx.Err() == nil {
							t.Error("a stopped renewal's context lives")
						}
					}
					cancel()
				}
			})
		}
		wg.Wait()
	})
}

// R3. The longest TTL there is does not end at once; it is counted without a bubble,
// where no time passes between two looks at the clock.
func TestResumedForTheLongestTTL(t *testing.T) {
	t.Parallel()
	l := configured(t, memory.New(), worklease.Config{TTL: math.MaxInt64, HolderID: "a"})
	ctx, stop := l.StartRenewal(t.Context(), resumed(acquire(t, l, "work")))
	wantLive(t, ctx)
	stop()
}

// R1, R5. A call that finds the window over ends those that stood on it, whoever comes
// first: it or their timer.
func TestStartRenewalAtTheEndOfTheWindow(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			l := newLease(t, newWire(only(opRenew, refuse)), "a")
			token := acquire(t, l, "work")
			first, stopFirst := l.StartRenewal(t.Context(), token)
			defer stopFirst()
			time.Sleep(ttl)
			second, stopSecond := l.StartRenewal(t.Context(), token)
			defer stopSecond()
			time.Sleep(time.Millisecond)
			for _, ctx := range []context.Context{first, second} {
				if ctx.Err() == nil {
					t.Fatal("a context outlives its window")
				}
				wantIs(t, context.Cause(ctx), worklease.ErrLeaseWindowExhausted)
			}
		})
	}
}

// E1: the cause keeps what the last renewal failed of, and Is nothing but an exhausted
// window: a statement that was given up does not make it a context's end.
func TestCauseKeepsTheLastError(t *testing.T) {
	for name, last := range map[string]error{
		"of the backend": &brokenError{"the disk is full"},
		"given up":       fmt.Errorf("%w: %w", &brokenError{"no reply"}, context.DeadlineExceeded),
	} {
		bubbleNamed(t, name, func(t *testing.T) {
			l := newLease(t, newWire(only(opRenew, func(context.Context, string, int, func() error) error { return last })), "a")
			ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
			defer stop()
			<-ctx.Done()
			cause := context.Cause(ctx)
			wantIs(t, cause, worklease.ErrLeaseWindowExhausted)
			var broken *brokenError
			if !errors.As(cause, &broken) || !strings.Contains(cause.Error(), broken.what) {
				t.Errorf("the cause has lost what the renewal failed of: %v", cause)
			}
			var permanent interface{ Permanent() bool }
			if errors.Is(cause, context.DeadlineExceeded) || errors.Is(cause, worklease.ErrLeaseExpired) || errors.As(cause, &permanent) {
				t.Errorf("the cause is more than an exhausted window: %v", cause)
			}
		})
	}
}

type brokenError struct{ what string }

func (e *brokenError) Error() string { return e.what }

// Permanent is what a pool's slot would die of.
func (e *brokenError) Permanent() bool { return true }
