package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// patiently takes everything out of reach that wakes a waiter by the clock alone: what
// is woken then was told.
var patiently = pgxbackend.WithPace(pgxbackend.Pace{Safety: time.Hour})

var (
	slowly  = worklease.WithPollInterval(time.Hour)
	sqlLook = fault.Containing("-- worklease: look")
)

// queue starts a waiting Acquire, and returns when it stands in line.
func queue(t testing.TB, b *pgxbackend.Backend, l worklease.Lease, workID string) <-chan result[worklease.Token] {
	t.Helper()
	before := b.Stats().Waiters
	done := background(func() (worklease.Token, error) {
		return l.Acquire(t.Context(), workID, worklease.WithWaitForLease(), slowly)
	})
	eventually(t, "the waiter stands in line", func() bool { return b.Stats().Waiters > before || len(done) > 0 })
	return done
}

// asleep waits until all who wait at b do so on confirmed marks: they have been looked
// at since notifications arrive, and nobody looks any more.
func asleep(t testing.TB, b *pgxbackend.Backend) {
	t.Helper()
	hears(t, b)
	last, since := b.Stats().Looks, time.Now()
	eventually(t, "those who wait are asleep", func() bool {
		if now := b.Stats().Looks; now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 150*time.Millisecond
	})
}

func hears(t testing.TB, b *pgxbackend.Backend) {
	t.Helper()
	eventually(t, "notifications arrive", func() bool { return b.Stats().Listening })
}

// W4: a release is in flight when a waiter looks: it found no mark, and notifies
// nobody. The look cannot mark the row, and nobody may sleep on it. S38.
func TestLookWhileAReleaseIsInFlight(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	b := newBackend(t, pool, patiently)
	l := newLease(t, b, "holder")
	take(t, newLeaseFor(t, b, "owner", time.Hour), "w")
	tx, err := pool.Begin(t.Context())
	must(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), `UPDATE worklease_leases SET exit = 2, exit_token = fencing_token WHERE work_id = 'w'`)
	must(t, err)
	done := queue(t, b, l, "w")
	hears(t, b)
	looks := b.Stats().Looks
	eventually(t, "it looks again and again", func() bool { return b.Stats().Looks >= looks+3 })
	must(t, tx.Commit(t.Context()))
	must(t, await(t, "the waiter gets the work", done).err)
}

// ear hears the notices of a Backend.
type ear struct {
	conn    *pgx.Conn
	channel string
}

func listen(t *testing.T, url string, b *pgxbackend.Backend) ear {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) })
	exec(t, conn, "LISTEN "+b.Channel())
	return ear{conn, b.Channel()}
}

// heard returns the work IDs notified so far.
func (e ear) heard(t *testing.T, db fault.DB) (ids []string) {
	t.Helper()
	exec(t, db, `SELECT pg_notify($1, 'that is all')`, e.channel)
	for {
		n, err := e.conn.WaitForNotification(t.Context())
		must(t, err)
		switch {
		case n.Payload == "that is all":
			return ids
		case len(n.Payload) <= worklease.MaxIDBytes: // longer are probes
			ids = append(ids, n.Payload)
		}
	}
}

// W3, W4, H6: a release nobody waits for notifies nobody; under a mark, whoever set it,
// it notifies once, and so do Forget and a grant that is given back. S42.
func TestNoticesUnderAMarkOnly(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	b := newBackend(t, pool, patiently)
	l := newLease(t, b, "holder")
	ear := listen(t, url, b)
	for range rounds(50, 200, 1000) {
		must(t, l.Release(t.Context(), take(t, l, "unwanted")))
		must(t, l.Forget(t.Context(), take(t, l, "unwanted")))
		claim, _ := grant(t, b, attempt("unwanted", "holder"))
		must(t, b.Release(t.Context(), claim, worklease.Farewell{}))
	}
	if got := ear.heard(t, pool); len(got) > 0 {
		t.Errorf("%d notices, and nobody waits", len(got))
	}
	long := string(slices.Repeat([]byte("x"), worklease.MaxIDBytes)) // S43
	for workID, free := range map[string]func(worklease.Token) error{
		"released":  func(token worklease.Token) error { return l.Release(t.Context(), token) },
		long:        func(token worklease.Token) error { return l.Release(t.Context(), token) },
		"forgotten": func(token worklease.Token) error { return l.Forget(t.Context(), token) },
	} {
		token := take(t, l, workID)
		done := queue(t, b, newLease(t, b, "waiter"), workID)
		asleep(t, b)
		must(t, free(token))
		must(t, await(t, "the waiter gets the work", done).err)
		refused(t, "an old owner's release", l.Release(t.Context(), worklease.NewToken(workID, "holder", 1<<40, time.Time{})), worklease.ErrFenced)
		if got := ear.heard(t, pool); !slices.Equal(got, []string{workID}) {
			t.Errorf("notices %q, want %q once", got, workID)
		}
	}
}

