package pgxbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
)

// errUndone stands for an error that says that nothing was committed.
var errUndone = errors.New("not committed")

// settled reports a step that does not tell what became of it, or tells it twice.
// want is nil, errUndone, or the error that it is.
func (s *service) settled(t *testing.T, token worklease.Token, err, want error) {
	t.Helper()
	switch {
	case want == nil || want != errUndone:
		refused(t, "Step", err, want)
	case err == nil || errors.Is(err, worklease.ErrOutcomeUnknown) || errors.Is(err, worklease.ErrFenced):
		t.Errorf("Step returned %v, want that nothing was committed", err)
	}
	events, fences := s.events.since()
	if len(events) != 1 || events[0].Token != token || events[0].Err != err {
		t.Errorf("the observer was told %v, want once %v", events, err)
	}
	if want := errors.Is(want, worklease.ErrFenced); (fences == 1) != want || fences > 1 {
		t.Errorf("the observer was told of %d fences", fences)
	}
}

// questions is how often a step has asked what became of a commit.
func (s *service) questions() (n int) {
	for _, sql := range s.Statements() {
		if sqlOutcome(sql) {
			n++
		}
	}
	return n
}

// X3: the reply to the commit is lost; what came meanwhile?
func TestLostCommit(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	other := newBackend(t, s.direct)
	next := s.successor(t)
	taken := func(t *testing.T, workID string) worklease.Token {
		t.Helper()
		endLease(t, s.direct, workID)
		return take(t, next, workID)
	}
	release := func(t *testing.T, token worklease.Token) {
		t.Helper()
		must(t, other.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
	}
	forget := func(t *testing.T, token worklease.Token) {
		t.Helper()
		must(t, other.Forget(t.Context(), token.Claim()))
	}
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, token worklease.Token)
		did       error // what Step returns if it was committed
		didNot    error // and if it was not
	}{
		{"nothing", func(*testing.T, worklease.Token) {}, nil, errUndone},
		{"a renewal", func(t *testing.T, token worklease.Token) {
			_, err := other.Renew(t.Context(), token.Claim(), time.Minute)
			must(t, err)
		}, nil, errUndone},
		{"the end of the lease", func(t *testing.T, token worklease.Token) {
			endLease(t, s.direct, token.WorkID())
		}, nil, errUndone},
		{"a release", release, nil, errUndone},
		{"a successor", func(t *testing.T, token worklease.Token) {
			taken(t, token.WorkID())
		}, nil, worklease.ErrFenced},
		{"a successor and its checkpoint", func(t *testing.T, token worklease.Token) {
			must(t, next.Checkpoint(t.Context(), taken(t, token.WorkID()), []byte("next")))
		}, nil, worklease.ErrFenced},
		{"a release and a successor", func(t *testing.T, token worklease.Token) {
			release(t, token)
			take(t, next, token.WorkID())
		}, nil, worklease.ErrFenced},
		{"a successor that gave it back", func(t *testing.T, token worklease.Token) {
			claim := taken(t, token.WorkID()).Claim()
			must(t, other.Release(t.Context(), claim, worklease.Farewell{Exit: worklease.ExitNone}))
		}, nil, worklease.ErrFenced},
		{"two successors", func(t *testing.T, token worklease.Token) {
			taken(t, token.WorkID())
			taken(t, token.WorkID())
		}, worklease.ErrOutcomeUnknown, worklease.ErrOutcomeUnknown},
		{"a newer checkpoint", func(t *testing.T, token worklease.Token) {
			_, err := other.Checkpoint(t.Context(), token.Claim(),
				worklease.Save{State: []byte("newer"), Number: 1 << 40, Hold: token.Claim().Nonce, TTL: time.Minute})
			must(t, err)
		}, worklease.ErrOutcomeUnknown, worklease.ErrOutcomeUnknown},
		{"a newer checkpoint and a successor", func(t *testing.T, token worklease.Token) {
			_, err := other.Checkpoint(t.Context(), token.Claim(),
				worklease.Save{State: []byte("newer"), Number: 1 << 40, Hold: token.Claim().Nonce, TTL: time.Minute})
			must(t, err)
			taken(t, token.WorkID())
		}, worklease.ErrOutcomeUnknown, worklease.ErrOutcomeUnknown},
		{"a Forget", forget, worklease.ErrOutcomeUnknown, worklease.ErrOutcomeUnknown},
		{"a Forget and a successor", func(t *testing.T, token worklease.Token) {
			forget(t, token)
			take(t, next, token.WorkID())
		}, worklease.ErrOutcomeUnknown, worklease.ErrOutcomeUnknown},
	} {
		for _, happened := range []bool{true, false} {
			name, want, rows := test.name+", committed", test.did, "1 2"
			if !happened {
				name, want, rows = test.name+", not committed", test.didNot, "1"
			}
			t.Run(name, func(t *testing.T) {
				token := take(t, s.lease, name)
				must(t, s.b.Step(t.Context(), token, write(token, 1)))
				s.events.since()
				if happened {
					s.SwallowReply(fault.Commit, 1, fault.Reset)
				} else {
					s.DropRequest(fault.Commit, 1, fault.Reset)
				}
				question := s.HoldRequest(sqlOutcome, 1)
				done := backgroundErr(func() error { return s.b.Step(t.Context(), token, write(token, 2)) })
				must(t, question.Fired(t.Context()))
				test.meanwhile(t, token)
				question.Release()
				s.settled(t, token, await(t, "the step ends", done).err, want)
				if got := s.rows(t, name); got != rows {
					t.Errorf("steps [%s] took effect, want [%s]", got, rows)
				}
			})
		}
	}
}

