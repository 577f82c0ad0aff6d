package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/aetomala/worklease"
)

// What is stored, and in which order.

func nilAndEmpty(s *suite) {
	ctx := s.Context()
	l := s.lease("a", long)
	token := s.take(l, s.id("work"))
	s.sameState("the checkpoint of new work", s.read(l, token), nil)
	step := func(save, want []byte) {
		s.Helper()
		s.must("Checkpoint of "+showState(save), l.Checkpoint(ctx, token, save))
		s.sameState("the checkpoint after "+showState(save), s.read(l, token), want)
	}
	step(nil, nil)
	step([]byte{}, []byte{})
	step(nil, []byte{})
	step([]byte("full"), []byte("full"))
	step(nil, []byte("full"))
	step([]byte{}, []byte{})
	s.must("Renew", l.Renew(ctx, token))
	s.sameState("the checkpoint after Renew", s.read(l, token), []byte{})
	s.must("Release", l.Release(ctx, token, worklease.WithState(nil)))
	next := s.take(l, token.WorkID())
	s.sameState("the empty prior", s.prior(l, next).State, []byte{})
	s.must("Release", l.Release(ctx, next))

	o := s.acquire(s.id("nil only"), "a")
	s.must("Checkpoint of nil", o.checkpoint(nil))
	o.leave(worklease.ExitReleased)
	s.samePrior("after a checkpoint of nil alone", s.acquire(o.WorkID, "b").grant.Prior,
		worklease.Prior{Exit: worklease.ExitReleased, HolderID: "a", FencingToken: o.FencingToken})
}

func slicesAreCopied(s *suite) {
	id := s.id("work")
	o := s.acquire(id, "a")
	state := []byte("original")
	spoil := func(b []byte) {
		for i := range b {
			b[i] = 'X'
		}
	}
	s.must("Checkpoint", o.checkpoint(state))
	spoil(state)
	o.stored("after the caller changed its slice", []byte("original"))
	got, err := o.read()
	s.must("ReadCheckpoint", err)
	spoil(got.State)
	o.stored("after a reader changed its slice", []byte("original"))

	state = []byte("last words")
	s.must("Release", o.say(worklease.Farewell{Exit: worklease.ExitReleased, State: state, Number: 9, Hold: o.hold}))
	spoil(state)
	next := s.acquire(id, "b")
	s.sameState("the prior", next.grant.Prior.State, []byte("last words"))
	spoil(next.grant.Prior.State)
	next.stored("after the successor changed its slice", []byte("last words"))
	next.leave(worklease.ExitReleased)

	l := s.lease("c", long)
	token := s.take(l, id)
	spoil(s.prior(l, token).State)
	s.sameState("the prior, read again", s.prior(l, token).State, []byte("last words"))
}

func statesOfAllSizes(s *suite) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	for _, size := range []int{0, 1, 256, worklease.MaxInlineState - 1, worklease.MaxInlineState, worklease.MaxInlineState + 1, 1 << 20} {
		state := bytes.Repeat(every, size/256+1)[:size]
		o := s.acquire(s.id(fmt.Sprint(size)), "a")
		s.must("Checkpoint", o.checkpoint(state))
		o.stored("read back", state)
		o.leave(worklease.ExitReleased)
		next := s.acquire(o.WorkID, "b")
		omit := size > worklease.MaxInlineState
		if next.grant.StateOmitted != omit {
			s.Errorf("with %d bytes StateOmitted is %t", size, next.grant.StateOmitted)
		}
		if omit {
			s.sameState("an omitted state", next.grant.Prior.State, nil)
		} else {
			s.sameState("the prior state", next.grant.Prior.State, state)
		}
		s.samePriorOwner("of any size", next.grant.Prior,
			worklease.Prior{Exit: worklease.ExitReleased, HolderID: "a", FencingToken: o.FencingToken})
		next.leave(worklease.ExitReleased)

		l := s.lease("c", long)
		token := s.take(l, o.WorkID)
		s.must("Checkpoint", l.Checkpoint(s.Context(), token, []byte("own"))) // the prior stays
		s.sameState("the prior through a Lease", s.prior(l, token).State, state)
	}
}

