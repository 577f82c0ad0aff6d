package fault

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Backends chooses sessions of the database that one asks through, other than
// the asking one. Both fields must agree; an empty one always does.
type Backends struct {
	App   string // application_name
	Query string // a LIKE pattern for the statement it runs, or ran last
}

const chosenBackends = `
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
  AND ($1::text = '' OR application_name = $1::text)
  AND ($2::text = '' OR query LIKE $2::text)`

// Count returns how many of the chosen sessions there are.
func Count(ctx context.Context, db DB, which Backends) (n int, err error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	err = db.QueryRow(ctx, `SELECT count(*)`+chosenBackends, which.App, which.Query).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("fault: count backends: %w", err)
	}
	return n, nil
}

// AwaitBlocked waits until one of the chosen sessions waits for a lock.
func AwaitBlocked(ctx context.Context, db DB, which Backends) error {
	const sql = `SELECT EXISTS (SELECT` + chosenBackends + ` AND wait_event_type = 'Lock')`
	err := poll(ctx, func(ctx context.Context) (waits bool, err error) {
		err = db.QueryRow(ctx, sql, which.App, which.Query).Scan(&waits)
		return waits, err
	})
	if err != nil {
		return fmt.Errorf("fault: wait until %+v is blocked: %w", which, err)
	}
	return nil
}

// AwaitCount waits until there are exactly n of the chosen sessions.
func AwaitCount(ctx context.Context, db DB, which Backends, n int) error {
	found := 0
	err := poll(ctx, func(ctx context.Context) (_ bool, err error) {
		found, err = Count(ctx, db, which)
		return found == n, err
	})
	if err != nil {
		return fmt.Errorf("fault: wait for %d of %+v, found %d: %w", n, which, found, err)
	}
	return nil
}

// Terminate ends the chosen sessions with pg_terminate_backend, returns when
// they are gone, and says how many those were.
func Terminate(ctx context.Context, db DB, which Backends) (int, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	pids, err := signalBackends(ctx, db, which, `pg_terminate_backend(pid)`)
	if err == nil {
		err = poll(ctx, func(ctx context.Context) (gone bool, err error) {
			const sql = `SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = ANY ($1::int[]))`
			err = db.QueryRow(ctx, sql, pids).Scan(&gone)
			return gone, err
		})
	}
	if err != nil {
		return len(pids), fmt.Errorf("fault: terminate %+v: %w", which, err)
	}
	return len(pids), nil
}

// Cancel interrupts what the chosen sessions run with pg_cancel_backend, and
// says how many sessions it signalled. An idle one takes no notice.
func Cancel(ctx context.Context, db DB, which Backends) (int, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	pids, err := signalBackends(ctx, db, which, `pg_cancel_backend(pid)`)
	if err != nil {
		return len(pids), fmt.Errorf("fault: cancel %+v: %w", which, err)
	}
	return len(pids), nil
}

// signalBackends returns the sessions that took the signal.
func signalBackends(ctx context.Context, db DB, which Backends, signal string) ([]int32, error) {
	// MATERIALIZED: the signal goes to the chosen ones only, whatever the plan.
	rows, err := db.Query(ctx, `
WITH chosen AS MATERIALIZED (SELECT pid`+chosenBackends+`),
     struck AS MATERIALIZED (SELECT pid, `+signal+` AS hit FROM chosen)
SELECT pid FROM struck WHERE hit`, which.App, which.Query)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int32])
}
