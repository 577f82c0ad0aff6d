package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/conformance"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pooled is a database behind a transaction pooler that shares four connections.
type pooled struct {
	url     string // through the pooler
	around  string
	direct  *pgxpool.Pool // around the pooler
	through *pgxpool.Pool
}

const sharedConns = 4

func newPooled(t testing.TB, mode pgx.QueryExecMode) *pooled {
	t.Helper()
	around := pgtest.Database(t)
	p := &pooled{url: pgtest.Pooler(t, around, sharedConns), around: around, direct: pgtest.Open(t, around)}
	p.through = p.open(t, mode)
	return p
}

// open returns the pool of one more process behind the pooler.
func (p *pooled) open(t testing.TB, mode pgx.QueryExecMode) *pgxpool.Pool {
	t.Helper()
	return pgtest.Open(t, p.url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }))
}

// inModes runs a test in the modes that work through every pooler. The mode is the
// user's: cache_statement, pgx's default, needs one that follows prepared statements.
func inModes(t *testing.T, test func(t *testing.T, mode pgx.QueryExecMode)) {
	modes := []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeSimpleProtocol}
	for _, mode := range modes[:rounds(1, len(modes), len(modes))] {
		t.Run(strings.ReplaceAll(mode.String(), " ", "_"), func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

// Every promise but listening holds through a transaction pooler. S46, S47.
func TestConformanceThroughAPooler(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, mode pgx.QueryExecMode) {
		p := newPooled(t, mode)
		b := newBackend(t, p.through)
		conformance.Run(t, func(*testing.T) worklease.Backend { return b },
			conformance.EndLease(func(t *testing.T, _ worklease.Backend, workID string) { endLease(t, p.direct, workID) }))
	})
}

// W3: through a transaction pooler LISTEN succeeds and nothing arrives. Those who wait
// poll; that is said once, however often it is tried again. S48.
func TestWaitersThroughAPoolerPoll(t *testing.T) {
	t.Parallel()
	const mode = pgx.QueryExecModeExec
	p := newPooled(t, mode)
	var log logged
	b := newBackend(t, p.through, patiently, log.option(),
		pgxbackend.WithPace(pgxbackend.Pace{Ask: 2 * time.Second, Deaf: 100 * time.Millisecond}))
	owner, waiter := newLeaseFor(t, newBackend(t, p.open(t, mode)), "owner", time.Hour), newLeaseFor(t, b, "waiter", time.Hour)
	const poll = time.Second
	var longest time.Duration
	n := rounds(2, 4, 100)
	for range n {
		longest = max(longest, handOver(t, b, poll, owner, waiter))
	}
	t.Logf("%d handoffs, the longest took %v", n, longest)
	if longest > poll+5*time.Second {
		t.Errorf("a wait of %v", longest)
	}
	eventually(t, "it is tried again", func() bool { return b.Stats().Reconnects >= 2 })
	if s := b.Stats(); s.Listening || !strings.Contains(s.Reason, "WithListenConnect") {
		t.Errorf("%+v", s)
	}
	if n := log.count(deafLine); n != 1 || log.count("\n") != 1 {
		t.Errorf("it was said %d times: %s", n, log.buf.String())
	}
}

// W3: a direct connection for listening makes waiters behind a pooler sleep until they
// are woken, by releases through the pooler too. S48.
func TestWaitersThroughAPoolerAreWokenDirectly(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, mode pgx.QueryExecMode) {
		p := newPooled(t, mode)
		var log logged
		b := newBackend(t, p.through, patiently, log.option(),
			pgxbackend.WithListenConnect(func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, p.around) }))
		owner := newLeaseFor(t, newBackend(t, p.open(t, mode)), "owner", time.Hour)
		waiter := newLeaseFor(t, b, "waiter", time.Hour)
		for range 3 {
			token := take(t, owner, "w")
			done := queue(t, b, waiter, "w")
			asleep(t, b)
			must(t, owner.Release(t.Context(), token))
			got := await(t, "the waiter is woken", done)
			must(t, got.err)
			must(t, waiter.Release(t.Context(), got.value))
		}
		if s := b.Stats(); !s.Listening || s.Reconnects != 0 || log.count("\n") != 0 {
			t.Errorf("%+v; log: %s", s, log.buf.String())
		}
	})
}