func lateNumber(s *suite) {
	o := s.acquire(s.id("work"), "a")
	at := func(number int64, state string) worklease.Save {
		return worklease.Save{State: []byte(state), Number: number, Hold: o.hold, TTL: long}
	}
	save := func(number int64, state string) {
		s.Helper()
		_, err := s.b.Checkpoint(s.Context(), o.Claim, at(number, state))
		s.must(fmt.Sprintf("Checkpoint number %d", number), err)
	}
	save(5, "five")
	save(3, "three")
	save(4, "four")
	o.stored("after late numbers", []byte("five"))
	save(7, "seven")
	save(6, "six")
	o.stored("after a late number", []byte("seven"))
	save(1<<40, "far")
	o.stored("after a leap", []byte("far"))
	stored, err := o.read()
	s.must("ReadCheckpoint", err)
	if stored.Number != 1<<40 {
		s.Errorf("the stored number is %d, want %d", stored.Number, int64(1)<<40)
	}
	farewell := worklease.Farewell{Exit: worklease.ExitReleased, State: []byte("last"), Number: 8, Hold: o.hold}
	if err := o.say(farewell); !errors.As(err, new(*worklease.OvertakenError)) {
		s.Errorf("Release with a state under a late number: %v, want an OvertakenError", err)
	}
	o.heldBy("after an overtaken farewell")
	farewell.Number = 1<<40 + 1
	s.must("Release with a state under a new number", o.say(farewell))
	save(4, "four")
	if _, err := s.b.Checkpoint(s.Context(), o.Claim, worklease.Save{State: []byte("x"), Number: 4, Hold: "other", TTL: long}); !errors.Is(err, worklease.ErrLeaseExpired) {
		s.Errorf("a late number of another hold after Release: %v, want ErrLeaseExpired", err)
	}
	next := s.acquire(o.WorkID, "b")
	s.sameState("the prior", next.grant.Prior.State, []byte("last"))
	next.save("from one again")
	next.stored("of a new owner", []byte("from one again"))

	o = s.acquire(s.id("nil"), "a")
	save(1, "one")
	_, err = s.b.Checkpoint(s.Context(), o.Claim, worklease.Save{Number: 3, Hold: o.hold, TTL: long})
	s.must("Checkpoint of nil", err)
	save(2, "two")
	o.stored("after a late number behind a nil", []byte("one"))
}

func anotherHold(s *suite) {
	o := s.acquire(s.id("work"), "a")
	save := func(number int64, hold, state string) error {
		var b []byte
		if state != "" {
			b = []byte(state)
		}
		_, err := s.b.Checkpoint(s.Context(), o.Claim, worklease.Save{State: b, Number: number, Hold: hold, TTL: long})
		return err
	}
	overtaken := func(what string, err error, by int64) {
		s.Helper()
		var e *worklease.OvertakenError
		switch {
		case !errors.As(err, &e):
			s.Errorf("%s: %v, want an OvertakenError", what, err)
		case e.Number != by:
			s.Errorf("%s was overtaken by number %d, want %d", what, e.Number, by)
		}
	}
	s.must("Checkpoint", save(5, "one", "of one"))
	overtaken("a smaller number of another hold", save(4, "two", "of two"), 5)
	overtaken("an equal number of another hold", save(5, "two", "of two"), 5)
	overtaken("an equal number of another hold, with nil", save(5, "two", ""), 5)
	o.stored("after another hold was overtaken", []byte("of one"))
	overtaken("a farewell of another hold", o.say(worklease.Farewell{
		Exit: worklease.ExitReleased, State: []byte("of two"), Number: 5, Hold: "two",
	}), 5)
	o.heldBy("after an overtaken farewell")
	s.must("a greater number of another hold", save(6, "two", "of two"))
	o.stored("by another hold", []byte("of two"))
	overtaken("the repeat of what another hold overtook", save(5, "one", "of one"), 6)
	s.must("a farewell without a state", o.say(worklease.Farewell{Exit: worklease.ExitReleased, Number: 1, Hold: "one"}))
	s.sameState("the prior", s.acquire(o.WorkID, "b").grant.Prior.State, []byte("of two"))
}

func manySaves(s *suite) {
	l := s.lease("a", long)
	token := s.take(l, s.id("work"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 4 {
				if err := l.Checkpoint(s.Context(), token, fmt.Appendf(nil, "%d.%d", i, j)); err != nil {
					s.Errorf("one of many checkpoints failed: %v", err)
				}
			}
		})
	}
	wg.Wait()
	s.must("Checkpoint", l.Checkpoint(s.Context(), token, []byte("last")))
	s.sameState("the checkpoint after many at once", s.read(l, token), []byte("last"))
	s.must("Release", l.Release(s.Context(), token))
}
