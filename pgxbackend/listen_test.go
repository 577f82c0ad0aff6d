package pgxbackend_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const listener = "waiter worklease listen"

// named gives a pool the application_name "waiter", so that its listener is "waiter
// worklease listen".
func named(more ...func(*pgxpool.Config)) pgtest.Option {
	return pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "waiter"
		for _, f := range more {
			f(c)
		}
	})
}

// logged counts the lines of a log.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func (l *logged) option() pgxbackend.Option {
	return pgxbackend.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

const (
	deafLine  = "not hearing notifications"
	againLine = "hearing notifications again"
)

// handOver lets a waiter at b get what owner holds, and returns how long it took.
func handOver(t *testing.T, b *pgxbackend.Backend, poll time.Duration, owner, waiter worklease.Lease) time.Duration {
	t.Helper()
	token := take(t, owner, "w")
	before := b.Stats().Waiters
	done := background(func() (worklease.Token, error) {
		return waiter.Acquire(t.Context(), "w", worklease.WithWaitForLease(), worklease.WithPollInterval(poll))
	})
	eventually(t, "the waiter stands in line", func() bool { return b.Stats().Waiters > before })
	began := time.Now()
	must(t, owner.Release(t.Context(), token))
	got := await(t, "the waiter gets the work", done)
	must(t, got.err)
	took := time.Since(began)
	must(t, waiter.Release(t.Context(), got.value))
	return took
}

// W3, W4: a listener that is killed again and again costs no wake-up, no connection of
// the application's and no busy loop. S39, S40.
func TestListenerIsKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	pool := pgtest.Open(t, url, named())
	b := newBackend(t, pool, patiently)
	owner, waiter := newLeaseFor(t, newBackend(t, direct), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	const poll = time.Second
	handOver(t, b, poll, owner, waiter)
	hears(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), rounds(time.Second, 2*time.Second, 10*time.Second))
	defer cancel()
	var kills int
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			n, err := fault.Terminate(t.Context(), direct, fault.Backends{App: listener})
			if err != nil {
				t.Error(err)
				return
			}
			kills += n
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	var longest time.Duration
	handovers := 0
	for ; ctx.Err() == nil; handovers++ {
		longest = max(longest, handOver(t, b, poll, owner, waiter))
	}
	wg.Wait()
	hears(t, b)
	t.Logf("%d kills, %d handoffs, the longest took %v; after it %v", kills, handovers, longest, handOver(t, b, poll, owner, waiter))
	if kills == 0 || longest > poll+5*time.Second {
		t.Errorf("%d kills; a wait of %v", kills, longest)
	}
	if s := b.Stats(); s.Reconnects > kills+5 {
		t.Errorf("%d sessions ended in %d kills", s.Reconnects, kills)
	}
	eventually(t, "the pool has its connections", func() bool { return pool.Stat().AcquiredConns() == 0 })
	must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: listener}, 1))
	// S41
	if idle := query[bool](t, direct, `SELECT backend_xmin IS NULL FROM pg_stat_activity WHERE application_name = $1`, listener); !idle {
		t.Error("the listener holds a snapshot")
	}
}

// W3: a connection that is dead without a sign is found, and those who wait poll
// meanwhile. S12, S36, S44.
func TestHalfOpenListenerIsFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := pgtest.Open(t, s.URL(s.url), named())
	t.Cleanup(s.Close)
	pace := rounds(300*time.Millisecond, 300*time.Millisecond, 0)
	var log logged
	b := newBackend(t, pool, patiently, pgxbackend.WithPace(pgxbackend.Pace{Quiet: pace, Ask: 5 * pace}), log.option())
	owner, waiter := newLeaseFor(t, newBackend(t, s.direct), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	token := take(t, owner, "w")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := background(func() (worklease.Token, error) {
		return waiter.Acquire(ctx, "w", worklease.WithWaitForLease(), worklease.WithPollInterval(200*time.Millisecond))
	})
	asleep(t, b)
	s.Only(listener).BlackHole()
	began := time.Now()
	must(t, owner.Release(t.Context(), token)) // the notice vanishes
	must(t, await(t, "the waiter gets the work", done).err)
	took := time.Since(began)
	t.Logf("found after %v", took)
	if most := max(6*pace+5*time.Second, 15*time.Second); took > most {
		t.Errorf("it took %v", took)
	}
	// Waiters poll until the line is good again.
	eventually(t, "it is known", func() bool { return !b.Stats().Listening })
	other := queue(t, b, newLease(t, b, "other"), "w")
	s.Only(listener).Pass()
	hears(t, b)
	eventually(t, "it is said", func() bool { return log.count(againLine) == 1 })
	if n := log.count(deafLine); n != 1 {
		t.Errorf("it was said %d times that nothing is heard", n)
	}
	asleep(t, b)
	exec(t, s.direct, `UPDATE worklease_leases SET expires_at = now(), exit = 2, exit_token = fencing_token`)
	exec(t, s.direct, `SELECT pg_notify($1, 'w')`, b.Channel())
	must(t, await(t, "the other gets the work", other).err)
}

