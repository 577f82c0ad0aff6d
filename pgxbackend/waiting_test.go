package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgxpool"
)

// soon is a poll interval for tests: where waiters are woken it does not matter.
var soon = worklease.WithPollInterval(5 * time.Millisecond)

// wait starts a waiting Acquire, and returns when its first attempt has left.
func wait(t *testing.T, l worklease.Lease, tracer *fault.Tracer, workID string) <-chan result[worklease.Token] {
	t.Helper()
	before := tracer.Count(sqlAcquire)
	done := background(func() (worklease.Token, error) {
		return l.Acquire(t.Context(), workID, worklease.WithWaitForLease(), soon)
	})
	eventually(t, "the waiter has tried", func() bool { return tracer.Count(sqlAcquire) > before || len(done) > 0 })
	return done
}

// W2, S12: what no waiting can mend ends the wait.
func TestWaitEndsWithPermanentErrors(t *testing.T) {
	t.Parallel()
	app := pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "waiter" })
	for name, c := range map[string]struct {
		ruin func(t *testing.T, owner *pgxpool.Pool, waiters *pgxpool.Pool, close func())
		ends func(error) bool
	}{
		"table dropped": {
			func(t *testing.T, owner, _ *pgxpool.Pool, _ func()) { exec(t, owner, `DROP TABLE worklease_leases`) },
			func(err error) bool { return sqlState(err) == "42P01" },
		},
		"sequence dropped": {
			func(t *testing.T, owner, _ *pgxpool.Pool, _ func()) {
				exec(t, owner, `DROP SEQUENCE worklease_fencing_seq CASCADE`)
			},
			func(err error) bool { return sqlState(err) == "42P01" },
		},
		"schema renamed": {
			func(t *testing.T, owner, _ *pgxpool.Pool, _ func()) {
				exec(t, owner, `ALTER SCHEMA public RENAME TO elsewhere`)
			},
			func(err error) bool { return sqlState(err) == "42P01" || sqlState(err) == "3F000" },
		},
		"right revoked": {
			func(t *testing.T, owner, _ *pgxpool.Pool, _ func()) {
				exec(t, owner, `DO $$ BEGIN EXECUTE 'REVOKE ALL ON worklease_leases FROM worklease_test';
					EXECUTE 'ALTER TABLE worklease_leases OWNER TO ' || quote_ident(current_user); END $$`)
			},
			func(err error) bool { return sqlState(err) == "42501" },
		},
		"pool closed": {
			func(_ *testing.T, _, waiters *pgxpool.Pool, _ func()) { waiters.Close() },
			func(err error) bool { return errors.Is(err, worklease.ErrClosed) },
		},
		"backend closed": {
			func(_ *testing.T, _, _ *pgxpool.Pool, closeBackend func()) { closeBackend() },
			func(err error) bool { return errors.Is(err, worklease.ErrClosed) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			admin := pgtest.Open(t, pgtest.AdminURL(t, url))
			tracer := new(fault.Tracer)
			pool := pgtest.Open(t, url, app, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer }))
			// It polls: a listening hub would look no sooner than its safety look.
			b := newBackend(t, pool, pgxbackend.WithoutListen())
			take(t, newLeaseFor(t, b, "owner", time.Hour), "w")
			done := wait(t, newLease(t, b, "waiter"), tracer, "w")
			c.ruin(t, admin, pool, b.Close)
			got := await(t, "the wait ends", done)
			if got.err == nil || !c.ends(got.err) || errors.Is(got.err, worklease.ErrLeaseHeld) || errors.Is(got.err, worklease.ErrFenced) {
				t.Errorf("the wait ended with %v", got.err)
			}
		})
	}
}

// W2: what may pass is waited out.
func TestWaitOutlastsLostConnections(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	tracer := new(fault.Tracer)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "waiter"
		c.ConnConfig.Tracer = tracer
	}))
	b := newBackend(t, pool)
	owner, waiter := newLease(t, newBackend(t, direct), "owner"), newLease(t, b, "waiter")
	token := take(t, owner, "w")
	done := wait(t, waiter, tracer, "w")
	for range rounds(2, 5, 50) {
		// A listener that is lost before it has heard anything comes back later each time.
		hears(t, b)
		lost := b.Stats().Reconnects
		eventually(t, "the waiter has lost its sessions", func() bool {
			_, err := fault.Terminate(t.Context(), direct, fault.Backends{App: "waiter"})
			must(t, err)
			n, err := fault.Terminate(t.Context(), direct, fault.Backends{App: listener})
			must(t, err)
			return n > 0
		})
		eventually(t, "the loss is noticed", func() bool { return b.Stats().Reconnects > lost })
	}
	must(t, owner.Release(t.Context(), token))
	got := await(t, "the waiter gets the work", done)
	if must(t, got.err); got.value.FencingToken() <= token.FencingToken() {
		t.Errorf("token %d after %d", got.value.FencingToken(), token.FencingToken())
	}
}

