package worklease_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// scripted is the memory backend with all its powers, whose acquisitions and batches
// may go wrong.
type scripted struct {
	*memory.Backend
	acquire func(a worklease.Attempt) error // before the try
	batch   func(claims []worklease.Claim, renewals []worklease.Renewal) error

	batches atomic.Int32
}

func (s *scripted) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	if s.acquire != nil {
		if err := s.acquire(a); err != nil {
			return worklease.Grant{}, err
		}
	}
	return s.Backend.Acquire(ctx, a)
}

func (s *scripted) RenewBatch(ctx context.Context, claims []worklease.Claim, ttl time.Duration) ([]worklease.Renewal, error) {
	s.batches.Add(1)
	renewals, err := s.Backend.RenewBatch(ctx, claims, ttl)
	if err == nil && s.batch != nil {
		err = s.batch(claims, renewals)
	}
	return renewals, err
}

// W3. Fifty who wait are served in the order in which they came, at once, with one try
// each; those that leave on the way hold nobody up.
func TestWaitersAreServedInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(background)
		var tries int
		b := &scripted{Backend: memory.New(), acquire: func(worklease.Attempt) error { tries++; return nil }}
		l := newLease(t, b, "a")
		for range 20 {
			token := acquire(t, l, "work")
			const n = 50
			var served []int
			var wg sync.WaitGroup
			var leave []context.CancelFunc
			for i := range n {
				ctx, cancel := context.WithCancel(t.Context())
				leave = append(leave, cancel)
				wg.Go(func() {
					defer cancel()
					token, err := l.Acquire(ctx, "work", worklease.WithWaitForLease())
					if errors.Is(err, context.Canceled) {
						return
					}
					must(t, err)
					served = append(served, i)
					must(t, l.Release(t.Context(), token))
				})
				synctest.Wait()
			}
			for _, i := range []int{0, 7, 8, n - 1} {
				leave[i]()
				synctest.Wait()
			}
			tries = 0
			began := time.Now()
			must(t, l.Release(t.Context(), token))
			wg.Wait()
			if len(served) != n-4 || !slices.IsSorted(served) {
				t.Fatalf("served: %v", served)
			}
			if took := time.Since(began); took > 0 || tries > 2*n {
				t.Errorf("it took %v and %d tries", took, tries)
			}
		}
	})
}

// W2, W3. A fault that may pass does not cost a waiter its turn; what ends its wait
// hands the turn on: its context, a fault that does not pass, a panic.
func TestTurnsSurviveFaults(t *testing.T) {
	for name, c := range map[string]struct {
		fault func() error
		first bool // gets the work
	}{
		"transient": {func() error { return errLine }, true},
		"permanent": {func() error { return worklease.ErrInvalid }, false},
		"panic":     {func() error { panic("backend") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				defer time.Sleep(background)
				faulty := false
				b := &scripted{Backend: memory.New()}
				b.acquire = func(a worklease.Attempt) error {
					if faulty && a.HolderID == "first" {
						faulty = false
						return c.fault()
					}
					return nil
				}
				owner := newLease(t, b, "owner")
				token := acquire(t, owner, "work")
				var served []string
				var wg sync.WaitGroup
				for _, holder := range []string{"first", "second", "third"} {
					l := newLease(t, b, holder)
					wg.Go(func() {
						defer func() { _ = recover() }()
						token, err := l.Acquire(t.Context(), "work", worklease.WithWaitForLease())
						if err == nil {
							served = append(served, holder)
							must(t, l.Release(t.Context(), token))
						}
					})
					synctest.Wait()
				}
				faulty = true
				began := time.Now()
				must(t, owner.Release(t.Context(), token))
				wg.Wait()
				want := []string{"second", "third"}
				if c.first {
					want = []string{"first", "second", "third"}
				}
				if !slices.Equal(served, want) || time.Since(began) > time.Second {
					t.Errorf("served %v within %v, want %v", served, time.Since(began), want)
				}
			})
		})
	}
}

// W3. A crashed owner's work goes to the first in line at its expiry, however long the
// poll interval.
func TestWaiterIsWokenAtTheExpiry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := memory.New()
		acquire(t, newLease(t, b, "crashed"), "work")
		began := time.Now()
		acquire(t, newLease(t, b, "b"), "work", worklease.WithWaitForLease(), worklease.WithPollInterval(24*time.Hour))
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// counted counts events of renewals.
type counted struct {
	worklease.NopObserver
	mu       sync.Mutex
	renewed  map[string]int
	attempts map[string][]int // that failed
}

func newCounted() *counted {
	return &counted{renewed: make(map[string]int), attempts: make(map[string][]int)}
}

func (c *counted) good(workID string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.renewed[workID]
}

func (c *counted) failed(workID string) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.attempts[workID])
}

func (c *counted) OnRenew(_ context.Context, e worklease.RenewEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id := e.Token.WorkID(); e.Err == nil {
		c.renewed[id]++
	} else {
		c.attempts[id] = append(c.attempts[id], e.Attempt)
	}
}

