package pool

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/ctxerr"
	"github.com/aetomala/worklease/internal/tenure"
)

// A lost lease is asked for again after this pause, twice as long at most: whatever
// took it may have taken many.
const lostPause = 100 * time.Millisecond

// slot is one work ID in one Run.
type slot struct {
	*Pool
	ctx    context.Context // Run's
	workID string
	begun  bool // in this tenure the observer was told of the acquisition
}

// run has one tenure after the other, until the slot or ctx ends. It returns what the
// slot died of, or nil.
func (s *slot) run() (death error) {
	for s.ctx.Err() == nil {
		o, err := s.runTenure()
		next := s.conclude(o, err)
		if next.end {
			return next.death
		}
		tenure.Pause(s.ctx, next.pause)
	}
	return nil
}

func (s *slot) runTenure() (tenure.Outcome, error) {
	s.begun = false
	cfg := s.tenure
	cfg.AcquireOptions = slices.Concat(s.cfg.AcquireOptions, []worklease.AcquireOption{
		worklease.WithWaitForLease(), worklease.WithPollInterval(pollInterval(s.cfg.IdleInterval)),
	})
	return tenure.Run(s.ctx, s.workID, cfg, s.work)
}

func (s *slot) work(ctx context.Context, token worklease.Token, prior worklease.Prior) ([]byte, error) {
	s.begun = true
	s.cfg.Observer.OnSlotAcquired(s.ctx, SlotAcquiredEvent{WorkID: s.workID})
	if ctx.Err() != nil {
		return nil, cmp.Or(ctxerr.Of(s.ctx), context.Cause(ctx))
	}
	s.activate()
	defer s.deactivate()
	return s.fn(ctx, s.workID, token, prior.State, prior.CleanHandoff())
}

// next is how a slot goes on.
type next struct {
	end   bool
	death error
	pause time.Duration
}

// conclude tells the observer how a tenure ended, and decides how the slot goes on.
func (s *slot) conclude(o tenure.Outcome, err error) next {
	acquired := o.Token != worklease.Token{}
	switch {
	case isPermanent(err):
		s.cfg.Observer.OnSlotDead(s.ctx, SlotDeadEvent{WorkID: s.workID, Err: err})
		return next{end: true, death: err}
	case o.Exit == worklease.ExitRetired, !acquired && errors.Is(err, worklease.ErrLeaseRetired):
		s.cfg.Observer.OnSlotRetired(s.ctx, SlotRetiredEvent{WorkID: s.workID})
		return next{end: true}
	case o.Lost:
		s.cfg.Observer.OnSlotLost(s.ctx, SlotLostEvent{WorkID: s.workID, Err: err})
		return next{pause: jitter(lostPause, 1)}
	case err == nil, s.interrupted(o, err):
		if to, ok := s.cfg.Observer.(ReleaseObserver); ok {
			to.OnSlotReleased(s.ctx, SlotReleasedEvent{WorkID: s.workID, Exit: o.Exit})
		}
		return next{pause: jitter(s.cfg.RerunInterval, 0.2)}
	case !acquired && errors.Is(err, worklease.ErrLeaseHeld):
		// Only from a Lease of the caller's own that does not wait.
		return next{pause: jitter(s.cfg.IdleInterval, 0.2)}
	case !s.begun && s.ctx.Err() != nil:
		return next{}
	}
	wait := s.cfg.BackoffInterval
	if s.ctx.Err() != nil {
		wait = 0
	}
	s.cfg.Observer.OnSlotBackoff(s.ctx, SlotBackoffEvent{WorkID: s.workID, Err: err, Duration: wait})
	return next{pause: wait}
}

// interrupted reports a function that said no more than that Run's context had ended,
// and left in order.
func (s *slot) interrupted(o tenure.Outcome, err error) bool {
	return s.begun && o.Exit == worklease.ExitAbandoned && s.ctx.Err() != nil &&
		(errors.Is(err, s.ctx.Err()) || errors.Is(err, context.Cause(s.ctx)))
}

func (s *slot) activate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[s.workID] = struct{}{}
}

func (s *slot) deactivate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, s.workID)
}
