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

// awaitWaiting waits until that many statements wait for locks.
func awaitWaiting(t testing.TB, pool *pgxpool.Pool, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " statements wait"), func() bool {
		return query[int](t, pool, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == n
	})
}

// Two statements of one owner wait for the row. The second finds it changed by the
// first, while its own snapshot is older than that: it must look again, and not
// take its own success for somebody else's.
func TestOneselfIsNotSomebodyElse(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 6 }))
	b := newBackend(t, pool)
	save := func(c worklease.Claim, number int64) error {
		_, err := b.Checkpoint(t.Context(), c, worklease.Save{State: fmt.Append(nil, number), Number: number, Hold: "h", TTL: time.Minute})
		return err
	}
	leave := func(c worklease.Claim) error {
		return b.Release(t.Context(), c, worklease.Farewell{Exit: worklease.ExitReleased})
	}
	undo := func(c worklease.Claim) error { return b.Release(t.Context(), c, worklease.Farewell{}) }
	renew := func(c worklease.Claim) error {
		_, err := b.Renew(t.Context(), c, time.Minute)
		return err
	}
	newer := func(c worklease.Claim) error { return save(c, 2) }
	older := func(c worklease.Claim) error { return save(c, 1) }
	for name, c := range map[string]struct {
		first, second func(worklease.Claim) error
		want          error
	}{
		"an older checkpoint after a newer one": {newer, older, nil},
		"a checkpoint twice":                    {older, older, nil},
		"a checkpoint after a release":          {leave, older, worklease.ErrLeaseExpired},
		"a release twice":                       {leave, leave, nil},
		"a renewal after a release":             {leave, renew, worklease.ErrLeaseExpired},
		"a renewal after a checkpoint":          {older, renew, nil},
		"giving back twice":                     {undo, undo, nil},
		"giving back after a release":           {leave, undo, worklease.ErrLeaseExpired},
	} {
		claim, _ := grant(t, b, attempt(name, "holder"))
		blocker := lockRow(t, url, name)
		first := backgroundErr(func() error { return c.first(claim) })
		awaitWaiting(t, pool, 1)
		second := backgroundErr(func() error { return c.second(claim) })
		awaitWaiting(t, pool, 2)
		blocker.Release()
		if err := await(t, name, first).err; err != nil {
			t.Errorf("%s: the first: %v", name, err)
		}
		if err := await(t, name, second).err; err != nil || c.want != nil {
			refused(t, name, err, c.want)
		}
	}
}

// X4's like outside of transactions: a statement that waited for somebody who changed
// the row reads the clock when it has the row, and not when it began to wait.
//
// Behind a lock that changed nothing PostgreSQL does not look at the row again, and
// only INSERT … ON CONFLICT reads the clock behind it. What is answered and trusted
// is right all the same.
func TestTimeIsReadBehindTheLock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	const ttl = time.Hour
	l := newLeaseFor(t, newBackend(t, pool), "holder", ttl)
	token := take(t, l, "w")
	// behind calls while somebody holds the row, for as long as the lease lives if that
	// is asked for.
	behind := func(name, hold string, lapse bool, call func() error) error {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		defer conn.Close(context.Background())
		tx, err := conn.Begin(t.Context())
		must(t, err)
		exec(t, tx, hold)
		done := backgroundErr(call)
		awaitWaiting(t, pool, 1)
		if lapse {
			eventually(t, "the lease lapses", func() bool {
				return query[bool](t, pool, `SELECT expires_at <= clock_timestamp() FROM worklease_leases`)
			})
		}
		since := query[time.Time](t, pool, `SELECT clock_timestamp()`)
		must(t, tx.Commit(t.Context()))
		err = await(t, name, done).err
		if err != nil {
			return err
		}
		left := query[time.Duration](t, pool, `SELECT expires_at - clock_timestamp() FROM worklease_leases`)
		if deadline, _ := l.Deadline(token); time.Until(deadline) > left {
			t.Errorf("%s: trusted for %v, the row says %v", name, time.Until(deadline), left)
		}
		expires := query[time.Time](t, pool, `SELECT expires_at FROM worklease_leases`)
		if short := since.Add(ttl).Sub(expires); short > 0 && hold != locked {
			t.Errorf("%s: the lease is %v too short", name, short)
		}
		return nil
	}
	soon := func() {
		exec(t, pool, `UPDATE worklease_leases SET expires_at = clock_timestamp() + interval '500 ms'`)
	}
	renew := func() error { return newLeaseFor(t, newBackend(t, pool), "holder", ttl).Renew(t.Context(), token) }
	save := func() error { return l.Checkpoint(t.Context(), token, nil) }
	acquire := func() (err error) {
		token, err = l.Acquire(t.Context(), "w")
		return err
	}
	for _, hold := range []string{changed, locked} {
		must(t, behind("Renew", hold, false, func() error { return l.Renew(t.Context(), token) }))
		must(t, behind("Checkpoint", hold, false, save))
		soon()
		must(t, behind("Checkpoint of what lapses meanwhile", hold, true, save))
		if hold == changed {
			soon()
			refused(t, "Renew of what lapses meanwhile", behind("Renew", hold, true, renew), worklease.ErrLeaseExpired)
		}
		endLease(t, pool, "w")
		must(t, behind("Acquire", hold, false, acquire))
	}
}

const (
	changed = `UPDATE worklease_leases SET updated_at = clock_timestamp()`
	locked  = `SELECT FROM worklease_leases FOR UPDATE`
)
