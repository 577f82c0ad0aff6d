// Package pool shares a fixed set of work IDs among processes: each ID is worked on by
// one of them at a time, and is taken over when that one leaves or crashes.
//
//	p, err := pool.New(lease, pool.Config{WorkIDs: partitions}, func(ctx context.Context, workID string, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
//		…
//		return state, nil
//	})
//	…
//	err = p.Run(ctx)
//
// # Slots
//
// A Pool has a slot for each work ID. A slot waits for the lease, calls the function
// under it, leaves, and waits for the lease again. While somebody else has the lease it
// is woken by the backend, or asks about every IdleInterval where nothing can wake it.
// It never starts the function while an earlier call still runs.
//
// A Pool does not balance: the first process to come has all slots, each until its
// function returns. One that returns now and then, with nil, lets others come in.
//
// # How a call ends
//
//	the function                                     the row says  the observer is told      the slot
//	returns nil                                      released      Acquired, Released        again after RerunInterval
//	returns an error that Is worklease.Retire        retired       Acquired, Retired         ends
//	returns an error that is a PermanentError        abandoned     Acquired, Dead            ends
//	returns another error                            abandoned     Acquired, Backoff         again after BackoffInterval
//	returns a state that is too large                abandoned     Acquired, Backoff         again after BackoffInterval
//	returns, but the farewell fails                  nothing       Acquired, Backoff         again after BackoffInterval
//	returns, and the farewell finds the lease lost   nothing       Acquired, Lost            again after a short pause
//	panics or calls runtime.Goexit                   nothing       Acquired                  ends, and Run with it
//	has lost the lease                               nothing       Acquired, Lost            again after a short pause
//	has lost the lease and panics                    nothing       Acquired                  ends, and Run with it
//	has lost the lease, returns a PermanentError     nothing       Acquired, Dead            ends
//	is stalled and returns while the lease lasts     abandoned     Acquired, Lost            again after a short pause
//	is stalled and returns later                     nothing       Acquired, Lost            again after a short pause
//	returns nil after ctx has ended                  released      Acquired, Released        ends
//	returns ctx.Err() after ctx has ended            abandoned     Acquired, Released        ends
//	returns another error after ctx has ended        abandoned     Acquired, Backoff of 0 s  ends
//	returns after that, but the farewell fails       nothing       Acquired, Backoff of 0 s  ends
//	runs for more than WindDown after ctx has ended  nothing       Acquired, Lost            ends
//	is not called: ctx has ended                     abandoned     nothing                   ends
//	is not called: ctx has ended in OnSlotAcquired   abandoned     Acquired, Released        ends
//	is not called: the prior cannot be read          abandoned     Backoff                   again after BackoffInterval
//	is not called: the lease is lost                 nothing       Lost                      again after a short pause
//	is not called: it is lost in OnSlotAcquired      nothing       Acquired, Lost            again after a short pause
//	does not get the lease: ctx has ended            as it was     nothing                   ends
//	does not get the lease: the work is retired      as it was     Retired                   ends
//	does not get the lease: Acquire fails for good   as it was     Backoff                   again after BackoffInterval
//
// A row that says nothing is a lease that lapses, unless a farewell arrived whose reply
// was lost. Errors of an acquisition that may pass are waited out and told nobody; one
// that is a PermanentError ends the slot.
//
// The [worklease.LeaseObserver] of the Lease is told besides: OnAcquire, OnRenew, and
// OnRelease for each farewell that is sent.
//
// A function that has lost its lease and returns a PermanentError ends the slot all the
// same. One that returns Retire then does not: nothing could be recorded.
//
// # Leaving
//
// On shutdown the functions' contexts end with Run's. Save what was done and return it
// with nil: that is a clean handoff. Each lease is kept until its function has
// returned, for at most WindDown.
package pool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure"
)

// ErrAllSlotsDead is what Run returns, with the first slot's error, when each of its
// slots has met a PermanentError.
var ErrAllSlotsDead = errors.New("all slots are dead")

// ErrRunning is what Run returns while another Run of the same Pool lasts.
var ErrRunning = errors.New("pool is running already")

// WorkFn does the work of a slot and returns the last state; nil keeps what is
// stored. prior is the caller's, and the whole [worklease.Prior] is
// lease.Prior(ctx, token), without a round trip. The context ends when the lease may
// no longer be trusted, or when Run's ends; [context.Cause] tells them apart.
type WorkFn func(ctx context.Context, workID string, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error)

// PermanentError is an error that no repetition mends: its slot ends. The outermost
// one in an error's tree decides. [Permanent] makes one.
type PermanentError interface {
	error
	Permanent() bool // false: an error like any other
}

// Permanent makes err a PermanentError that unwraps to err and reads like it. A nil
// err stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

type permanent struct{ error }

func (permanent) Permanent() bool { return true }
func (p permanent) Unwrap() error { return p.error }

func isPermanent(err error) bool {
	var p PermanentError
	return errors.As(err, &p) && p.Permanent()
}

// Pool works on its work IDs while it runs. Make it with [New].
type Pool struct {
	cfg    Config
	tenure tenure.Config
	fn     WorkFn

	mu      sync.Mutex // guards what follows
	running bool
	active  map[string]struct{}
}

// New returns a Pool, or an error that Is ErrConfigInvalid and joins all that is
// wrong. The slices of cfg are copied.
func New(lease worklease.Lease, cfg Config, fn WorkFn) (*Pool, error) {
	if err := cfg.check(lease, fn); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Pool{cfg: cfg, fn: fn, active: make(map[string]struct{}), tenure: tenure.Config{
		Lease:          lease,
		RenewalOptions: cfg.RenewalOptions,
		CleanupTimeout: cfg.CleanupTimeout,
		WindDown:       cfg.WindDown,
	}}, nil
}

// ActiveSlots returns the work IDs whose function is running now, sorted.
func (p *Pool) ActiveSlots() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := make([]string, 0, len(p.active))
	for id := range p.active {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Run runs a slot for each work ID until ctx ends, which is no error, or every slot
// has ended by itself: ErrAllSlotsDead if all of them died, nil if any was retired. It
// returns after every function and every farewell. A Pool runs once at a time, and may
// run again: with all its slots.
//
// When the function or the observer panics in one slot, the others are told to stop,
// and Run panics with the same value when they have. The stack is logged. After
// [runtime.Goexit] in a slot Run calls it likewise.
func (p *Pool) Run(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("worklease: run pool: %w: context is nil", worklease.ErrInvalid)
	}
	if !p.begin() {
		return fmt.Errorf("worklease: run pool: %w", ErrRunning)
	}
	defer p.end()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	r := run{stop: stop}
	var slots sync.WaitGroup
	for _, id := range p.cfg.WorkIDs {
		slots.Go(func() { r.shield(&slot{Pool: p, ctx: ctx, workID: id}) })
	}
	slots.Wait()
	r.raise()
	if len(r.deaths) == len(p.cfg.WorkIDs) {
		return fmt.Errorf("worklease: run pool: %w; the first: %w", ErrAllSlotsDead, r.deaths[0])
	}
	return nil
}

func (p *Pool) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	began := !p.running
	p.running = true
	return began
}

func (p *Pool) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = false
}
