package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
)

// exitOf returns how the row's current token left: 0 while it has not.
func exitOf(t testing.TB, db fault.DB, workID string) int {
	t.Helper()
	return query[int](t, db, `SELECT coalesce(CASE WHEN exit_token = fencing_token THEN exit END, 0)
		FROM worklease_leases WHERE work_id = $1`, workID)
}

// undone is the exit of a row whose acquisition left no trace.
const undone = 5

// W7, S34: the wait loop recognises what its lost attempt won.
func TestWaiterRecognisesItsOwnGrant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	for i := range rounds(2, 5, 100) {
		workID := fmt.Sprint("w", i)
		drawn := query[int64](t, s.direct, `SELECT last_value FROM worklease_fencing_seq`)
		lost := s.SwallowReply(sqlAcquire, 1, fault.Reset)
		token := take(t, l, workID, worklease.WithWaitForLease())
		must(t, lost.Answered(t.Context()))
		if p := prior(t, l, token); p.Exit != worklease.ExitNone || p.FencingToken != 0 || p.Crashes != 0 {
			t.Errorf("an acquirer is its own predecessor: %+v", p)
		}
		if i > 0 && token.FencingToken() != uint64(drawn)+1 {
			t.Errorf("token %d, want %d: the lost grant was not recognised", token.FencingToken(), drawn+1)
		}
		must(t, l.Renew(t.Context(), token))
	}
}

// W7: the same when what was won has lapsed before it was recognised.
func TestWaiterThatFindsItsOwnGrantLapsed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	before := take(t, l, "w")
	must(t, l.Checkpoint(t.Context(), before, []byte("state")))
	must(t, l.Release(t.Context(), before, worklease.WithExit(worklease.ExitAbandoned)))
	held := s.HoldReply(sqlAcquire, 1)
	waiter := background(func() (worklease.Token, error) {
		return l.Acquire(t.Context(), "w", worklease.WithWaitForLease())
	})
	must(t, held.Answered(t.Context()))
	endLease(t, s.direct, "w")
	s.Cut()
	got := await(t, "the waiter gets the work", waiter)
	must(t, got.err)
	if p := prior(t, l, got.value); p.Exit != worklease.ExitAbandoned || p.FencingToken != before.FencingToken() || p.Crashes != 0 {
		t.Errorf("prior %+v, want that of token %d", p, before.FencingToken())
	}
}

// S34: another call, also of the same Lease, does not.
func TestAnotherCallIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	held := s.HoldReply(sqlAcquire, 1)
	first := background(func() (worklease.Token, error) {
		return l.Acquire(t.Context(), "w", worklease.WithWaitForLease())
	})
	must(t, held.Answered(t.Context()))
	_, err := l.Acquire(t.Context(), "w")
	refused(t, "the second call", err, worklease.ErrLeaseHeld)
	s.Cut()
	got := await(t, "the first call returns", first)
	must(t, got.err)
	must(t, l.Renew(t.Context(), got.value))
}

// W7: a call that ends without knowing gives back what it may have won.
func TestUnheardGrantIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *stage, worklease.Lease) error{
		"the reply is lost": func(t *testing.T, s *stage, l worklease.Lease) error {
			s.SwallowReply(sqlAcquire, 1, fault.Reset)
			_, err := l.Acquire(t.Context(), "w")
			return err
		},
		"the context ends when the reply is under way": func(t *testing.T, s *stage, l worklease.Lease) error {
			ctx, cancel := context.WithCancel(t.Context())
			held := s.HoldReply(sqlAcquire, 1)
			done := backgroundErr(func() error {
				_, err := l.Acquire(ctx, "w", worklease.WithWaitForLease())
				return err
			})
			must(t, held.Answered(t.Context()))
			cancel()
			err := await(t, "Acquire ends with its context", done).err
			refused(t, "Acquire", err, context.Canceled)
			return err
		},
		"the context ends when the statement is under way": func(t *testing.T, s *stage, l worklease.Lease) error {
			ctx, cancel := context.WithCancel(t.Context())
			held := s.HoldRequest(sqlAcquire, 1)
			done := backgroundErr(func() error {
				_, err := l.Acquire(ctx, "w", worklease.WithWaitForLease())
				return err
			})
			must(t, held.Fired(t.Context()))
			look := s.HoldRequest(sqlUndo, 1)
			cancel()
			err := await(t, "Acquire ends with its context", done).err
			must(t, look.Fired(t.Context()))
			held.Release()
			must(t, held.Answered(t.Context()))
			look.Release()
			refused(t, "Acquire", err, context.Canceled)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			l := newLease(t, s.b, "holder")
			before := take(t, l, "w")
			must(t, l.Release(t.Context(), before, worklease.WithState([]byte("state"))))
			if err := lose(t, s, l); err == nil || errors.Is(err, worklease.ErrLeaseHeld) {
				t.Errorf("Acquire returned %v", err)
			}
			began := time.Now()
			eventually(t, "the grant is given back", func() bool { return exitOf(t, s.direct, "w") == undone })
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it was given back after %v", took)
			}
			token := take(t, l, "w")
			p := prior(t, l, token)
			if p.Exit != worklease.ExitReleased || p.FencingToken != before.FencingToken() || string(p.State) != "state" || p.Crashes != 0 {
				t.Errorf("the grant nobody used left a trace: %+v", p)
			}
		})
	}
}

