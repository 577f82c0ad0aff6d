package fault

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Tracer writes down the statements that pgx sends, in order, when they are
// sent. Set it as pgx.ConnConfig.Tracer of a connection or a pool. It sees those
// of batches, BEGIN and COMMIT, but not pgx's own preparing and pinging; for
// other processes and for all that is on the wire use [Lines.Statements]. The
// zero value is ready, and safe for concurrent use.
type Tracer struct {
	mu  sync.Mutex
	sql []string
}

var (
	_ pgx.QueryTracer = (*Tracer)(nil)
	_ pgx.BatchTracer = (*Tracer)(nil)
)

// Statements returns what has been sent since the last Reset.
func (t *Tracer) Statements() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.sql)
}

// Count returns how many of the statements match.
func (t *Tracer) Count(match Match) int {
	n := 0
	for _, sql := range t.Statements() {
		if match(sql) {
			n++
		}
	}
	return n
}

// Reset forgets all statements.
func (t *Tracer) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sql = nil
}

func (t *Tracer) add(sql string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sql = append(t.sql, sql)
}

// TraceQueryStart implements [pgx.QueryTracer].
func (t *Tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	t.add(data.SQL)
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (t *Tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements [pgx.BatchTracer].
func (t *Tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		t.add(q.SQL)
	}
	return ctx
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (t *Tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (t *Tracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