// W2: a server that crashes, and one that is shut down and comes back.
func TestWaitOutlastsARestart(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	url := pgtest.Database(t, pgtest.On(server), pgtest.ForceDrop())
	pool, tracer := traced(t, url)
	b := newBackend(t, pool)
	owner, waiter := newLeaseFor(t, b, "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	token := take(t, owner, "w")
	for name, stop := range map[string]func(){"crash": server.Crash, "shutdown": server.Shutdown} {
		done := wait(t, waiter, tracer, "w")
		stop()
		if err := newLease(t, b, "hasty").Renew(t.Context(), token); err == nil ||
			errors.Is(err, worklease.ErrFenced) || errors.Is(err, worklease.ErrLeaseExpired) {
			t.Errorf("%s: Renew without a server: %v", name, err)
		}
		must(t, server.Restart(t.Context()))
		// The application's own connections are as dead as the waiter's: Release tries again.
		must(t, owner.Release(t.Context(), token))
		got := await(t, "the waiter gets the work after a "+name, done)
		must(t, got.err)
		token = got.value
		owner = waiter
	}
}

// W2: statements that time out behind a lock are waited out; without waiting the
// error is returned.
func TestWaitOutlastsTimeouts(t *testing.T) {
	t.Parallel()
	for setting, code := range map[string]string{"statement_timeout": "57014", "lock_timeout": "55P03"} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			direct := pgtest.Open(t, url)
			tracer := new(fault.Tracer)
			pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams[setting] = "300ms"
				c.ConnConfig.Tracer = tracer
			}))
			l := newLease(t, newBackend(t, pool), "waiter")
			take(t, newLease(t, newBackend(t, direct), "owner"), "w")
			endLease(t, direct, "w")
			blocker := lockRow(t, url, "w")
			_, err := l.Acquire(t.Context(), "w")
			if sqlState(err) != code || errors.Is(err, worklease.ErrLeaseHeld) || errors.Is(err, worklease.ErrFenced) {
				t.Errorf("Acquire behind a lock: %v", err)
			}
			done := wait(t, l, tracer, "w")
			eventually(t, "the waiter tries again", func() bool { return tracer.Count(sqlAcquire) >= 3 })
			blocker.Release()
			got := await(t, "the waiter gets the work", done)
			must(t, got.err)
			if p := prior(t, l, got.value); p.Exit != worklease.ExitExpired || p.HolderID != "owner" || p.Crashes != 1 {
				t.Errorf("prior %+v", p)
			}
		})
	}
}

// W2, and DESIGN's isolations: 40001 is waited out, and every waiter is served.
func TestWaitersServedAtEveryIsolation(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			direct := pgtest.Open(t, url)
			logGrants(t, direct)
			pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
				c.MaxConns = 8
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = isolation
			}))
			l := newLease(t, newBackend(t, pool), "holder")
			const waiters = 8
			each := rounds(2, 4, 50)
			var wg sync.WaitGroup
			for range waiters {
				wg.Go(func() {
					for i := range each {
						token, err := l.Acquire(t.Context(), "w", worklease.WithWaitForLease(), worklease.WithPollInterval(time.Millisecond))
						if err == nil {
							err = l.Checkpoint(t.Context(), token, fmt.Append(nil, i))
						}
						if err == nil {
							err = l.Release(t.Context(), token)
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			if grants := checkGrants(t, direct); grants != waiters*each {
				t.Errorf("%d grants, want %d", grants, waiters*each)
			}
		})
	}
}

// W2: the context's end ends the wait, with its error and cause.
func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	take(t, newLease(t, b, "owner"), "w")
	why := errors.New("shutting down")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := backgroundErr(func() error {
		_, err := newLease(t, b, "waiter").Acquire(ctx, "w", worklease.WithWaitForLease())
		return err
	})
	cancel(why)
	err := await(t, "the wait ends", done).err
	refused(t, "the wait", err, context.Canceled)
	refused(t, "the wait", err, why)
	if errors.Is(err, worklease.ErrLeaseHeld) {
		t.Errorf("the wait ended with %v", err)
	}
}
