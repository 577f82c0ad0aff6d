package pgxbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
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

// checkpointTx saves in a transaction of its own and commits it.
func (s *service) checkpointTx(t testing.TB, token worklease.Token, step int) error {
	t.Helper()
	tx := s.transaction(t, pgx.TxOptions{})
	defer tx.Rollback(t.Context())
	must(t, insert(t.Context(), tx, token, step))
	if err := s.b.CheckpointTx(t.Context(), tx, token, fmt.Append(nil, step)); err != nil {
		return err
	}
	return tx.Commit(t.Context())
}

// X5
func TestStepCountsAsCheckpoint(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	deadline := func() time.Time {
		t.Helper()
		d, ok := s.lease.Deadline(token)
		if !ok {
			t.Fatal("not held")
		}
		return d
	}
	granted := deadline()
	sent := time.Now()
	must(t, s.b.Step(t.Context(), token, write(token, 1)))
	if d := deadline(); !d.After(granted) || d.After(time.Now().Add(time.Minute)) || d.Before(sent.Add(time.Minute-10*time.Second)) {
		t.Errorf("a step moved the deadline from %v to %v", granted, d)
	}
	events, fences := s.events.since()
	if len(events) != 1 || fences != 0 || events[0].Token != token || events[0].Size != 1 || events[0].Err != nil || events[0].Duration <= 0 {
		t.Errorf("the observer was told %+v, and of %d fences", events, fences)
	}

	stepped := deadline()
	must(t, s.checkpointTx(t, token, 2))
	if d := deadline(); d != stepped {
		t.Errorf("CheckpointTx moved the deadline from %v to %v", stepped, d)
	}
	errOwn := errors.New("the function's own")
	refused(t, "Step", s.b.Step(t.Context(), token, func(context.Context, pgx.Tx) ([]byte, error) { return nil, errOwn }), errOwn)
	if events, fences := s.events.since(); len(events) != 0 || fences != 0 || deadline() != stepped {
		t.Errorf("after CheckpointTx and a step that failed by itself the observer was told %+v, and of %d fences", events, fences)
	}
	err := s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		tx.Exec(ctx, `SELECT 1/0`)
		return []byte("lost"), nil
	})
	events, fences = s.events.since()
	if len(events) != 1 || fences != 0 || events[0].Err != err || err == nil || events[0].Size != 4 || deadline() != stepped {
		t.Errorf("after a checkpoint that failed with %v the observer was told %+v, and of %d fences", err, events, fences)
	}
}

// X5
func TestFencedStepEndsTheLease(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	for name, test := range map[string]struct {
		lose   func(worklease.Token)
		want   []error
		fences int
	}{
		"taken": {func(token worklease.Token) {
			endLease(t, s.direct, token.WorkID())
			take(t, s.successor(t), token.WorkID())
		}, []error{worklease.ErrFenced}, 1},
		"forgotten": {func(token worklease.Token) {
			must(t, newBackend(t, s.direct).Forget(t.Context(), token.Claim()))
		}, []error{worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			token := take(t, s.lease, name)
			renewCtx, stop := s.lease.StartRenewal(t.Context(), token)
			defer stop()
			test.lose(token)
			s.events.since()
			refused(t, "CheckpointTx", s.checkpointTx(t, token, 1), test.want[0])
			if events, fences := s.events.since(); len(events) != 0 || fences != 0 {
				t.Errorf("of CheckpointTx the observer was told %+v, and of %d fences", events, fences)
			}
			err := s.b.Step(renewCtx, token, write(token, 1))
			refused(t, "Step", err, test.want[0])
			events, fences := s.events.since()
			if len(events) != 1 || events[0].Err != err || fences != test.fences {
				t.Errorf("the observer was told %+v, and of %d fences", events, fences)
			}
			for _, want := range test.want {
				refused(t, "the cause", context.Cause(renewCtx), want)
			}
			if _, ok := s.lease.Deadline(token); ok {
				t.Error("the lease has a deadline yet")
			}
			s.unchanged(t, name)
		})
	}
}

// endAfter is a tracer that ends a context when a statement has been answered.
type endAfter struct {
	match fault.Match
	end   func()
}

type statementKey struct{}

func (e *endAfter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, d.SQL)
}

func (e *endAfter) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(statementKey{}).(string); e.match(sql) && e.end != nil {
		e.end()
	}
}

