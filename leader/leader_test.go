package leader_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/ctxerr"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
	"github.com/aetomala/worklease/leader"
	"github.com/aetomala/worklease/memory"
	"github.com/google/go-cmp/cmp"
)

const ttl = tenuretest.TTL

// outcome is what a leader makes of an ending.
type outcome struct {
	told string
	took time.Duration // until Elect returned, or did not
}

// backoff is slept after each term that was not lost.
const backoff = 3 * time.Second

// The row and the error of each are in the table of endings.
var outcomes = map[string]outcome{
	"nil":    {"0s elected, 1s relinquished", time.Second + backoff},
	"error":  {"0s elected", time.Second + backoff},
	"Retire": {"0s elected, 1s relinquished", time.Second + backoff},
	"panic":  {"0s elected", time.Second},
	"Goexit": {"0s elected", time.Second},

	"fenced":                                 {"0s elected, 5s lost", 6 * time.Second},
	"fenced, error":                          {"0s elected, 5s lost", 6 * time.Second},
	"fenced, found by the farewell":          {"0s elected", time.Second},
	"window exhausted":                       {"0s elected, 10s lost", ttl + time.Second},
	"window exhausted, function stays (S10)": {"0s elected, 10s lost", 4 * ttl},
	"window exhausted, Retire":               {"0s elected, 10s lost", ttl},
	"stalled":                                {"0s elected, 3s lost", 4 * time.Second},
	"stalled, returns too late":              {"0s elected, 3s lost", 3*time.Second + ttl},
	"panic after a loss":                     {"0s elected, 10s lost", ttl},
	"lost while the prior was read":          {"", 0},
	"lost before the function":               {"0s elected, 10s lost", ttl + time.Second},

	"cancelled before":                  {"", 0},
	"cancelled while waiting":           {"", time.Second},
	"cancelled at the acquisition":      {"", 0},
	"cancelled while the prior is read": {"", time.Second},
	"cancelled before the function":     {"0s elected", 0},
	"cancelled, nil":                    {"0s elected, 2s relinquished", 2 * time.Second},
	"cancelled, ctx.Err()":              {"0s elected", time.Second},
	"cancelled, the cause":              {"0s elected", time.Second},
	"cancelled, error":                  {"0s elected", time.Second},
	"cancelled, Retire":                 {"0s elected, 1s relinquished", time.Second},
	"cancelled, kept for the wind-down": {"0s elected, 30s relinquished", 30 * time.Second},
	"cancelled during the farewell":     {"0s elected, 2s relinquished", 2 * time.Second},
	"wind-down exceeded":                {"0s elected, 5s lost", 7 * time.Second},
	"wind-down exceeded, by default":    {"0s elected, 31s lost", 32 * time.Second},

	"retired before":                                {"", backoff},
	"prior fails":                                   {"", backoff},
	"acquisition fails for good":                    {"", backoff},
	"error that tells of other work's lease":        {"0s elected", time.Second + backoff},
	"farewell fails":                                {"0s elected", 6*time.Second + backoff},
	"farewell fails, error":                         {"0s elected", 6*time.Second + backoff},
	"farewell fails, Retire":                        {"0s elected", 6*time.Second + backoff},
	"farewell hangs for longer than CleanupTimeout": {"0s elected", 3*time.Second + backoff},
}

// TestEndings is the table of the package comment, cut at each point.
func TestEndings(t *testing.T) {
	tenuretest.Run(t, tenuretest.Endings, func(s *tenuretest.Scene, e tenuretest.Ending) {
		want, ok := outcomes[e.Name]
		if !ok {
			s.T.Fatal("nobody says what a leader makes of it")
		}
		began := time.Now()
		var err error
		panicked, exited := tenuretest.Alone(func() { err = elect(s, e) })
		if took := time.Since(began); took != want.took {
			s.T.Errorf("Elect ended after %v, want %v", took, want.took)
		}
		if panicked != e.Panics || exited != e.Exits {
			s.T.Errorf("panicked with %v, exited %v; want %v, %v", panicked, exited, e.Panics, e.Exits)
		}
		tenuretest.CheckError(s.T, err, e.Errs)
		if diff := cmp.Diff(s.Told(), want.told); diff != "" {
			s.T.Errorf("callbacks (-got +want):\n%s", diff)
		}
	})
}

