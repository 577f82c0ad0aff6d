package worklease

import (
	"context"

	link "github.com/aetomala/worklease/internal/hold"
)

// A backend with transactions of its own (pgxbackend's Step) finds the hold of a
// token in a registry that it shares with its Leases. This file is the Lease's side
// of that.

// linked is a Backend that has such a registry.
type linked interface{ Holds() *link.Registry }

type linkedHold struct{ *hold }

var _ link.Hold = linkedHold{}

func (l *lease) linkLocked(h *hold) {
	if l.registry != nil {
		l.registry.Add(link.Claim(h.token.Claim()), linkedHold{h})
	}
}

func (l *lease) unlinkLocked(h *hold) {
	if l.registry != nil {
		l.registry.Remove(link.Claim(h.token.Claim()), linkedHold{h})
	}
}

func (h linkedHold) Check(state []byte) error { return h.lease.checkState(state) }

func (h linkedHold) Missing() (number, state bool) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	return !h.numbered, h.priorKnown && !h.priorWhole
}

func (h linkedHold) Fill(number int64, state []byte) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	if !h.numbered {
		h.renumberLocked(number)
	}
	if h.priorKnown && !h.priorWhole {
		h.prior.State, h.priorWhole = state, true
	}
}

func (h linkedHold) Next() (number int64, by string, err error) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	number, err = h.drawLocked()
	return number, h.name, err
}

func (h linkedHold) Overtaken(stored int64) { h.renumber(stored) }

func (h linkedHold) Progressed() { h.advance() }

func (h linkedHold) Stepped(ctx context.Context, s link.Step) {
	if s.Err == nil {
		h.advance()
		h.confirm(s.Sent, Extension{Remaining: s.Remaining})
	}
	h.heed("checkpoint", s.Err)
	h.lease.observer.checkpointed(ctx, CheckpointEvent{Token: h.token, Size: s.Size, Duration: s.Took, Err: s.Err})
}