// unsubscriber takes the subscription away when the connection is asked for it.
type unsubscriber struct{ times atomic.Int32 }

func (u *unsubscriber) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, "-- worklease: heartbeat") && u.times.Add(1) == 1 {
		conn.Exec(ctx, "UNLISTEN *")
	}
	return ctx
}

func (u *unsubscriber) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// W3: a subscription that was lost on a good connection is found. S36, S44.
func TestLostSubscriptionIsFound(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	thief := new(unsubscriber)
	pool := pgtest.Open(t, url, named(func(c *pgxpool.Config) { c.ConnConfig.Tracer = thief }))
	b := newBackend(t, pool, patiently, pgxbackend.WithPace(pgxbackend.Pace{Quiet: 100 * time.Millisecond}))
	l := newLeaseFor(t, b, "holder", time.Hour)
	token := take(t, l, "w")
	done := queue(t, b, l, "w")
	eventually(t, "the loss is found", func() bool { return b.Stats().Reconnects == 1 })
	asleep(t, b)
	must(t, l.Release(t.Context(), token))
	must(t, await(t, "the waiter gets the work", done).err)
	eventually(t, "it is asked for again", func() bool { return thief.times.Load() > 1 })
	if s := b.Stats(); s.Reconnects != 1 || !s.Listening {
		t.Errorf("%+v", s)
	}
}

// W3: a listener that cannot connect, not even at first, tries on. S37.
func TestListenerComesBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pool := pgtest.Open(t, s.URL(s.url), named())
	t.Cleanup(s.Close)
	var log logged
	b := newBackend(t, pool, patiently, log.option())
	l := newLeaseFor(t, b, "holder", time.Hour)
	s.Only(listener).Refuse()
	token := take(t, l, "w")
	done := queue(t, b, l, "w")
	eventually(t, "it is refused", func() bool { return b.Stats().Reconnects >= 3 })
	if s := b.Stats(); s.Listening || s.Reason == "" {
		t.Errorf("%+v", s)
	}
	s.Only(listener).Pass()
	asleep(t, b)
	must(t, l.Release(t.Context(), token))
	must(t, await(t, "the waiter gets the work", done).err)
	if n, m := log.count(deafLine), log.count(againLine); n != 1 || m != 1 {
		t.Errorf("%d and %d lines: %s", n, m, log.buf.String())
	}
}