// Each line of the table is an ending.
func TestOutcomesAreOfEndings(t *testing.T) {
	t.Parallel()
	for name := range outcomes {
		if !slices.ContainsFunc(tenuretest.Endings, func(e tenuretest.Ending) bool { return e.Name == name }) {
			t.Errorf("%q is no ending", name)
		}
	}
}

// elect has one term of the scene's.
func elect(s *tenuretest.Scene, e tenuretest.Ending) error {
	var worked context.Context
	tell := func(what string) func(context.Context, worklease.Token) {
		return func(ctx context.Context, token worklease.Token) {
			if ctx != s.Ctx || token.WorkID() != tenuretest.WorkID {
				s.T.Errorf("%s with another context or token %v", what, token)
			}
			if what == "lost" && worked != nil && worked.Err() == nil {
				s.T.Error("lost, and the function's context lives")
			}
			s.Tell(what)
		}
	}
	return leader.Elect(s.Ctx, s.Lease, tenuretest.WorkID, leader.Config{
		AcquireOptions: s.AcquireOptions, RenewalOptions: s.RenewalOptions,
		BackoffInterval: backoff, CleanupTimeout: s.CleanupTimeout, WindDown: s.WindDown,
		OnElected: tell("elected"), OnLost: tell("lost"), OnRelinquished: tell("relinquished"),
	}, func(ctx context.Context) error {
		worked = ctx
		if e.Work == nil {
			s.T.Error("the function was called")
			return nil
		}
		return e.Work(s, ctx)
	})
}

func newLease(t testing.TB, b worklease.Backend, holder string) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: holder})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func nothing(context.Context) error { return nil }

type wrapped struct{ worklease.Lease }

// What cannot be is said at once, whatever the backoff, and before anything is acquired.
func TestInvalid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tenuretest.NewBackend()
		b.Acquiring = func(context.Context, func() error) error {
			t.Error("something was sent")
			return tenuretest.ErrBroken
		}
		lease := newLease(t, b, "l")
		var none context.Context
		for name, err := range map[string]error{
			"no lease":         leader.Elect(t.Context(), nil, "id", leader.Config{BackoffInterval: time.Hour}, nothing),
			"a nil pointer":    leader.Elect(t.Context(), (*wrapped)(nil), "id", leader.Config{BackoffInterval: time.Hour}, nothing),
			"no function":      leader.Elect(t.Context(), lease, "id", leader.Config{BackoffInterval: time.Hour}, nil),
			"no work ID":       leader.Elect(t.Context(), lease, "", leader.Config{BackoffInterval: time.Hour}, nothing),
			"a NUL":            leader.Elect(t.Context(), lease, "a\x00b", leader.Config{BackoffInterval: time.Hour}, nothing),
			"no UTF-8":         leader.Elect(t.Context(), lease, "\xff", leader.Config{BackoffInterval: time.Hour}, nothing),
			"a long ID":        leader.Elect(t.Context(), lease, strings.Repeat("x", worklease.MaxIDBytes+1), leader.Config{BackoffInterval: time.Hour}, nothing),
			"no context":       leader.Elect(none, lease, "id", leader.Config{BackoffInterval: time.Hour}, nothing),
			"neither of three": leader.Elect(none, nil, "", leader.Config{BackoffInterval: time.Hour}, nil),
		} {
			if !errors.Is(err, worklease.ErrInvalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if began := time.Now(); !began.Equal(synctestStart) {
			t.Errorf("it took %v", began.Sub(synctestStart))
		}
	})
}