// R7. Many leases travel in full batches, and each has its own events, none dropped.
func TestManyRenewalsTravelTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const n, ttl, ttls = 5000, 30 * time.Second, 3
		b := &scripted{Backend: memory.New()}
		seen := newCounted()
		l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: "a", Observer: seen})
		must(t, err)
		var contexts []context.Context
		for i := range n {
			ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, fmt.Sprint(i)))
			defer stop()
			contexts = append(contexts, ctx)
		}
		time.Sleep(ttls*ttl - time.Second)
		synctest.Wait()
		const rounds = 2*ttls - 1
		if got := int(b.batches.Load()); got != rounds*n/worklease.MaxRenewBatch {
			t.Errorf("%d leases took %d statements in %d rounds", n, got, rounds)
		}
		for i, ctx := range contexts {
			if ctx.Err() != nil {
				t.Fatalf("lease %d was lost: %v", i, context.Cause(ctx))
			}
			if got := seen.good(fmt.Sprint(i)); got != rounds {
				t.Fatalf("lease %d had %d events, want %d", i, got, rounds)
			}
		}
	})
}

// R4, R7. A lease that a batch did not confirm is unknown, and is asked for again by its
// own backoff; one that is lost is lost alone; an error of the whole is nobody's verdict.
func TestBatchSparesTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		errLocked := errors.New("locked")
		var broken atomic.Bool
		b := &scripted{Backend: memory.New()}
		locked := 3
		b.batch = func(claims []worklease.Claim, renewals []worklease.Renewal) error {
			for i, c := range claims {
				switch {
				case c.WorkID == "locked" && locked > 0:
					locked--
					renewals[i] = worklease.Renewal{Err: errLocked}
				case c.WorkID == "fenced":
					renewals[i] = worklease.Renewal{Err: worklease.ErrFenced}
				}
			}
			if broken.Load() {
				return errLine
			}
			return nil
		}
		seen := newCounted()
		l, err := worklease.New(b, worklease.Config{TTL: 30 * time.Second, HolderID: "a", Observer: seen})
		must(t, err)
		contexts := make(map[string]context.Context)
		for _, workID := range []string{"sound", "locked", "fenced", "also sound"} {
			ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, workID), worklease.WithRenewalBackoff(time.Second, 4*time.Second, 0))
			defer stop()
			contexts[workID] = ctx
		}
		time.Sleep(25 * time.Second) // one round at 15 s, and the locked one's at 16, 18 and 22
		synctest.Wait()
		for workID, ctx := range contexts {
			if lost := ctx.Err() != nil; lost != (workID == "fenced") {
				t.Errorf("%s: %v", workID, context.Cause(ctx))
			}
		}
		wantIs(t, context.Cause(contexts["fenced"]), worklease.ErrFenced)
		if got := seen.failed("locked"); !slices.Equal(got, []int{1, 2, 3}) || seen.good("locked") != 1 {
			t.Errorf("the locked one failed in attempts %v and succeeded %d times", got, seen.good("locked"))
		}
		for _, workID := range []string{"sound", "also sound"} {
			if seen.good(workID) != 1 || len(seen.failed(workID)) > 0 {
				t.Errorf("%s: %d successes, failures %v", workID, seen.good(workID), seen.failed(workID))
			}
		}
		broken.Store(true)
		time.Sleep(15 * time.Second)
		broken.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, workID := range []string{"sound", "also sound", "locked"} {
			if contexts[workID].Err() != nil {
				t.Errorf("%s was lost: %v", workID, context.Cause(contexts[workID]))
			}
		}
		if got := seen.failed("sound"); len(got) == 0 || got[0] != 1 {
			t.Errorf("failures %v", got)
		}
	})
}

// R7. Intervals are each lease's own: short ones do not drag long ones along.
func TestIntervalsStayTheirOwn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := &scripted{Backend: memory.New()}
		seen := newCounted()
		l, err := worklease.New(b, worklease.Config{TTL: 40 * time.Second, HolderID: "a", Observer: seen})
		must(t, err)
		for workID, every := range map[string]time.Duration{"often": time.Second, "seldom": 20 * time.Second} {
			_, stop := l.StartRenewal(t.Context(), acquire(t, l, workID), worklease.WithRenewalInterval(every))
			defer stop()
		}
		time.Sleep(99*time.Second + time.Millisecond)
		synctest.Wait()
		if often, seldom := seen.good("often"), seen.good("seldom"); often < 95 || often > 99 || seldom < 4 || seldom > 5 {
			t.Errorf("%d and %d renewals", often, seldom)
		}
	})
}

// bare has no power but the five methods.
type bare struct{ worklease.Backend }

// A backend without powers polls and renews one by one.
func TestBackendWithoutPowers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := &scripted{Backend: memory.New()}
		l := newLease(t, bare{m}, "a")
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		defer stop()
		time.Sleep(10 * time.Minute)
		if ctx.Err() != nil || m.batches.Load() > 0 {
			t.Errorf("%v; %d batches", context.Cause(ctx), m.batches.Load())
		}
		done := make(chan error, 1)
		go func() {
			_, err := newLease(t, bare{m}, "b").Acquire(t.Context(), "work", worklease.WithWaitForLease())
			done <- err
		}()
		time.Sleep(time.Minute)
		must(t, l.Release(t.Context(), token))
		began := time.Now()
		must(t, <-done)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
