// Package tenure is one ownership of a work ID, from its acquisition to its end. It
// is the only place that knows the order: acquire with the prior, renew from then
// on, work, stop renewing and wait, save the last checkpoint and surrender in one
// statement. Packages worker, leader and pool are thin layers over it.
//
// # How a tenure ends
//
//   - The work returns nil: released. An error that Is [worklease.Retire]: retired,
//     and no error. Any other error: abandoned. Its state is saved in each case,
//     unless it is nil.
//   - The lease is lost: the work's context ends at once, and nothing is recorded. Where
//     it is lost before the work has begun, the work does not begin.
//   - Renewal stalled (worklease.ErrStalled): the work's context ends; abandoned if
//     the work returns while the lease still lasts, else nothing is recorded.
//   - The caller's context ends: so does the work's, and the lease is kept while the
//     work winds down. What it returns counts as above. After WindDown the lease is
//     let go and nothing is recorded.
//   - The work panics or calls runtime.Goexit: that is a crash. Renewal stops,
//     nothing is recorded, and it goes on up.
//   - The work gives its lease up itself: its context ends. That is no loss, and the
//     farewell is answered as any repeat is.
package tenure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/ctxerr"
)

const defaultWindDown = 30 * time.Second

// Config is what a tenure needs beside its work.
type Config struct {
	Lease          worklease.Lease
	AcquireOptions []worklease.AcquireOption
	RenewalOptions []worklease.RenewalOption
	CleanupTimeout time.Duration // for the farewell; ≤ 0: 5 s
	WindDown       time.Duration // how long the lease is kept after the caller's context; ≤ 0: 30 s

	// OnLost is called once, when the lease is lost, stalled or outlived, at that moment
	// and from a goroutine of its own, or from Run's when the work has just returned;
	// Run returns after it. A panic in it is raised in Run's goroutine. May be nil.
	OnLost func(ctx context.Context, token worklease.Token)
}

// Work is what an owner does. Its context ends when the lease may no longer be
// trusted or when the caller's does; [context.Cause] tells them apart.
type Work func(ctx context.Context, token worklease.Token, prior worklease.Prior) (state []byte, err error)

// Outcome is what became of a tenure, beside the error.
type Outcome struct {
	Token worklease.Token // zero: nothing was acquired
	Exit  worklease.Exit  // what was recorded; ExitNone: nothing
	Lost  bool            // the lease was lost, stalled, or outlived by the work
}

// Run acquires workID, does the work and leaves. The error of the work comes first;
// those of the loss or the farewell are joined to it. It never Is
// [worklease.Retire], which some other work further up would follow. Errors of the
// acquisition come as they are.
func Run(ctx context.Context, workID string, cfg Config, work Work) (Outcome, error) {
	token, err := cfg.Lease.Acquire(ctx, workID, cfg.AcquireOptions...)
	if err != nil {
		return Outcome{}, err
	}
	t := &tenure{cfg: cfg, caller: ctx, token: token}
	outcome, err := t.run(work)
	if err != nil {
		err = fmt.Errorf("worklease: run %q: %w", workID, err)
	}
	return outcome, err
}

// tenure is one hold of a lease.
type tenure struct {
	cfg    Config
	caller context.Context
	token  worklease.Token

	renewCtx    context.Context
	stopRenewal func()
	workCtx     workContext
	loss        *hook // follows renewCtx
	windDown    *hook // follows the caller's context
	outlived    atomic.Bool
}

func (t *tenure) run(work Work) (Outcome, error) {
	t.begin()
	returned := false
	defer func() {
		if !returned {
			t.end() // a panic or Goexit goes on up; nothing is recorded
		}
	}()
	state, err := t.work(work)
	returned = true
	return t.leave(state, err)
}

// begin renews from the acquisition on, under a context that outlives the caller's.
func (t *tenure) begin() {
	keep := context.WithoutCancel(t.caller)
	t.renewCtx, t.stopRenewal = t.cfg.Lease.StartRenewal(keep, t.token, t.cfg.RenewalOptions...)
	inner, cancel := context.WithCancelCause(t.caller)
	t.workCtx = workContext{inner, cancel, t.renewCtx}
	t.loss = after(t.renewCtx, 0, t.lost)
	windDown := t.cfg.WindDown
	if windDown <= 0 {
		windDown = defaultWindDown
	}
	t.windDown = after(t.caller, windDown, t.outlive)
}

