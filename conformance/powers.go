package conformance

import (
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/aetomala/worklease"
)

// waker returns the backend's power to wake waiters, or skips the case.
func (s *suite) waker() worklease.Waker {
	w, ok := s.b.(worklease.Waker)
	if !ok {
		s.Skip("the backend is no Waker")
	}
	return w
}

// watcher is one who waits by hand.
type watcher struct {
	name  string
	nudge <-chan struct{}
	stop  func()
}

func (s *suite) watch(name, workID string) *watcher {
	// The poll interval is for a backend that for once cannot tell.
	nudge, stop := s.waker().Watch(workID, time.Second)
	s.Cleanup(stop)
	return &watcher{name, nudge, stop}
}

// nudged waits until it is told to try.
func (s *suite) nudged(w *watcher) {
	s.Helper()
	s.awaited("the nudge of "+w.name, w.nudge)
}

// quiet reports one who is told to try out of turn.
func (s *suite) quiet(when string, watchers ...*watcher) {
	s.Helper()
	time.Sleep(aMoment)
	for _, w := range watchers {
		select {
		case <-w.nudge:
			s.Errorf("%s was told to try %s", w.name, when)
		default:
		}
	}
}

// tries is a watcher's try that finds the work held.
func (s *suite) tries(w *watcher, workID string) {
	s.Helper()
	if _, err := s.b.Acquire(s.Context(), s.attempt(workID, w.name)); !errors.Is(err, worklease.ErrLeaseHeld) {
		s.Errorf("the try of %s ended with %v", w.name, err)
	}
}

// inTurn takes nudges until the watcher's try succeeds: a hint may come once too often.
func (s *suite) inTurn(w *watcher, workID string) *owner {
	s.Helper()
	for {
		s.nudged(w)
		a := s.attempt(workID, w.name)
		g, err := s.b.Acquire(s.Context(), a)
		if err == nil {
			claim := worklease.Claim{WorkID: workID, HolderID: w.name, FencingToken: g.FencingToken, Nonce: a.Nonce}
			return &owner{Claim: claim, s: s, grant: g, hold: a.Nonce}
		}
		if !errors.Is(err, worklease.ErrLeaseHeld) {
			s.Fatalf("the try of %s failed: %v", w.name, err)
		}
	}
}

func watchersTakeTurns(s *suite) {
	workID := s.id("work")
	o := s.acquire(workID, "owner")
	first, second, third := s.watch("first", workID), s.watch("second", workID), s.watch("third", workID)
	other := s.watch("other", s.id("other"))
	s.nudged(first)
	s.nudged(other)
	s.quiet("while another has the turn", second, third)
	s.tries(first, workID)
	for _, w := range []*watcher{first, second, third} {
		o.leave(worklease.ExitReleased)
		o = s.inTurn(w, workID)
		w.stop()
		w.stop()
	}
	s.quiet("for work that it does not wait for", other)
}

func leaverHandsOn(s *suite) {
	workID := s.id("work")
	o := s.acquire(workID, "owner")
	first, second, third := s.watch("first", workID), s.watch("second", workID), s.watch("third", workID)
	s.nudged(first)
	first.stop() // it has the turn and does not try
	s.nudged(second)
	s.tries(second, workID)
	third.stop() // it has not
	o.leave(worklease.ExitReleased)
	s.nudged(second)
	second.stop()
	fourth := s.watch("fourth", workID)
	s.inTurn(fourth, workID)
}

func whatWakes(s *suite) {
	for name, free := range map[string]func(*owner) error{
		"released": func(o *owner) error { return o.release(worklease.ExitReleased) },
		"undone":   func(o *owner) error { return o.undo() },
		"forgotten": func(o *owner) error {
			if f, ok := s.b.(worklease.Forgetter); ok {
				return f.Forget(s.Context(), o.Claim)
			}
			return o.undo()
		},
	} {
		workID := s.id(name)
		o := s.acquire(workID, "owner")
		w := s.watch(name, workID)
		s.nudged(w)
		s.tries(w, workID)
		s.must("to have it "+name, free(o))
		s.inTurn(w, workID)
		w.stop()
	}
	if !s.canLapse() { // a short lease may lapse before it is watched
		return
	}
	workID := s.id("lapsed")
	s.acquireToLapse(workID, "owner")
	w := s.watch("lapsed", workID)
	s.nudged(w)
	s.tries(w, workID)
	s.lapse(workID)
	if s.endLease != nil {
		return // nothing is told of a row that somebody changed
	}
	s.inTurn(w, workID)
}

func batchVerdicts(s *suite) {
	b, ok := s.b.(worklease.BatchRenewer)
	if !ok {
		s.Skip("the backend is no BatchRenewer")
	}
	lapsed := s.acquireAndLapse(s.id("lapsed"), "a") // before the others, as it may take their time
	live := s.acquire(s.id("live"), "a")
	gone, taken := s.acquire(s.id("gone"), "a"), s.acquire(s.id("taken"), "a")
	gone.leave(worklease.ExitReleased)
	taken.leave(worklease.ExitReleased)
	successor := s.acquire(taken.WorkID, "a")
	resumed, forged, absent := live.Claim, live.Claim, live.Claim
	resumed.Nonce, forged.Nonce, absent.WorkID = "", rand.Text(), s.id("absent")
	wants := []struct {
		name  string
		claim worklease.Claim
		err   error
	}{
		{"a superseded one", taken.Claim, worklease.ErrFenced},
		{"a live one", live.Claim, nil},
		{"a lapsed one", lapsed.Claim, worklease.ErrLeaseExpired},
		{"a forged one", forged, worklease.ErrFenced},
		{"the same one resumed", resumed, nil},
		{"an absent one", absent, worklease.ErrFenced},
		{"a surrendered one", gone.Claim, worklease.ErrLeaseExpired},
		{"the same one again", live.Claim, nil},
		{"the successor", successor.Claim, nil},
	}
	var claims []worklease.Claim
	for _, w := range wants {
		claims = append(claims, w.claim)
	}
	got, err := b.RenewBatch(s.Context(), claims, long)
	s.must("RenewBatch", err)
	if len(got) != len(claims) {
		s.Fatalf("%d results for %d claims", len(got), len(claims))
	}
	for i, w := range wants {
		switch {
		case w.err != nil:
			s.refused(w.name, got[i].Err, w.err)
		case got[i].Err != nil || got[i].Remaining <= long/2 || got[i].Remaining > long:
			s.Errorf("%s: %v left, %v", w.name, got[i].Remaining, got[i].Err)
		}
	}
	s.must("Renew after the batch", live.renew())
	if _, err := b.RenewBatch(ended(s.Context()), claims, long); err == nil {
		s.Error("RenewBatch under an ended context succeeded")
	}
}

func fullBatch(s *suite) {
	b, ok := s.b.(worklease.BatchRenewer)
	if !ok {
		s.Skip("the backend is no BatchRenewer")
	}
	claims := make([]worklease.Claim, worklease.MaxRenewBatch)
	for i := range claims {
		claims[i] = s.acquire(s.id(fmt.Sprint(i)), "a").Claim
	}
	got, err := b.RenewBatch(s.Context(), claims, long)
	s.must("RenewBatch", err)
	for i, r := range got {
		if r.Err != nil || r.Remaining <= 0 {
			s.Fatalf("%d: %v left, %v", i, r.Remaining, r.Err)
		}
	}
}
