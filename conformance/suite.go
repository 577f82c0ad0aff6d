package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
)

// long is the TTL of what must not lapse while a case runs, and brief of what must
// where the suite has to wait for it.
const (
	long  = time.Hour
	brief = 100 * time.Millisecond
)

// suite is one case under way.
type suite struct {
	*testing.T
	config
	b   worklease.Backend
	tag string // keeps the work IDs of this case from those of all others
}

// id returns a work ID of this case.
func (s *suite) id(name string) string { return name + "-" + s.tag }

// canLapse reports whether a long lease can be had to lapse at once. A short one may
// lapse before it should.
func (s *suite) canLapse() bool { return s.bubbles || s.endLease != nil }

// lapsing is the TTL of a lease that the case lets lapse.
func (s *suite) lapsing() time.Duration {
	if s.canLapse() {
		return long
	}
	return brief
}

// lapse has the current lease of workID lapse, which was acquired for s.lapsing().
func (s *suite) lapse(workID string) {
	s.Helper()
	if s.endLease != nil {
		s.endLease(s.T, s.b, workID)
		return
	}
	time.Sleep(s.lapsing())
}

// owner is one acquisition, by hand and without a Lease.
type owner struct {
	worklease.Claim
	s     *suite
	grant worklease.Grant
	hold  string
	saves int64
}

func (s *suite) attempt(workID, holder string) worklease.Attempt {
	return worklease.Attempt{WorkID: workID, HolderID: holder, TTL: long, Nonce: rand.Text()}
}

// send acquires as a says, or fails the case.
func (s *suite) send(a worklease.Attempt) *owner {
	s.Helper()
	g, err := s.b.Acquire(s.Context(), a)
	if err != nil {
		s.Fatalf("Acquire of %q by %q failed: %v", a.WorkID, a.HolderID, err)
	}
	if g.FencingToken == 0 || g.Remaining <= 0 || g.Remaining > a.TTL || g.ExpiresAt.IsZero() {
		s.Fatalf("Acquire of %q for %v granted token %d until %v, with %v left", a.WorkID, a.TTL, g.FencingToken, g.ExpiresAt, g.Remaining)
	}
	claim := worklease.Claim{WorkID: a.WorkID, HolderID: a.HolderID, FencingToken: g.FencingToken, Nonce: a.Nonce}
	return &owner{Claim: claim, s: s, grant: g, hold: a.Nonce}
}

func (s *suite) acquire(workID, holder string) *owner {
	s.Helper()
	return s.send(s.attempt(workID, holder))
}

// acquireToLapse acquires for a TTL that s.lapse ends.
func (s *suite) acquireToLapse(workID, holder string) *owner {
	s.Helper()
	a := s.attempt(workID, holder)
	a.TTL = s.lapsing()
	return s.send(a)
}

// acquireAndLapse leaves a lapsed lease.
func (s *suite) acquireAndLapse(workID, holder string) *owner {
	s.Helper()
	o := s.acquireToLapse(workID, holder)
	s.lapse(workID)
	return o
}

func (s *suite) reopen(workID, holder string) *owner {
	s.Helper()
	a := s.attempt(workID, holder)
	a.Reopen = true
	return s.send(a)
}

func (o *owner) nextSave(state []byte) worklease.Save {
	o.saves++
	return worklease.Save{State: state, Number: o.saves, Hold: o.hold, TTL: long}
}

func (o *owner) checkpoint(state []byte) error {
	_, err := o.s.b.Checkpoint(o.s.Context(), o.Claim, o.nextSave(state))
	return err
}

// save checkpoints, or fails the case.
func (o *owner) save(state string) {
	o.s.Helper()
	o.s.must("Checkpoint", o.checkpoint([]byte(state)))
}

func (o *owner) renew() error {
	_, err := o.s.b.Renew(o.s.Context(), o.Claim, long)
	return err
}

func (o *owner) release(exit worklease.Exit) error {
	return o.s.b.Release(o.s.Context(), o.Claim, worklease.Farewell{Exit: exit})
}

// leave releases, or fails the case.
func (o *owner) leave(exit worklease.Exit) {
	o.s.Helper()
	o.s.must("Release with exit "+exit.String(), o.release(exit))
}

// lastWords is a farewell with state.
func (o *owner) lastWords(exit worklease.Exit, state string) worklease.Farewell {
	o.saves++
	return worklease.Farewell{Exit: exit, State: []byte(state), Number: o.saves, Hold: o.hold}
}

func (o *owner) say(f worklease.Farewell) error {
	return o.s.b.Release(o.s.Context(), o.Claim, f)
}

// undo gives the acquisition back.
func (o *owner) undo() error { return o.release(worklease.ExitNone) }