// W4, W5: what was freed without its notice is notified afterwards, also under a mark
// only.
func TestNoticesThatFollow(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	b := newBackend(t, pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["lock_timeout"] = "100ms"
	})), patiently)
	l := newLease(t, b, "holder")
	ear := listen(t, url, b)
	wanted, unwanted, locked := take(t, l, "wanted"), take(t, l, "unwanted"), take(t, l, "locked")
	far := newBackend(t, direct, patiently)
	done := queue(t, far, newLease(t, far, "waiter"), "wanted")
	asleep(t, far)
	blocker := lockRow(t, url, "locked")
	err := b.Release(t.Context(), locked.Claim(), worklease.Farewell{Exit: worklease.ExitReleased})
	if sqlState(err) != "55P03" { // as if a notice had failed
		t.Errorf("Release behind a lock: %v", err)
	}
	blocker.Release()
	must(t, l.Release(t.Context(), unwanted))
	must(t, l.Release(t.Context(), wanted))
	must(t, await(t, "the waiter gets the work", done).err)
	if got := ear.heard(t, direct); !slices.Equal(got, []string{"wanted"}) {
		t.Errorf("notices %q", got)
	}
}

// W3, P6: from one Backend's release to the other's grant, there and back. How that
// compares with a bare notification is for make bench to say.
func TestHandoff(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var leases []worklease.Lease
	var backends []*pgxbackend.Backend
	for i := range 2 {
		b := newBackend(t, pgtest.Open(t, url), patiently)
		backends = append(backends, b)
		leases = append(leases, newLeaseFor(t, b, fmt.Sprint("process ", i), time.Hour))
	}
	token := take(t, leases[0], "w")
	var times []time.Duration
	for i := range rounds(20, 50, 1000) {
		from, to := i%2, (i+1)%2
		looks := backends[to].Stats().Looks
		done := queue(t, backends[to], leases[to], "w")
		hears(t, backends[to])
		eventually(t, "it is looked for", func() bool { return backends[to].Stats().Looks > looks })
		if i < 2 {
			asleep(t, backends[to])
		}
		released := time.Now()
		must(t, leases[from].Release(t.Context(), token))
		got := await(t, "the work is handed over", done)
		must(t, got.err)
		times, token = append(times, time.Since(released)), got.value
	}

	slices.Sort(times)
	last := len(times) - 1
	p50, p99 := times[last/2], times[last*99/100]
	t.Logf("handoff: p50 %v, p99 %v", p50, p99)
	if p99 > 5*time.Second {
		t.Errorf("p99 %v", p99)
	}
}

// W3: first come, first served, one attempt at a time; one that leaves hands its place
// on. S45.
func TestFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool, patiently)
	l := newLease(t, b, "holder")
	const waiters = 20
	for range rounds(1, 2, 200) {
		token := take(t, newLeaseFor(t, b, "owner", time.Hour), "w")
		served := make(chan int, waiters)
		var wg sync.WaitGroup
		var leave []context.CancelFunc
		for i := range waiters {
			ctx, cancel := context.WithCancel(t.Context())
			leave = append(leave, cancel)
			wg.Go(func() {
				defer cancel()
				token, err := l.Acquire(ctx, "w", worklease.WithWaitForLease(), slowly)
				if err != nil {
					served <- -1
					refused(t, "leaving", err, context.Canceled)
					return
				}
				served <- i
				if err := l.Release(t.Context(), token); err != nil {
					t.Error(err)
				}
			})
			eventually(t, "it stands in line", func() bool { return b.Stats().Waiters == i+1 })
		}
		asleep(t, b)
		tracer.Reset()
		gone := []int{0, 1 + rand.IntN(waiters-2), waiters - 1}
		for n, i := range gone {
			leave[i]()
			eventually(t, "it leaves", func() bool { return len(served) == n+1 })
		}
		must(t, l.Release(t.Context(), token))
		wg.Wait()
		close(served)
		last := -1
		for i := range served {
			if i >= 0 && i < last {
				t.Errorf("%d was served after %d", i, last)
			}
			last = max(last, i)
		}
		// Each waiter's try succeeds at its first turn, but for what a neighbour's notice
		// makes it try too early.
		if tries := tracer.Count(sqlAcquire); tries > 4*waiters {
			t.Errorf("%d tries for %d waiters", tries, waiters)
		}
	}
}

