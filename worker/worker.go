// Package worker runs a function under a lease, from its acquisition to a farewell
// that tells the successor how it went.
//
//	runner, err := worker.NewRunner(worker.RunnerConfig{
//		Lease: lease,
//		WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
//			…
//			return state, nil
//		},
//		AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
//	})
//	…
//	err = runner.Run(ctx, "tenant-7")
//
// # The work function
//
// It gets what the last owner saved and whether that owner left cleanly; the whole
// [worklease.Prior] is lease.Prior(ctx, token), without a round trip. Its context
// ends when the lease may no longer be trusted, or when the caller's ends;
// [context.Cause] tells them apart.
//
// # How it ends
//
//	the function                                     the row says  Run returns
//	returns nil                                      released      nil
//	returns an error that Is worklease.Retire        retired       nil
//	returns another error, ctx.Err() too             abandoned     that error
//	returns a state that is too large                abandoned     joined with worklease.ErrInvalid
//	returns, but the farewell fails                  nothing       joined with that error
//	returns, and the farewell finds the lease lost   nothing       joined with worklease.ErrFenced
//	panics or calls runtime.Goexit                   nothing       not: it goes on up
//	has lost the lease                               nothing       the cause
//	has lost the lease and panics                    nothing       not: it goes on up
//	is stalled and returns while the lease lasts     abandoned     worklease.ErrStalled
//	is stalled and returns later                     nothing       worklease.ErrStalled
//	runs for more than WindDown after ctx has ended  nothing       joined with worklease.ErrWindDown
//	is not called: nothing was acquired              as it was     what Acquire returns
//	is not called: ctx has ended                     abandoned     why
//	is not called: the prior cannot be read          abandoned     why
//	is not called: the lease is lost                 nothing       the cause
//
// A row that says nothing is a lease that lapses: the next owner is told of a crash
// ([worklease.ExitExpired]), unless a farewell arrived whose reply was lost. Where the
// row says something, the next owner has the work at once.
//
// A state that is not nil is saved in the same statement that surrenders the lease,
// also with an error. On shutdown, save what was done and return it with nil: that is
// a clean handoff. The function's own error comes first; those of a loss and of a
// farewell that fails are joined to it.
//
// The lease is kept until the function has returned, also after ctx has ended, for
// at most WindDown: it is never surrendered while the function still runs.
//
// # What an observer sees
//
// The [worklease.LeaseObserver] of the Lease is told OnAcquire, and then, unless nothing
// was acquired, OnRenew for each renewal and OnRelease for each farewell that is sent:
// none after a loss, a panic or a wind-down that took too long. Prior has no event.
package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/isnil"
	"github.com/aetomala/worklease/internal/tenure"
)

// What NewRunner misses. Both are [worklease.ErrInvalid].
var (
	ErrLeaseRequired  = fmt.Errorf("worklease: %w: worker needs a Lease", worklease.ErrInvalid)
	ErrWorkFnRequired = fmt.Errorf("worklease: %w: worker needs a WorkFn", worklease.ErrInvalid)
)

// WorkFn does the work and returns the last state; nil keeps what is stored. prior
// is the caller's.
type WorkFn func(ctx context.Context, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error)

// RunnerConfig sets up a Runner.
type RunnerConfig struct {
	Lease  worklease.Lease // required
	WorkFn WorkFn          // required

	AcquireOptions []worklease.AcquireOption // of each acquisition; none: it is asked for once
	RenewalOptions []worklease.RenewalOption // of the renewal from then on

	// CleanupTimeout is the time for the farewell, counted after the function has
	// returned, whatever became of the caller's context. ≤ 0: 5 s.
	CleanupTimeout time.Duration

	// WindDown is how long the lease is kept for a function that still runs after
	// the caller's context has ended. ≤ 0: 30 s.
	WindDown time.Duration
}

// Runner runs one function under leases of any number of work IDs, also at once.
type Runner struct {
	cfg    RunnerConfig
	tenure tenure.Config
}

// NewRunner returns a Runner, or an error that Is ErrLeaseRequired,
// ErrWorkFnRequired or both.
func NewRunner(cfg RunnerConfig) (*Runner, error) {
	var faults []error
	if isnil.Value(cfg.Lease) {
		faults = append(faults, ErrLeaseRequired)
	}
	if cfg.WorkFn == nil {
		faults = append(faults, ErrWorkFnRequired)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return &Runner{cfg: cfg, tenure: tenure.Config{
		Lease:          cfg.Lease,
		AcquireOptions: slices.Clone(cfg.AcquireOptions),
		RenewalOptions: slices.Clone(cfg.RenewalOptions),
		CleanupTimeout: cfg.CleanupTimeout,
		WindDown:       cfg.WindDown,
	}}, nil
}

// Run acquires workID, calls the function in the caller's goroutine and leaves as
// the package comment says. It asks for the lease once, or waits for it with
// [worklease.WithWaitForLease] among the AcquireOptions; errors of the acquisition
// come as Acquire returns them. A lost lease is an error that Is the cause of
// [worklease.Lease.StartRenewal].
func (r *Runner) Run(ctx context.Context, workID string) error {
	_, err := tenure.Run(ctx, workID, r.tenure, func(ctx context.Context, token worklease.Token, prior worklease.Prior) ([]byte, error) {
		return r.cfg.WorkFn(ctx, token, prior.State, prior.CleanHandoff())
	})
	return err
}
