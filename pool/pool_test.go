package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/pool"
	"github.com/google/go-cmp/cmp"
)

func newLease(t testing.TB, b worklease.Backend, holder string) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: holder})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func nothing(context.Context, string, worklease.Token, []byte, bool) ([]byte, error) { return nil, nil }

// untilDone works until its context ends.
func untilDone(ctx context.Context, _ string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
	<-ctx.Done()
	return nil, nil
}

func names(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("id-%04d", i)
	}
	return ids
}

type wrapped struct{ worklease.Lease }

var configErrors = []error{
	pool.ErrNilLease, pool.ErrNilWorkFn, pool.ErrEmptyWorkIDs, pool.ErrInvalidWorkID, pool.ErrDuplicateWorkID,
	pool.ErrWithWaitForLeaseProhibited,
}

// All that is wrong is said together.
func TestNew(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), "p")
	waits := []worklease.AcquireOption{nil, worklease.WithWaitForLease()}
	for _, c := range []struct {
		name  string
		lease worklease.Lease
		cfg   pool.Config
		fn    pool.WorkFn
		want  []error
	}{
		{"all well", lease, pool.Config{WorkIDs: []string{"a", "A", "a "}}, nothing, nil},
		{"no lease", nil, pool.Config{WorkIDs: []string{"a"}}, nothing, []error{pool.ErrNilLease}},
		{"nil pointer", (*wrapped)(nil), pool.Config{WorkIDs: []string{"a"}}, nothing, []error{pool.ErrNilLease}},
		{"no function", lease, pool.Config{WorkIDs: []string{"a"}}, nil, []error{pool.ErrNilWorkFn}},
		{"no IDs", lease, pool.Config{WorkIDs: []string{}}, nothing, []error{pool.ErrEmptyWorkIDs}},
		{"empty ID", lease, pool.Config{WorkIDs: []string{"a", ""}}, nothing, []error{pool.ErrInvalidWorkID}},
		{"twice", lease, pool.Config{WorkIDs: []string{"a", "b", "a"}}, nothing, []error{pool.ErrDuplicateWorkID}},
		{"waits", lease, pool.Config{WorkIDs: []string{"a"}, AcquireOptions: waits}, nothing, []error{pool.ErrWithWaitForLeaseProhibited}},
		{"all but empty", nil, pool.Config{WorkIDs: []string{"a", "a", "\xff"}, AcquireOptions: waits}, nil, []error{
			pool.ErrNilLease, pool.ErrNilWorkFn, pool.ErrInvalidWorkID, pool.ErrDuplicateWorkID, pool.ErrWithWaitForLeaseProhibited}},
		{"nothing", nil, pool.Config{}, nil, []error{pool.ErrNilLease, pool.ErrNilWorkFn, pool.ErrEmptyWorkIDs}},
	} {
		p, err := pool.New(c.lease, c.cfg, c.fn)
		if (p != nil) != (c.want == nil) || (err == nil) != (c.want == nil) ||
			errors.Is(err, pool.ErrConfigInvalid) != (c.want != nil) || errors.Is(err, worklease.ErrInvalid) != (c.want != nil) {
			t.Errorf("%s: %v, %v", c.name, p, err)
		}
		for _, e := range configErrors {
			if errors.Is(err, e) != slices.Contains(c.want, e) {
				t.Errorf("%s: is %v: %v", c.name, e, err)
			}
		}
	}
	_, err := pool.New(lease, pool.Config{WorkIDs: []string{"a", "", "a", "b\x00", "a"}}, nothing)
	for _, text := range []string{"WorkIDs[1] is empty", `WorkIDs[2] is WorkIDs[0], "a"`, "WorkIDs[3] contains a NUL", `WorkIDs[4] is WorkIDs[0]`} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("no %q in %v", text, err)
		}
	}
}

// New refuses the work IDs that Acquire would.
func TestWorkIDsAsAcquire(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), "p")
	for _, id := range []string{
		"", " ", "a", "\x00", "a\x00", "\xff", "ä", "\u2028", strings.Repeat("x", worklease.MaxIDBytes),
		strings.Repeat("x", worklease.MaxIDBytes+1), strings.Repeat("ä", worklease.MaxIDBytes/2), strings.Repeat("ä", worklease.MaxIDBytes/2) + "x",
	} {
		_, refused := lease.Acquire(t.Context(), id)
		_, err := pool.New(lease, pool.Config{WorkIDs: []string{id}}, nothing)
		if (refused != nil) != errors.Is(err, pool.ErrInvalidWorkID) {
			t.Errorf("%.20q: Acquire says %v, New %v", id, refused, err)
		}
	}
}

