package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	sqlRenewMany = fault.Containing("-- worklease: renew many")
	sqlJudgeMany = fault.Containing("-- worklease: judge many")
)

// hold acquires n leases and keeps them, in contexts by their places.
func hold(t *testing.T, l worklease.Lease, n int) (tokens []worklease.Token, contexts []context.Context) {
	t.Helper()
	for i := range n {
		token := take(t, l, fmt.Sprint("w", i))
		ctx, stop := l.StartRenewal(t.Context(), token)
		t.Cleanup(stop)
		tokens, contexts = append(tokens, token), append(contexts, ctx)
	}
	return tokens, contexts
}

// lostAmong returns the places of the contexts that have ended.
func lostAmong(contexts []context.Context) (places []int) {
	for i, ctx := range contexts {
		if ctx.Err() != nil {
			places = append(places, i)
		}
	}
	return places
}

// R7, P5: many leases are kept in a few statements and goroutines, and one that is lost
// is lost alone. S16, S18, S28.
func TestManyLeasesInFewStatements(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool)
	n := rounds(200, 600, 10_000)
	ttl := rounds(6*time.Second, 6*time.Second, 30*time.Second)
	const ttls = 2
	l := newLeaseFor(t, b, "holder", ttl)
	before := runtime.NumGoroutine()
	tokens, contexts := hold(t, l, n)
	exec(t, direct, `UPDATE worklease_leases SET fencing_token = fencing_token + 1000000 WHERE work_id = 'w7'`)
	await(t, "the fenced lease is lost", contexts[7].Done())
	refused(t, "its cause", context.Cause(contexts[7]), worklease.ErrFenced)
	// They were acquired one after the other; now they come together.
	time.Sleep(ttl)
	tracer.Reset()
	time.Sleep(ttls * ttl)
	statements := tracer.Count(sqlRenewMany)
	goroutines := float64(runtime.NumGoroutine()-before) / float64(n)
	t.Logf("%d leases, %d TTLs: %d statements, and %d that judge; %.2f goroutines each", n, ttls, statements, tracer.Count(sqlJudgeMany), goroutines)
	if lost := lostAmong(contexts); !slices.Equal(lost, []int{7}) {
		t.Fatalf("lost: %d, the first %v", len(lost), context.Cause(contexts[lost[0]]))
	}
	// A round each half of a TTL; a tenth of it gathers.
	if most := 2 * ttls * (n/500 + 1) * 6; statements > most {
		t.Errorf("%d statements, want at most %d", statements, most)
	}
	if goroutines > 1.5 { // context.AfterFunc of a parent that is the test's own needs one
		t.Errorf("%.2f goroutines for each lease", goroutines)
	}
	if deadline, ok := l.Deadline(tokens[0]); !ok || time.Until(deadline) > ttl {
		t.Errorf("deadline %v, %v", time.Until(deadline), ok)
	}
}

// lateness watches renewals: what was late, failed or lost.
type lateness struct {
	worklease.NopObserver
	mu     sync.Mutex
	failed map[string]int
	last   map[string]error
}

func (o *lateness) OnRenew(_ context.Context, e worklease.RenewEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.last[e.Token.WorkID()] = e.Err; e.Err != nil {
		o.failed[e.Token.WorkID()]++
	}
}

// R7: one locked row delays no other lease; its own is renewed when the lock goes, and
// is asked for in moderation. S17.
func TestOneLockedRowAmongMany(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	b := newBackend(t, pgtest.Open(t, url))
	const ttl = 6 * time.Second // a busy machine must be able to renew in time
	seen := &lateness{failed: make(map[string]int), last: make(map[string]error)}
	l := newObserved(t, b, "holder", ttl, seen)
	n := rounds(50, 200, 500)
	tokens, contexts := hold(t, l, n)
	blocker := lockRow(t, url, "w3")
	eventually(t, "the locked one is left out", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return seen.failed["w3"] >= 2
	})
	blocker.Release()
	eventually(t, "it is renewed after", func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return seen.last["w3"] == nil
	})
	seen.mu.Lock()
	if n := seen.failed["w3"]; n > 30 {
		t.Errorf("it was asked for %d times", n)
	}
	seen.mu.Unlock()
	if lost := lostAmong(contexts); len(lost) > 0 {
		t.Fatalf("lost: %v", lost)
	}

	// For longer than its window, it is lost, and alone.
	blocker = lockRow(t, url, "w5")
	end := time.Now().Add(2 * ttl)
	await(t, "its window ends", contexts[5].Done())
	for time.Now().Before(end) {
		time.Sleep(ttl / 20)
		for i, token := range tokens {
			if deadline, ok := l.Deadline(token); i != 5 && (!ok || time.Until(deadline) < ttl/10) {
				t.Fatalf("%s is late: %v, %v", token.WorkID(), time.Until(deadline), ok)
			}
		}
	}
	refused(t, "its cause", context.Cause(contexts[5]), worklease.ErrLeaseWindowExhausted)
	if lost := lostAmong(contexts); !slices.Equal(lost, []int{5}) {
		t.Errorf("lost: %v", lost)
	}
	blocker.Release()
}