// W6, R1: trust is counted from when the request left.
func TestWindowIsCountedFromTheRequest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const ttl, late = 20 * time.Second, 50 * time.Millisecond
	l := newLeaseFor(t, s.b, "holder", ttl)
	var token worklease.Token
	for _, c := range []struct {
		name  string
		match fault.Match
		call  func() error
	}{
		{"Acquire", sqlAcquire, func() (err error) {
			token, err = l.Acquire(t.Context(), "w")
			return err
		}},
		{"Renew", sqlRenew, func() error { return l.Renew(t.Context(), token) }},
		{"Checkpoint", sqlCheckpoint, func() error { return l.Checkpoint(t.Context(), token, nil) }},
	} {
		held := s.HoldReply(c.match, 1)
		done := backgroundErr(c.call)
		must(t, held.Answered(t.Context()))
		left := time.Now() // at the latest
		time.Sleep(late)   // the reply is this late
		held.Release()
		must(t, await(t, c.name+" returns", done).err)
		deadline, ok := l.Deadline(token)
		if over := deadline.Sub(left.Add(ttl)); !ok || over > 0 {
			t.Errorf("%s: trusted %v beyond a TTL from the request", c.name, over)
		}
	}
}

// W6: a grant that arrives after its window is no grant, and leaves no trace.
func TestGrantAfterItsWindow(t *testing.T) {
	t.Parallel()
	const ttl = 100 * time.Millisecond
	for _, wait := range []bool{false, true} {
		t.Run(fmt.Sprint("waiting: ", wait), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			l := newLeaseFor(t, s.b, "holder", ttl)
			before := take(t, newLease(t, s.b, "first"), "w")
			must(t, newLease(t, s.b, "first").Release(t.Context(), before, worklease.WithExit(worklease.ExitAbandoned)))
			var opts []worklease.AcquireOption
			if wait {
				opts = append(opts, worklease.WithWaitForLease())
			}
			held := s.HoldReply(sqlAcquire, 1)
			done := background(func() (worklease.Token, error) { return l.Acquire(t.Context(), "w", opts...) })
			must(t, held.Answered(t.Context()))
			late := query[int64](t, s.direct, `SELECT fencing_token FROM worklease_leases`)
			time.Sleep(ttl)
			held.Release()
			got := await(t, "Acquire returns", done)
			if !wait {
				refused(t, "Acquire", got.err, worklease.ErrLeaseExpired)
				eventually(t, "the grant is given back", func() bool { return exitOf(t, s.direct, "w") == undone })
				l = newLease(t, s.b, "next")
				got.value, got.err = l.Acquire(t.Context(), "w")
			}
			must(t, got.err)
			if got.value.FencingToken() <= uint64(late) {
				t.Errorf("token %d is that of the late grant, %d", got.value.FencingToken(), late)
			}
			if p := prior(t, l, got.value); p.Exit != worklease.ExitAbandoned || p.FencingToken != before.FencingToken() || p.Crashes != 0 {
				t.Errorf("prior %+v, want that of token %d", p, before.FencingToken())
			}
		})
	}
}