// stall waits for an advisory lock, deaf to the request to cancel by which pgx takes
// leave of a connection that it lost.
const stall = `
CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
	LOOP
		BEGIN
			PERFORM pg_advisory_xact_lock(7);
			RETURN NULL;
		EXCEPTION WHEN query_canceled THEN NULL;
		END;
	END LOOP;
END $$`

const stallCommits = `CREATE CONSTRAINT TRIGGER stall AFTER INSERT ON steps DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stall()`

func aMoment(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// X3: the commit is still under way on the server while Step asks.
func TestCommitUnderWay(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	exec(t, s.direct, stall)
	exec(t, s.direct, stallCommits)
	committing := fault.Backends{App: stepper, Query: "commit%"}
	asking := fault.Backends{App: stepper, Query: "-- worklease: outcome%"}
	for name, test := range map[string]struct {
		cut     bool // before the commit ends
		succeed bool
		want    error
	}{
		"it succeeds":          {cut: true, succeed: true},
		"it dies":              {cut: true, want: errUndone},
		"it dies and tells so": {want: errUndone},
	} {
		t.Run(name, func(t *testing.T) {
			token, asked := take(t, s.lease, name), s.questions()
			blocker := fault.Block(t, s.url, `SELECT pg_advisory_xact_lock(7)`)
			done := backgroundErr(func() error { return s.b.Step(t.Context(), token, write(token, 1)) })
			must(t, blocker.Await(t.Context()))
			if test.cut {
				s.Cut()
				// The leave that pgx takes of a lost connection may still end the commit.
				eventually(t, "Step waits for its commit", func() bool {
					n, err := fault.Count(t.Context(), s.direct, committing)
					must(t, err)
					return n == 0 && !test.succeed || fault.AwaitBlocked(aMoment(t), s.direct, asking) == nil
				})
			}
			if test.succeed {
				blocker.Release()
			} else if n, err := fault.Terminate(t.Context(), s.direct, committing); err != nil || n == 0 && !test.cut {
				t.Errorf("killed %d sessions, %v", n, err)
			}
			s.settled(t, token, await(t, "the step ends", done).err, test.want)
			if s.questions() == asked {
				t.Error("Step took the word of a session that died, and asked nobody")
			}
			blocker.Release()
			if test.want == nil {
				s.did(t, name, "1", "1")
			} else {
				s.unchanged(t, name)
			}
			s.events.since()
		})
	}
}

// X3
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	short := pgxbackend.WithOutcomeTimeout(300 * time.Millisecond)
	long := pgxbackend.WithOutcomeTimeout(time.Hour)

	t.Run("no connection", func(t *testing.T) {
		token := take(t, s.lease, "no connection")
		s.SwallowReply(fault.Commit, 1, fault.Reset)
		err := s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			s.Refuse() // the one that is there lives on
			return write(token, 1)(ctx, tx)
		}, short)
		s.Pass()
		s.settled(t, token, err, worklease.ErrOutcomeUnknown)
		s.did(t, "no connection", "1", "1")
		// The caller asks again, and goes on.
		state, _, err := s.lease.ReadCheckpoint(t.Context(), token)
		if err != nil || string(state) != "1" {
			t.Errorf("afterwards ReadCheckpoint returned %q, %v", state, err)
		}
		must(t, s.b.Step(t.Context(), token, write(token, 2)))
		s.did(t, "no connection", "1 2", "2")
		s.events.since()
	})
	t.Run("no connection for a while", func(t *testing.T) {
		token := take(t, s.lease, "for a while")
		s.SwallowReply(fault.Commit, 1, fault.Reset)
		questions := s.DropRequest(sqlOutcome, 3, fault.Reset)
		must(t, s.b.Step(t.Context(), token, write(token, 1)))
		for range 3 {
			must(t, questions.Fired(t.Context()))
		}
		s.settled(t, token, nil, nil)
		s.did(t, "for a while", "1", "1")
	})
	t.Run("no answer", func(t *testing.T) {
		token := take(t, s.lease, "no answer")
		s.SwallowReply(fault.Commit, 1, fault.Reset)
		first := s.transaction(t, pgx.TxOptions{}) // in line for the row before the question
		var locked <-chan result[struct{}]
		err := s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			locked = backgroundErr(func() error {
				_, err := first.Exec(t.Context(), `SELECT FROM worklease_leases WHERE work_id = 'no answer' FOR UPDATE`)
				return err
			})
			must(t, fault.AwaitBlocked(t.Context(), s.direct, fault.Backends{Query: "SELECT FROM worklease_leases%"}))
			return write(token, 1)(ctx, tx)
		}, short)
		must(t, await(t, "the row is locked", locked).err)
		s.settled(t, token, err, worklease.ErrOutcomeUnknown)
		must(t, first.Rollback(t.Context()))
		s.did(t, "no answer", "1", "1")
	})
	t.Run("nothing that waiting mends", func(t *testing.T) {
		token := take(t, s.lease, "for good")
		s.DropRequest(fault.Commit, 1, fault.Reset)
		question := s.HoldRequest(sqlOutcome, 1)
		done := backgroundErr(func() error { return s.b.Step(t.Context(), token, write(token, 1), long) })
		must(t, question.Fired(t.Context()))
		exec(t, s.direct, `ALTER TABLE worklease_leases RENAME TO elsewhere`)
		question.Release()
		err := await(t, "the step ends", done).err
		exec(t, s.direct, `ALTER TABLE elsewhere RENAME TO worklease_leases`)
		s.settled(t, token, err, worklease.ErrOutcomeUnknown)
		if sqlState(err) != "42P01" {
			t.Errorf("Step returned %v, want its cause too", err)
		}
	})
}

// X3: nobody answers any more on the connection of the commit, and the pool, which
// has no other, keeps its place.
func TestCommitIntoSilence(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"committed": nil, "not committed": errUndone} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t, 2*time.Second)
			token := take(t, s.lease, "work")
			if want == nil {
				s.SwallowReply(fault.Commit, 1, fault.Silence)
			} else {
				s.DropRequest(fault.Commit, 1, fault.Silence) // and the server waits for it
			}
			s.settled(t, token, s.b.Step(t.Context(), token, write(token, 1), pgxbackend.WithCommitTimeout(200*time.Millisecond)), want)
			if want == nil {
				s.did(t, "work", "1", "1")
			} else {
				s.unchanged(t, "work")
			}
			s.Cut() // or the pool waits on
		})
	}
}