func (o *owner) read() (worklease.Stored, error) {
	return o.s.b.ReadCheckpoint(o.s.Context(), o.Claim, true)
}

// forgetter returns the backend's power to forget, or skips the case.
func (s *suite) forgetter() worklease.Forgetter {
	f, ok := s.b.(worklease.Forgetter)
	if !ok {
		s.Skip("the backend is no Forgetter")
	}
	return f
}

// must fails the case if err is set.
func (s *suite) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s failed: %v", what, err)
	}
}

// refused reports an err that is not the wanted one.
func (s *suite) refused(what string, err, want error) {
	s.Helper()
	switch {
	case err == nil:
		s.Errorf("%s succeeded, want the error %q", what, want)
	case !errors.Is(err, want):
		s.Errorf("%s failed with %q, want the error %q", what, err, want)
	}
}

// stored reports a stored state that is not the wanted one; nil wants none.
func (o *owner) stored(when string, want []byte) {
	o.s.Helper()
	got, err := o.read()
	o.s.must("ReadCheckpoint "+when, err)
	o.s.sameState("the checkpoint "+when, got.State, want)
}

// sameState tells nil and empty apart.
func (s *suite) sameState(what string, got, want []byte) {
	s.Helper()
	if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
		s.Errorf("%s is %s, want %s", what, showState(got), showState(want))
	}
}

func showState(b []byte) string {
	switch {
	case b == nil:
		return "nil"
	case len(b) > 40:
		return fmt.Sprintf("%d bytes from %q", len(b), b[:20])
	}
	return fmt.Sprintf("%q", b)
}

// samePrior compares all but the time of the checkpoint, which must be there if and
// only if there is one.
func (s *suite) samePrior(when string, got, want worklease.Prior) {
	s.Helper()
	s.sameState("the prior state "+when, got.State, want.State)
	s.samePriorOwner(when, got, want)
	if got.CheckpointedAt.IsZero() != (want.State == nil) {
		s.Errorf("the prior %s was checkpointed at %v, with the state %s", when, got.CheckpointedAt, showState(want.State))
	}
}

// samePriorOwner compares what is said of the owner.
func (s *suite) samePriorOwner(when string, got, want worklease.Prior) {
	s.Helper()
	if g, w := showPrior(got), showPrior(want); g != w {
		s.Errorf("the prior %s is\n\t%s, want\n\t%s", when, g, w)
	}
}

func showPrior(p worklease.Prior) string {
	return fmt.Sprintf("exit %v, holder %q, token %d, %d crashes", p.Exit, p.HolderID, p.FencingToken, p.Crashes)
}

// heldBy reports an acquisition of o's work that is not refused in o's name.
func (o *owner) heldBy(when string) {
	s := o.s
	s.Helper()
	_, err := s.b.Acquire(s.Context(), s.attempt(o.WorkID, "intruder"))
	var held *worklease.HeldError
	switch {
	case err == nil:
		s.Fatalf("%s the lease of %q was granted to another, token %d should hold it", when, o.HolderID, o.FencingToken)
	case !errors.As(err, &held):
		s.Fatalf("%s Acquire failed with %q, want a HeldError", when, err)
	case held.WorkID != o.WorkID || held.HolderID != o.HolderID || held.FencingToken != o.FencingToken:
		s.Fatalf("%s the lease of %q is held by %q with token %d, want %q with %d",
			when, held.WorkID, held.HolderID, held.FencingToken, o.HolderID, o.FencingToken)
	}
}

// lease returns a Lease on the case's backend.
func (s *suite) lease(holder string, ttl time.Duration) worklease.Lease {
	s.Helper()
	return s.observed(holder, ttl, nil)
}

func (s *suite) observed(holder string, ttl time.Duration, to worklease.LeaseObserver) worklease.Lease {
	s.Helper()
	l, err := worklease.New(s.b, worklease.Config{TTL: ttl, HolderID: holder, Observer: to})
	s.must("New", err)
	return l
}

// take acquires through a Lease, or fails the case.
func (s *suite) take(l worklease.Lease, workID string, opts ...worklease.AcquireOption) worklease.Token {
	s.Helper()
	token, err := l.Acquire(s.Context(), workID, opts...)
	s.must("Acquire", err)
	return token
}

// prior returns what a Lease tells, or fails the case.
func (s *suite) prior(l worklease.Lease, token worklease.Token) worklease.Prior {
	s.Helper()
	p, err := l.Prior(s.Context(), token)
	s.must("Prior", err)
	return p
}

// awaited waits for what another goroutine does, as long as anything may take.
func (s *suite) awaited(what string, done <-chan struct{}) {
	s.Helper()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		s.Fatalf("%s did not happen within 30 s", what)
	}
}

// ended returns a context that is over.
func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
