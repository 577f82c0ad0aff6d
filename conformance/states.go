package conformance

import (
	"errors"

	"github.com/aetomala/worklease"
)

// What may be done in which state of a work ID.

var declared = []worklease.Exit{worklease.ExitReleased, worklease.ExitAbandoned, worklease.ExitRetired}

func heldOwner(s *suite) {
	o := s.acquire(s.id("work"), "a")
	s.must("Checkpoint", o.checkpoint([]byte("one")))
	o.stored("after Checkpoint", []byte("one"))
	s.must("Renew", o.renew())
	o.stored("after Renew", []byte("one"))
	stored, err := o.read()
	s.must("ReadCheckpoint", err)
	if stored.Number != 1 || stored.Hold != o.hold {
		s.Errorf("the stored checkpoint is number %d of hold %q, want 1 of %q", stored.Number, stored.Hold, o.hold)
	}
	without, err := s.b.ReadCheckpoint(s.Context(), o.Claim, false)
	s.must("ReadCheckpoint without state", err)
	if without.State != nil || without.Number != 1 || without.Hold != o.hold {
		s.Errorf("without state, ReadCheckpoint says state %s, number %d, hold %q", showState(without.State), without.Number, without.Hold)
	}
	o.heldBy("after all this,")
	for _, exit := range declared {
		o := s.acquire(s.id("work "+exit.String()), "a")
		o.leave(exit)
	}
	if f, ok := s.b.(worklease.Forgetter); ok {
		s.must("Forget", f.Forget(s.Context(), o.Claim))
	}
}

func heldAcquire(s *suite) {
	o := s.acquire(s.id("work"), "a")
	for _, holder := range []string{"b", "a"} {
		for _, reopen := range []bool{false, true} {
			a := s.attempt(o.WorkID, holder)
			a.Reopen = reopen
			_, err := s.b.Acquire(s.Context(), a)
			s.refused("Acquire of a held lease by "+holder, err, worklease.ErrLeaseHeld)
		}
	}
	s.must("Renew after refused acquires", o.renew())
}

func lapsedCheckpoint(s *suite) {
	o := s.acquireAndLapse(s.id("work"), "a")
	e, err := s.b.Checkpoint(s.Context(), o.Claim, o.nextSave([]byte("slow but alive")))
	s.must("Checkpoint of a lapsed lease that nobody took", err)
	if ttl := s.lapsing(); e.Remaining <= 0 || e.Remaining > ttl {
		s.Errorf("the extension has %v left, want about %v", e.Remaining, ttl)
	}
	o.stored("saved after the lapse", []byte("slow but alive"))
	if s.canLapse() {
		o.heldBy("after a late checkpoint")
	}
}

func lapsedRenew(s *suite) {
	o := s.acquireAndLapse(s.id("work"), "a")
	s.refused("Renew of a lapsed lease", o.renew(), worklease.ErrLeaseExpired)
	next := s.acquire(o.WorkID, "b")
	next.heldBy("after the refused renewal")
	s.refused("Renew after a successor came", o.renew(), worklease.ErrFenced)
}

