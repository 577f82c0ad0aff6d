package conformance

import (
	"time"

	"github.com/aetomala/worklease"
)

// How an owner leaves, what the next one is told, and repeats of what has been done.

func priorExits(s *suite) {
	l := s.lease("next", long)
	for _, exit := range declared {
		o := s.acquire(s.id(exit.String()), "a")
		o.save("left")
		o.leave(exit)
		token := s.take(l, o.WorkID, worklease.WithReopen())
		s.samePrior("after "+exit.String(), s.prior(l, token),
			worklease.Prior{State: []byte("left"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken})
		_, clean, err := l.ReadCheckpoint(s.Context(), token)
		s.must("ReadCheckpoint", err)
		if want := exit != worklease.ExitAbandoned; clean != want {
			s.Errorf("after %v cleanHandoff is %t", exit, clean)
		}
	}
	crashed := s.acquireAndLapse(s.id("lapsed"), "a")
	token := s.take(l, crashed.WorkID)
	s.samePrior("after a lapse", s.prior(l, token),
		worklease.Prior{Exit: worklease.ExitExpired, HolderID: "a", FencingToken: crashed.FencingToken, Crashes: 1})
	if _, clean, err := l.ReadCheckpoint(s.Context(), token); clean || err != nil {
		s.Errorf("after a lapse cleanHandoff is %t, %v", clean, err)
	}
	if _, clean, err := l.ReadCheckpoint(s.Context(), s.take(l, s.id("first"))); clean || err != nil {
		s.Errorf("for the first owner cleanHandoff is %t, %v", clean, err)
	}
}

func priorIsStable(s *suite) {
	first := s.acquire(s.id("work"), "a")
	first.save("a's")
	first.leave(worklease.ExitReleased)
	l := s.lease("b", s.lapsing())
	token := s.take(l, first.WorkID)
	want := worklease.Prior{State: []byte("a's"), Exit: worklease.ExitReleased, HolderID: "a", FencingToken: first.FencingToken}
	stable := func(after string) {
		s.Helper()
		s.samePrior(after, s.prior(l, token), want)
		stored, err := s.b.ReadCheckpoint(s.Context(), token.Claim(), false)
		s.must("ReadCheckpoint", err)
		s.samePriorOwner("in the row "+after, stored.Prior, want)
		_, clean, err := l.ReadCheckpoint(s.Context(), token)
		s.must("ReadCheckpoint", err)
		if !clean {
			s.Errorf("%s it is no clean handoff any more", after)
		}
	}
	stable("after the acquisition")
	s.must("Checkpoint", l.Checkpoint(s.Context(), token, []byte("b's")))
	stable("after an own checkpoint")
	if s.canLapse() {
		s.must("Renew", l.Renew(s.Context(), token))
		stable("after a renewal")
	}
	_, err := s.b.Acquire(s.Context(), s.attempt(first.WorkID, "c"))
	if s.canLapse() {
		s.refused("Acquire of a held lease", err, worklease.ErrLeaseHeld)
		s.lapse(first.WorkID)
		stable("after a lapse")
		s.must("Checkpoint", l.Checkpoint(s.Context(), token, []byte("b's late")))
		stable("after a late checkpoint")
	}
}

func priorIsImmediate(s *suite) {
	id := s.id("work")
	a := s.acquire(id, "a")
	a.save("a's")
	a.leave(worklease.ExitReleased)
	b := s.acquireToLapse(id, "b")
	s.lapse(id)
	c := s.acquire(id, "c")
	s.samePrior("after a release and a lapse", c.grant.Prior, worklease.Prior{
		State: []byte("a's"), Exit: worklease.ExitExpired, HolderID: "b", FencingToken: b.FencingToken, Crashes: 1,
	})
	c.leave(worklease.ExitReleased)
	d := s.acquire(id, "d")
	s.samePrior("after a release, a lapse and a release", d.grant.Prior, worklease.Prior{
		State: []byte("a's"), Exit: worklease.ExitReleased, HolderID: "c", FencingToken: c.FencingToken,
	})
}

func releaseFrees(s *suite) {
	for _, exit := range declared {
		o := s.acquire(s.id(exit.String()), "a")
		o.leave(exit)
		s.reopen(o.WorkID, "b").heldBy("at once after " + exit.String())
	}
}

func releaseSaves(s *suite) {
	for _, exit := range declared {
		o := s.acquire(s.id(exit.String()), "a")
		o.save("first")
		s.must("Release with a state", o.say(o.lastWords(exit, "last")))
		o.stored("after Release with a state", []byte("last"))
		s.samePrior("after Release with a state", s.reopen(o.WorkID, "b").grant.Prior,
			worklease.Prior{State: []byte("last"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken})
	}
	o := s.acquire(s.id("nil"), "a")
	o.save("first")
	s.must("Release with a nil state", o.say(worklease.Farewell{Exit: worklease.ExitReleased, Number: 2, Hold: o.hold}))
	o.stored("after Release with a nil state", []byte("first"))
	o = s.acquire(s.id("empty"), "a")
	o.save("first")
	s.must("Release with an empty state", o.say(o.lastWords(worklease.ExitReleased, "")))
	o.stored("after Release with an empty state", []byte{})

	l := s.lease("a", long)
	token := s.take(l, s.id("by lease"))
	s.must("Release", l.Release(s.Context(), token, worklease.WithState([]byte("last")), worklease.WithExit(worklease.ExitAbandoned), nil))
	s.samePrior("after Release through a Lease", s.prior(l, s.take(l, token.WorkID())),
		worklease.Prior{State: []byte("last"), Exit: worklease.ExitAbandoned, HolderID: "a", FencingToken: token.FencingToken()})
}

func releaseCancelled(s *suite) {
	l := s.lease("a", long)
	token := s.take(l, s.id("work"))
	s.must("Release with a cancelled context", l.Release(ended(s.Context()), token, worklease.WithState([]byte("saved"))))
	s.samePrior("after Release with a cancelled context", s.prior(l, s.take(l, token.WorkID())),
		worklease.Prior{State: []byte("saved"), Exit: worklease.ExitReleased, HolderID: "a", FencingToken: token.FencingToken()})
}

func renewalAfterRelease(s *suite) {
	o := s.acquire(s.id("work"), "a")
	o.leave(worklease.ExitReleased)
	s.refused("Renew after Release", o.renew(), worklease.ErrLeaseExpired)
	next := s.acquire(o.WorkID, "a")
	s.samePriorOwner("after a late renewal", next.grant.Prior,
		worklease.Prior{Exit: worklease.ExitReleased, HolderID: "a", FencingToken: o.FencingToken})
	s.refused("Renew after a successor came", o.renew(), worklease.ErrFenced)
	next.leave(worklease.ExitReleased)
	s.refused("Renew after the successor left", o.renew(), worklease.ErrFenced)
	s.acquire(o.WorkID, "c").heldBy("after late renewals")
}

func releaseSparesSuccessor(s *suite) {
	o := s.acquireToLapse(s.id("work"), "a")
	s.lapse(o.WorkID)
	next := s.acquire(o.WorkID, "a")
	next.save("next's")
	for _, exit := range declared {
		s.refused("a zombie's Release", o.release(exit), worklease.ErrFenced)
		s.refused("a zombie's Release with a state", o.say(o.lastWords(exit, "zombie")), worklease.ErrFenced)
		next.heldBy("after a zombie's release")
	}
	next.stored("after a zombie's release", []byte("next's"))

	l := s.lease("a", long)
	first := s.take(l, s.id("by lease"))
	s.must("Release", l.Release(s.Context(), first))
	second := s.take(l, first.WorkID())
	s.must("a repeated Release", l.Release(s.Context(), first))
	s.refused("another exit for what was released", l.Release(s.Context(), first, worklease.WithExit(worklease.ExitRetired)), worklease.ErrFenced)
	s.must("Renew of the successor", l.Renew(s.Context(), second))
}

func repeatedCheckpoint(s *suite) {
	o := s.acquire(s.id("work"), "a")
	save := o.nextSave([]byte("one"))
	for range 3 {
		e, err := s.b.Checkpoint(s.Context(), o.Claim, save)
		s.must("a repeated Checkpoint", err)
		if e.Remaining <= 0 || e.Remaining > long {
			s.Errorf("a repeated checkpoint has %v left", e.Remaining)
		}
		o.stored("after a repeated Checkpoint", []byte("one"))
	}
	o.save("two")
	e, err := s.b.Checkpoint(s.Context(), o.Claim, save)
	s.must("the repeat of an overtaken Checkpoint", err)
	if e.Remaining != 0 {
		s.Errorf("an overtaken checkpoint extended the lease to %v", e.Remaining)
	}
	o.stored("after an overtaken Checkpoint", []byte("two"))

	last := o.nextSave([]byte("three"))
	_, err = s.b.Checkpoint(s.Context(), o.Claim, last)
	s.must("Checkpoint", err)
	o.leave(worklease.ExitReleased)
	_, err = s.b.Checkpoint(s.Context(), o.Claim, last)
	s.must("the repeat of a Checkpoint after Release", err)
	o.stored("after Release", []byte("three"))
	next := s.acquire(o.WorkID, "b")
	_, err = s.b.Checkpoint(s.Context(), o.Claim, last)
	s.refused("the repeat of a Checkpoint after a successor came", err, worklease.ErrFenced)
	next.stored("of the successor", []byte("three"))
}

func repeatedRenew(s *suite) {
	o := s.acquire(s.id("work"), "a")
	for range 3 {
		e, err := s.b.Renew(s.Context(), o.Claim, long)
		s.must("Renew", err)
		if e.Remaining > long || e.Remaining < long-5*time.Minute {
			s.Errorf("a repeated renewal has %v left", e.Remaining)
		}
	}
	o.heldBy("after repeated renewals")
}

func repeatedRelease(s *suite) {
	for _, exit := range declared {
		o := s.acquire(s.id("plain "+exit.String()), "a")
		o.save("kept")
		for range 3 {
			s.must("a repeated Release as "+exit.String(), o.release(exit))
		}
		o.stored("after repeated releases", []byte("kept"))

		o = s.acquire(s.id("with state "+exit.String()), "a")
		f := o.lastWords(exit, "last")
		for range 3 {
			s.must("a repeated Release with a state", o.say(f))
		}
		s.must("its repeat without the state", o.release(exit))
		f.Number++
		s.must("its repeat under another number", o.say(f))
		o.stored("after repeated releases", []byte("last"))
		for _, other := range declared {
			if other != exit {
				f.Exit = other
				s.refused("its repeat as "+other.String(), o.say(f), worklease.ErrLeaseExpired)
			}
		}
		s.samePrior("after repeated releases", s.reopen(o.WorkID, "b").grant.Prior,
			worklease.Prior{State: []byte("last"), Exit: exit, HolderID: "a", FencingToken: o.FencingToken})
	}
	l := s.lease("a", long)
	token := s.take(l, s.id("by lease"))
	for range 3 {
		s.must("a repeated Release through a Lease", l.Release(s.Context(), token, worklease.WithState([]byte("last"))))
	}
	s.acquire(token.WorkID(), "b")
	for name, l := range map[string]worklease.Lease{"the Lease": l, "another": s.lease("a", long)} {
		s.must("a Release repeated through "+name+" after a successor came", l.Release(s.Context(), token, worklease.WithState([]byte("last"))))
		s.refused("another state through "+name, l.Release(s.Context(), token, worklease.WithState([]byte("other"))), worklease.ErrFenced)
	}
}

func repeatedReleaseOneOn(s *suite) {
	for _, exit := range declared {
		name := exit.String()
		plain := s.acquire(s.id("plain "+name), "a")
		plain.leave(exit)
		with := s.acquire(s.id("with state "+name), "a")
		f := with.lastWords(exit, "last")
		s.must("Release with a state", with.say(f))

		repeats := func(when string) {
			s.Helper()
			s.must("a repeated Release "+when, plain.release(exit))
			s.must("a repeated Release with its state "+when, with.say(f))
			s.must("a repeated Release without its state "+when, with.release(exit))
			for _, other := range declared {
				if other != exit {
					s.refused("another exit "+when, plain.release(other), worklease.ErrFenced)
				}
			}
			stranger := *plain
			stranger.Nonce = "stranger"
			s.refused("a stranger's Release "+when, stranger.release(exit), worklease.ErrFenced)
		}
		nextPlain, nextWith := s.reopen(plain.WorkID, "b"), s.reopen(with.WorkID, "b")
		resent := f
		resent.Number++
		s.must("a repeated Release under another number, before the successor saved", with.say(resent))
		repeats("after a successor came")
		nextPlain.heldBy("after the predecessor's repeats")
		nextPlain.save("b's")
		nextWith.save("b's")
		repeats("after the successor saved")
		nextWith.stored("after the predecessor's repeats", []byte("b's"))
		nextPlain.leave(worklease.ExitReleased)
		nextWith.leave(worklease.ExitReleased)
		repeats("after the successor left")
		third := s.acquire(plain.WorkID, "c")
		s.samePrior("after the predecessor's repeats", third.grant.Prior, worklease.Prior{
			State: []byte("b's"), Exit: worklease.ExitReleased, HolderID: "b", FencingToken: nextPlain.FencingToken,
		})
	}
}

func repeatedForget(s *suite) {
	f := s.forgetter()
	o := s.acquire(s.id("work"), "a")
	o.save("x")
	for range 3 {
		s.must("a repeated Forget", f.Forget(s.Context(), o.Claim))
	}
	l := s.lease("a", long)
	token := s.take(l, s.id("by lease"))
	for range 3 {
		s.must("a repeated Forget through a Lease", l.Forget(s.Context(), token))
	}
}

func nilOnlyForWhatIsThere(s *suite) {
	o := s.acquire(s.id("surrendered"), "a")
	o.save("first")
	o.leave(worklease.ExitReleased)
	s.refused("Release with a state after Release without", o.say(o.lastWords(worklease.ExitReleased, "never saved")), worklease.ErrLeaseExpired)
	o.stored("after a refused Release", []byte("first"))

	o = s.acquire(s.id("other state"), "a")
	s.must("Release with a state", o.say(o.lastWords(worklease.ExitReleased, "one")))
	s.refused("Release with another state", o.say(o.lastWords(worklease.ExitReleased, "two")), worklease.ErrLeaseExpired)
	s.refused("Release with an empty state", o.say(o.lastWords(worklease.ExitReleased, "")), worklease.ErrLeaseExpired)
	next := s.acquire(o.WorkID, "b")
	s.refused("Release with another state, one successor on", o.say(o.lastWords(worklease.ExitReleased, "two")), worklease.ErrFenced)
	next.stored("after a zombie's release", []byte("one"))

	o = s.acquire(s.id("no state"), "a")
	o.leave(worklease.ExitReleased)
	s.refused("Release with an empty state where there is none", o.say(o.lastWords(worklease.ExitReleased, "")), worklease.ErrLeaseExpired)
	next = s.acquire(o.WorkID, "b")
	next.save("equal by chance")
	s.refused("Release with what only the successor saved", o.say(o.lastWords(worklease.ExitReleased, "equal by chance")), worklease.ErrFenced)
}
