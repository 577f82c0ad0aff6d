package memory_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// clock is set by hand.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) step(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const ttl = 30 * time.Second

func try(b *memory.Backend, holder, nonce string) (worklease.Grant, worklease.Claim, error) {
	g, err := b.Acquire(context.Background(), worklease.Attempt{WorkID: "work", HolderID: holder, TTL: ttl, Nonce: nonce})
	return g, worklease.Claim{WorkID: "work", HolderID: holder, FencingToken: g.FencingToken, Nonce: nonce}, err
}

// An expiry equal to now has passed.
func TestExpiryIsInclusive(t *testing.T) {
	t.Parallel()
	c := newClock()
	b := memory.New(memory.WithClock(c))
	g, claim, err := try(b, "a", "1")
	if err != nil || g.Remaining != ttl || !g.ExpiresAt.Equal(c.Now().Add(ttl)) {
		t.Fatalf("got %+v, %v", g, err)
	}
	c.step(ttl - 1)
	var held *worklease.HeldError
	if _, _, err := try(b, "b", "2"); !errors.As(err, &held) || held.Remaining != 1 {
		t.Fatalf("a nanosecond before the expiry: %v", err)
	}
	if e, err := b.Renew(t.Context(), claim, time.Hour); err != nil || e.Remaining != ttl {
		t.Fatalf("a nanosecond before the expiry: %v, %v", e, err)
	}
	c.step(ttl)
	if _, err := b.Renew(t.Context(), claim, ttl); !errors.Is(err, worklease.ErrLeaseExpired) {
		t.Errorf("Renew at the expiry: %v, want ErrLeaseExpired", err)
	}
	if _, _, err := try(b, "b", "2"); err != nil {
		t.Errorf("Acquire at the expiry: %v", err)
	}
}

// S11, R9. The clock of the leases is stepped by an hour.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	c := newClock()
	b := memory.New(memory.WithClock(c))
	_, claim, err := try(b, "a", "1")
	if err != nil {
		t.Fatal(err)
	}
	// Back: the expiry is far ahead, and the next extension pulls it in.
	c.step(-time.Hour)
	var held *worklease.HeldError
	if _, _, err := try(b, "b", "2"); !errors.As(err, &held) || held.Remaining != time.Hour+ttl {
		t.Errorf("an hour back: %v", err)
	}
	for name, extend := range map[string]func() (worklease.Extension, error){
		"Renew": func() (worklease.Extension, error) { return b.Renew(t.Context(), claim, ttl) },
		"Checkpoint": func() (worklease.Extension, error) {
			return b.Checkpoint(t.Context(), claim, worklease.Save{State: []byte("x"), Number: 1, Hold: "1"})
		},
	} {
		e, err := extend()
		if err != nil || e.Remaining != ttl {
			t.Errorf("%s an hour back: %v, %v", name, e.Remaining, err)
		}
		if _, _, err := try(b, "b", "2"); !errors.As(err, &held) || held.Remaining != ttl {
			t.Errorf("after %s an hour back: %v", name, err)
		}
		c.step(-time.Hour)
	}
	if err := b.Release(t.Context(), claim, worklease.Farewell{Exit: worklease.ExitReleased}); err != nil {
		t.Error(err)
	}
	g, claim, err := try(b, "b", "2")
	if err != nil || g.FencingToken != 2 {
		t.Errorf("got token %d, %v", g.FencingToken, err)
	}
	// Ahead: the lease has lapsed, and an unspoilt owner may still save.
	c.step(time.Hour)
	if _, err := b.Renew(t.Context(), claim, ttl); !errors.Is(err, worklease.ErrLeaseExpired) {
		t.Errorf("an hour ahead: %v", err)
	}
	if e, err := b.Checkpoint(t.Context(), claim, worklease.Save{State: []byte("y"), Number: 1, Hold: "2"}); err != nil || e.Remaining != ttl {
		t.Errorf("an hour ahead: %v, %v", e.Remaining, err)
	}
}

// S11. Steps of the leases' clock decide nothing about what a process may trust.
func TestTrustDoesNotFollowTheClock(t *testing.T) {
	for name, step := range map[string]time.Duration{"an hour ahead": time.Hour, "an hour back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newClock()
				l, err := worklease.New(memory.New(memory.WithClock(c)), worklease.Config{TTL: ttl, HolderID: "a"})
				if err != nil {
					t.Fatal(err)
				}
				token, err := l.Acquire(t.Context(), "work")
				if err != nil {
					t.Fatal(err)
				}
				end, ok := l.Deadline(token)
				c.step(step)
				if again, okAgain := l.Deadline(token); !ok || !okAgain || !again.Equal(end) {
					t.Errorf("the deadline went from %v, %t to %v, %t", end, ok, again, okAgain)
				}
				ctx, stop := l.StartRenewal(t.Context(), token)
				defer stop()
				time.Sleep(ttl / 4)
				if ctx.Err() != nil {
					t.Errorf("the step cost the lease: %v", context.Cause(ctx))
				}
				if step < 0 {
					time.Sleep(3 * ttl) // renewals are by the stepped clock
					if ctx.Err() != nil {
						t.Errorf("the lease was lost: %v", context.Cause(ctx))
					}
				}
			})
		})
	}
}

// The default clock is package time's.
func TestDefaultClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(nil, memory.WithClock(nil))
		g, _, err := try(b, "a", "1")
		if err != nil || !g.ExpiresAt.Equal(time.Now().Add(ttl)) {
			t.Fatalf("got %+v, %v", g, err)
		}
		time.Sleep(ttl - 1)
		if _, _, err := try(b, "b", "2"); !errors.Is(err, worklease.ErrLeaseHeld) {
			t.Errorf("a nanosecond before the expiry: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, _, err := try(b, "b", "2"); err != nil {
			t.Errorf("at the expiry: %v", err)
		}
	})
}

// Nothing is done under a context that has ended, and the caller is told so.
func TestEndedContextIsNotApplied(t *testing.T) {
	t.Parallel()
	b := memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Acquire(ctx, worklease.Attempt{WorkID: "work", HolderID: "a", TTL: ttl, Nonce: "1"})
	var told *worklease.BackendError
	if !errors.Is(err, context.Canceled) || !errors.As(err, &told) || !told.NotApplied || told.Permanent {
		t.Errorf("got %#v", err)
	}
}

// P12.
func TestAllocations(t *testing.T) {
	l, err := worklease.New(memory.New(), worklease.Config{TTL: ttl, HolderID: "a"})
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(1000, func() {
		token, err := l.Acquire(t.Context(), "work")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations for Acquire and Release", n)
	backend := memory.New()
	n = testing.AllocsPerRun(1000, func() {
		_, claim, err := try(backend, "a", "1")
		if err != nil {
			t.Fatal(err)
		}
		if err := backend.Release(t.Context(), claim, worklease.Farewell{Exit: worklease.ExitReleased}); err != nil {
			t.Fatal(err)
		}
	})
	if n > 0 {
		t.Errorf("the backend makes %v allocations for Acquire and Release", n)
	}
}
