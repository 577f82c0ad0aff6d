package pgxbackend_test

import (
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// traced is a pool whose statements are written down.
func traced(t *testing.T, url string) (*pgxpool.Pool, *fault.Tracer) {
	t.Helper()
	tracer := new(fault.Tracer)
	return pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer })), tracer
}

// What the server counts for all, it counts here for this test alone.
func TestCost(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	url := pgtest.Database(t, pgtest.On(server))
	direct := pgtest.Open(t, url)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool)
	const sequence = "worklease_fencing_seq"

	// P11; it comes first, as the counts are those of the table's whole life.
	t.Run("heartbeats stay HOT", func(t *testing.T) {
		beats := rounds(200, 500, 5000)
		heart := pgtest.Open(t, url)
		l := newLease(t, newBackend(t, heart), "owner")
		token := take(t, l, "w")
		must(t, l.Checkpoint(t.Context(), token, []byte("state")))
		for i := range beats {
			if i%10 == 0 {
				must(t, l.Checkpoint(t.Context(), token, []byte("state")))
			}
			must(t, l.Renew(t.Context(), token))
		}
		heart.Close() // the sessions hand in their counts
		var updates, hot int
		eventually(t, "the counts arrive", func() bool {
			must(t, direct.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
				WHERE relname = 'worklease_leases'`).Scan(&updates, &hot))
			return updates >= beats+beats/10
		})
		if float64(hot) < 0.99*float64(updates) {
			t.Errorf("%d of %d updates were HOT", hot, updates)
		}
	})

	// T3
	t.Run("a refused acquire writes nothing", func(t *testing.T) {
		owner := take(t, newLease(t, b, "owner"), "held")
		must(t, newLease(t, b, "owner").Checkpoint(t.Context(), owner, []byte("state")))
		other := newLease(t, b, "other")
		n := rounds(200, 1000, 1000)
		times := 0
		spent, err := fault.Least(t.Context(), direct, 3, func() error {
			times++
			for range n {
				if _, err := other.Acquire(t.Context(), "held"); !errors.Is(err, worklease.ErrLeaseHeld) {
					return errors.Join(errors.New("not refused"), err)
				}
			}
			return nil
		}, sequence)
		must(t, err)
		if spent != (fault.Cost{}) {
			t.Errorf("%d refused acquires cost %+v", n, spent)
		}
		if got := tracer.Count(sqlAcquire); got != n*times+1 {
			t.Errorf("%d acquires took %d statements", n*times+1, got)
		}
		if locks := query[int](t, direct, `SELECT count(*) FROM pg_locks WHERE locktype IN ('tuple', 'transactionid')`); locks != 0 {
			t.Errorf("%d locks are left", locks)
		}
	})

	// D1, P10
	t.Run("what does not change a checkpoint does not rewrite it", func(t *testing.T) {
		state := make([]byte, 5<<20)
		rand.Read(state)
		l := newLease(t, b, "owner")
		token := take(t, l, "large")
		must(t, l.Checkpoint(t.Context(), token, state))
		for name, call := range map[string]func() error{
			"Renew":           func() error { return l.Renew(t.Context(), token) },
			"Checkpoint(nil)": func() error { return l.Checkpoint(t.Context(), token, nil) },
			"Release": func() (err error) {
				if err = l.Release(t.Context(), token); err == nil {
					token, err = l.Acquire(t.Context(), "large")
				}
				return err
			},
		} {
			spent, err := fault.Least(t.Context(), direct, 3, call, sequence)
			must(t, err)
			// Release comes with an acquisition.
			if spent.WAL == 0 || spent.WAL >= 1000*max(1, spent.XIDs) || spent.XIDs > 2 {
				t.Errorf("%s over a checkpoint of 5 MB cost %+v", name, spent)
			}
		}
		got, _, err := l.ReadCheckpoint(t.Context(), token)
		if must(t, err); string(got) != string(state) {
			t.Error("the checkpoint is another one")
		}
	})
}

// W1 and its like: every operation is one statement, whatever it finds.
func TestOneStatementEach(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool, tracer := traced(t, url)
	b := newBackend(t, pool)
	l := newLease(t, b, "holder")
	var token worklease.Token
	one := func(what string, match fault.Match, call func() error) {
		t.Helper()
		tracer.Reset()
		must(t, call())
		if sent := tracer.Statements(); len(sent) != 1 || !match(sent[0]) {
			t.Errorf("%s sent %d statements: %q", what, len(sent), sent)
		}
	}
	acquire := func() (err error) {
		token, err = l.Acquire(t.Context(), "w")
		return err
	}
	one("Acquire of new work", sqlAcquire, acquire)
	one("Acquire of held work", sqlAcquire, func() error {
		if _, err := l.Acquire(t.Context(), "w"); !errors.Is(err, worklease.ErrLeaseHeld) {
			return errors.Join(errors.New("not refused"), err)
		}
		return nil
	})
	one("Checkpoint", sqlCheckpoint, func() error { return l.Checkpoint(t.Context(), token, []byte("state")) })
	one("Renew", sqlRenew, func() error { return l.Renew(t.Context(), token) })
	one("ReadCheckpoint", fault.Containing("-- worklease: read"), func() error {
		_, _, err := l.ReadCheckpoint(t.Context(), token)
		return err
	})
	one("Release with a state", sqlRelease, func() error {
		return l.Release(t.Context(), token, worklease.WithState(make([]byte, worklease.MaxInlineState)))
	})
	one("Acquire of released work, with its prior", sqlAcquire, func() error {
		if err := acquire(); err != nil {
			return err
		}
		p, err := l.Prior(t.Context(), token)
		if len(p.State) != worklease.MaxInlineState {
			t.Errorf("the prior has %d bytes of state", len(p.State))
		}
		return err
	})
	one("Forget", sqlForget, func() error { return l.Forget(t.Context(), token) })
	must(t, acquire())
	one("Release", sqlRelease, func() error { return l.Release(t.Context(), token) })
	one("a fenced Renew", sqlRenew, func() error {
		if err := l.Renew(t.Context(), worklease.NewToken("w", "holder", 1<<40, time.Time{})); !errors.Is(err, worklease.ErrFenced) {
			return errors.Join(errors.New("not fenced"), err)
		}
		return nil
	})
}
