package pgxbackend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const controls = "waiter worklease control"

// exhaust takes all connections of a pool, busy with something slow, until release.
func exhaust(t *testing.T, pool *pgxpool.Pool) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := int(pool.Config().MaxConns)
	done := make(chan struct{}, n)
	for range n {
		conn, err := pool.Acquire(t.Context())
		must(t, err)
		go func() {
			conn.Exec(ctx, "SELECT pg_sleep(600)")
			conn.Release()
			done <- struct{}{}
		}()
	}
	return func() {
		cancel()
		for range n {
			<-done
		}
	}
}

// R8: an application that keeps all its connections busy loses no lease, its releases
// go out at once, and who waits is looked after. The Backend has at most two
// connections and its listener, none before it is needed. S14, S15, S16.
func TestApplicationsPoolIsExhausted(t *testing.T) {
	t.Parallel()
	for _, conns := range []int32{1, 2} {
		t.Run(fmt.Sprint(conns), func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			direct := pgtest.Open(t, url)
			pool := pgtest.Open(t, url, named(func(c *pgxpool.Config) { c.MaxConns = conns }))
			b := newBackend(t, pool)
			const ttl = 2 * time.Second
			l := newLeaseFor(t, b, "holder", ttl)
			var tokens []worklease.Token
			var contexts []context.Context
			for i := range 20 {
				token := take(t, l, fmt.Sprint("w", i))
				ctx, stop := l.StartRenewal(t.Context(), token)
				defer stop()
				tokens, contexts = append(tokens, token), append(contexts, ctx)
			}
			must(t, l.Renew(t.Context(), tokens[0]))
			must(t, l.Release(t.Context(), take(t, l, "other")))
			must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: controls}, 0))
			must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: listener}, 0))

			free := exhaust(t, pool)
			take(t, newLeaseFor(t, newBackend(t, direct), "elsewhere", time.Hour), "far")
			waiting := queue(t, b, l, "far")
			for end := time.Now().Add(rounds(3*ttl/2, 3*ttl, 3*ttl)); time.Now().Before(end); time.Sleep(ttl / 10) {
				if n := query[int](t, direct, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND application_name LIKE 'waiter worklease %'`); n > 3 {
					t.Fatalf("%d connections", n)
				}
			}
			began := time.Now()
			must(t, l.Release(t.Context(), tokens[0]))
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("Release took %v", took)
			}
			for i, ctx := range contexts[1:] {
				if ctx.Err() != nil {
					t.Errorf("lease %d was lost: %v", i+1, context.Cause(ctx))
				}
			}
			exec(t, direct, `UPDATE worklease_leases SET expires_at = now() WHERE work_id = 'far'`)
			free()
			must(t, await(t, "the waiter gets the work", waiting).err)
		})
	}
}

// R7, R8: releases that wait for locked rows do not stand in the way of renewals, not
// even where the application's pool is exhausted. S17.
func TestBlockedReleasesDoNotHoldUpRenewals(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url, named())
	b := newBackend(t, pool)
	const ttl = 2 * time.Second
	l := newLeaseFor(t, b, "holder", ttl)
	ctx, stop := l.StartRenewal(t.Context(), take(t, l, "kept"))
	defer stop()
	var blocked []worklease.Token
	for i := range 3 {
		token := take(t, newLeaseFor(t, b, "holder", time.Hour), fmt.Sprint("w", i))
		lockRow(t, url, token.WorkID())
		blocked = append(blocked, token)
	}
	free := exhaust(t, pool)
	defer free()
	var releases []<-chan result[struct{}]
	for _, token := range blocked {
		releases = append(releases, backgroundErr(func() error { return newLease(t, b, "holder").Release(t.Context(), token) }))
	}
	time.Sleep(2 * ttl)
	if ctx.Err() != nil {
		t.Errorf("the lease was lost: %v", context.Cause(ctx))
	}
	for _, release := range releases {
		refused(t, "a release behind a lock", await(t, "it gives up", release).err, context.DeadlineExceeded)
	}
}

// R8: connections that live for a second cost nothing.
func TestShortLivedConnections(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url, named(func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.MaxConnLifetime = 500 * time.Millisecond
		c.MaxConnIdleTime = 200 * time.Millisecond
		c.HealthCheckPeriod = 50 * time.Millisecond
	}))
	events := newRenewEvents()
	b := newBackend(t, pool, patiently)
	l := newObserved(t, b, "holder", 2*time.Second, events)
	token := take(t, l, "w")
	ctx, stop := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(100*time.Millisecond))
	defer stop()
	done := queue(t, b, newLease(t, b, "waiter"), "w")
	for range 25 {
		if e := await(t, "a renewal", events.to); e.Err != nil {
			t.Errorf("attempt %d: %v", e.Attempt, e.Err)
		}
	}
	if ctx.Err() != nil {
		t.Errorf("the lease was lost: %v", context.Cause(ctx))
	}
	asleep(t, b)
	must(t, l.Release(t.Context(), token))
	must(t, await(t, "the waiter gets the work", done).err)
}

// W2, S12: a pool that is closed under its Backend ends waits, and renewals do not spin.
func TestPoolIsClosedUnderneath(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool, patiently)
	events := newRenewEvents()
	l := newObserved(t, b, "holder", time.Minute, events)
	token := take(t, l, "w")
	_, stop := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(50*time.Millisecond))
	defer stop()
	done := queue(t, b, l, "w")
	hears(t, b)
	pool.Close()
	eventually(t, "renewals fail", func() bool { return (await(t, "a renewal", events.to)).Err != nil })
	tracer.Reset()
	refused(t, "Release", l.Release(t.Context(), token), worklease.ErrClosed)
	b.Close()
	refused(t, "the wait", await(t, "it ends", done).err, worklease.ErrClosed)
	if n := len(tracer.Statements()); n > 0 {
		t.Errorf("%d statements", n)
	}
}

// S33: calls that end early cost renewals nothing.
func TestImpatientCallsDoNotDisturbRenewals(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.warmUp(t)
	s.Delay(fault.ToServer, 5*time.Millisecond)
	l := newLeaseFor(t, s.b, "holder", 3*time.Second)
	ctx, stop := l.StartRenewal(t.Context(), take(t, l, "w"), worklease.WithRenewalInterval(50*time.Millisecond))
	defer stop()
	hasty := newLease(t, s.b, "hasty")
	for range rounds(50, 100, 500) {
		short, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
		if _, err := hasty.Acquire(short, "w"); err == nil {
			t.Error("acquired what is held")
		}
		cancel()
	}
	if ctx.Err() != nil {
		t.Errorf("the lease was lost: %v", context.Cause(ctx))
	}
}

// R6: what was stopped while its statement waited for a connection is renewed no more,
// and what waited with it is.
func TestStoppedBeforeItIsSent(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	dialed, open := make(chan struct{}, 10), make(chan struct{})
	pool := pgtest.Open(t, url, named(func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.BeforeConnect = func(ctx context.Context, cfg *pgx.ConnConfig) error {
			if cfg.RuntimeParams["application_name"] != controls {
				return nil
			}
			dialed <- struct{}{}
			select {
			case <-open:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}))
	l := newLeaseFor(t, newBackend(t, pool), "holder", 12*time.Second)
	tokens, contexts := hold(t, l, 1)
	stopped := take(t, l, "stopped")
	_, stop := l.StartRenewal(t.Context(), stopped)
	defer exhaust(t, pool)()
	await(t, "the renewals wait for a connection", dialed)
	stop()
	expiry := query[time.Time](t, direct, `SELECT expires_at FROM worklease_leases WHERE work_id = 'stopped'`)
	close(open)
	eventually(t, "the other is renewed", func() bool {
		return query[bool](t, direct, `SELECT expires_at > $1::timestamptz + interval '5 seconds' FROM worklease_leases WHERE work_id = $2`, expiry, tokens[0].WorkID())
	})
	if got := query[time.Time](t, direct, `SELECT expires_at FROM worklease_leases WHERE work_id = 'stopped'`); !got.Equal(expiry) {
		t.Errorf("stopRenewal was followed by a renewal, to %v from %v", got, expiry)
	}
	if contexts[0].Err() != nil {
		t.Errorf("the other was lost: %v", context.Cause(contexts[0]))
	}
}