// lost ends the work, at the moment at which the lease may no longer be trusted.
func (t *tenure) lost() {
	t.workCtx.cancel(context.Cause(t.renewCtx))
	if t.cfg.OnLost != nil && (t.cause() != nil || t.outlived.Load()) {
		t.cfg.OnLost(t.caller, t.token)
	}
}

// cause returns why the lease was lost, or nil. A renewal that was merely stopped is
// no loss: it was outlive, or the work has given the lease up itself.
func (t *tenure) cause() error {
	if t.renewCtx.Err() == nil || context.Cause(t.renewCtx) == context.Canceled {
		return nil
	}
	return context.Cause(t.renewCtx)
}

// outlive lets the lease go: the work was given its time to wind down.
func (t *tenure) outlive() {
	t.outlived.Store(true)
	t.stopRenewal() // and t.loss sees to the rest
}

// work reads the prior and does the work, unless the caller or the lease has left
// meanwhile.
func (t *tenure) work(work Work) ([]byte, error) {
	prior, err := t.cfg.Lease.Prior(t.workCtx, t.token)
	if t.workCtx.Err() != nil {
		return nil, cmp.Or(ctxerr.Of(t.caller), context.Cause(t.workCtx))
	}
	if err != nil {
		return nil, err
	}
	return work(t.workCtx, t.token, prior)
}

// end stops everything that runs for the tenure and waits for it. It returns why the
// lease was lost, or nil.
func (t *tenure) end() error {
	t.windDown.stop()
	noticed := t.loss.callOff()
	lost := t.cause()
	t.stopRenewal()
	if lost != nil && !noticed {
		t.lost()
	}
	t.workCtx.cancel(nil)
	t.loss.stop()
	return lost
}

// leave records how the owner leaves, unless the lease is no longer its own to leave.
func (t *tenure) leave(state []byte, workErr error) (Outcome, error) {
	lost := t.end()
	outlived := t.outlived.Load()
	o := Outcome{Token: t.token, Lost: lost != nil || outlived}
	exit := worklease.ExitReleased
	switch {
	case errors.Is(workErr, worklease.Retire):
		exit, workErr = worklease.ExitRetired, nil
	case workErr != nil:
		exit = worklease.ExitAbandoned
	}
	err := joinLoss(workErr, lost)
	if outlived {
		return o, join(err, worklease.ErrWindDown)
	}
	if lost != nil {
		if _, held := t.cfg.Lease.Deadline(t.token); !held || !errors.Is(lost, worklease.ErrStalled) {
			return o, err
		}
		exit = worklease.ExitAbandoned
	}
	return o, join(err, t.farewell(&o, exit, state))
}

// farewell saves the last state and surrenders. A state that the lease does not take
// must not keep the work from the next owner.
func (t *tenure) farewell(o *Outcome, exit worklease.Exit, state []byte) error {
	release := func(exit worklease.Exit, state []byte) error {
		err := t.cfg.Lease.Release(t.caller, t.token, worklease.WithExit(exit), worklease.WithState(state),
			worklease.WithReleaseTimeout(t.cfg.CleanupTimeout))
		switch {
		case err == nil:
			o.Exit = exit
		case errors.Is(err, worklease.ErrFenced), errors.Is(err, worklease.ErrLeaseExpired):
			o.Lost = true
		}
		return err
	}
	err := release(exit, state)
	if state != nil && errors.Is(err, worklease.ErrInvalid) {
		err = join(err, release(worklease.ExitAbandoned, nil))
	}
	return err
}

// joinLoss joins the loss to the work's error, unless that names it already, or only
// is the work's way of saying that its context ended.
func joinLoss(workErr, lost error) error {
	switch {
	case lost == nil || errors.Is(workErr, lost):
		return workErr
	case workErr == context.Canceled:
		return lost
	}
	return join(workErr, lost)
}

// join is errors.Join that leaves a single error as it is.
func join(a, b error) error {
	if a == nil {
		return b
	}
	if b == nil {
		return a
	}
	return errors.Join(a, b)
}

// workContext is the caller's context that also ends with the lease, and notices
// that in a process that was stopped and goes on before any timer has fired.
type workContext struct {
	context.Context
	cancel context.CancelCauseFunc
	renew  context.Context
}

func (c workContext) Done() <-chan struct{} {
	c.look()
	return c.Context.Done()
}

func (c workContext) Err() error {
	c.look()
	return c.Context.Err()
}

func (c workContext) look() {
	if c.renew.Err() != nil {
		c.cancel(context.Cause(c.renew))
	}
}