// A context that ends while a step commits does not take it back, and what ended it,
// the fence of another lease perhaps, is no verdict on this one.
func TestContextEndsBeforeTheCommit(t *testing.T) {
	t.Parallel()
	tracer := &endAfter{match: sqlCheckpoint}
	s := newService(t, time.Minute, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer }))
	token := take(t, s.lease, "work")
	ctx, cancel := context.WithCancelCause(t.Context())
	tracer.end = func() { cancel(fmt.Errorf("of another lease: %w", worklease.ErrFenced)) }
	s.settled(t, token, s.b.Step(ctx, token, write(token, 1)), nil)
	if ctx.Err() == nil {
		t.Error("the context did not end")
	}
	if _, ok := s.lease.Deadline(token); !ok {
		t.Error("the lease is lost")
	}
	s.did(t, "work", "1", "1")
}

// X5
func TestStepsAreProgress(t *testing.T) {
	t.Parallel()
	const patience = 1500 * time.Millisecond
	s := newService(t, time.Minute)
	for name, save := range map[string]func(worklease.Token, int) error{
		"Step": func(token worklease.Token, step int) error {
			return s.b.Step(t.Context(), token, write(token, step))
		},
		"CheckpointTx": func(token worklease.Token, step int) error { return s.checkpointTx(t, token, step) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			token := take(t, s.lease, name)
			renewCtx, stop := s.lease.StartRenewal(t.Context(), token, worklease.WithProgressDeadline(patience))
			defer stop()
			ticks := time.NewTicker(patience / 20)
			defer ticks.Stop()
			for step, began := 1, time.Now(); time.Since(began) < patience+patience/2; step++ {
				must(t, save(token, step))
				<-ticks.C
			}
			if renewCtx.Err() != nil {
				t.Fatalf("the lease ended in spite of the progress: %v", context.Cause(renewCtx))
			}
			await(t, "the lease stalls", renewCtx.Done())
			refused(t, "the cause", context.Cause(renewCtx), worklease.ErrStalled)
		})
	}
}

// D2: the saves of a hold have one row of numbers, however they are sent.
func TestSavesShareTheirNumbers(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	token := take(t, s.lease, "work")
	var numbers []string
	for _, save := range []func() error{
		func() error { return s.b.Step(t.Context(), token, write(token, 1)) },
		func() error { return s.checkpointTx(t, token, 2) },
		func() error { return s.lease.Checkpoint(t.Context(), token, []byte("3")) },
		func() error { return s.b.Step(t.Context(), token, write(token, 4)) },
		func() error { return s.lease.Checkpoint(t.Context(), token, nil) },
		func() error { return s.checkpointTx(t, token, 6) },
	} {
		must(t, save())
		numbers = append(numbers, query[string](t, s.direct, `SELECT checkpoint_no || ' ' || (checkpoint_by = nonce)::text FROM worklease_leases`))
	}
	if diff := cmp.Diff(numbers, []string{"1 true", "2 true", "3 true", "4 true", "5 true", "6 true"}); diff != "" {
		t.Errorf("numbers and whether they are the hold's (-got +want):\n%s", diff)
	}
}

// D2: rows that belong to an older state are not committed once a newer one is there.
func TestOvertakenSaves(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 2 }))
	overtaken := func(t *testing.T, token worklease.Token, err error, rows, state string) {
		t.Helper()
		var o *worklease.OvertakenError
		if !errors.As(err, &o) || o.Number == 0 {
			t.Errorf("got the error %v, want an *OvertakenError", err)
		}
		s.did(t, token.WorkID(), rows, state)
	}
	// late runs save with its checkpoint held back until newer is done.
	late := func(t *testing.T, save func() error, newer func()) error {
		t.Helper()
		held := s.HoldRequest(sqlCheckpoint, 1)
		done := backgroundErr(save)
		must(t, held.Fired(t.Context()))
		newer()
		held.Release()
		return await(t, "the late save ends", done).err
	}
	// txThrough is a transaction through the proxy.
	txThrough := func(t *testing.T, token worklease.Token) func() error {
		t.Helper()
		return func() error {
			return pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
				if err := insert(t.Context(), tx, token, 1); err != nil {
					return err
				}
				return s.b.CheckpointTx(t.Context(), tx, token, []byte("1"))
			})
		}
	}

	t.Run("Step by Checkpoint", func(t *testing.T) {
		token := take(t, s.lease, t.Name())
		err := late(t, func() error { return s.b.Step(t.Context(), token, write(token, 1)) },
			func() { must(t, s.lease.Checkpoint(t.Context(), token, []byte("2"))) })
		overtaken(t, token, err, "", "2")
		must(t, s.b.Step(t.Context(), token, write(token, 3)))
		s.did(t, t.Name(), "3", "3")
	})
	t.Run("CheckpointTx by Checkpoint", func(t *testing.T) {
		token := take(t, s.lease, t.Name())
		err := late(t, txThrough(t, token), func() { must(t, s.lease.Checkpoint(t.Context(), token, []byte("2"))) })
		overtaken(t, token, err, "", "2")
	})
	t.Run("CheckpointTx by Step", func(t *testing.T) {
		token := take(t, s.lease, t.Name())
		err := late(t, txThrough(t, token), func() { must(t, s.b.Step(t.Context(), token, write(token, 2))) })
		overtaken(t, token, err, "2", "2")
	})
	t.Run("Checkpoint by Step", func(t *testing.T) {
		token := take(t, s.lease, t.Name())
		must(t, late(t, func() error { return s.lease.Checkpoint(t.Context(), token, []byte("1")) },
			func() { must(t, s.b.Step(t.Context(), token, write(token, 2))) }))
		s.did(t, t.Name(), "2", "2")
	})
	t.Run("Step by another hold", func(t *testing.T) {
		token := take(t, s.lease, t.Name())
		resumed := worklease.NewToken(t.Name(), token.HolderID(), token.FencingToken(), token.ExpiresAt())
		err := late(t, func() error { return s.b.Step(t.Context(), token, write(token, 1)) },
			func() { must(t, s.checkpointTx(t, resumed, 2)) })
		overtaken(t, token, err, "2", "2")
		// The next is numbered above.
		must(t, s.b.Step(t.Context(), token, write(token, 3)))
		s.did(t, t.Name(), "2 3", "3")
	})
}

