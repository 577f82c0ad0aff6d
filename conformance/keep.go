package conformance

import (
	"context"
	"time"

	"github.com/aetomala/worklease"
)

// Keeping a lease, by hand and by StartRenewal.

func renewalKeeps(s *suite) {
	const ttl = time.Second // as short as a busy machine can keep
	l := s.lease("a", ttl)
	began := time.Now()
	token := s.take(l, s.id("work"))
	kept, stop := l.StartRenewal(s.Context(), token, worklease.WithRenewalInterval(ttl/4))
	defer stop()
	select {
	case <-kept.Done():
		s.Fatalf("the lease was lost after %v: %v", time.Since(began), context.Cause(kept))
	case <-time.After(2*ttl + ttl/2):
	}
	(&owner{Claim: token.Claim(), s: s}).heldBy("after two and a half TTLs")
	stop()
	if cause := context.Cause(kept); cause != context.Canceled {
		s.Errorf("after stopRenewal the cause is %v, want context.Canceled", cause)
	}
	s.must("Release", l.Release(s.Context(), token))
	next := s.take(s.lease("b", long), token.WorkID())
	if next.FencingToken() <= token.FencingToken() {
		s.Errorf("token %d followed %d", next.FencingToken(), token.FencingToken())
	}
}

func checkpointExtends(s *suite) {
	id := s.id("work")
	l := s.lease("a", long)
	token := s.take(l, id)
	first, _ := l.Deadline(token)
	time.Sleep(aMoment)
	for _, state := range [][]byte{[]byte("state"), {}, nil} {
		s.must("Checkpoint", l.Checkpoint(s.Context(), token, state))
		next, ok := l.Deadline(token)
		if !ok || !next.After(first) {
			s.Errorf("after a checkpoint of %s the deadline went from %v to %v, %t", showState(state), first, next, ok)
		}
		first = next
		time.Sleep(time.Millisecond)
	}

	o := s.acquire(s.id("by hand"), "a")
	for _, state := range [][]byte{[]byte("state"), {}, nil} {
		e, err := s.b.Checkpoint(s.Context(), o.Claim, o.nextSave(state))
		s.must("Checkpoint", err)
		if e.Remaining > long || e.Remaining < long-5*time.Minute {
			s.Errorf("a checkpoint of %s extended the lease to %v, want %v", showState(state), e.Remaining, long)
		}
	}
}

// resumedBy has another Lease take over a token by its public values.
func resumedBy(token worklease.Token) worklease.Token {
	return worklease.NewToken(token.WorkID(), token.HolderID(), token.FencingToken(), token.ExpiresAt())
}

func renewalFenced(s *suite) {
	l, other := s.lease("a", long), s.lease("b", long)
	token := s.take(l, s.id("work"))
	s.must("Release of the resumed token", other.Release(s.Context(), resumedBy(token)))
	next := s.take(other, token.WorkID())
	kept, stop := l.StartRenewal(s.Context(), token, worklease.WithRenewalInterval(time.Millisecond))
	defer stop()
	s.awaited("the end of a fenced renewal", kept.Done())
	s.refused("a fenced renewal", context.Cause(kept), worklease.ErrFenced)
	if _, ok := l.Deadline(token); ok {
		s.Error("a fenced token still has a deadline")
	}
	s.must("Renew of the successor", other.Renew(s.Context(), next))
}

func renewalExpired(s *suite) {
	l, other := s.lease("a", long), s.lease("b", long)
	token := s.take(l, s.id("work"))
	s.must("Release of the resumed token", other.Release(s.Context(), resumedBy(token)))
	kept, stop := l.StartRenewal(s.Context(), token, worklease.WithRenewalInterval(time.Millisecond))
	defer stop()
	s.awaited("the end of an expired renewal", kept.Done())
	s.refused("an expired renewal", context.Cause(kept), worklease.ErrLeaseWindowExhausted)
	s.refused("an expired renewal", context.Cause(kept), worklease.ErrLeaseExpired)
}

func extensionByRowTTL(s *suite) {
	const ttl = 10 * time.Minute
	a := s.attempt(s.id("work"), "a")
	a.TTL = ttl
	o := s.send(a)
	about := func(what string, left time.Duration) {
		s.Helper()
		if left > ttl || left < ttl-5*time.Minute {
			s.Errorf("after %s %v are left, the lease was acquired for %v", what, left, ttl)
		}
	}
	for _, other := range []time.Duration{time.Minute, long} {
		e, err := s.b.Renew(s.Context(), o.Claim, other)
		s.must("Renew", err)
		about("Renew", e.Remaining)
		save := o.nextSave([]byte("x"))
		save.TTL = other
		e, err = s.b.Checkpoint(s.Context(), o.Claim, save)
		s.must("Checkpoint", err)
		about("Checkpoint", e.Remaining)
	}
	a = s.attempt(o.WorkID, "b")
	if again, err := s.b.Acquire(s.Context(), a); err == nil {
		s.Fatalf("Acquire of a held lease was granted token %d", again.FencingToken)
	}
	s.must("Renew", o.renew())
}