// Bubbles begin at this time.
var synctestStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// An error of the function that Is ErrInvalid is one like any other.
func TestInvalidWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := leader.Elect(t.Context(), newLease(t, memory.New(), "l"), "id", leader.Config{BackoffInterval: backoff}, func(context.Context) error {
			return worklease.ErrInvalid
		})
		if !errors.Is(err, worklease.ErrInvalid) || time.Since(began) != backoff {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// Who asks once is told who leads, after the backoff; the end of ctx cuts that short,
// and the error stays what it was.
func TestHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		if _, err := newLease(t, b, "other").Acquire(t.Context(), "id"); err != nil {
			t.Fatal(err)
		}
		lease := newLease(t, b, "l")
		for limit, took := range map[time.Duration]time.Duration{time.Minute: backoff, time.Second: time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			began := time.Now()
			var held *worklease.HeldError
			err := leader.Elect(ctx, lease, "id", leader.Config{BackoffInterval: backoff}, nothing)
			if !errors.As(err, &held) || held.HolderID != "other" || time.Since(began) != took {
				t.Errorf("%v after %v", err, time.Since(began))
			}
			cancel()
		}
		for _, d := range []time.Duration{0, -time.Second} {
			began := time.Now()
			err := leader.Elect(t.Context(), lease, "id", leader.Config{BackoffInterval: d}, nothing)
			if !errors.Is(err, worklease.ErrLeaseHeld) || time.Since(began) != 0 {
				t.Errorf("backoff %v: %v after %v", d, err, time.Since(began))
			}
		}
	})
}

// A candidate that waits survives what passes: a database that is away for a while, and
// longer than any TTL (W2).
func TestWaitingCandidateSurvives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tenuretest.NewBackend()
		back := time.Now().Add(10 * ttl)
		tries := 0
		b.Acquiring = func(_ context.Context, do func() error) error {
			if tries++; time.Now().Before(back) {
				return tenuretest.ErrBroken
			}
			return do()
		}
		led := false
		err := leader.Elect(t.Context(), newLease(t, b, "l"), "id", leader.Config{
			AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
		}, func(context.Context) error { led = true; return nil })
		if err != nil || !led || time.Since(back) < 0 || time.Since(back) > 10*time.Second || tries > 100 {
			t.Errorf("led: %v, %v after it was back, with %d tries: %v", led, time.Since(back), tries, err)
		}
	})
}

// S57: a function that fails at once does not make a storm of terms.
func TestFlapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		terms, acquired := 0, 0
		b := tenuretest.NewBackend()
		b.Acquiring = func(_ context.Context, do func() error) error {
			mu.Lock()
			acquired++
			mu.Unlock()
			return do()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
		defer cancel()
		var candidates sync.WaitGroup
		for range 3 {
			lease := newLease(t, b, "l")
			candidates.Go(func() {
				for ctx.Err() == nil {
					err := leader.Elect(ctx, lease, "id", leader.Config{
						AcquireOptions:  []worklease.AcquireOption{worklease.WithWaitForLease()},
						BackoffInterval: time.Second,
					}, func(context.Context) error {
						mu.Lock()
						defer mu.Unlock()
						terms++
						return tenuretest.ErrWork
					})
					if !errors.Is(err, tenuretest.ErrWork) && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("Elect: %v", err)
					}
				}
			})
		}
		candidates.Wait()
		if terms < 20 || terms > 30 || acquired > 60 {
			t.Errorf("%d terms, %d acquisitions in 10 s by three candidates", terms, acquired)
		}
	})
}