// D2: a token that was written down and resumed, with a Lease and without.
func TestResumedTokensInTransactions(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	number := func() int64 {
		t.Helper()
		return query[int64](t, s.direct, `SELECT checkpoint_no FROM worklease_leases`)
	}
	token := take(t, s.lease, "work")
	must(t, s.b.Step(t.Context(), token, write(token, 1)))
	last := number()
	// A statement of the first hold that nobody waits for any more.
	ctx, cancel := context.WithCancel(t.Context())
	late := s.HoldRequest(sqlCheckpoint, 1)
	gone := backgroundErr(func() error { return s.lease.Checkpoint(ctx, token, []byte("late")) })
	must(t, late.Fired(t.Context()))
	cancel()
	if await(t, "the Checkpoint ends", gone).err == nil {
		t.Fatal("a checkpoint without an answer succeeded")
	}

	again := newBackend(t, s.direct) // another process
	resumed := worklease.NewToken("work", token.HolderID(), token.FencingToken(), token.ExpiresAt())
	lease := newLease(t, again, token.HolderID())
	must(t, lease.Renew(t.Context(), resumed))
	for step, save := range []func(step int) error{
		func(step int) error { return again.Step(t.Context(), resumed, write(resumed, step)) },
		func(step int) error { return newBackend(t, s.direct).Step(t.Context(), resumed, write(resumed, step)) }, // no Lease knows it
		func(step int) error { return s.checkpointTx(t, resumed, step) },                                         // nor here
	} {
		must(t, save(step+2))
		if n := number(); n < last+1<<31 {
			t.Errorf("step %d of a hold of its own is numbered %d, after %d", step+2, n, last)
		}
		last = number()
	}
	late.Release()
	if err := late.Answered(t.Context()); err != nil {
		t.Error("the late checkpoint was not answered:", err)
	}
	s.did(t, "work", "1 2 3 4", "4")
	// The hold that is known goes on, above the others.
	must(t, lease.Checkpoint(t.Context(), resumed, []byte("5")))
	must(t, again.Step(t.Context(), resumed, write(resumed, 6)))
	s.did(t, "work", "1 2 3 4 6", "6")
	if _, ok := lease.Deadline(resumed); !ok {
		t.Error("the resumed lease has no deadline")
	}
}

// H1: the first own save overwrites what the last owner left, and Prior keeps it.
func TestLargePriorOutlivesAStep(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	large := bytes.Repeat([]byte("prior "), worklease.MaxInlineState/6+1)
	for name, save := range map[string]func(worklease.Token) error{
		"Step":         func(token worklease.Token) error { return s.b.Step(t.Context(), token, write(token, 1)) },
		"CheckpointTx": func(token worklease.Token) error { return s.checkpointTx(t, token, 1) },
		"CheckpointTx in a Step": func(token worklease.Token) error {
			return s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				must(t, s.b.CheckpointTx(ctx, tx, token, []byte("0")))
				return write(token, 1)(ctx, tx)
			})
		},
		"Step at repeatable read": func(token worklease.Token) error {
			return s.b.Step(t.Context(), token, write(token, 1), pgxbackend.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			first := take(t, s.lease, name)
			must(t, leave(t, s.lease, first, worklease.WithState(large)))
			token := take(t, s.lease, name)
			must(t, save(token))
			s.did(t, name, "1", "1")
			p := prior(t, s.lease, token)
			if !bytes.Equal(p.State, large) || p.Exit != worklease.ExitReleased {
				t.Errorf("Prior has %d bytes of state, %v; want %d", len(p.State), p.Exit, len(large))
			}
		})
	}
}
