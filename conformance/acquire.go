package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/aetomala/worklease"
)

// Acquiring, waiting, and giving back.

func refusalTells(s *suite) {
	o := s.acquire(s.id("work"), "a")
	_, err := s.b.Acquire(s.Context(), s.attempt(o.WorkID, "b"))
	var held *worklease.HeldError
	if !errors.As(err, &held) {
		s.Fatalf("Acquire of a held lease: %v, want a HeldError", err)
	}
	if held.WorkID != o.WorkID || held.HolderID != "a" || held.FencingToken != o.FencingToken {
		s.Errorf("the HeldError names %q, holder %q, token %d, want %q, %q, %d",
			held.WorkID, held.HolderID, held.FencingToken, o.WorkID, "a", o.FencingToken)
	}
	if held.Remaining > long || held.Remaining < long-5*time.Minute {
		s.Errorf("the HeldError says that %v are left of %v", held.Remaining, long)
	}
}

func grantCarriesPrior(s *suite) {
	id := s.id("work")
	first := s.acquire(id, "a")
	s.samePrior("of the first owner", first.grant.Prior, worklease.Prior{})
	if first.grant.StateOmitted {
		s.Error("the first owner is told that a state was omitted")
	}
	first.save("progress")
	first.leave(worklease.ExitAbandoned)
	second := s.acquire(id, "b")
	s.samePrior("in the grant", second.grant.Prior, worklease.Prior{
		State: []byte("progress"), Exit: worklease.ExitAbandoned, HolderID: "a", FencingToken: first.FencingToken,
	})
	if at := second.grant.Prior.CheckpointedAt; at.After(second.grant.ExpiresAt) || at.Before(first.grant.ExpiresAt.Add(-2*long)) {
		s.Errorf("the prior was checkpointed at %v, the leases before and after expire at %v and %v", at, first.grant.ExpiresAt, second.grant.ExpiresAt)
	}
	stored, err := second.read()
	s.must("ReadCheckpoint", err)
	s.samePriorOwner("in the row", stored.Prior, second.grant.Prior)
	if stored.Prior.State != nil {
		s.Error("ReadCheckpoint returns the state twice")
	}
	if stored.Number != 0 || stored.Hold != "" {
		s.Errorf("a new owner has checkpoint %d of hold %q", stored.Number, stored.Hold)
	}
}

// waits acquires id in the background, as a waiter, and returns the token when it
// is there.
func (s *suite) waits(ctx context.Context, l worklease.Lease, id string) <-chan worklease.Token {
	got := make(chan worklease.Token, 1)
	go func() {
		defer close(got)
		token, err := l.Acquire(ctx, id, worklease.WithWaitForLease(), worklease.WithPollInterval(10*time.Millisecond))
		if err != nil {
			s.Errorf("a waiting Acquire failed: %v", err)
			return
		}
		got <- token
	}()
	return got
}

func (s *suite) arrives(what string, got <-chan worklease.Token) worklease.Token {
	s.Helper()
	select {
	case token, ok := <-got:
		if !ok {
			s.FailNow()
		}
		return token
	case <-time.After(30 * time.Second):
		s.Fatalf("%s did not arrive within 30 s", what)
		return worklease.Token{}
	}
}

// aMoment is for what has to be under way.
const aMoment = 30 * time.Millisecond

func waiterGetsReleased(s *suite) {
	owner, waiter := s.lease("a", long), s.lease("b", long)
	token := s.take(owner, s.id("work"))
	got := s.waits(s.Context(), waiter, token.WorkID())
	time.Sleep(aMoment)
	select {
	case <-got:
		s.Fatal("a waiter was given a lease that is held")
	default:
	}
	s.must("Release", owner.Release(s.Context(), token, worklease.WithState([]byte("yours"))))
	next := s.arrives("the released lease", got)
	s.samePrior("of a waiter", s.prior(waiter, next),
		worklease.Prior{State: []byte("yours"), Exit: worklease.ExitReleased, HolderID: "a", FencingToken: token.FencingToken()})
}

