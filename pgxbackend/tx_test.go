package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// stepper is the application_name of a service.
const stepper = "stepper"

// createSteps makes the table of an application, which has a row for each step that
// took effect. No constraint would hide a double.
const createSteps = `CREATE TABLE steps (n bigserial, work_id text NOT NULL, step int NOT NULL, token bigint NOT NULL)`

var sqlOutcome = fault.Containing("-- worklease: outcome")

// service is an application whose pool, behind a proxy, has one connection.
type service struct {
	*stage
	ttl    time.Duration
	lease  worklease.Lease
	events *checkpointEvents
}

func newService(t testing.TB, ttl time.Duration, opts ...pgtest.Option) *service {
	t.Helper()
	one := pgtest.Config(func(c *pgxpool.Config) {
		c.MaxConns = 1
		c.ConnConfig.RuntimeParams["application_name"] = stepper
	})
	s := &service{stage: newStage(t, append([]pgtest.Option{one}, opts...)...), ttl: ttl, events: new(checkpointEvents)}
	s.lease = newObserved(t, s.b, "owner", ttl, s.events)
	exec(t, s.direct, createSteps)
	return s
}

// successor is another process: a Lease of its own, around the proxy.
func (s *service) successor(t testing.TB) worklease.Lease {
	t.Helper()
	return newLeaseFor(t, newBackend(t, s.direct), "successor", s.ttl)
}

// rows returns the steps that took effect, in order.
func (s *service) rows(t testing.TB, workID string) string {
	t.Helper()
	return query[string](t, s.direct, `SELECT coalesce(string_agg(step::text, ' ' ORDER BY n), '') FROM steps WHERE work_id = $1`, workID)
}

// unchanged reports rows and checkpoints of a work ID that never had any.
func (s *service) unchanged(t testing.TB, workID string) {
	t.Helper()
	if rows, state := s.rows(t, workID), stored(t, s.direct, workID); rows != "" || state != "<null>" {
		t.Errorf("steps [%s] took effect, the checkpoint is %q", rows, state)
	}
}

// did reports what differs from steps and a checkpoint.
func (s *service) did(t testing.TB, workID, rows, state string) {
	t.Helper()
	if got := s.rows(t, workID); got != rows {
		t.Errorf("steps [%s] took effect, want [%s]", got, rows)
	}
	if got := stored(t, s.direct, workID); got != state {
		t.Errorf("the checkpoint is %q, want %q", got, state)
	}
}

// leave releases, on a slow machine too.
func leave(t testing.TB, l worklease.Lease, token worklease.Token, opts ...worklease.ReleaseOption) error {
	t.Helper()
	return l.Release(t.Context(), token, append(opts, worklease.WithReleaseTimeout(fault.Patience))...)
}

type stepFn = func(ctx context.Context, tx pgx.Tx) ([]byte, error)

// write is a step: a row, and its number as the state.
func write(token worklease.Token, step int) stepFn {
	return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		return []byte(strconv.Itoa(step)), insert(ctx, tx, token, step)
	}
}

func insert(ctx context.Context, tx pgx.Tx, token worklease.Token, step int) error {
	_, err := tx.Exec(ctx, `INSERT INTO steps (work_id, step, token) VALUES ($1::text, $2::int, $3::bigint)`,
		token.WorkID(), step, int64(token.FencingToken()))
	return err
}

// transaction is one of the application's own, around the proxy. It is rolled back
// with the test.
func (s *service) transaction(t testing.TB, o pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := s.direct.BeginTx(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { tx.Rollback(context.Background()) })
	return tx
}

// checkpointEvents remembers what it is told about checkpoints.
type checkpointEvents struct {
	worklease.NopObserver
	mu     sync.Mutex
	all    []worklease.CheckpointEvent
	fences int
}

func (c *checkpointEvents) OnCheckpoint(_ context.Context, e worklease.CheckpointEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, e)
}

func (c *checkpointEvents) OnFenced(_ context.Context, e worklease.FencedEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Operation == worklease.OperationCheckpoint {
		c.fences++
	}
}

// since takes what came since the last call.
func (c *checkpointEvents) since() (all []worklease.CheckpointEvent, fences int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all, fences = c.all, c.fences
	c.all, c.fences = nil, 0
	return all, fences
}

