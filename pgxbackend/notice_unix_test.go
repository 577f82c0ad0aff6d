//go:build unix

package pgxbackend_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// stallNotices leaves a session with the lock under which the whole server commits
// notifications, and returns how to let it go on: it is stopped while its commit waits
// for a standby that never was.
func stallNotices(t *testing.T, url string) (goOn func()) {
	t.Helper()
	admin := pgtest.Open(t, pgtest.AdminURL(t, url))
	exec(t, admin, `ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	eventually(t, "commits wait for a standby", func() bool {
		return query[string](t, admin, `SHOW synchronous_standby_names`) == "absent"
	})
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	done := backgroundErr(func() error {
		// Only a commit with something to flush waits.
		_, err := conn.Exec(context.Background(), `BEGIN; SELECT txid_current(); CREATE TEMP TABLE t (); NOTIFY stalled; COMMIT`)
		return err
	})
	pid := int(conn.PgConn().PID())
	eventually(t, "the notifier stalls", func() bool {
		return query[bool](t, admin, `SELECT coalesce(wait_event = 'SyncRep', false) FROM pg_stat_activity WHERE pid = $1`, pid)
	})
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	goOn = func() {
		syscall.Kill(pid, syscall.SIGCONT)
		if done != nil {
			<-done
			conn.Close(context.Background())
			done = nil
		}
	}
	t.Cleanup(goOn)
	exec(t, admin, `ALTER SYSTEM RESET synchronous_standby_names`)
	exec(t, admin, `SELECT pg_reload_conf()`)
	eventually(t, "commits wait for nobody", func() bool {
		return query[string](t, admin, `SHOW synchronous_standby_names`) == ""
	})
	if n := query[int](t, admin, `SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype = 'object' AND objid = 0 AND granted`, pid); n != 1 {
		t.Fatalf("the notifier holds %d locks", n)
	}
	return goOn
}

// W5: where notices stall, the work is freed all the same, and whoever waits finds it;
// the notices follow when they can. S42.
func TestReleaseWhereNoticesStall(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, pgserver.Options{})
	url := pgtest.Database(t, pgtest.On(server))
	direct := pgtest.Open(t, url)
	for name, timeout := range map[string]string{"for ever": "0", "until lock_timeout": "100ms"} {
		t.Run(name, func(t *testing.T) {
			pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["lock_timeout"] = timeout
				c.MaxConns = 4
			}))
			b := newBackend(t, pool, patiently)
			l := newLeaseFor(t, b, "owner", time.Hour)
			far := newBackend(t, pgtest.Open(t, url), patiently)
			tokens := make(map[string]worklease.Token)
			var waits []<-chan result[worklease.Token]
			for workID, at := range map[string]*pgxbackend.Backend{"near": b, "far": far} {
				tokens[workID] = take(t, l, workID)
				waits = append(waits, queue(t, at, newLeaseFor(t, at, "waiter", time.Hour), workID))
				asleep(t, at)
			}
			goOn := stallNotices(t, url)
			for workID, token := range tokens {
				began := time.Now()
				must(t, l.Release(t.Context(), token))
				took := time.Since(began)
				t.Logf("%s: %v", workID, took)
				if took > 4*time.Second {
					t.Errorf("it took %v", took)
				}
				if free := query[bool](t, direct, `SELECT exit = 2 OR holder_id = 'waiter' FROM worklease_leases WHERE work_id = $1`, workID); !free {
					t.Errorf("%s is not free", workID)
				}
			}
			eventually(t, "stalled notices hold one connection of the application at most", func() bool {
				return pool.Stat().AcquiredConns() <= 1
			})
			goOn()
			for _, wait := range waits {
				got := await(t, "the waiter gets the work", wait)
				must(t, got.err)
				must(t, newLease(t, far, "waiter").Forget(t.Context(), got.value))
			}
		})
	}
}