// What New was given may change afterwards.
func TestConfigIsCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := make([]worklease.AcquireOption, 0, 8)
		cfg := pool.Config{WorkIDs: []string{"a", "b"}, AcquireOptions: opts}
		ctx, cancel := context.WithCancel(t.Context())
		p, err := pool.New(newLease(t, memory.New(), "p"), cfg, untilDone)
		if err != nil {
			t.Fatal(err)
		}
		cfg.WorkIDs[0] = "z"
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		if diff := cmp.Diff(p.ActiveSlots(), []string{"a", "b"}); diff != "" {
			t.Error(diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		for _, o := range opts[:8] {
			if o != nil {
				t.Error("the caller's array was written to")
			}
		}
	})
}

func TestPermanent(t *testing.T) {
	t.Parallel()
	cause := errors.New("row 7 is broken")
	err := pool.Permanent(cause)
	var p pool.PermanentError
	if !errors.As(fmt.Errorf("x: %w", err), &p) || !p.Permanent() || !errors.Is(err, cause) || err.Error() != cause.Error() {
		t.Errorf("%v, %v", err, p)
	}
	if err := pool.Permanent(nil); err != nil {
		t.Errorf("Permanent(nil) is %v", err)
	}
}

// The times from the end of one tenure to the call after it.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		name     string
		cfg      pool.Config
		first    func(ctx context.Context, broken *atomic.Bool) error
		from, to time.Duration
	}{
		{"rerun", pool.Config{RerunInterval: 20 * time.Second}, func(context.Context, *atomic.Bool) error { return nil }, 20 * time.Second, 24 * time.Second},
		{"rerun, default", pool.Config{RerunInterval: -1, BackoffInterval: time.Hour}, func(context.Context, *atomic.Bool) error { return nil }, time.Second, 1200 * time.Millisecond},
		{"backoff", pool.Config{BackoffInterval: 20 * time.Second}, func(context.Context, *atomic.Bool) error { return tenuretest.ErrWork }, 20 * time.Second, 20*time.Second + 1},
		{"backoff, default", pool.Config{BackoffInterval: -1, RerunInterval: time.Hour}, func(context.Context, *atomic.Bool) error { return tenuretest.ErrWork }, time.Second, time.Second + 1},
		{"lost", pool.Config{RerunInterval: time.Hour, BackoffInterval: time.Hour}, func(ctx context.Context, broken *atomic.Bool) error {
			broken.Store(true)
			<-ctx.Done()
			broken.Store(false)
			return ctx.Err()
		}, 100 * time.Millisecond, 200 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var pauses []time.Duration
				var broken atomic.Bool
				b := tenuretest.NewBackend()
				b.Renewing = func(_ context.Context, do func() error) error {
					if broken.Load() {
						return tenuretest.ErrBroken
					}
					return do()
				}
				ctx, cancel := context.WithCancel(t.Context())
				var over time.Time
				p := newPool(t, newLease(t, b, "p"), c.cfg, func(ctx context.Context, _ string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
					if !over.IsZero() {
						pauses = append(pauses, time.Since(over))
					}
					if len(pauses) == 50 {
						cancel()
						return nil, nil
					}
					defer func() { over = time.Now() }()
					return nil, c.first(ctx, &broken)
				}, "id")
				if err := p.Run(ctx); err != nil {
					t.Error(err)
				}
				checkSpread(t, pauses, c.from, c.to)
			})
		})
	}
}

// checkSpread wants all within [from, to), and drawn from the whole of it.
func checkSpread(t *testing.T, pauses []time.Duration, from, to time.Duration) {
	t.Helper()
	if len(pauses) == 0 {
		t.Fatal("no pauses")
	}
	low, high := slices.Min(pauses), slices.Max(pauses)
	if low < from || high >= to {
		t.Errorf("pauses between %v and %v, want [%v, %v)", low, high, from, to)
	}
	if width := to - from; width > 1 && (low > from+width/4 || high < to-width/4) {
		t.Errorf("pauses between %v and %v are not drawn from all of [%v, %v)", low, high, from, to)
	}
}