// X1, X3
func TestStepCommitsRowsAndCheckpointTogether(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	torn := make(chan string, 1)
	stop := make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			var rows, state int
			err := s.direct.QueryRow(context.Background(), `SELECT (SELECT coalesce(max(step), 0) FROM steps),
				coalesce(convert_from(checkpoint, 'UTF8')::int, 0) FROM worklease_leases`).Scan(&rows, &state)
			if err != nil || rows != state {
				select {
				case torn <- fmt.Sprintf("row %d, checkpoint %d, %v", rows, state, err):
				default:
				}
			}
		}
	})
	n := rounds(10, 30, 500)
	for i := 1; i <= n; i++ {
		calls := 0
		must(t, s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			calls++
			return write(token, i)(ctx, tx)
		}))
		if calls != 1 {
			t.Fatalf("the function was called %d times", calls)
		}
	}
	close(stop)
	reader.Wait()
	select {
	case seen := <-torn:
		t.Error("seen in one snapshot:", seen)
	default:
	}
	if got := query[int](t, s.direct, `SELECT count(*) FROM steps`); got != n {
		t.Errorf("%d rows after %d steps", got, n)
	}
	if s.Opened() != 1 {
		t.Errorf("a pool of one opened %d connections", s.Opened())
	}
}

// X1, X3
func TestStepRollsBack(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	exec(t, s.direct, `CREATE TABLE once (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)`)
	errOwn := errors.New("the function's own")
	for name, test := range map[string]struct {
		fn    func(t *testing.T, cancel context.CancelFunc, tx pgx.Tx) error
		is    error
		state string
	}{
		"it fails": {
			fn: func(*testing.T, context.CancelFunc, pgx.Tx) error { return errOwn }, is: errOwn,
		},
		"it aborts the transaction and goes on": {
			fn: func(t *testing.T, _ context.CancelFunc, tx pgx.Tx) error {
				tx.Exec(t.Context(), `SELECT 1/0`)
				return nil
			},
			state: "25P02",
		},
		"it ends the transaction by hand": {
			fn: func(t *testing.T, _ context.CancelFunc, tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `ROLLBACK`)
				return err
			},
		},
		"it leaves rows unread": {
			fn: func(t *testing.T, _ context.CancelFunc, tx pgx.Tx) error {
				_, err := tx.Query(t.Context(), `SELECT generate_series(1, 10)`)
				return err
			},
		},
		"the context ends": {
			fn: func(_ *testing.T, cancel context.CancelFunc, _ pgx.Tx) error {
				cancel()
				return nil
			},
			is: context.Canceled,
		},
		"the session is killed": {
			fn: func(t *testing.T, _ context.CancelFunc, tx pgx.Tx) error {
				_, err := fault.Terminate(t.Context(), s.direct, fault.Backends{App: stepper})
				return err
			},
		},
		"the commit is refused": {
			fn: func(t *testing.T, _ context.CancelFunc, tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), `INSERT INTO once VALUES (1), (1)`)
				return err
			},
			state: "23505",
		},
	} {
		t.Run(name, func(t *testing.T) {
			token := take(t, s.lease, name)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := s.b.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				must(t, insert(ctx, tx, token, 1))
				return []byte("1"), test.fn(t, cancel, tx)
			})
			if err == nil || errors.Is(err, worklease.ErrOutcomeUnknown) || errors.Is(err, worklease.ErrFenced) {
				t.Errorf("Step returned %v", err)
			}
			if test.is != nil {
				refused(t, "Step", err, test.is)
			}
			if sqlState(err) != test.state && test.state != "" {
				t.Errorf("Step returned %v, want SQLSTATE %s", err, test.state)
			}
			s.unchanged(t, name)
			s.stepsOn(t, token)
		})
	}
	if n := s.questions(); n != 0 {
		t.Errorf("steps that certainly were not committed asked for their outcome %d times", n)
	}
}

// stepsOn reports a connection that did not come back, or not as it was.
func (s *service) stepsOn(t *testing.T, token worklease.Token) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
	defer cancel()
	var silence string
	if err := s.pool.QueryRow(ctx, `SHOW idle_in_transaction_session_timeout`).Scan(&silence); err != nil || silence != "0" {
		t.Errorf("afterwards the session ends idle transactions after %q, %v", silence, err)
	}
	if err := s.b.Step(ctx, token, write(token, 2)); err != nil {
		t.Error("the next step:", err)
	}
	s.did(t, token.WorkID(), "2", "2")
}