func waiterGetsLapsed(s *suite) {
	// It lapses by itself here, where there is EndLease too: a backend that wakes its
	// waiters at the expiry it has seen cannot know of one that was moved.
	a := s.attempt(s.id("work"), "a")
	a.TTL = 300 * time.Millisecond
	crashed := s.send(a)
	waiter := s.lease("b", long)
	token := s.take(waiter, crashed.WorkID, worklease.WithWaitForLease())
	s.samePriorOwner("of a waiter", s.prior(waiter, token),
		worklease.Prior{Exit: worklease.ExitExpired, HolderID: "a", FencingToken: crashed.FencingToken, Crashes: 1})
}

func contextEndsWait(s *suite) {
	o := s.acquire(s.id("work"), "a")
	waiter := s.lease("b", long)
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(s.Context())
	time.AfterFunc(aMoment, func() { cancel(enough) })
	_, err := waiter.Acquire(ctx, o.WorkID, worklease.WithWaitForLease())
	s.refused("a wait whose context ended", err, context.Canceled)
	s.refused("a wait whose context ended", err, enough)
	if errors.Is(err, worklease.ErrLeaseHeld) {
		s.Errorf("a wait whose context ended failed with %q, want the context's error alone", err)
	}
	o.heldBy("after a wait was ended")
}

func retiredEndsWait(s *suite) {
	o := s.acquire(s.id("work"), "a")
	waiter := s.lease("b", long)
	released := make(chan error, 1)
	time.AfterFunc(aMoment, func() { released <- o.release(worklease.ExitRetired) })
	ctx, cancel := context.WithTimeout(s.Context(), 30*time.Second)
	defer cancel()
	_, err := waiter.Acquire(ctx, o.WorkID, worklease.WithWaitForLease(), worklease.WithPollInterval(10*time.Millisecond))
	s.refused("a wait for work that is retired meanwhile", err, worklease.ErrLeaseRetired)
	s.must("Release", <-released) // which the waiter may see before its caller does
}