// asks counts acquisitions, and when they came, per work ID.
type asks struct {
	worklease.Backend
	mu    sync.Mutex
	times map[string][]time.Time
}

func (a *asks) Acquire(ctx context.Context, attempt worklease.Attempt) (worklease.Grant, error) {
	a.mu.Lock()
	if a.times == nil {
		a.times = make(map[string][]time.Time)
	}
	a.times[attempt.WorkID] = append(a.times[attempt.WorkID], time.Now())
	a.mu.Unlock()
	return a.Backend.Acquire(ctx, attempt)
}

func (a *asks) total() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, times := range a.times {
		n += len(times)
	}
	return n
}

// hold has somebody else hold the IDs until release is called.
func hold(t *testing.T, b worklease.Backend, ids []string) (release func()) {
	other := newLease(t, b, "other")
	tokens := make([]worklease.Token, len(ids))
	stops := make([]func(), len(ids))
	for i, id := range ids {
		token, err := other.Acquire(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		tokens[i] = token
		_, stops[i] = other.StartRenewal(context.WithoutCancel(t.Context()), token)
	}
	return func() {
		for i, token := range tokens {
			stops[i]()
			if err := other.Release(context.WithoutCancel(t.Context()), token); err != nil {
				t.Error(err)
			}
		}
	}
}

// A thousand slots whose leases somebody else has, where nothing can wake them: each
// asks about every IdleInterval, and each at its own times.
func TestThousandIdleSlotsThatPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, idle = 1000, 2 * time.Second
		b := &asks{Backend: memory.New()}
		ids := names(n)
		release := hold(t, b, ids)
		b.times = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p := newPool(t, newLease(t, b, "p"), pool.Config{IdleInterval: idle}, nothing, ids...)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		release()
		var pauses []time.Duration
		together := map[time.Duration]int{}
		for _, times := range b.times {
			for i := range len(times) - 1 {
				pauses = append(pauses, times[i+1].Sub(times[i]))
			}
			together[times[len(times)-1].Sub(times[0])]++
		}
		checkSpread(t, pauses, idle, idle+idle/5)
		if len(together) < n/2 {
			t.Errorf("they ask together: %d times differ", len(together))
		}
	})
}

// woken is memory that wakes who waits when work is released, and only then. It counts
// what is asked.
type woken struct {
	asks
	waiting sync.Map // work ID → its nudge
}

func (w *woken) Watch(workID string, _ time.Duration) (<-chan struct{}, func()) {
	nudge := make(chan struct{}, 1)
	nudge <- struct{}{}
	w.waiting.Store(workID, nudge)
	return nudge, func() { w.waiting.Delete(workID) }
}

func (w *woken) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	err := w.Backend.Release(ctx, c, f)
	if nudge, waits := w.waiting.Load(c.WorkID); waits && err == nil {
		nudge.(chan struct{}) <- struct{}{}
	}
	return err
}

// P14: where the backend wakes them, they cost nothing but their first question, and
// have a lease that is released at once.
func TestThousandIdleSlotsThatAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		b := &woken{asks: asks{Backend: memory.New()}}
		ids := names(n)
		release := hold(t, b, ids)
		ctx, cancel := context.WithCancel(t.Context())
		p := newPool(t, newLease(t, b, "p"), pool.Config{IdleInterval: time.Second}, untilDone, ids...)
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(time.Minute)
		if total := b.total(); total != 2*n {
			t.Errorf("%d slots and %d owners asked %d times in all", n, n, total)
		}
		release()
		synctest.Wait()
		if active := p.ActiveSlots(); !slices.Equal(active, ids) {
			t.Errorf("%d slots are active at once", len(active))
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A slot never starts its function while an earlier call runs, not even when its lease
// is long lost and free.
func TestOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tenuretest.NewBackend()
		b.Renewing = tenuretest.Broken
		var running, calls atomic.Int32
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		p := newPool(t, newLease(t, b, "p"), pool.Config{}, func(context.Context, string, worklease.Token, []byte, bool) ([]byte, error) {
			if running.Add(1) != 1 {
				t.Error("two calls at once")
			}
			calls.Add(1)
			time.Sleep(5 * ttl)
			running.Add(-1)
			return nil, nil
		}, "id")
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		if running.Load() != 0 || calls.Load() < 10 {
			t.Errorf("%d calls, %d run still", calls.Load(), running.Load())
		}
	})
}

