// Package memory keeps leases in one process, for tests and examples: the same
// promises as PostgreSQL, held to the same suite (package conformance), without a
// database. What it holds is gone with the process, and no other process sees it.
//
// # Time
//
// Leases end by the clock of [WithClock], by default that of package time: in a
// testing/synctest bubble, an hour's lease lasts no time at all.
//
// # Size
//
// A row is kept for every work ID ever acquired, as a fencing token must never
// come twice.
package memory

import (
	"context"
	"sync"
	"time"

	"github.com/aetomala/worklease"
)

// Backend is a [worklease.Backend] with all optional powers. Make it with [New]. Its methods are safe for concurrent use and do not block.
type Backend struct {
	clock Clock

	mu      sync.Mutex // guards what follows, and the rows
	rows    map[string]*row
	counter uint64 // the last token handed out: one counter for all work IDs
	watched map[string]*watched
}

var (
	_ worklease.Backend   = (*Backend)(nil)
	_ worklease.Forgetter = (*Backend)(nil)
)

// Clock tells a Backend the time. Now is called with the Backend locked: it must
// not call back into it.
type Clock interface {
	Now() time.Time
}

type systemClock struct{}

func (systemClock) Now() time.Time { return time.Now() }

// Option configures [New]. A nil option is ignored.
type Option func(*Backend)

// WithClock has leases end by c, for tests of clocks that step. A nil c is ignored.
// Timers of a [worklease.Lease] follow package time all the same.
func WithClock(c Clock) Option {
	return func(b *Backend) {
		if c != nil {
			b.clock = c
		}
	}
}

// New returns an empty Backend.
func New(opts ...Option) *Backend {
	b := &Backend{clock: systemClock{}, rows: make(map[string]*row), watched: make(map[string]*watched)}
	for _, opt := range opts {
		if opt != nil {
			opt(b)
		}
	}
	return b
}

// Acquire implements [worklease.Backend].
func (b *Backend) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	if err := ended(ctx); err != nil {
		return worklease.Grant{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	r := b.rows[a.WorkID]
	switch {
	case r == nil:
		r = &row{}
		b.rows[a.WorkID] = r
	case r.live(now):
		b.judgedLocked(a.WorkID, r.remaining(now))
		if a.Nonce != "" && r.nonce == a.Nonce {
			return r.grant(now), nil
		}
		return worklease.Grant{}, r.held(a.WorkID, now)
	case r.retired() && !a.Reopen:
		return worklease.Grant{}, r.retiredBy(a.WorkID)
	}
	b.counter++
	r.take(a, b.counter, now)
	b.judgedLocked(a.WorkID, a.TTL)
	return r.grant(now), nil
}

// Checkpoint implements [worklease.Backend].
func (b *Backend) Checkpoint(ctx context.Context, c worklease.Claim, s worklease.Save) (worklease.Extension, error) {
	if err := ended(ctx); err != nil {
		return worklease.Extension{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	r, err := b.claimedLocked(c)
	if err != nil {
		return worklease.Extension{}, err
	}
	late := r.number >= s.Number
	switch {
	case late && r.hold == s.Hold && r.number == s.Number:
		return worklease.Extension{Remaining: r.remaining(now)}, nil
	case late && r.hold == s.Hold:
		return worklease.Extension{}, nil
	case r.surrendered:
		return worklease.Extension{}, worklease.ErrLeaseExpired
	case late:
		return worklease.Extension{}, &worklease.OvertakenError{Number: r.number}
	}
	r.save(s.State, s.Number, s.Hold, now)
	return r.extend(now), nil
}

// Renew implements [worklease.Backend].
func (b *Backend) Renew(ctx context.Context, c worklease.Claim, _ time.Duration) (worklease.Extension, error) {
	if err := ended(ctx); err != nil {
		return worklease.Extension{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.renewLocked(c, b.clock.Now())
}

// RenewBatch implements [worklease.BatchRenewer].
func (b *Backend) RenewBatch(ctx context.Context, claims []worklease.Claim, _ time.Duration) ([]worklease.Renewal, error) {
	if err := ended(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	renewals := make([]worklease.Renewal, len(claims))
	for i, c := range claims {
		renewals[i].Extension, renewals[i].Err = b.renewLocked(c, now)
	}
	return renewals, nil
}

func (b *Backend) renewLocked(c worklease.Claim, now time.Time) (worklease.Extension, error) {
	r, err := b.claimedLocked(c)
	if err != nil {
		return worklease.Extension{}, err
	}
	if !r.live(now) {
		return worklease.Extension{}, worklease.ErrLeaseExpired
	}
	return r.extend(now), nil
}

// Release implements [worklease.Backend].
func (b *Backend) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	if err := ended(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.clock.Now()
	if f.Exit == worklease.ExitNone {
		return b.undoLocked(c, now)
	}
	r := b.rows[c.WorkID]
	switch {
	case r == nil:
		return worklease.ErrFenced
	case !r.claimedBy(c):
		if r.recordsOneOwnerBack(c, f) {
			return nil
		}
		return worklease.ErrFenced
	case r.surrendered:
		if r.records(f) {
			return nil
		}
		return worklease.ErrLeaseExpired
	}
	if f.State != nil {
		// Also by a newer save of the same hold: nobody has seen the work leave with it.
		if r.number >= f.Number {
			return &worklease.OvertakenError{Number: r.number}
		}
		r.save(f.State, f.Number, f.Hold, now)
	}
	r.exitedAt = now
	r.surrender(f.Exit, now)
	b.freedLocked(c.WorkID)
	return nil
}

// undoLocked gives an acquisition back that nobody will use.
func (b *Backend) undoLocked(c worklease.Claim, now time.Time) error {
	r := b.rows[c.WorkID]
	switch {
	case r == nil, c.Nonce == "", r.nonce != c.Nonce, r.holder != c.HolderID:
		return worklease.ErrFenced
	case c.FencingToken != 0 && r.token != c.FencingToken:
		return worklease.ErrFenced
	case r.undone():
		return nil
	case r.surrendered:
		return worklease.ErrLeaseExpired
	}
	r.surrender(worklease.ExitNone, now)
	b.freedLocked(c.WorkID)
	return nil
}

// Forget implements [worklease.Forgetter].
func (b *Backend) Forget(ctx context.Context, c worklease.Claim) error {
	if err := ended(ctx); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.claimedLocked(c)
	if err != nil {
		return err
	}
	r.blank()
	r.surrender(worklease.ExitNone, b.clock.Now())
	b.freedLocked(c.WorkID)
	return nil
}

// ReadCheckpoint implements [worklease.Backend].
func (b *Backend) ReadCheckpoint(ctx context.Context, c worklease.Claim, withState bool) (worklease.Stored, error) {
	if err := ended(ctx); err != nil {
		return worklease.Stored{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	r, err := b.claimedLocked(c)
	if err != nil {
		return worklease.Stored{}, err
	}
	return r.stored(withState), nil
}

// claimedLocked returns the row that c still is the claim of, or ErrFenced.
func (b *Backend) claimedLocked(c worklease.Claim) (*row, error) {
	r := b.rows[c.WorkID]
	if r == nil || !r.claimedBy(c) {
		return nil, worklease.ErrFenced
	}
	return r, nil
}

// ended reports a context that is over before anything was done.
func ended(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return &worklease.BackendError{Err: err, NotApplied: true}
	}
	return nil
}