// X3
func TestStepUnwinds(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	for name, end := range map[string]func(){
		"panic":  func() { panic("on purpose") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			token := take(t, s.lease, name)
			var recovered any
			var goes sync.WaitGroup
			goes.Go(func() {
				defer func() { recovered = recover() }()
				s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					write(token, 1)(ctx, tx)
					end()
					return nil, nil
				})
				t.Error("Step returned")
			})
			goes.Wait()
			if name == "panic" && recovered != "on purpose" {
				t.Errorf("recovered %v", recovered)
			}
			s.unchanged(t, name)
			s.stepsOn(t, token)
		})
	}
	if s.Opened() != 1 {
		t.Errorf("a pool of one opened %d connections", s.Opened())
	}
}

func TestStepEndsTheTransactionItself(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	must(t, s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if tx.Commit(ctx) == nil || tx.Rollback(ctx) == nil {
			t.Error("the function may end the transaction")
		}
		for step, end := range map[int]func(pgx.Tx) error{
			1: func(nested pgx.Tx) error { return nested.Commit(ctx) },
			9: func(nested pgx.Tx) error { return nested.Rollback(ctx) },
		} {
			nested, err := tx.Begin(ctx)
			must(t, err)
			must(t, insert(ctx, nested, token, step))
			must(t, end(nested))
		}
		return []byte("1"), nil
	}))
	s.did(t, "work", "1", "1")
}

func TestTransactionArguments(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	never := func(context.Context, pgx.Tx) ([]byte, error) {
		t.Error("the function was called")
		return nil, nil
	}
	tx := s.transaction(t, pgx.TxOptions{})
	closed := newBackend(t, s.pool)
	closed.Close()
	idle, err := s.pool.Acquire(t.Context())
	must(t, err)
	defer idle.Release() // which may be called twice
	for name, test := range map[string]struct{ err, is error }{
		"Step, zero token":         {s.b.Step(t.Context(), worklease.Token{}, never), worklease.ErrInvalid},
		"Step, no function":        {s.b.Step(t.Context(), token, nil), worklease.ErrInvalid},
		"Step, closed":             {closed.Step(t.Context(), token, never), worklease.ErrClosed},
		"Step, ended context":      {s.b.Step(cancelled(t.Context()), token, never), context.Canceled},
		"CheckpointTx, zero token": {s.b.CheckpointTx(t.Context(), tx, worklease.Token{}, nil), worklease.ErrInvalid},
		"CheckpointTx, no tx":      {s.b.CheckpointTx(t.Context(), nil, token, nil), worklease.ErrInvalid},
		"CheckpointTx, closed":     {closed.CheckpointTx(t.Context(), tx, token, nil), worklease.ErrClosed},
		"FenceTx, zero token":      {s.b.FenceTx(t.Context(), tx, worklease.Token{}), worklease.ErrInvalid},
		"FenceTx, no tx":           {s.b.FenceTx(t.Context(), nil, token), worklease.ErrInvalid},
		"FenceTx, no conn":         {s.b.FenceTx(t.Context(), (*pgx.Conn)(nil), token), worklease.ErrInvalid},
		"FenceTx, pool":            {s.b.FenceTx(t.Context(), s.pool, token), worklease.ErrInvalid},
		"FenceTx, idle":            {s.b.FenceTx(t.Context(), idle, token), worklease.ErrInvalid},
		"CheckpointTx, idle":       {s.b.CheckpointTx(t.Context(), idle.Conn(), token, nil), worklease.ErrInvalid},
		"FenceTx, closed":          {closed.FenceTx(t.Context(), tx, token), worklease.ErrClosed},
	} {
		refused(t, name, test.err, test.is)
	}
	idle.Release()                               // it is the pool's only one
	must(t, s.b.FenceTx(t.Context(), tx, token)) // none of them has reached it

	small, err := worklease.New(s.b, worklease.Config{TTL: time.Minute, HolderID: "small", MaxCheckpointBytes: 3})
	must(t, err)
	token = take(t, small, "small")
	four := func(context.Context, pgx.Tx) ([]byte, error) { return []byte("four"), nil }
	refused(t, "Step, large state", s.b.Step(t.Context(), token, four, nil, pgxbackend.WithOutcomeTimeout(0)), worklease.ErrInvalid)
	refused(t, "CheckpointTx, large state", s.b.CheckpointTx(t.Context(), tx, token, []byte("four")), worklease.ErrInvalid)
	must(t, tx.Rollback(t.Context()))
	s.unchanged(t, "small")
}