// N1, S35: nothing fails by its own effect.
func TestLostRepliesAreRepeated(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	// The caller repeats what has an unknown outcome, the library does for Release.
	repeat := func(what string, match fault.Match, call func() error) {
		t.Helper()
		lost := s.SwallowReply(match, 1, fault.Reset)
		err := call()
		if must(t, lost.Answered(t.Context())); err != nil {
			for _, verdict := range []error{worklease.ErrFenced, worklease.ErrLeaseExpired} {
				if errors.Is(err, verdict) {
					t.Errorf("%s, reply lost: %v", what, err)
				}
			}
			err = call()
		}
		if err != nil {
			t.Errorf("%s, repeated: %v", what, err)
		}
	}
	for i := range rounds(2, 6, 100) {
		token := take(t, l, "w")
		repeat("Renew", sqlRenew, func() error { return l.Renew(t.Context(), token) })
		state := fmt.Sprint("state ", i)
		repeat("Checkpoint", sqlCheckpoint, func() error { return l.Checkpoint(t.Context(), token, []byte(state)) })
		if got := stored(t, s.direct, "w"); got != state {
			t.Errorf("round %d: the row has %q, want %q", i, got, state)
		}
		exit := []worklease.Exit{worklease.ExitReleased, worklease.ExitAbandoned, worklease.ExitRetired}[i%3]
		opts := []worklease.ReleaseOption{worklease.WithExit(exit)}
		if i/3%2 == 0 {
			state = fmt.Sprint("last of round ", i)
			opts = append(opts, worklease.WithState([]byte(state)))
		}
		repeat("Release", sqlRelease, func() error { return l.Release(t.Context(), token, opts...) })
		next := take(t, l, "w", worklease.WithReopen())
		if p := prior(t, l, next); p.Exit != exit || p.FencingToken != token.FencingToken() || string(p.State) != state {
			t.Errorf("round %d: prior %+v, want exit %v and state %q", i, p, exit, state)
		}
		repeat("Forget", sqlForget, func() error { return l.Forget(t.Context(), next) })
		if got := stored(t, s.direct, "w"); got != "<null>" {
			t.Errorf("round %d: %q is not forgotten", i, got)
		}
	}
}

// N1: the numbers that the library sends, sent again, are done.
func TestRepeatedStatementsAreDone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i := range rounds(1, 2, 100) {
		c, _ := grant(t, s.b, attempt("w", "holder"))
		save := worklease.Save{State: []byte("state"), Number: 1, Hold: "h", TTL: time.Minute}
		last := worklease.Farewell{Exit: worklease.ExitReleased, State: []byte("last"), Number: 2, Hold: "h"}
		for _, step := range []struct {
			name  string
			match fault.Match
			call  func() error
		}{
			{"Checkpoint", sqlCheckpoint, func() error {
				e, err := s.b.Checkpoint(t.Context(), c, save)
				if err == nil && e.Remaining <= 0 {
					err = fmt.Errorf("nothing left: %v", e.Remaining)
				}
				return err
			}},
			{"Release", sqlRelease, func() error { return s.b.Release(t.Context(), c, last) }},
			{"Checkpoint after the Release", sqlCheckpoint, func() error {
				// A newer number of this hold stands.
				_, err := s.b.Checkpoint(t.Context(), c, save)
				return err
			}},
			{"Release of what was released", sqlRelease, func() error { return s.b.Release(t.Context(), c, last) }},
			{"Forget", sqlForget, func() error { return s.b.Forget(t.Context(), c) }},
		} {
			lost := s.SwallowReply(step.match, 1, fault.Reset)
			if err := step.call(); err == nil {
				t.Errorf("round %d: %s heard a reply that was lost", i, step.name)
			}
			must(t, lost.Answered(t.Context()))
			if err := step.call(); err != nil {
				t.Errorf("round %d: %s, repeated: %v", i, step.name, err)
			}
		}
	}
}