// W3: where LISTEN succeeds and nothing arrives, as through a transaction pooler, those
// who wait poll; that is said once, and tried again. S48.
func TestDeafListenerPolls(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	elsewhere := pgtest.Database(t, pgtest.Empty())
	pool := pgtest.Open(t, url)
	var connects atomic.Int32
	var log logged
	b := newBackend(t, pool, patiently, log.option(),
		pgxbackend.WithPace(pgxbackend.Pace{Ask: 2 * time.Second, Deaf: 50 * time.Millisecond}),
		pgxbackend.WithListenConnect(func(ctx context.Context) (*pgx.Conn, error) {
			connects.Add(1)
			return pgx.Connect(ctx, elsewhere)
		}))
	owner, waiter := newLeaseFor(t, newBackend(t, pgtest.Open(t, url)), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	const poll = 100 * time.Millisecond
	for i := int32(1); i <= 2; i++ {
		if took := handOver(t, b, poll, owner, waiter); took > poll+5*time.Second {
			t.Errorf("it took %v", took)
		}
		eventually(t, "it is tried again", func() bool { return connects.Load() > i })
	}
	if s := b.Stats(); s.Listening || !strings.Contains(s.Reason, "pooler") {
		t.Errorf("%+v", s)
	}
	if n := log.count(deafLine); n != 1 {
		t.Errorf("it was said %d times: %s", n, log.buf.String())
	}
}

// W3: what WithListenConnect returns may be anything.
func TestListenConnectThatFails(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	dead, err := pgx.Connect(t.Context(), url)
	must(t, err)
	must(t, dead.Close(t.Context()))
	var calls atomic.Int32
	b := newBackend(t, pgtest.Open(t, url), patiently,
		pgxbackend.WithListenConnect(func(ctx context.Context) (*pgx.Conn, error) {
			switch calls.Add(1) {
			case 1:
				return nil, errors.New("no")
			case 2:
				return nil, nil
			case 3:
				return dead, nil
			}
			return pgx.Connect(ctx, url)
		}))
	l := newLeaseFor(t, b, "holder", time.Hour)
	token := take(t, l, "w")
	done := queue(t, b, l, "w")
	asleep(t, b)
	must(t, l.Release(t.Context(), token))
	must(t, await(t, "the waiter gets the work", done).err)
	if s := b.Stats(); s.Reconnects != 3 {
		t.Errorf("%+v", s)
	}
}

// W3: without listening everything works by polling, and no connection is opened for it.
func TestWithoutListen(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	var log logged
	b := newBackend(t, pgtest.Open(t, url, named()), patiently, pgxbackend.WithoutListen(), log.option())
	owner, waiter := newLeaseFor(t, newBackend(t, direct), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	const poll = 100 * time.Millisecond
	if took := handOver(t, b, poll, owner, waiter); took > poll+5*time.Second {
		t.Errorf("it took %v", took)
	}
	n, err := fault.Count(t.Context(), direct, fault.Backends{App: listener})
	if must(t, err); n != 0 || log.count("\n") != 0 {
		t.Errorf("%d listeners; log: %s", n, log.buf.String())
	}
	if s := b.Stats(); s.Listening || s.Reason != "WithoutListen" {
		t.Errorf("%+v", s)
	}
}

// The listener is made as the pool's connections are, by its hooks, whatever the
// application does with notifications of its own. It is there while somebody waits and
// for a while longer. S46.
func TestListenerIsMadeByThePoolsHooks(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	config, err := pgx.ParseConfig(url)
	must(t, err)
	var before, after atomic.Int32
	pool := pgtest.Open(t, url, named(func(c *pgxpool.Config) {
		c.ConnConfig.Password = "has long expired"
		c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
			cc.Password = config.Password
			if cc.RuntimeParams["application_name"] == listener {
				before.Add(1)
			}
			return nil
		}
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if conn.Config().RuntimeParams["application_name"] == listener {
				after.Add(1)
			}
			_, err := conn.Exec(ctx, "LISTEN the_applications_own")
			return err
		}
		c.ConnConfig.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) {}
	}))
	b := newBackend(t, pool, patiently, pgxbackend.WithPace(pgxbackend.Pace{Linger: 50 * time.Millisecond}))
	l := newLeaseFor(t, b, "holder", time.Hour)
	must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: listener}, 0))
	for i := int32(1); i <= 2; i++ {
		token := take(t, l, "w")
		done := queue(t, b, l, "w")
		asleep(t, b)
		must(t, l.Release(t.Context(), token))
		got := await(t, "the waiter gets the work", done)
		must(t, got.err)
		must(t, l.Release(t.Context(), got.value))
		must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: listener}, 0))
		if before.Load() != i || after.Load() != i {
			t.Errorf("%d and %d calls of the hooks for %d listeners", before.Load(), after.Load(), i)
		}
	}
}

// W3: a server that crashes between the commit of a release and its notice costs the
// waiter the time until the server is back. S39.
func TestNoticeThatACrashSwallows(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	s := newStage(t, pgtest.On(server), pgtest.ForceDrop())
	b := newBackend(t, pgtest.Open(t, s.URL(s.url), named()), patiently)
	t.Cleanup(s.Close)
	owner, waiter := newLeaseFor(t, newBackend(t, s.direct), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	token := take(t, owner, "w")
	done := queue(t, b, waiter, "w")
	asleep(t, b)
	s.Only(listener).BlackHole()
	must(t, owner.Release(t.Context(), token))
	server.Crash()
	s.Only(listener).Cut()
	must(t, server.Restart(t.Context()))
	s.Only(listener).Pass()
	must(t, await(t, "the waiter gets the work", done).err)
}

// W3: the reader of notifications waits for nobody, not even for one who never takes
// what it is told. S41.
func TestListenerWaitsForNobody(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	b := newBackend(t, pgtest.Open(t, url), patiently)
	owner, waiter := newLeaseFor(t, newBackend(t, direct), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	take(t, owner, "ignored")
	for range 3 {
		_, stop := b.Watch("ignored", time.Hour)
		defer stop()
	}
	token := take(t, owner, "w")
	done := queue(t, b, waiter, "w")
	asleep(t, b)
	exec(t, direct, `SELECT pg_notify($1, CASE n % 2 WHEN 0 THEN 'ignored' ELSE 'ignored' || n END) FROM generate_series(1, 5000) n`, b.Channel())
	must(t, owner.Release(t.Context(), token))
	must(t, await(t, "the waiter gets the work", done).err)
}