// X3: a renewal during a step costs it nothing, whatever the role's default isolation.
func TestStepIsReadCommitted(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(level, func(t *testing.T) {
			t.Parallel()
			s := newService(t, time.Minute, pgtest.Config(func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = level
			}))
			renewer := newBackend(t, s.direct)
			for step, test := range []struct {
				options []pgxbackend.StepOption
				want    string
			}{
				{nil, "read committed"},
				{[]pgxbackend.StepOption{pgxbackend.WithTxOptions(pgx.TxOptions{})}, "read committed"},
				{[]pgxbackend.StepOption{pgxbackend.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead})}, "repeatable read"},
				{[]pgxbackend.StepOption{pgxbackend.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})}, "serializable"},
			} {
				workID := strconv.Itoa(step)
				token := take(t, s.lease, workID)
				s.events.since()
				err := s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
					if got := query[string](t, tx, `SHOW transaction_isolation`); got != test.want {
						t.Errorf("the transaction is %s, want %s", got, test.want)
					}
					_, err := renewer.Renew(ctx, token.Claim(), time.Minute)
					must(t, err)
					return write(token, 1)(ctx, tx)
				}, test.options...)
				if test.want == "read committed" {
					must(t, err)
					s.did(t, workID, "1", "1")
					continue
				}
				if sqlState(err) != "40001" || errors.Is(err, worklease.ErrFenced) {
					t.Errorf("at %s: Step returned %v, want SQLSTATE 40001", test.want, err)
				}
				s.unchanged(t, workID)
			}
		})
	}
}

// X1: 40001 stays 40001.
func TestCheckpointTxAtRepeatableRead(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	for name, first := range map[string]func(pgx.Tx) error{
		"after a statement": func(tx pgx.Tx) error { return insert(t.Context(), tx, token, 1) },
		"after a fence":     func(tx pgx.Tx) error { return s.b.FenceTx(t.Context(), tx, token) },
	} {
		tx := s.transaction(t, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		must(t, first(tx))
		must(t, s.lease.Renew(t.Context(), token))
		err := s.b.CheckpointTx(t.Context(), tx, token, []byte("1"))
		if sqlState(err) != "40001" || errors.Is(err, worklease.ErrFenced) {
			t.Errorf("%s: CheckpointTx returned %v, want SQLSTATE 40001", name, err)
		}
		must(t, tx.Rollback(t.Context()))
	}
	s.unchanged(t, "work")
}

// X3, E1: what a role brings along is no verdict.
func TestTransactionsUnderARolesDefaults(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	with := func(name, value string) *pgxbackend.Backend {
		return newBackend(t, pgtest.Open(t, s.url, pgtest.Config(func(c *pgxpool.Config) {
			c.MaxConns = 1
			c.ConnConfig.RuntimeParams[name] = value
		})))
	}
	token := take(t, s.lease, "work")

	readOnly := with("default_transaction_read_only", "on")
	if err := readOnly.Step(t.Context(), token, write(token, 1)); sqlState(err) != "25006" || errors.Is(err, worklease.ErrFenced) {
		t.Errorf("read only: Step returned %v", err)
	}
	s.unchanged(t, "work")
	must(t, readOnly.Step(t.Context(), token, write(token, 1), pgxbackend.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadWrite})))
	s.did(t, "work", "1", "1")

	lock := lockRow(t, s.url, "work")
	for _, test := range []struct{ name, state string }{{"lock_timeout", "55P03"}, {"statement_timeout", "57014"}} {
		err := with(test.name, "20ms").Step(t.Context(), token, write(token, 2))
		if sqlState(err) != test.state || errors.Is(err, worklease.ErrFenced) {
			t.Errorf("%s: Step returned %v, want SQLSTATE %s", test.name, err, test.state)
		}
	}
	lock.Release()
	s.did(t, "work", "1", "1")

	must(t, with("synchronous_commit", "off").Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		return write(token, 2)(ctx, tx)
	}))
	s.did(t, "work", "1 2", "2")
}