// S57: where replies take too long to renew in time, terms end and begin no faster than
// leases lapse, and when they are quick again a term lasts.
func TestSlowReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const latency = ttl / 2
		var slow atomic.Bool
		slow.Store(true)
		b := tenuretest.NewBackend()
		var tries atomic.Int64
		late := func(ctx context.Context, do func() error) error {
			tries.Add(1)
			if !slow.Load() {
				return do()
			}
			if err := ctxerr.Sleep(ctx, latency/2); err != nil {
				return err
			}
			if err := do(); err != nil {
				return err
			}
			return ctxerr.Sleep(ctx, latency/2)
		}
		b.Acquiring, b.Renewing = late, late
		ctx, cancel := context.WithCancel(t.Context())
		var terms, lost atomic.Int64
		done := make(chan struct{})
		go func() {
			defer close(done)
			lease := newLease(t, b, "l")
			for ctx.Err() == nil {
				leader.Elect(ctx, lease, "id", leader.Config{
					AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
					OnElected:      func(context.Context, worklease.Token) { terms.Add(1) },
					OnLost:         func(context.Context, worklease.Token) { lost.Add(1) },
				}, func(ctx context.Context) error { <-ctx.Done(); return nil })
			}
		}()
		const ttls = 50
		time.Sleep(ttls * ttl)
		synctest.Wait()
		if n := terms.Load(); n < 2 || n > ttls || tries.Load() > 20*ttls {
			t.Errorf("%d terms, %d of them lost, %d statements in %d TTLs", n, lost.Load(), tries.Load(), ttls)
		}
		slow.Store(false)
		time.Sleep(5 * ttl)
		synctest.Wait()
		before := terms.Load()
		time.Sleep(ttls * ttl)
		synctest.Wait()
		if n := terms.Load(); n != before || lost.Load() != n-1 {
			t.Errorf("%d terms more and %d losses of %d, though replies are quick again", n-before, lost.Load(), n)
		}
		cancel()
		<-done
	})
}

// A leader that is stopped hands over as soon as the next can ask, and never before the
// function has returned.
func TestHandover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		leading, terms := 0, 0
		var mu sync.Mutex
		var candidates sync.WaitGroup
		for range 4 {
			lease := newLease(t, b, "same name") // S7
			candidates.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				err := leader.Elect(ctx, lease, "id", leader.Config{
					AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease(), worklease.WithPollInterval(100 * time.Millisecond)},
				}, func(ctx context.Context) error {
					mu.Lock()
					leading++
					terms++
					if leading != 1 {
						t.Errorf("%d leaders", leading)
					}
					mu.Unlock()
					time.AfterFunc(time.Minute, cancel)
					<-ctx.Done()
					time.Sleep(20 * time.Second) // winding down
					mu.Lock()
					leading--
					mu.Unlock()
					return nil
				})
				if err != nil {
					t.Errorf("Elect: %v", err)
				}
			})
		}
		candidates.Wait()
		took := time.Since(synctestStart)
		if terms != 4 || took > 4*80*time.Second+3*100*time.Millisecond {
			t.Errorf("%d terms in %v", terms, took)
		}
	})
}

// S7: who is replaced by another of the same name learns it, and does not renew the
// other's lease.
func TestReplacedByNamesake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tenuretest.NewBackend()
		first, second := newLease(t, b, "same name"), newLease(t, b, "same name")
		var lost []time.Duration
		began := time.Now()
		err := leader.Elect(t.Context(), first, "id", leader.Config{
			OnLost: func(context.Context, worklease.Token) { lost = append(lost, time.Since(began)) },
		}, func(ctx context.Context) error {
			b.Clock.Jump(ttl)
			token, err := second.Acquire(t.Context(), "id")
			if err != nil {
				t.Error(err)
			}
			<-ctx.Done()
			if err := second.Renew(t.Context(), token); err != nil {
				t.Errorf("the second: %v", err)
			}
			return context.Cause(ctx)
		})
		if !errors.Is(err, worklease.ErrFenced) || !slices.Equal(lost, []time.Duration{ttl / 2}) {
			t.Errorf("the first: %v, lost after %v", err, lost)
		}
	})
}

