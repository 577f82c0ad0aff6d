package pgxbackend_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// X3: a client that falls silent inside a step is ended by the server, and the
// successor gets in.
func TestClientFallsSilent(t *testing.T) {
	t.Parallel()
	const ttl = 1500 * time.Millisecond
	s := newService(t, ttl)
	token := take(t, s.lease, "work")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	silent := make(chan struct{})
	done := backgroundErr(func() error {
		return s.b.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			must(t, insert(ctx, tx, token, 1))
			s.BlackHole()
			close(silent)
			<-ctx.Done()
			return []byte("1"), nil
		})
	})
	await(t, "the client is silent", silent)
	next := s.successor(t)
	taken, err := next.Acquire(t.Context(), "work", worklease.WithWaitForLease(), worklease.WithPollInterval(20*time.Millisecond))
	must(t, err)
	late := query[time.Duration](t, s.direct, `SELECT acquired_at - $1::timestamptz FROM worklease_leases`, token.ExpiresAt())
	if late < 0 || late > 5*time.Second {
		t.Errorf("the successor had the lease %v after the end of the last", late)
	}
	if p := prior(t, next, taken); p.Exit != worklease.ExitExpired {
		t.Errorf("the successor finds %+v", p)
	}
	cancel()
	if err := await(t, "the step ends", done).err; err == nil {
		t.Error("Step returned nil")
	}
	s.Cut() // or the pool waits on
	s.unchanged(t, "work")
}

// X3: how long a client may be silent, and that the session has its own bound back.
func TestSilenceIsBounded(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	const ttl = time.Minute
	for _, test := range []struct {
		own         string
		left        time.Duration // of the lease
		least, most time.Duration
	}{
		{"0", ttl, ttl - 30*time.Second, ttl},
		{"1h", ttl, ttl - 30*time.Second, ttl},
		{"5s", ttl, 5 * time.Second, 5 * time.Second},
		{"1500ms", ttl, 1500 * time.Millisecond, 1500 * time.Millisecond},
		{"0", time.Hour, time.Hour - 30*time.Second, time.Hour},
		{"1d", 40 * 24 * time.Hour, 24 * time.Hour, 24 * time.Hour},
		{"0", 40 * 24 * time.Hour, 24 * 24 * time.Hour, 24 * 24 * time.Hour},
		// A step that begins late must not fail between its own statements.
		{"0", 10 * time.Millisecond, ttl / 2, ttl / 2},
		{"0", -time.Second, ttl / 2, ttl / 2},
		{"5s", -time.Second, 5 * time.Second, 5 * time.Second},
	} {
		t.Run(fmt.Sprintf("%s with %v left", test.own, test.left), func(t *testing.T) {
			pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
				c.MaxConns = 1
				c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = test.own
			}))
			b := newBackend(t, pool)
			token := take(t, newLease(t, b, "owner"), t.Name())
			exec(t, direct, `UPDATE worklease_leases SET expires_at = clock_timestamp() + $2::interval WHERE work_id = $1`, t.Name(), test.left)
			const silence = `SELECT setting::bigint * interval '1 ms' FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'`
			before := query[time.Duration](t, pool, silence)
			must(t, b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				if got := query[time.Duration](t, tx, silence); got < test.least || got > test.most {
					t.Errorf("a silent client is ended after %v, want %v to %v", got, test.least, test.most)
				}
				return nil, nil
			}))
			if got := query[time.Duration](t, pool, silence); got != before {
				t.Errorf("after the step the session's own bound is %v, before it was %v", got, before)
			}
			tx, err := pool.Begin(t.Context())
			must(t, err)
			defer tx.Rollback(t.Context())
			must(t, b.FenceTx(t.Context(), tx, token))
			if got := query[time.Duration](t, tx, silence); got != before {
				t.Errorf("a fence alone has changed the session's bound from %v to %v", before, got)
			}
		})
	}
}