// X1, X3: more steps at a time than there are connections to the server; each takes
// effect once, and none leaves a setting behind for the next user of its connection.
func TestStepsThroughAPooler(t *testing.T) {
	t.Parallel()
	inModes(t, func(t *testing.T, mode pgx.QueryExecMode) {
		p := newPooled(t, mode)
		exec(t, p.direct, createSteps)
		const processes, steps = 2 * sharedConns, 10
		var wg sync.WaitGroup
		for i := range processes {
			pool := p.through
			if i%2 == 1 {
				pool = p.open(t, mode)
			}
			b := newBackend(t, pool)
			l := newLease(t, b, "owner")
			token := take(t, l, fmt.Sprint("w", i))
			wg.Go(func() {
				for n := range steps {
					if err := b.Step(t.Context(), token, write(token, n)); err != nil {
						t.Errorf("step %d of %s: %v", n, token.WorkID(), err)
						return
					}
				}
			})
		}
		wg.Wait()
		if once := query[int](t, p.direct, `SELECT count(DISTINCT (work_id, step)) FROM steps`); once != processes*steps {
			t.Errorf("%d steps took effect, want %d", once, processes*steps)
		}
		if rows := query[int](t, p.direct, `SELECT count(*) FROM steps`); rows != processes*steps {
			t.Errorf("%d rows, want %d", rows, processes*steps)
		}

		// A zombie is found out here, too.
		b := newBackend(t, p.through)
		l := newLease(t, b, "owner")
		old := take(t, l, "zombie")
		endLease(t, p.direct, "zombie")
		take(t, newLease(t, newBackend(t, p.direct), "successor"), "zombie")
		refused(t, "a zombie's step", b.Step(t.Context(), old, write(old, 1)), worklease.ErrFenced)

		const settings = `SELECT concat_ws(' ', current_setting('idle_in_transaction_session_timeout'), current_setting('synchronous_commit'),
			current_setting('lock_timeout'), current_setting('statement_timeout'), current_setting('transaction_isolation'))`
		want := query[string](t, p.direct, settings)
		for pid, got := range p.onEachConnection(t, settings) {
			if got != want {
				t.Errorf("connection %d is left with %s, want %s", pid, got, want)
			}
		}
	})
}

// onEachConnection asks every connection of the pooler to the server.
func (p *pooled) onEachConnection(t testing.TB, sql string) map[int]string {
	t.Helper()
	answers := make(map[int]string)
	for range sharedConns {
		conn, err := pgx.Connect(t.Context(), p.url)
		must(t, err)
		defer conn.Close(context.Background())
		// An open transaction keeps its connection.
		exec(t, conn, "BEGIN")
		var pid int
		var answer string
		must(t, conn.QueryRow(t.Context(), "SELECT pg_backend_pid(), ("+sql+")", pgx.QueryExecModeSimpleProtocol).Scan(&pid, &answer))
		answers[pid] = answer
	}
	return answers
}

// In pgx's default mode a pooler that knows nothing of prepared statements mixes them
// up, and answers some never. Such errors are no verdict. S47.
func TestPreparedStatementsThroughAPooler(t *testing.T) {
	t.Parallel()
	const mode = pgx.QueryExecModeCacheStatement
	p := newPooled(t, mode)
	var calls, mixedUp atomic.Int32
	var wg sync.WaitGroup
	for i := range 2 * sharedConns {
		l := newLease(t, newBackend(t, p.open(t, mode)), "holder")
		// sent reports whether a call came through.
		sent := func(call func(ctx context.Context) error) bool {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			calls.Add(1)
			err := call(ctx)
			if err == nil {
				return true
			}
			if state := sqlState(err); state != "26000" && state != "42P05" && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("a mixed-up statement is taken for something else: %v", err)
			}
			mixedUp.Add(1)
			return false
		}
		wg.Go(func() {
			for n := range rounds(5, 5, 20) {
				var token worklease.Token
				if !sent(func(ctx context.Context) (err error) {
					token, err = l.Acquire(ctx, fmt.Sprint(i, " ", n))
					return err
				}) {
					continue
				}
				sent(func(ctx context.Context) error { return l.Checkpoint(ctx, token, []byte("state")) })
				sent(func(ctx context.Context) error { return l.Renew(ctx, token) })
				sent(func(ctx context.Context) error {
					return l.Release(ctx, token, worklease.WithReleaseTimeout(2*time.Second))
				})
			}
		})
	}
	wg.Wait()
	t.Logf("of %d calls, %d were mixed up", calls.Load(), mixedUp.Load())
}