// Callbacks that panic: each goes on up, once all is in order that can be.
func TestCallbacksPanic(t *testing.T) {
	for _, c := range []struct {
		in   string
		exit worklease.Exit
	}{
		{"OnElected", worklease.ExitExpired},
		{"OnLost", worklease.ExitExpired},
		{"OnRelinquished", worklease.ExitReleased},
	} {
		for _, exits := range []bool{false, true} {
			t.Run(c.in, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := tenuretest.NewBackend()
					if c.in == "OnLost" {
						b.Renewing = tenuretest.Hang
					}
					called := 0
					callback := func(in string) func(context.Context, worklease.Token) {
						return func(context.Context, worklease.Token) {
							switch {
							case in != c.in:
							case exits:
								called++
								runtime.Goexit()
							default:
								called++
								panic(in)
							}
						}
					}
					returned := false
					panicked, exited := tenuretest.Alone(func() {
						leader.Elect(t.Context(), newLease(t, b, "l"), "id", leader.Config{
							OnElected: callback("OnElected"), OnLost: callback("OnLost"), OnRelinquished: callback("OnRelinquished"),
						}, func(ctx context.Context) error {
							if c.in == "OnLost" {
								<-ctx.Done()
							}
							return nil
						})
						returned = true
					})
					// OnLost has a goroutine of its own to exit.
					goesUp := c.in != "OnLost" || !exits
					if called != 1 || returned == goesUp || (panicked == c.in) == exits || exited != (exits && goesUp) {
						t.Errorf("called %d times, returned %v, panicked with %v, exited %v", called, returned, panicked, exited)
					}
					next := newLease(t, b.Backend, "next")
					token, err := next.Acquire(t.Context(), "id", worklease.WithWaitForLease())
					if err != nil {
						t.Fatal(err)
					}
					if prior, err := next.Prior(t.Context(), token); err != nil || prior.Exit != c.exit {
						t.Errorf("the row says %v, %v; want %v", prior.Exit, err, c.exit)
					}
				})
			})
		}
	}
}

// Callbacks that block: Elect waits for them, the lease is kept while that can be, and
// nobody is held up for longer than it lasts.
func TestCallbacksBlock(t *testing.T) {
	for _, in := range []string{"OnElected", "OnLost", "OnRelinquished"} {
		t.Run(in, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := tenuretest.NewBackend()
				if in == "OnLost" {
					b.Renewing = tenuretest.Broken
				}
				block := func(where string) func(context.Context, worklease.Token) {
					return func(context.Context, worklease.Token) {
						if in == where {
							time.Sleep(3 * ttl)
						}
					}
				}
				began := time.Now()
				var ended time.Duration
				done := make(chan struct{})
				go func() {
					defer close(done)
					err := leader.Elect(t.Context(), newLease(t, b, "l"), "id", leader.Config{
						OnElected: block("OnElected"), OnLost: block("OnLost"), OnRelinquished: block("OnRelinquished"),
					}, func(ctx context.Context) error {
						if in == "OnLost" {
							<-ctx.Done()
							ended = time.Since(began)
						}
						return nil
					})
					if err != nil != (in == "OnLost") {
						t.Errorf("Elect: %v", err)
					}
				}()
				synctest.Wait()
				if _, err := newLease(t, b.Backend, "next").Acquire(t.Context(), "id", worklease.WithWaitForLease(), worklease.WithPollInterval(10*time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				took := time.Since(began)
				want := map[string]time.Duration{"OnElected": 3 * ttl, "OnLost": ttl, "OnRelinquished": 0}[in]
				if took < want || took > want+20*time.Millisecond {
					t.Errorf("the next had it after %v, want %v", took, want)
				}
				<-done
				if whole := map[string]time.Duration{"OnElected": 3 * ttl, "OnLost": 4 * ttl, "OnRelinquished": 3 * ttl}[in]; time.Since(began) < whole {
					t.Errorf("Elect returned after %v, want %v", time.Since(began), whole)
				}
				if in == "OnLost" && ended != ttl {
					t.Errorf("the function's context ended after %v", ended)
				}
			})
		})
	}
}

// No callbacks at all.
func TestNoCallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := tenuretest.NewBackend()
		if err := leader.Elect(t.Context(), newLease(t, b, "l"), "id", leader.Config{}, nothing); err != nil {
			t.Error(err)
		}
		b.Renewing = tenuretest.Broken
		err := leader.Elect(t.Context(), newLease(t, b, "l"), "id", leader.Config{}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, worklease.ErrLeaseWindowExhausted) {
			t.Error(err)
		}
	})
}
