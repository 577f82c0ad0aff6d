// Package leader runs a function in one process at a time: in the one that holds the
// lease of a work ID.
//
//	for ctx.Err() == nil {
//		err := leader.Elect(ctx, lease, "scheduler", leader.Config{
//			AcquireOptions:  []worklease.AcquireOption{worklease.WithWaitForLease()},
//			BackoffInterval: time.Second,
//		}, schedule)
//		…
//	}
//
// # One term
//
// One call of [Elect] is one term, or the failure to get one. It waits for
// leadership as its AcquireOptions say, leads, leaves and returns; whoever wants to
// lead again calls it again. With [worklease.WithWaitForLease] a candidate waits
// through every error that may pass, such as a lost connection or a server that
// restarts. Without it Elect asks once.
//
// A leader that leaves in order makes the next one at once; one that crashes keeps
// the others waiting for what is left of the lease's TTL.
//
// # How a term ends
//
//	the function                                     the row says  callbacks              Elect returns
//	returns nil                                      released      elected, relinquished  nil
//	returns an error that Is worklease.Retire        retired       elected, relinquished  nil
//	returns another error, ctx.Err() too             abandoned     elected                that error
//	returns, but the farewell fails                  nothing       elected                joined with that error
//	returns, and the farewell finds the lease lost   nothing       elected                joined with worklease.ErrFenced
//	panics or calls runtime.Goexit                   nothing       elected                not: it goes on up
//	has lost the lease                               nothing       elected, lost          the cause
//	has lost the lease and panics                    nothing       elected, lost          not: it goes on up
//	is stalled and returns while the lease lasts     abandoned     elected, lost          worklease.ErrStalled
//	is stalled and returns later                     nothing       elected, lost          worklease.ErrStalled
//	runs for more than WindDown after ctx has ended  nothing       elected, lost          joined with worklease.ErrWindDown
//	is not called: nothing was acquired              as it was     none                   what Acquire returns
//	is not called: ctx has ended                     abandoned     none                   why
//	is not called: ctx has ended during OnElected    abandoned     elected                why
//	is not called: the prior cannot be read          abandoned     none                   why
//	is not called: the lease is lost                 nothing       none                   the cause
//	is not called: the lease is lost in OnElected    nothing       elected, lost          the cause
//
// A row that says nothing is a lease that lapses: the next leader comes after the TTL,
// unless a farewell arrived whose reply was lost. What Acquire returns is a
// [*worklease.HeldError], a [*worklease.RetiredError], the error of ctx. The function's
// own error comes first; those of a loss and of a farewell that fails are joined to it.
//
// The [worklease.LeaseObserver] of the Lease sees OnAcquire, OnRenew and OnRelease, the
// last for each farewell that is sent.
//
// On shutdown the function's context ends with ctx. A function that then returns nil
// hands over cleanly; one that returns ctx.Err() says that it was interrupted, and
// so does Elect. The lease is kept until the function has returned, for at most
// WindDown: leadership is never surrendered while the function still runs.
//
// # What is not fenced
//
// A leader that was stopped by its operating system finds out that it was replaced
// when it goes on, not before. What must not be done twice needs a fence: the token
// that OnElected gets, in pgxbackend's FenceTx or in the other system's own check.
package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/ctxerr"
	"github.com/aetomala/worklease/internal/isnil"
	"github.com/aetomala/worklease/internal/tenure"
)