// X4
func TestTimeInATransactionIsClockTime(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	const aged = `SELECT pg_sleep(0.3)`
	const extended = `SELECT expires_at - ttl >= transaction_timestamp() + interval '0.3 s' AND checkpointed_at >= transaction_timestamp() + interval '0.3 s'
		FROM worklease_leases WHERE work_id = $1`
	step := take(t, s.lease, "step")
	var began string
	must(t, s.b.Step(t.Context(), step, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		exec(t, tx, aged)
		began = query[string](t, tx, `SELECT transaction_timestamp()::text`)
		return []byte("1"), nil
	}))
	if !query[bool](t, s.direct, `SELECT expires_at - ttl >= $2::text::timestamptz + interval '0.3 s' FROM worklease_leases WHERE work_id = $1`, "step", began) {
		t.Error("a step extended the lease from its beginning")
	}
	own := take(t, s.lease, "own")
	tx := s.transaction(t, pgx.TxOptions{})
	exec(t, tx, aged)
	must(t, s.b.CheckpointTx(t.Context(), tx, own, []byte("1")))
	if !query[bool](t, tx, extended, "own") {
		t.Error("a checkpoint in a transaction extended the lease from the transaction's beginning")
	}
	must(t, tx.Rollback(t.Context()))

	// A lease that lapsed since the transaction began is not one that a fence refuses,
	// and a successor that came since is seen.
	tx = s.transaction(t, pgx.TxOptions{})
	exec(t, tx, `SELECT`)
	endLease(t, s.direct, "own")
	must(t, s.b.FenceTx(t.Context(), tx, own))
	must(t, tx.Rollback(t.Context()))
	tx = s.transaction(t, pgx.TxOptions{})
	exec(t, tx, `SELECT`)
	take(t, s.successor(t), "own")
	refused(t, "FenceTx", s.b.FenceTx(t.Context(), tx, own), worklease.ErrFenced)
}

// D1, X6
func TestStepKeepsNoStateAndNilKeepsTheStored(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	step := func(state []byte) {
		t.Helper()
		must(t, s.b.Step(t.Context(), token, func(context.Context, pgx.Tx) ([]byte, error) { return state, nil }))
	}
	row := func() (r [3]string) {
		t.Helper()
		must(t, s.direct.QueryRow(t.Context(), `SELECT coalesce(convert_from(checkpoint, 'UTF8'), '<null>'), checkpoint_no::text,
			coalesce(checkpointed_at::text, '') FROM worklease_leases`).Scan(&r[0], &r[1], &r[2]))
		return r
	}
	expiry := func() time.Time {
		t.Helper()
		return query[time.Time](t, s.direct, `SELECT expires_at FROM worklease_leases`)
	}
	step([]byte("state"))
	before, until := row(), expiry()
	step(nil)
	if got, want := row(), [3]string{"state", "2", before[2]}; got != want || !expiry().After(until) {
		t.Errorf("after a step with nil: %s until %v, want %s and later than %v", got, expiry(), want, until)
	}
	until = expiry()
	tx := s.transaction(t, pgx.TxOptions{})
	must(t, s.b.CheckpointTx(t.Context(), tx, token, nil))
	must(t, tx.Commit(t.Context()))
	if got, want := row(), [3]string{"state", "3", before[2]}; got != want || !expiry().After(until) {
		t.Errorf("after CheckpointTx with nil: %s until %v, want %s and later than %v", got, expiry(), want, until)
	}
	step([]byte{})
	if got := row(); got[0] != "" {
		t.Errorf("after a step with an empty state: %s", got)
	}
	events, _ := s.events.since()
	sizes := make([]int, 0, 3)
	for _, e := range events {
		sizes = append(sizes, e.Size)
	}
	if diff := cmp.Diff(sizes, []int{5, 0, 0}); diff != "" {
		t.Errorf("sizes in the steps' events (-got +want):\n%s", diff)
	}
}
