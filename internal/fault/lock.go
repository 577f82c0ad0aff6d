package fault

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Blocker is a session that holds locks.
type Blocker struct {
	conn    *pgx.Conn
	tx      pgx.Tx
	release sync.Once
}

// Block opens a session, begins a transaction and runs a statement that takes
// locks, as "SELECT FROM leases WHERE id = $1 FOR UPDATE" or "LOCK TABLE leases".
// The locks are held until Release or the end of the test. A SELECT that finds
// no row locks nothing and fails the test.
func Block(t TB, databaseURL, sql string, args ...any) *Blocker {
	t.Helper()
	ctx, cancel := patient(t.Context())
	defer cancel()
	b, err := block(ctx, databaseURL, sql, args...)
	if err != nil {
		t.Fatalf("fault: block: %v", err)
	}
	t.Cleanup(b.Release)
	return b
}

func block(ctx context.Context, databaseURL, sql string, args ...any) (*Blocker, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, err
	}
	config.RuntimeParams["application_name"] = "blocker"
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	b := &Blocker{conn: conn}
	if b.tx, err = conn.Begin(ctx); err == nil {
		err = b.lock(ctx, sql, args...)
	}
	if err != nil {
		b.Release()
		return nil, err
	}
	return b, nil
}

func (b *Blocker) lock(ctx context.Context, sql string, args ...any) error {
	tag, err := b.tx.Exec(ctx, sql, args...)
	if err == nil && tag.Select() && tag.RowsAffected() == 0 {
		err = errors.New("no row to lock")
	}
	return err
}

// Release ends the session and with it the locks. Only the first call counts.
func (b *Blocker) Release() {
	b.release.Do(func() {
		ctx, cancel := patient(context.Background())
		defer cancel()
		if b.tx != nil {
			// Waited for: a session that merely closes lets go a little later.
			b.tx.Rollback(ctx)
		}
		b.conn.Close(ctx)
	})
}

// Await waits until another backend waits for this session's locks. It is not
// to be called beside Release.
func (b *Blocker) Await(ctx context.Context) error {
	const sql = `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))`
	err := poll(ctx, func(ctx context.Context) (waits bool, err error) {
		err = b.tx.QueryRow(ctx, sql).Scan(&waits)
		return waits, err
	})
	if err != nil {
		return fmt.Errorf("fault: wait until the blocker blocks: %w", err)
	}
	return nil
}