// W3, P8: waiting costs by the clock and not by the crowd, while the owners renew.
func TestWaitingCostsByTheClock(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	n := rounds(100, 200, 1000)
	for name, ids := range map[string]int{"one work ID": 1, "a work ID each": n} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			owners := newLeaseFor(t, newBackend(t, pgtest.Open(t, url)), "owner", ttl)
			for i := range ids {
				ctx, stop := owners.StartRenewal(t.Context(), take(t, owners, fmt.Sprint("w", i)))
				defer stop()
				defer func() {
					if err := context.Cause(ctx); err != nil {
						t.Errorf("a lease was lost: %v", err)
					}
				}()
			}
			pool, tracer := traced(t, url)
			b := newBackend(t, pool)
			l := newLease(t, b, "waiter")
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			before := runtime.NumGoroutine()
			for i := range n {
				wg.Go(func() {
					if _, err := l.Acquire(ctx, fmt.Sprint("w", i%ids), worklease.WithWaitForLease()); !errors.Is(err, context.Canceled) {
						t.Errorf("the wait ended with %v", err)
					}
				})
			}
			eventually(t, "all wait", func() bool { return b.Stats().Waiters == n && tracer.Count(sqlAcquire) >= ids })
			hears(t, b)
			time.Sleep(ttl / 2) // the first looks
			tracer.Reset()
			ttls := rounds(2, 2, 10)
			time.Sleep(time.Duration(ttls) * ttl)
			statements := tracer.Statements()
			t.Logf("%d statements in %d TTLs for %d waiters of %d work IDs; %.1f goroutines each",
				len(statements), ttls, n, ids, float64(runtime.NumGoroutine()-before)/float64(n))
			// Looks that met a renewal are repeated for what they could not mark.
			if most := 2*ttls*((ids+499)/500) + 4; len(statements) > most {
				t.Errorf("%d statements, want at most %d", len(statements), most)
			}
		})
	}
}

// W3, P7: what a crashed owner leaves is found at its expiry, all of it at once.
func TestExpiryWakesWaiters(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool, patiently)
	const n = 30
	crashed := newLeaseFor(t, newBackend(t, pgtest.Open(t, url)), "crashed", 2*time.Second)
	l := newLease(t, b, "waiter")
	var last time.Time
	for i := range n {
		token := take(t, crashed, fmt.Sprint("w", i))
		if end, ok := crashed.Deadline(token); ok {
			last = end
		}
	}
	var done []<-chan result[worklease.Token]
	for i := range n {
		done = append(done, queue(t, b, l, fmt.Sprint("w", i)))
	}
	for _, one := range done {
		must(t, await(t, "a waiter gets the work", one).err)
	}
	late := time.Since(last)
	t.Logf("the last was acquired %v after its expiry, with %d looks", late, tracer.Count(sqlLook))
	if late > 5*time.Second {
		t.Error("that is late")
	}
	if looks := tracer.Count(sqlLook); looks > 2*n {
		t.Errorf("%d looks at %d work IDs", looks, n)
	}
}

// Close: who waits hears ErrClosed, also who comes later, and nothing is left.
func TestCloseEndsWaits(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "closing" }))
	b := newBackend(t, pool)
	l := newLease(t, b, "waiter")
	token := take(t, l, "w")
	take(t, l, "v")
	var done []<-chan result[worklease.Token]
	for i := range 20 {
		done = append(done, queue(t, b, l, []string{"w", "v"}[i%2]))
	}
	hears(t, b)
	var wg sync.WaitGroup
	wg.Go(b.Close)
	wg.Go(b.Close)
	wg.Wait()
	for _, one := range done {
		refused(t, "a wait", await(t, "it ends", one).err, worklease.ErrClosed)
	}
	_, err := l.Acquire(t.Context(), "w", worklease.WithWaitForLease())
	refused(t, "a later wait", err, worklease.ErrClosed)
	refused(t, "Release", l.Release(t.Context(), token), worklease.ErrClosed)
	for _, role := range []string{"listen", "control"} {
		must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: "closing worklease " + role}, 0))
	}
	if s := b.Stats(); s.Waiters != 0 || s.Watched != 0 || s.Listening {
		t.Errorf("left: %+v", s)
	}
	if holder := query[string](t, direct, `SELECT holder_id FROM worklease_leases WHERE work_id = 'w' AND expires_at > now()`); holder != "waiter" {
		t.Errorf("the lease is held by %q", holder)
	}
}

// W3: of many who wait in many processes, a release has one try in each. S45.
func TestReleaseHasOneTryInEachProcess(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	tracer := new(fault.Tracer)
	const processes, waiters = 5, 20
	owner := newLeaseFor(t, newBackend(t, pgtest.Open(t, url)), "owner", time.Hour)
	token := take(t, owner, "w")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	granted := make(chan worklease.Token, processes*waiters)
	var backends []*pgxbackend.Backend
	var wg sync.WaitGroup
	for range processes {
		b := newBackend(t, pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer })), patiently)
		backends = append(backends, b)
		l := newLeaseFor(t, b, "waiter", time.Hour)
		for range waiters {
			wg.Go(func() {
				if token, err := l.Acquire(ctx, "w", worklease.WithWaitForLease(), slowly); err == nil {
					granted <- token
				}
			})
		}
	}
	for _, b := range backends {
		eventually(t, "all stand in line", func() bool { return b.Stats().Waiters == waiters })
		asleep(t, b)
	}
	for range 3 {
		tracer.Reset()
		must(t, owner.Release(t.Context(), token))
		token = await(t, "one gets the work", granted)
		for _, b := range backends {
			asleep(t, b)
		}
		// A look that found the work free just before makes for one more.
		if tries := tracer.Count(sqlAcquire); tries > 2*processes {
			t.Errorf("%d tries in %d processes with %d waiters each", tries, processes, waiters)
		}
	}
	leave()
	wg.Wait()
	if len(granted) > 0 {
		t.Errorf("%d grants at a time", 1+len(granted))
	}
}