// How Run ends when its slots do: each name says what the slot does.
func TestRunEnds(t *testing.T) {
	died := errors.New("died")
	for _, c := range []struct {
		slots string
		want  error
	}{
		{"dead", pool.ErrAllSlotsDead},
		{"dead dead-later dead", pool.ErrAllSlotsDead},
		{"retired", nil},
		{"dead retired dead", nil},
		{"retired-before", nil},
		{"retired-before dead", nil},
		{"dead error-then-dead", pool.ErrAllSlotsDead},
	} {
		t.Run(c.slots, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := newLease(t, memory.New(), "p")
				var ids []string
				for i, what := range strings.Fields(c.slots) {
					ids = append(ids, fmt.Sprint(what, ":", i))
				}
				calls := map[string]int{}
				var mu sync.Mutex
				count := func(id string) int {
					mu.Lock()
					defer mu.Unlock()
					calls[id]++
					return calls[id]
				}
				p := newPool(t, lease, pool.Config{}, func(_ context.Context, id string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
					n := count(id)
					what, _, _ := strings.Cut(id, ":")
					switch {
					case what == "error-then-dead" && n < 3:
						return nil, died
					case what == "dead-later":
						time.Sleep(time.Minute)
					case what == "retired":
						return nil, worklease.Retire
					}
					return nil, pool.Permanent(died)
				}, ids...)
				for _, id := range ids {
					if strings.HasPrefix(id, "retired-before") {
						token, err := lease.Acquire(t.Context(), id)
						if err == nil {
							err = lease.Release(t.Context(), token, worklease.WithExit(worklease.ExitRetired))
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				err := p.Run(t.Context())
				if !errors.Is(err, c.want) || c.want == nil && err != nil || errors.Is(err, died) != (c.want != nil) {
					t.Errorf("Run: %v, want %v", err, c.want)
				}
			})
		})
	}
}

// Run runs once at a time, and again.
func TestRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none context.Context
		ids := names(8)
		p := newPool(t, newLease(t, memory.New(), "p"), pool.Config{}, untilDone, ids...)
		if err := p.Run(none); !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("without a context: %v", err)
		}
		if active := p.ActiveSlots(); active == nil || len(active) != 0 {
			t.Errorf("active before Run: %#v", active)
		}
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- p.Run(ctx) }()
			synctest.Wait()
			if active := p.ActiveSlots(); !slices.Equal(active, ids) {
				t.Errorf("active: %v", active)
			}
			for range 2 {
				if err := p.Run(ctx); !errors.Is(err, pool.ErrRunning) || errors.Is(err, worklease.ErrInvalid) {
					t.Errorf("at once: %v", err)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if active := p.ActiveSlots(); len(active) != 0 {
				t.Errorf("active after Run: %v", active)
			}
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.Run(ended); err != nil {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

// A crash in one slot tells the others to stop, waits for their farewells, and goes on
// in the goroutine of Run. The first panic counts, and beats Goexit.
func TestCrashes(t *testing.T) {
	for _, c := range []struct {
		name     string
		crash    map[string]func() // what a slot does after a second
		observer pool.Observer
		panics   any
	}{
		{"panic", map[string]func(){"id-0001": func() { panic("on purpose") }}, nil, "on purpose"},
		{"Goexit", map[string]func(){"id-0001": runtime.Goexit}, nil, nil},
		{"both", map[string]func(){"id-0000": runtime.Goexit, "id-0001": func() { time.Sleep(time.Second); panic("later") }}, nil, "later"},
		{"two panics", map[string]func(){"id-0000": func() { panic("first") }, "id-0001": func() { time.Sleep(time.Second); panic("second") }}, nil, "first"},
		{"observer at acquired", nil, crashingObserver{at: "acquired"}, "acquired"},
		{"observer at released", map[string]func(){"id-0001": func() {}}, crashingObserver{at: "released"}, "released"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := memory.New()
				ids := names(5)
				var mu sync.Mutex
				told := 0
				p := newPool(t, newLease(t, b, "p"), pool.Config{Observer: c.observer}, func(ctx context.Context, id string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
					if crash := c.crash[id]; crash != nil {
						time.Sleep(time.Second)
						crash()
						return nil, nil
					}
					<-ctx.Done()
					if cause := context.Cause(ctx); !strings.Contains(cause.Error(), "slot of") {
						t.Errorf("the others are told %v", cause)
					}
					time.Sleep(time.Minute / 4) // winding down
					mu.Lock()
					told++
					mu.Unlock()
					return []byte("saved"), nil
				}, ids...)
				panicked, exited := tenuretest.Alone(func() { t.Errorf("Run returned %v", p.Run(t.Context())) })
				if panicked != c.panics || exited != (c.panics == nil) {
					t.Errorf("panicked with %v, exited %v; want %v", panicked, exited, c.panics)
				}
				if active := p.ActiveSlots(); len(active) != 0 {
					t.Errorf("active: %v", active)
				}
				if log := logged.take(); c.panics != nil && (!strings.Contains(log, fmt.Sprint("panic=", strconv.Quote(fmt.Sprint(c.panics)))) && !strings.Contains(log, fmt.Sprint("panic=", c.panics)) || !strings.Contains(log, "pool_test.go")) {
					t.Errorf("the log has no panic with its stack: %q", log)
				}
				next := newLease(t, b, "next")
				saved := 0
				for _, id := range ids {
					token, err := next.Acquire(t.Context(), id, worklease.WithWaitForLease())
					if err != nil {
						t.Fatal(err)
					}
					if prior, err := next.Prior(t.Context(), token); err != nil {
						t.Error(err)
					} else if string(prior.State) == "saved" {
						saved++
					}
				}
				if saved != told {
					t.Errorf("%d slots left in order, %d rows say so", told, saved)
				}
				if c.observer == nil && told != len(ids)-len(c.crash) {
					t.Errorf("%d slots were told to stop", told)
				}
			})
		})
	}
}