// N1, S35: a Release whose reply is lost succeeds also when a successor has come
// before its repeat.
func TestReleaseRepeatedOneSuccessorOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l, next := newLease(t, s.b, "holder"), newLease(t, newBackend(t, s.direct), "next")
	for i := range rounds(6, 6, 100) {
		exit := []worklease.Exit{worklease.ExitReleased, worklease.ExitAbandoned, worklease.ExitRetired}[i%3]
		opts := []worklease.ReleaseOption{worklease.WithExit(exit)}
		if i/3%2 == 0 {
			opts = append(opts, worklease.WithState(fmt.Append(nil, "last of round ", i)))
		}
		token := take(t, l, "w")
		must(t, l.Checkpoint(t.Context(), token, fmt.Append(nil, "state ", i)))
		held := s.HoldReply(sqlRelease, 1)
		released := backgroundErr(func() error { return l.Release(t.Context(), token, opts...) })
		must(t, held.Answered(t.Context()))
		successor := take(t, next, "w", worklease.WithReopen())
		if i%2 == 0 {
			must(t, next.Checkpoint(t.Context(), successor, []byte("successor's")))
		}
		row := rowText(t, s.direct, "w")
		s.Cut()
		if err := await(t, "Release returns", released).err; err != nil {
			t.Errorf("round %d, exit %v: %v", i, exit, err)
		}
		if got := rowText(t, s.direct, "w"); got != row {
			t.Errorf("round %d: the repeat changed the successor's row:\n%s\n%s", i, row, got)
		}
		must(t, next.Release(t.Context(), successor))
	}
}

// D2: a checkpoint that was held back arrives after a newer one of the same owner.
func TestLateCheckpointChangesNothing(t *testing.T) {
	t.Parallel()
	for name, overtake := range map[string]func(*testing.T, *stage, worklease.Lease, worklease.Token){
		"of the same hold": func(t *testing.T, _ *stage, l worklease.Lease, token worklease.Token) {
			must(t, l.Checkpoint(t.Context(), token, []byte("newer")))
		},
		"of a resumed hold": func(t *testing.T, s *stage, _ worklease.Lease, token worklease.Token) {
			resumed := newLease(t, s.b, "holder")
			again := worklease.NewToken("w", "holder", token.FencingToken(), token.ExpiresAt())
			must(t, resumed.Renew(t.Context(), again))
			must(t, resumed.Checkpoint(t.Context(), again, []byte("newer")))
		},
		"with the release": func(t *testing.T, _ *stage, l worklease.Lease, token worklease.Token) {
			must(t, l.Release(t.Context(), token, worklease.WithState([]byte("newer"))))
		},
		"of a successor": func(t *testing.T, s *stage, l worklease.Lease, token worklease.Token) {
			endLease(t, s.direct, "w")
			must(t, l.Checkpoint(t.Context(), take(t, l, "w"), []byte("newer")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			l := newLease(t, s.b, "holder")
			token := take(t, l, "w")
			must(t, l.Checkpoint(t.Context(), token, []byte("first")))
			held := s.HoldRequest(sqlCheckpoint, 1)
			ctx, cancel := context.WithCancel(t.Context())
			late := backgroundErr(func() error { return l.Checkpoint(ctx, token, []byte("late")) })
			must(t, held.Fired(t.Context()))
			cancel()
			refused(t, "the checkpoint", await(t, "Checkpoint ends with its context", late).err, context.Canceled)
			overtake(t, s, l, token)
			row := rowText(t, s.direct, "w")
			held.Release()
			must(t, held.Answered(t.Context()))
			if got := rowText(t, s.direct, "w"); got != row {
				t.Errorf("the late checkpoint changed the row:\n%s\n%s", row, got)
			}
			if got := stored(t, s.direct, "w"); got != "newer" {
				t.Errorf("the row has %q", got)
			}
		})
	}
}

// H5: so does a renewal that arrives after the release.
func TestLateRenewalChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	token := take(t, l, "w")
	held := s.HoldRequest(sqlRenew, 1)
	ctx, cancel := context.WithCancel(t.Context())
	late := backgroundErr(func() error { return l.Renew(ctx, token) })
	must(t, held.Fired(t.Context()))
	cancel()
	await(t, "Renew ends with its context", late)
	must(t, l.Release(t.Context(), token))
	row := rowText(t, s.direct, "w")
	held.Release()
	must(t, held.Answered(t.Context()))
	if got := rowText(t, s.direct, "w"); got != row {
		t.Errorf("the late renewal changed the row:\n%s\n%s", row, got)
	}
}