// undoLeavesNoTrace gives an acquisition back over every kind of predecessor.
func undoLeavesNoTrace(s *suite) {
	undo := func(when string, o *owner, want worklease.Prior) {
		s.Helper()
		s.samePrior(when, o.grant.Prior, want)
		s.must("giving back "+when, o.undo())
		s.must("giving back again "+when, o.undo())
		byNonce := *o
		byNonce.FencingToken = 0
		s.must("giving back by nonce alone "+when, byNonce.undo())
		s.refused("Renew of what was given back "+when, o.renew(), worklease.ErrLeaseExpired)
		s.refused("Checkpoint of what was given back "+when, o.checkpoint([]byte("x")), worklease.ErrLeaseExpired)
		s.refused("Release of what was given back "+when, o.release(worklease.ExitReleased), worklease.ErrLeaseExpired)
	}

	id := s.id("first")
	for range 2 {
		undo("over the first owner", s.acquire(id, "b"), worklease.Prior{})
	}
	s.samePrior("after giving back over the first owner", s.acquire(id, "c").grant.Prior, worklease.Prior{})

	for _, exit := range declared[:2] {
		o := s.acquire(s.id(exit.String()), "a")
		o.save("a's")
		o.leave(exit)
		want := worklease.Prior{State: []byte("a's"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken}
		for range 2 {
			undo("over "+exit.String(), s.acquire(o.WorkID, "b"), want)
		}
		s.must("the predecessor's repeated Release", o.release(exit))
		s.samePrior("after giving back over "+exit.String(), s.acquire(o.WorkID, "c").grant.Prior, want)
	}

	retired := s.acquire(s.id("retired"), "a")
	retired.leave(worklease.ExitRetired)
	want := worklease.Prior{Exit: worklease.ExitRetired, HolderID: "a", FencingToken: retired.FencingToken}
	for range 2 {
		undo("over reopened work", s.reopen(retired.WorkID, "b"), want)
		_, err := s.b.Acquire(s.Context(), s.attempt(retired.WorkID, "c"))
		s.refused("Acquire of retired work whose reopening was given back", err, worklease.ErrLeaseRetired)
		var r *worklease.RetiredError
		if errors.As(err, &r) && (r.HolderID != "a" || r.FencingToken != retired.FencingToken) {
			s.Errorf("the work was retired by %q with token %d, want a with %d", r.HolderID, r.FencingToken, retired.FencingToken)
		}
	}
	s.samePrior("after giving back over reopened work", s.reopen(retired.WorkID, "d").grant.Prior, want)

	id = s.id("lapsed")
	s.acquireAndLapse(id, "a")
	crashed := s.acquireToLapse(id, "a")
	s.lapse(id)
	want = worklease.Prior{Exit: worklease.ExitExpired, HolderID: "a", FencingToken: crashed.FencingToken, Crashes: 2}
	for range 2 {
		undo("over a crash", s.acquire(id, "b"), want)
	}
	late := s.acquireToLapse(id, "b")
	s.lapse(id)
	undo("that had lapsed itself", late, want)
	s.samePrior("after giving back over a crash", s.acquire(id, "c").grant.Prior, want)
}

func undoMatches(s *suite) {
	s.acquire(s.id("first"), "a")
	o := s.acquire(s.id("work"), "a")
	for what, change := range map[string]func(*worklease.Claim){
		"another nonce":   func(c *worklease.Claim) { c.Nonce, c.FencingToken = "other", 0 },
		"another holder":  func(c *worklease.Claim) { c.HolderID, c.FencingToken = "b", 0 },
		"another token":   func(c *worklease.Claim) { c.FencingToken-- },
		"another work ID": func(c *worklease.Claim) { c.WorkID, c.FencingToken = c.WorkID+"x", 0 },
	} {
		other := *o
		change(&other.Claim)
		s.refused("giving back with "+what, other.undo(), worklease.ErrFenced)
	}
	o.heldBy("after what did not match was given back,")
	s.must("giving back", o.undo())
	next := s.acquire(o.WorkID, "a")
	byNonce := *o
	byNonce.FencingToken = 0
	s.refused("giving back after a successor came", byNonce.undo(), worklease.ErrFenced)
	next.heldBy("after a zombie gave back")
}

func ownNonce(s *suite) {
	first := s.acquire(s.id("work"), "z")
	first.save("z's")
	first.leave(worklease.ExitReleased)
	a := s.attempt(first.WorkID, "a")
	o := s.send(a)
	again := s.send(a)
	if again.FencingToken != o.FencingToken {
		s.Fatalf("the repeated attempt was granted token %d, the first %d", again.FencingToken, o.FencingToken)
	}
	s.samePrior("of a repeated attempt", again.grant.Prior, worklease.Prior{
		State: []byte("z's"), Exit: worklease.ExitReleased, HolderID: "z", FencingToken: first.FencingToken,
	})
	if again.grant.Remaining > o.grant.Remaining {
		s.Errorf("the repeated attempt extended the lease from %v to %v", o.grant.Remaining, again.grant.Remaining)
	}
	if !again.grant.ExpiresAt.Equal(o.grant.ExpiresAt) {
		s.Errorf("the repeated attempt moved the expiry from %v to %v", o.grant.ExpiresAt, again.grant.ExpiresAt)
	}
	s.must("Renew", o.renew())
	_, err := s.b.Acquire(s.Context(), s.attempt(first.WorkID, "a"))
	s.refused("another call of the same holder", err, worklease.ErrLeaseHeld)

	o.leave(worklease.ExitReleased)
	next := s.send(a)
	if next.FencingToken <= o.FencingToken {
		s.Errorf("after its release, the attempt got token %d again (was %d)", next.FencingToken, o.FencingToken)
	}
}

func ownNonceLapsed(s *suite) {
	id := s.id("crashed")
	crashed := s.acquireAndLapse(id, "z")
	a := s.attempt(id, "a")
	a.TTL = s.lapsing()
	want := worklease.Prior{Exit: worklease.ExitExpired, HolderID: "z", FencingToken: crashed.FencingToken, Crashes: 1}
	last := crashed.FencingToken
	for range 3 {
		o := s.send(a)
		s.samePrior("of an attempt whose earlier grant lapsed", o.grant.Prior, want)
		if o.FencingToken <= last {
			s.Errorf("token %d followed %d", o.FencingToken, last)
		}
		last = o.FencingToken
		s.lapse(id)
	}
	other := s.acquire(id, "b")
	s.samePrior("after another's lapse", other.grant.Prior,
		worklease.Prior{Exit: worklease.ExitExpired, HolderID: "a", FencingToken: last, Crashes: 2})

	id = s.id("first")
	a = s.attempt(id, "a")
	a.TTL = s.lapsing()
	s.send(a)
	s.lapse(id)
	s.samePrior("of a first owner whose earlier grant lapsed", s.send(a).grant.Prior, worklease.Prior{})
}