// Config tunes [Elect]. Its zero value asks for leadership once.
//
// The callbacks get the context that Elect was called with, which may have ended,
// and the token of the term. Elect waits for them, and a panic in one goes on up
// through it; in OnElected that is a crash of the term.
type Config struct {
	AcquireOptions []worklease.AcquireOption // of the acquisition; none: it is asked for once
	RenewalOptions []worklease.RenewalOption // of the renewal from then on

	// BackoffInterval is slept before Elect returns, after each term that was not
	// lost and after an acquisition that failed, until ctx ends at most: it is the
	// floor of the loop around Elect. ≤ 0: none, and that loop needs a floor of its own
	// where the function may return at once.
	BackoffInterval time.Duration

	// CleanupTimeout is the time for the farewell, counted after the function has
	// returned, whatever became of ctx. ≤ 0: 5 s.
	CleanupTimeout time.Duration

	// WindDown is how long the lease is kept for a function that still runs after ctx
	// has ended. ≤ 0: 30 s.
	WindDown time.Duration

	// OnElected is called when the lease is acquired, before the function and in the
	// same goroutine. The lease is kept meanwhile.
	OnElected func(ctx context.Context, token worklease.Token)

	// OnLost is called once, after OnElected was called, when the function's context
	// is ended by anything but ctx: fenced, out of time, stalled, or winding down for
	// too long. It is called at that moment, while the function still runs and
	// OnElected may, in a goroutine of its own; or in Elect's, if it is there that the
	// loss is found.
	OnLost func(ctx context.Context, token worklease.Token)

	// OnRelinquished is called once after a clean exit was recorded, released or
	// retired, in Elect's goroutine. A term that was given up with an error calls
	// neither it nor OnLost.
	OnRelinquished func(ctx context.Context, token worklease.Token)
}

// Elect waits for leadership of workID, calls fn in the caller's goroutine and
// leaves as the package comment says. fn's context ends when the lease may no longer
// be trusted, or when ctx does; [context.Cause] tells them apart. A lease that is
// lost is an error that Is the cause of [worklease.Lease.StartRenewal].
//
// A nil lease or fn and a bad work ID are an error that Is [worklease.ErrInvalid], at
// once.
func Elect(ctx context.Context, lease worklease.Lease, workID string, cfg Config, fn func(ctx context.Context) error) error {
	if err := check(lease, fn); err != nil {
		return err
	}
	t := term{cfg: cfg, caller: ctx, fn: fn}
	o, err := tenure.Run(ctx, workID, tenure.Config{
		Lease:          lease,
		AcquireOptions: cfg.AcquireOptions,
		RenewalOptions: cfg.RenewalOptions,
		CleanupTimeout: cfg.CleanupTimeout,
		WindDown:       cfg.WindDown,
		OnLost:         t.lost,
	}, t.lead)
	if o.Token == (worklease.Token{}) && errors.Is(err, worklease.ErrInvalid) {
		return err
	}
	if o.Exit == worklease.ExitReleased || o.Exit == worklease.ExitRetired {
		tell(ctx, cfg.OnRelinquished, o.Token)
	}
	if !o.Lost {
		tenure.Pause(ctx, cfg.BackoffInterval)
	}
	return err
}

func check(lease worklease.Lease, fn func(context.Context) error) error {
	var faults []error
	if isnil.Value(lease) {
		faults = append(faults, fmt.Errorf("worklease: %w: leader needs a Lease", worklease.ErrInvalid))
	}
	if fn == nil {
		faults = append(faults, fmt.Errorf("worklease: %w: leader needs a function", worklease.ErrInvalid))
	}
	return errors.Join(faults...)
}

// term is one hold of leadership.
type term struct {
	cfg    Config
	caller context.Context
	fn     func(ctx context.Context) error
	// settled: OnElected was called, or never will be as the lease was lost before.
	settled atomic.Bool
}

// lead is the work.
func (t *term) lead(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
	if t.settled.CompareAndSwap(false, true) {
		tell(t.caller, t.cfg.OnElected, token)
	}
	if ctx.Err() != nil {
		return nil, cmp.Or(ctxerr.Of(t.caller), context.Cause(ctx))
	}
	return nil, t.fn(ctx)
}

// lost is told of a loss after the context of lead has ended.
func (t *term) lost(ctx context.Context, token worklease.Token) {
	if !t.settled.CompareAndSwap(false, true) {
		tell(ctx, t.cfg.OnLost, token)
	}
}

func tell(ctx context.Context, callback func(context.Context, worklease.Token), token worklease.Token) {
	if callback != nil {
		callback(ctx, token)
	}
}