// crashingObserver panics at an event of the second slot.
type crashingObserver struct {
	pool.NopObserver
	at string
}

func (o crashingObserver) crash(at, workID string) {
	if o.at == at && workID == "id-0001" {
		panic(at)
	}
}

func (o crashingObserver) OnSlotAcquired(_ context.Context, e pool.SlotAcquiredEvent) {
	o.crash("acquired", e.WorkID)
}

func (o crashingObserver) OnSlotReleased(_ context.Context, e pool.SlotReleasedEvent) {
	o.crash("released", e.WorkID)
}

// An observer that blocks holds up its own slot, which keeps its lease, and no other.
func TestObserverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		unblock := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		p := newPool(t, newLease(t, b, "p"), pool.Config{Observer: blockingObserver{unblock: unblock}}, untilDone, names(3)...)
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		time.Sleep(5 * ttl)
		if active := p.ActiveSlots(); !slices.Equal(active, []string{"id-0000", "id-0002"}) {
			t.Errorf("active: %v", active)
		}
		if _, err := newLease(t, b, "other").Acquire(t.Context(), "id-0001"); !errors.Is(err, worklease.ErrLeaseHeld) {
			t.Errorf("the lease of the slot that is held up: %v", err)
		}
		close(unblock)
		synctest.Wait()
		if active := p.ActiveSlots(); len(active) != 3 {
			t.Errorf("active: %v", active)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type blockingObserver struct {
	pool.NopObserver
	unblock chan struct{}
}

func (o blockingObserver) OnSlotAcquired(_ context.Context, e pool.SlotAcquiredEvent) {
	if e.WorkID == "id-0001" {
		<-o.unblock
	}
}

// A nil pointer observes nothing.
func TestNilObserver(t *testing.T) {
	t.Parallel()
	var none *struct{ pool.Observer }
	p := newPool(t, newLease(t, memory.New(), "p"), pool.Config{Observer: none}, func(context.Context, string, worklease.Token, []byte, bool) ([]byte, error) {
		return nil, worklease.Retire
	}, "id")
	if err := p.Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// Intervals of any size are no shorter than the longest.
func TestHugeIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &asks{Backend: memory.New()}
		release := hold(t, b, []string{"held"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		const huge = math.MaxInt64
		var calls tally
		p := newPool(t, newLease(t, b, "p"), pool.Config{IdleInterval: huge, RerunInterval: huge, BackoffInterval: huge, Observer: &calls}, func(_ context.Context, id string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
			if id == "fails" {
				return nil, tenuretest.ErrWork
			}
			return nil, nil
		}, "held", "fails", "succeeds")
		if err := p.Run(ctx); err != nil || calls.acquired.Load() != 2 {
			t.Errorf("%d calls, %v", calls.acquired.Load(), err)
		}
		// Expiries that are nearer are waited for.
		if n := len(b.times["held"]); n > int(time.Hour/(ttl/2))+2 {
			t.Errorf("asked %d times in an hour", n)
		}
		release()
	})
}

// A Lease that does not wait, though it is asked to, costs no hot loop and is no error.
func TestLeaseThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		lease := &refusing{Lease: newLease(t, memory.New(), "p")}
		p := newPool(t, lease, pool.Config{IdleInterval: 2 * time.Second, Observer: strict{t: t}}, nothing, "id")
		if err := p.Run(ctx); err != nil || lease.asked < 25 || lease.asked > 30 {
			t.Errorf("asked %d times in a minute, %v", lease.asked, err)
		}
	})
}

