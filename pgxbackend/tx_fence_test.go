package pgxbackend_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/jackc/pgx/v5"
)

var acquiring = fault.Backends{Query: "-- worklease: acquire%"}

// takeover starts an Acquire that must wait for an open transaction, and waits until
// it does.
func (s *service) takeover(t *testing.T, l worklease.Lease, workID string) <-chan result[worklease.Token] {
	t.Helper()
	taken := background(func() (worklease.Token, error) { return l.Acquire(t.Context(), workID) })
	must(t, fault.AwaitBlocked(t.Context(), s.direct, acquiring))
	select {
	case r := <-taken:
		t.Errorf("Acquire did not wait: %v, %v", r.value, r.err)
	default:
	}
	return taken
}

// X2
func TestFenceForTenTTLs(t *testing.T) {
	t.Parallel()
	// A longer TTL where many pass: on a busy machine half a second is soon gone.
	ttl := rounds(time.Second, time.Second, 4*time.Second)
	s := newService(t, ttl)
	owner := s.lease
	token := take(t, owner, "work")
	renewCtx, stop := owner.StartRenewal(t.Context(), token)
	defer stop()
	tx := s.transaction(t, pgx.TxOptions{})
	must(t, s.b.FenceTx(t.Context(), tx, token))
	must(t, insert(t.Context(), tx, token, 1))

	next := s.successor(t)
	taken := background(func() (worklease.Token, error) {
		return next.Acquire(t.Context(), "work", worklease.WithWaitForLease(), worklease.WithPollInterval(20*time.Millisecond))
	})
	ttls := rounds(3, 10, 15)
	select {
	case <-time.After(time.Duration(ttls) * ttl):
	case <-renewCtx.Done():
		t.Fatalf("the lease did not last under an open fence: %v", context.Cause(renewCtx))
	}
	select {
	case r := <-taken:
		t.Fatalf("Acquire returned %v, %v while the lease was renewed", r.value, r.err)
	default:
	}
	var updates, hot int
	eventually(t, "the server has counted the renewals", func() bool {
		must(t, s.direct.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
			WHERE relname = 'worklease_leases'`).Scan(&updates, &hot))
		return updates >= ttls
	})
	if hot < updates {
		t.Errorf("%d of %d renewals were HOT", hot, updates)
	}

	// The owner leaves, and the transaction stays.
	must(t, leave(t, owner, token))
	must(t, fault.AwaitBlocked(t.Context(), s.direct, acquiring))
	select {
	case r := <-taken:
		t.Fatalf("Acquire returned %v, %v while the transaction was open", r.value, r.err)
	default:
	}
	end := query[time.Time](t, tx, `SELECT clock_timestamp()`)
	must(t, tx.Commit(t.Context()))
	r := await(t, "the successor has the lease", taken)
	must(t, r.err)
	acquired := query[time.Time](t, s.direct, `SELECT acquired_at FROM worklease_leases`)
	if late := acquired.Sub(end); late < 0 || late > 5*time.Second {
		t.Errorf("the successor had the lease %v after the transaction's end", late)
	}
	if p := prior(t, next, r.value); p.Exit != worklease.ExitReleased || s.rows(t, "work") != "1" {
		t.Errorf("the successor finds the steps [%s] and %+v", s.rows(t, "work"), p)
	}
}

// X2: what the owner does to its own lease passes an open fence, and what comes after
// waits for the transaction.
func TestLeavingUnderAFence(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	next := s.successor(t)
	for name, test := range map[string]struct {
		leave func(token worklease.Token) error
		prior worklease.Exit
	}{
		"Release": {func(token worklease.Token) error { return leave(t, s.lease, token) }, worklease.ExitReleased},
		"Forget":  {func(token worklease.Token) error { return s.lease.Forget(t.Context(), token) }, worklease.ExitNone},
	} {
		for _, end := range []string{"commit", "checkpoint", "fence again"} {
			workID := name + ", " + end
			t.Run(workID, func(t *testing.T) {
				token := take(t, s.lease, workID)
				must(t, s.lease.Checkpoint(t.Context(), token, []byte("0")))
				tx := s.transaction(t, pgx.TxOptions{})
				must(t, s.b.FenceTx(t.Context(), tx, token))
				must(t, insert(t.Context(), tx, token, 1))
				must(t, s.lease.Renew(t.Context(), token))
				must(t, s.lease.Checkpoint(t.Context(), token, []byte("beside")))
				must(t, test.leave(token))
				taken := s.takeover(t, next, workID)
				rows := ""
				switch end {
				case "commit": // which FenceTx alone allows
					must(t, tx.Commit(t.Context()))
					rows = "1"
				case "checkpoint":
					refused(t, "CheckpointTx", s.b.CheckpointTx(t.Context(), tx, token, []byte("1")), worklease.ErrLeaseExpired)
					must(t, tx.Rollback(t.Context()))
				case "fence again":
					refused(t, "FenceTx", s.b.FenceTx(t.Context(), tx, token), worklease.ErrLeaseExpired)
					must(t, tx.Rollback(t.Context()))
				}
				r := await(t, "the successor has the lease", taken)
				must(t, r.err)
				p := prior(t, next, r.value)
				if wantState := map[bool]string{true: "beside", false: ""}[name == "Release"]; p.Exit != test.prior || string(p.State) != wantState {
					t.Errorf("the successor finds %+v", p)
				}
				if got := s.rows(t, workID); got != rows {
					t.Errorf("steps [%s] took effect, want [%s]", got, rows)
				}
			})
		}
	}
}

// S9, X1: an owner that is slow, and a successor, in every order.
func TestTakeoverInEveryOrder(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	next := s.successor(t)
	// slow is a token whose lease has lapsed.
	slow := func(t *testing.T) worklease.Token {
		t.Helper()
		token := take(t, s.lease, t.Name())
		endLease(t, s.direct, t.Name())
		return token
	}
	owned := func(t *testing.T, taken <-chan result[worklease.Token], exit worklease.Exit) {
		t.Helper()
		r := await(t, "the successor's Acquire ends", taken)
		must(t, r.err)
		if p := prior(t, next, r.value); p.Exit != exit {
			t.Errorf("the successor finds %+v", p)
		}
	}
	held := func(t *testing.T, taken <-chan result[worklease.Token]) {
		t.Helper()
		refused(t, "the successor's Acquire", await(t, "the successor's Acquire ends", taken).err, worklease.ErrLeaseHeld)
	}

	t.Run("fence, takeover, commit", func(t *testing.T) {
		token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
		must(t, s.b.FenceTx(t.Context(), tx, token))
		must(t, insert(t.Context(), tx, token, 1))
		taken := s.takeover(t, next, t.Name())
		must(t, tx.Commit(t.Context()))
		owned(t, taken, worklease.ExitExpired)
		s.did(t, t.Name(), "1", "<null>")
	})
	t.Run("fence, takeover, rollback", func(t *testing.T) {
		token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
		must(t, s.b.FenceTx(t.Context(), tx, token))
		must(t, insert(t.Context(), tx, token, 1))
		taken := s.takeover(t, next, t.Name())
		must(t, tx.Rollback(t.Context()))
		owned(t, taken, worklease.ExitExpired)
		s.unchanged(t, t.Name())
	})
	t.Run("fence, takeover, checkpoint, commit", func(t *testing.T) {
		token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
		must(t, s.b.FenceTx(t.Context(), tx, token))
		must(t, insert(t.Context(), tx, token, 1))
		taken := s.takeover(t, next, t.Name())
		must(t, s.b.CheckpointTx(t.Context(), tx, token, []byte("1")))
		must(t, tx.Commit(t.Context()))
		held(t, taken)
		s.did(t, t.Name(), "1", "1")
	})
	t.Run("checkpoint, takeover, commit", func(t *testing.T) {
		token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
		must(t, insert(t.Context(), tx, token, 1))
		must(t, s.b.CheckpointTx(t.Context(), tx, token, []byte("1")))
		taken := s.takeover(t, next, t.Name())
		must(t, tx.Commit(t.Context()))
		held(t, taken)
		s.did(t, t.Name(), "1", "1")
	})
	t.Run("checkpoint, takeover, rollback", func(t *testing.T) {
		token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
		must(t, insert(t.Context(), tx, token, 1))
		must(t, s.b.CheckpointTx(t.Context(), tx, token, []byte("1")))
		taken := s.takeover(t, next, t.Name())
		must(t, tx.Rollback(t.Context()))
		owned(t, taken, worklease.ExitExpired)
		s.unchanged(t, t.Name())
	})
	t.Run("takeover during a step", func(t *testing.T) {
		token := slow(t)
		var taken <-chan result[worklease.Token]
		must(t, s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			taken = s.takeover(t, next, t.Name())
			return write(token, 1)(ctx, tx)
		}))
		held(t, taken)
		s.did(t, t.Name(), "1", "1")
	})
	t.Run("takeover during a step that fails", func(t *testing.T) {
		token := slow(t)
		var taken <-chan result[worklease.Token]
		errOwn := errors.New("the function's own")
		refused(t, "Step", s.b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			taken = s.takeover(t, next, t.Name())
			write(token, 1)(ctx, tx)
			return nil, errOwn
		}), errOwn)
		owned(t, taken, worklease.ExitExpired)
		s.unchanged(t, t.Name())
	})

	// A takeover that is under way when the owner comes.
	const takeover = `UPDATE worklease_leases SET fencing_token = nextval('worklease_fencing_seq'), holder_id = 'x', nonce = 'x' WHERE work_id = $1`
	for name, comes := range map[string]func(t *testing.T, token worklease.Token) error{
		"fence": func(t *testing.T, token worklease.Token) error {
			tx := s.transaction(t, pgx.TxOptions{})
			defer tx.Rollback(t.Context())
			return s.b.FenceTx(t.Context(), tx, token)
		},
		"checkpoint": func(t *testing.T, token worklease.Token) error {
			tx := s.transaction(t, pgx.TxOptions{})
			defer tx.Rollback(t.Context())
			return s.b.CheckpointTx(t.Context(), tx, token, nil)
		},
		"step": func(t *testing.T, token worklease.Token) error {
			return s.b.Step(t.Context(), token, write(token, 1))
		},
	} {
		for _, commits := range []bool{true, false} {
			end := map[bool]string{true: "commit", false: "rollback"}[commits]
			t.Run("takeover, "+name+", "+end, func(t *testing.T) {
				token, tx := slow(t), s.transaction(t, pgx.TxOptions{})
				exec(t, tx, takeover, t.Name())
				done := backgroundErr(func() error { return comes(t, token) })
				must(t, fault.AwaitBlocked(t.Context(), s.direct, fault.Backends{Query: "-- worklease:%"}))
				var want error
				if commits {
					want = worklease.ErrFenced
					must(t, tx.Commit(t.Context()))
				} else {
					must(t, tx.Rollback(t.Context()))
				}
				refused(t, name, await(t, "the owner has its answer", done).err, want)
				if commits {
					s.unchanged(t, t.Name())
				}
			})
		}
	}
}

// S7, S10, X1: an owner that was replaced writes on, under an equal name, and no row
// of it is there.
func TestZombieIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t, time.Minute)
	zombie := take(t, s.lease, "work")
	endLease(t, s.direct, "work")
	namesake := newLease(t, newBackend(t, s.direct), "owner")
	token := take(t, namesake, "work")
	other := newBackend(t, s.direct)
	for range 3 {
		refused(t, "Step", s.b.Step(t.Context(), zombie, func(context.Context, pgx.Tx) ([]byte, error) {
			t.Error("a zombie's function was called")
			return nil, nil
		}), worklease.ErrFenced)
		for name, fence := range map[string]func(pgx.Tx) error{
			"FenceTx":      func(tx pgx.Tx) error { return s.b.FenceTx(t.Context(), tx, zombie) },
			"CheckpointTx": func(tx pgx.Tx) error { return s.b.CheckpointTx(t.Context(), tx, zombie, []byte("666")) },
		} {
			tx := s.transaction(t, pgx.TxOptions{})
			must(t, insert(t.Context(), tx, zombie, 666))
			refused(t, name, fence(tx), worklease.ErrFenced)
			must(t, tx.Rollback(t.Context()))
		}
	}
	must(t, other.Step(t.Context(), token, write(token, 1)))
	s.did(t, "work", "1", "1")
}
