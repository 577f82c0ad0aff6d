// Package fault breaks things on purpose and waits until they are broken: it
// is what the tests (and the demo) of worklease use to kill, freeze and cut off
// the processes, connections and statements under them.
//
//   - [Child] is another process of the same binary, in a named role, that the
//     parent freezes, thaws, terminates and kills, and talks to in JSON lines.
//   - [Proxy] stands before PostgreSQL and understands its protocol. It delays,
//     stalls, cuts and black-holes connections, and it holds, drops or runs and
//     then hides chosen statements.
//   - [Blocker] is another session that holds a lock; [AwaitBlocked], [Terminate]
//     and [Cancel] choose backends by application name or statement.
//   - [Tracer] counts statements, [Least] counts what they cost the server.
//   - [Ledger] is a table that knows whether an older token wrote after a newer one.
//
// # Waiting
//
// Nothing here sleeps to let something happen. Whatever waits takes a context,
// ends with its cause, and gives up after [Patience] when the context has no
// deadline of its own.
package fault

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Patience bounds every wait whose context has no deadline. It is far longer
// than anything takes, even on a slow and busy machine.
const Patience = 30 * time.Second

// TB is what this package needs of a *testing.T.
type TB interface {
	Helper()
	Cleanup(func())
	Context() context.Context
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// DB runs statements: a *pgxpool.Pool, a *pgx.Conn or a pgx.Tx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func patient(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, Patience, fmt.Errorf("nothing for %v", Patience))
}

// poll asks until the answer is yes, at a pace that leaves the server alone.
func poll(ctx context.Context, ask func(context.Context) (bool, error)) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		if yes, err := ask(ctx); ctx.Err() != nil {
			return context.Cause(ctx)
		} else if yes || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