type refusing struct {
	worklease.Lease
	asked int
}

func (r *refusing) Acquire(_ context.Context, workID string, opts ...worklease.AcquireOption) (worklease.Token, error) {
	if !worklease.HasWaitForLease(opts) {
		panic("the pool does not wait")
	}
	r.asked++
	return worklease.Token{}, &worklease.HeldError{WorkID: workID}
}

// strict expects no failures.
type strict struct {
	pool.NopObserver
	t *testing.T
}

func (s strict) OnSlotBackoff(_ context.Context, e pool.SlotBackoffEvent) {
	s.t.Errorf("backoff: %+v", e)
}

// State travels from call to call.
func TestState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, newLease(t, memory.New(), "p"), pool.Config{}, func(_ context.Context, _ string, _ worklease.Token, prior []byte, clean bool) ([]byte, error) {
			switch string(prior) {
			case "":
				return []byte("1"), nil
			case "1":
				if !clean {
					t.Error("the first call left in order")
				}
				return []byte("2"), tenuretest.ErrWork
			}
			if string(prior) != "2" || clean {
				t.Errorf("the third call is told %q, %v", prior, clean)
			}
			return nil, worklease.Retire
		}, "id")
		if err := p.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// S63: in a calm hour nothing is logged, and each acquisition has its one end.
func TestCalmHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logged.take()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		var counts tally
		p := newPool(t, newLease(t, memory.New(), "p"), pool.Config{Observer: &counts}, func(ctx context.Context, _ string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
			select {
			case <-time.After(45 * time.Second):
				return []byte("state"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, names(8)...)
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		if n := counts.acquired.Load(); n < 8*70 || n != counts.released.Load() || counts.others.Load() != 0 {
			t.Errorf("%d acquired, %d released, %d others", n, counts.released.Load(), counts.others.Load())
		}
		if log := logged.take(); log != "" {
			t.Errorf("logged %q", log)
		}
	})
}

type tally struct{ acquired, released, others atomic.Int32 }

func (c *tally) OnSlotAcquired(context.Context, pool.SlotAcquiredEvent) { c.acquired.Add(1) }
func (c *tally) OnSlotReleased(context.Context, pool.SlotReleasedEvent) { c.released.Add(1) }
func (c *tally) OnSlotBackoff(context.Context, pool.SlotBackoffEvent)   { c.others.Add(1) }
func (c *tally) OnSlotLost(context.Context, pool.SlotLostEvent)         { c.others.Add(1) }
func (c *tally) OnSlotDead(context.Context, pool.SlotDeadEvent)         { c.others.Add(1) }
func (c *tally) OnSlotRetired(context.Context, pool.SlotRetiredEvent)   { c.others.Add(1) }

// A slot that waits for its next tenure leaves without a word.
func TestCancelledWhileWaitingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		ctx, cancel := context.WithCancel(t.Context())
		var counts tally
		p := newPool(t, newLease(t, b, "p"), pool.Config{Observer: &counts}, nothing, "id")
		done := make(chan error)
		go func() { done <- p.Run(ctx) }()
		synctest.Wait()
		release := hold(t, b, []string{"id"})
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		release()
		if counts.acquired.Load() != 1 || counts.released.Load() != 1 || counts.others.Load() != 0 {
			t.Errorf("%d acquired, %d released, %d others", counts.acquired.Load(), counts.released.Load(), counts.others.Load())
		}
	})
}