func lapsedRelease(s *suite) {
	for _, exit := range declared {
		o := s.acquireAndLapse(s.id(exit.String()), "a")
		s.must("Release of a lapsed lease", o.say(o.lastWords(exit, "late")))
		next := s.reopen(o.WorkID, "b")
		s.samePrior("after a late "+exit.String(), next.grant.Prior,
			worklease.Prior{State: []byte("late"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken})
	}
}

func lapsedRead(s *suite) {
	o := s.acquireToLapse(s.id("work"), "a")
	o.save("kept")
	s.lapse(o.WorkID)
	o.stored("of a lapsed lease", []byte("kept"))
}

func lapsedAcquire(s *suite) {
	for _, holder := range []string{"a", "b"} {
		o := s.acquireToLapse(s.id("work of "+holder), "a")
		o.save("left")
		s.lapse(o.WorkID)
		next := s.acquire(o.WorkID, holder)
		s.samePrior("after a lapse", next.grant.Prior, worklease.Prior{
			State: []byte("left"), Exit: worklease.ExitExpired, HolderID: "a", FencingToken: o.FencingToken, Crashes: 1,
		})
		next.heldBy("after the lapse of another,")
	}
}

func surrendered(s *suite) {
	for _, exit := range declared {
		o := s.acquire(s.id(exit.String()), "a")
		o.save("last")
		o.leave(exit)
		s.refused("Checkpoint after "+exit.String(), o.checkpoint([]byte("too late")), worklease.ErrLeaseExpired)
		s.refused("Checkpoint of nil after "+exit.String(), o.checkpoint(nil), worklease.ErrLeaseExpired)
		s.refused("Renew after "+exit.String(), o.renew(), worklease.ErrLeaseExpired)
		for _, other := range declared {
			if other != exit {
				s.refused("Release as "+other.String()+" after "+exit.String(), o.release(other), worklease.ErrLeaseExpired)
			}
		}
		s.refused("giving back after "+exit.String(), o.undo(), worklease.ErrLeaseExpired)
		o.stored("after "+exit.String(), []byte("last"))
		next := s.reopen(o.WorkID, "b")
		s.samePrior("after "+exit.String(), next.grant.Prior,
			worklease.Prior{State: []byte("last"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken})
	}
}

// refusedAsFenced reports every operation of o that is not.
func (o *owner) refusedAsFenced(when string) {
	s := o.s
	s.Helper()
	s.refused("Checkpoint "+when, o.checkpoint([]byte("zombie")), worklease.ErrFenced)
	s.refused("Checkpoint of nil "+when, o.checkpoint(nil), worklease.ErrFenced)
	s.refused("Renew "+when, o.renew(), worklease.ErrFenced)
	for _, exit := range declared {
		s.refused("Release as "+exit.String()+" "+when, o.release(exit), worklease.ErrFenced)
		s.refused("Release as "+exit.String()+" with a state "+when, o.say(o.lastWords(exit, "zombie")), worklease.ErrFenced)
	}
	s.refused("giving back "+when, o.undo(), worklease.ErrFenced)
	_, err := o.read()
	s.refused("ReadCheckpoint "+when, err, worklease.ErrFenced)
	if f, ok := s.b.(worklease.Forgetter); ok {
		s.refused("Forget "+when, f.Forget(s.Context(), o.Claim), worklease.ErrFenced)
	}
}

func absent(s *suite) {
	claim := worklease.Claim{WorkID: s.id("nowhere"), HolderID: "a", FencingToken: 1, Nonce: "nobody's"}
	o := &owner{Claim: claim, s: s}
	o.refusedAsFenced("without a row")
	o.Nonce = ""
	o.refusedAsFenced("without a row, resumed")
	next := s.acquire(claim.WorkID, "b")
	s.samePrior("of the first owner", next.grant.Prior, worklease.Prior{})
}

func superseded(s *suite) {
	o := s.acquireToLapse(s.id("work"), "a")
	o.save("a's")
	s.lapse(o.WorkID)
	next := s.acquire(o.WorkID, "a")
	o.refusedAsFenced("after a successor came")
	o.Nonce = ""
	o.refusedAsFenced("after a successor came, resumed")
	next.stored("after a zombie's attempts", []byte("a's"))
	next.save("b's")
	o.refusedAsFenced("after the successor saved")
	next.heldBy("after a zombie's attempts")
	next.stored("after a zombie's attempts", []byte("b's"))
	next.leave(worklease.ExitReleased)
	o.refusedAsFenced("after the successor left")
	third := s.acquire(o.WorkID, "c")
	s.samePrior("after a zombie's attempts", third.grant.Prior, worklease.Prior{
		State: []byte("b's"), Exit: worklease.ExitReleased, HolderID: "a", FencingToken: next.FencingToken,
	})
}

func retiredUntilReopened(s *suite) {
	o := s.acquire(s.id("work"), "a")
	o.save("all")
	o.leave(worklease.ExitRetired)
	for range 2 {
		_, err := s.b.Acquire(s.Context(), s.attempt(o.WorkID, "b"))
		var retired *worklease.RetiredError
		if !errors.As(err, &retired) {
			s.Fatalf("Acquire of retired work: %v, want a RetiredError", err)
		}
		if retired.WorkID != o.WorkID || retired.HolderID != "a" || retired.FencingToken != o.FencingToken || retired.RetiredAt.IsZero() {
			s.Errorf("the RetiredError is %+v, want holder a with token %d and a time", retired, o.FencingToken)
		}
	}
	next := s.reopen(o.WorkID, "b")
	if next.FencingToken <= o.FencingToken {
		s.Errorf("the reopened work has token %d after %d", next.FencingToken, o.FencingToken)
	}
	s.samePrior("of reopened work", next.grant.Prior,
		worklease.Prior{State: []byte("all"), Exit: worklease.ExitRetired, HolderID: "a", FencingToken: o.FencingToken})
	next.leave(worklease.ExitReleased)
	s.acquire(o.WorkID, "c").leave(worklease.ExitAbandoned) // no longer retired
	s.reopen(o.WorkID, "d").heldBy("reopened though not retired,")

	lapsed := s.acquire(s.id("reopened and lapsed"), "a")
	lapsed.leave(worklease.ExitRetired)
	a := s.attempt(lapsed.WorkID, "b")
	a.Reopen, a.TTL = true, s.lapsing()
	s.send(a)
	s.lapse(lapsed.WorkID)
	s.acquire(lapsed.WorkID, "c").heldBy("after reopened work lapsed,")

	l := s.lease("l", long)
	token := s.take(l, s.id("by lease"))
	s.must("Release", l.Release(s.Context(), token, worklease.WithExit(worklease.ExitRetired)))
	_, err := l.Acquire(s.Context(), token.WorkID())
	s.refused("Acquire of retired work through a Lease", err, worklease.ErrLeaseRetired)
	if p := s.prior(l, s.take(l, token.WorkID(), worklease.WithReopen())); !p.CleanHandoff() {
		s.Errorf("retired work is no clean handoff: %s", showPrior(p))
	}
}

func crashesAreCounted(s *suite) {
	id := s.id("work")
	last := s.acquireToLapse(id, "0")
	if n := last.grant.Prior.Crashes; n != 0 {
		s.Errorf("the first owner is told of %d crashes", n)
	}
	for n := 1; n <= 4; n++ {
		s.lapse(id)
		next := s.acquireToLapse(id, "n")
		s.samePrior("after crashes in a row", next.grant.Prior, worklease.Prior{
			Exit: worklease.ExitExpired, HolderID: last.HolderID, FencingToken: last.FencingToken, Crashes: n,
		})
		last = next
	}
}

func crashesEnd(s *suite) {
	crash := func(id string, before func(*owner)) {
		o := s.acquireToLapse(id, "a")
		before(o)
		s.lapse(id)
	}
	nothing := func(*owner) {}
	told := func(when, id string, want int) {
		s.Helper()
		if got := s.acquire(id, "z").grant.Prior.Crashes; got != want {
			s.Errorf("%s: %d crashes, want %d", when, got, want)
		}
	}

	id := s.id("checkpoint")
	crash(id, nothing)
	crash(id, func(o *owner) { o.save("progress") })
	told("crash, checkpoint and crash", id, 1)

	id = s.id("empty checkpoint")
	crash(id, nothing)
	crash(id, func(o *owner) { s.must("Checkpoint", o.checkpoint([]byte{})) })
	told("crash, empty checkpoint and crash", id, 1)

	id = s.id("nil checkpoint")
	crash(id, nothing)
	crash(id, func(o *owner) { s.must("Checkpoint", o.checkpoint(nil)) })
	told("crash, checkpoint of nil and crash", id, 2)

	id = s.id("renewed")
	crash(id, nothing)
	crash(id, func(o *owner) { o.renewIfLong() })
	told("crash, renewal and crash", id, 2)

	for _, exit := range declared[:2] {
		id = s.id(exit.String())
		crash(id, nothing)
		s.acquire(id, "b").leave(exit)
		told("crash and "+exit.String(), id, 0)
	}

	id = s.id("given back")
	crash(id, nothing)
	crash(id, nothing)
	s.must("giving back", s.acquire(id, "b").undo())
	told("crash, crash and given back", id, 2)

	id = s.id("own checkpoint")
	crash(id, nothing)
	crash(id, nothing)
	o := s.acquire(id, "b")
	o.save("progress")
	stored, err := o.read()
	s.must("ReadCheckpoint", err)
	if stored.Prior.Crashes != 2 {
		s.Errorf("after its own checkpoint an owner is told of %d crashes, was told of 2", stored.Prior.Crashes)
	}
}

// renewIfLong renews where the lease cannot have lapsed before.
func (o *owner) renewIfLong() {
	o.s.Helper()
	if o.s.canLapse() {
		o.s.must("Renew", o.renew())
	}
}

func forgetBlanks(s *suite) {
	f := s.forgetter()
	id := s.id("work")
	s.acquireAndLapse(id, "crashed")
	o := s.acquire(id, "a")
	o.save("secret")
	s.must("Forget", f.Forget(s.Context(), o.Claim))
	stored, err := o.read()
	s.must("ReadCheckpoint of what was forgotten", err)
	s.sameState("the forgotten checkpoint", stored.State, nil)
	s.samePriorOwner("read after Forget", stored.Prior, worklease.Prior{})
	s.refused("Checkpoint after Forget", o.checkpoint([]byte("again")), worklease.ErrLeaseExpired)
	s.refused("Renew after Forget", o.renew(), worklease.ErrLeaseExpired)
	s.refused("Release after Forget", o.release(worklease.ExitReleased), worklease.ErrLeaseExpired)
	next := s.acquire(id, "b")
	s.samePrior("after Forget", next.grant.Prior, worklease.Prior{})
	if next.FencingToken <= o.FencingToken {
		s.Errorf("after Forget token %d followed %d", next.FencingToken, o.FencingToken)
	}
	s.refused("Forget after a successor came", f.Forget(s.Context(), o.Claim), worklease.ErrFenced)
	next.heldBy("after a zombie's Forget")

	l := s.lease("l", long)
	token := s.take(l, s.id("by lease"))
	s.must("Checkpoint", l.Checkpoint(s.Context(), token, []byte("secret")))
	s.must("Forget through a Lease", l.Forget(s.Context(), token))
	s.samePrior("after Forget through a Lease", s.prior(l, s.take(l, token.WorkID())), worklease.Prior{})
}

func forgetStates(s *suite) {
	f := s.forgetter()
	check := func(when string, o *owner) {
		s.Helper()
		s.must("Forget "+when, f.Forget(s.Context(), o.Claim))
		s.samePrior("after Forget "+when, s.acquire(o.WorkID, "next").grant.Prior, worklease.Prior{})
	}
	o := s.acquireToLapse(s.id("lapsed"), "a")
	o.save("x")
	s.lapse(o.WorkID)
	check("of a lapsed lease", o)
	for _, exit := range declared {
		o := s.acquire(s.id(exit.String()), "a")
		o.save("x")
		o.leave(exit)
		check("after "+exit.String(), o)
	}
	o = s.acquire(s.id("given back"), "a")
	o.leave(worklease.ExitReleased)
	o = s.acquire(o.WorkID, "b")
	s.must("giving back", o.undo())
	check("of what was given back", o)
}
