package migrations

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	lockNum = int64(9628173550095224) // tern's: whatever migrates by tern excludes us, and we it

	pollInterval = 50 * time.Millisecond
	grace        = 2 * time.Second // for a last statement after ctx has ended
)

// lock polls for tern's advisory lock. tern itself waits inside a statement, which
// holds a snapshot for as long: CREATE INDEX CONCURRENTLY and it wait for each other.
// The lock nests: tern takes it again in the same session.
func lock(ctx context.Context, conn *pgx.Conn) error {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		held, err := tryLock(ctx, conn)
		if held || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the migration lock%s: %w", holders(ctx, conn), context.Cause(ctx))
		}
	}
}

func tryLock(ctx context.Context, conn *pgx.Conn) (held bool, err error) {
	// pgx closes a connection whose query is cancelled in flight.
	ctx, cancel := outlive(ctx)
	defer cancel()
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_try_advisory_lock($1::bigint)`, lockNum).Scan(&held)
	return held, err
}

// unlock gives the lock back also when ctx is over. A closed connection has none.
func unlock(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() {
		return
	}
	ctx, cancel := outlive(ctx)
	defer cancel()
	// A failure breaks the connection, and the server frees the lock with it.
	_, _ = conn.Exec(ctx, `SELECT pg_catalog.pg_advisory_unlock($1::bigint)`, lockNum)
}

// holders names the server processes that hold the lock, as part of an error text.
func holders(ctx context.Context, conn *pgx.Conn) string {
	ctx, cancel := outlive(ctx)
	defer cancel()
	rows, _ := conn.Query(ctx, holdersSQL, lockNum)
	pids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(pids) == 0 {
		return ""
	}
	return fmt.Sprintf(" %d, held by server process %s", lockNum, strings.Join(pids, ", "))
}

const holdersSQL = `
SELECT pid::text FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND classid::bigint << 32 | objid::bigint = $1::bigint
AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
ORDER BY pid`

// outlive returns a context with ctx's values that ends a grace period after ctx.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.AfterFunc(grace, cancel)
		context.AfterFunc(longer, func() { t.Stop() })
	})
	return longer, func() { stop(); cancel() }
}