// R7: each claim has its own verdict, by its place, also where a work ID comes twice.
func TestVerdictsOfABatch(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
			}))
			b := newBackend(t, pool)
			claim := func(workID string) worklease.Claim {
				c, _ := grant(t, b, attempt(isolation+workID, "holder"))
				return c
			}
			live, locked, lapsed, gone := claim("live"), claim("locked"), claim("lapsed"), claim("gone")
			resumed, fenced, absent := live, live, live
			resumed.Nonce = ""
			fenced.FencingToken++
			absent.WorkID += " not"
			endLease(t, pool, lapsed.WorkID)
			must(t, b.Release(t.Context(), gone, worklease.Farewell{Exit: worklease.ExitReleased}))
			defer lockRow(t, url, locked.WorkID).Release()

			claims := []worklease.Claim{fenced, live, locked, absent, resumed, lapsed, gone, live}
			got, err := b.RenewBatch(t.Context(), claims, time.Minute)
			must(t, err)
			for i, want := range []error{worklease.ErrFenced, nil, nil, worklease.ErrFenced, nil, worklease.ErrLeaseExpired, worklease.ErrLeaseExpired, nil} {
				switch err := got[i].Err; {
				case claims[i] == locked:
					if err == nil || errors.Is(err, worklease.ErrFenced) || errors.Is(err, worklease.ErrLeaseExpired) {
						t.Errorf("locked: %v", err)
					}
				case !errors.Is(err, want):
					t.Errorf("%d: %v, want %v", i, err, want)
				case want == nil && (got[i].Remaining <= 50*time.Second || got[i].Remaining > time.Minute):
					t.Errorf("%d: %v remain", i, got[i].Remaining)
				}
			}
			if got, err := b.RenewBatch(t.Context(), nil, time.Minute); err != nil || len(got) != 0 {
				t.Errorf("nothing: %v, %v", got, err)
			}
		})
	}
}

// R7: a lease that is kept twice, also under a resumed token, is kept as if alone.
func TestOneLeaseKeptTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	events := newRenewEvents()
	l := newObserved(t, newBackend(t, pool), "holder", 5*time.Second, events)
	token := take(t, l, "w")
	resumed := worklease.NewToken("w", "holder", token.FencingToken(), time.Time{})
	for _, one := range []worklease.Token{token, token, resumed} {
		ctx, stop := l.StartRenewal(t.Context(), one, worklease.WithRenewalInterval(200*time.Millisecond))
		defer stop()
		defer func() {
			if ctx.Err() != nil {
				t.Errorf("lost: %v", context.Cause(ctx))
			}
		}()
	}
	for range 15 {
		if e := await(t, "a renewal", events.to); e.Err != nil || e.Attempt != 1 {
			t.Errorf("attempt %d: %v", e.Attempt, e.Err)
		}
	}
}

// R7: batches in opposite orders do not deadlock, nor lose anything.
func TestBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	var claims []worklease.Claim
	b := newBackend(t, direct)
	for i := range 100 {
		c, _ := grant(t, b, attempt(fmt.Sprint("w", i), "holder"))
		claims = append(claims, c)
	}
	backwards := slices.Clone(claims)
	slices.Reverse(backwards)
	var wg sync.WaitGroup
	for _, claims := range [][]worklease.Claim{claims, backwards[:90], claims[20:], backwards} {
		b := newBackend(t, pgtest.Open(t, url))
		wg.Go(func() {
			for range rounds(20, 50, 1000) {
				got, err := b.RenewBatch(t.Context(), claims, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				for _, r := range got {
					if errors.Is(r.Err, worklease.ErrFenced) || errors.Is(r.Err, worklease.ErrLeaseExpired) {
						t.Error(r.Err)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := query[int](t, direct, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// R7: what the batch has renewed stays renewed where nobody can be asked about the rest.
func TestVerdictsThatCannotBeHad(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.warmUp(t)
	live, _ := grant(t, s.b, attempt("live", "holder"))
	locked, _ := grant(t, s.b, attempt("locked", "holder"))
	defer lockRow(t, s.url, "locked").Release()
	s.DropRequest(sqlJudgeMany, 1, fault.Reset)
	got, err := s.b.RenewBatch(t.Context(), []worklease.Claim{locked, live}, time.Minute)
	must(t, err)
	if got[1].Err != nil || got[1].Remaining <= 0 {
		t.Errorf("live: %+v", got[1])
	}
	if err := got[0].Err; err == nil || errors.Is(err, worklease.ErrFenced) || errors.Is(err, worklease.ErrLeaseExpired) {
		t.Errorf("locked: %v", err)
	}
}
