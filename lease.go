package worklease

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"github.com/aetomala/worklease/internal/backoff"
	"github.com/aetomala/worklease/internal/ctxerr"
)

// farewellTime is how long a Release may take, whatever becomes of the caller's
// context: to shut down is the commonest reason to release.
const farewellTime = 5 * time.Second

var farewellBackoff = backoff.Policy{Initial: 20 * time.Millisecond, Max: 500 * time.Millisecond, Jitter: 0.5}

func (l *lease) Checkpoint(ctx context.Context, token Token, state []byte) error {
	took, err := l.checkpoint(ctx, token, state)
	err = fail("checkpoint", token.workID, err)
	l.observer.checkpointed(ctx, CheckpointEvent{Token: token, Size: len(state), Duration: took, Err: err})
	return err
}

func (l *lease) checkpoint(ctx context.Context, token Token, state []byte) (took time.Duration, err error) {
	if err := errors.Join(checkToken(ctx, token), l.checkState(state)); err != nil {
		return 0, err
	}
	h := l.hold(token)
	// The first own checkpoint overwrites what the predecessor left.
	if err := h.readPriorState(ctx); err != nil {
		return 0, h.heed("checkpoint", err)
	}
	err = h.saveNumbered(ctx, func(number int64) error {
		sent := time.Now()
		e, err := l.backend.Checkpoint(ctx, token.Claim(), Save{State: state, Number: number, Hold: h.name, TTL: l.cfg.TTL})
		took = time.Since(sent)
		if err == nil {
			h.advance()
			h.confirm(sent, e)
		}
		return err
	})
	return took, h.heed("checkpoint", err)
}

func (l *lease) Renew(ctx context.Context, token Token) error {
	took, err := l.renew(ctx, token)
	err = fail("renew", token.workID, err)
	l.observer.renewed(ctx, RenewEvent{Token: token, Duration: took, Attempt: 1, Err: err})
	return err
}

func (l *lease) renew(ctx context.Context, token Token) (took time.Duration, err error) {
	if err := checkToken(ctx, token); err != nil {
		return 0, err
	}
	h := l.hold(token)
	sent := time.Now()
	e, err := l.backend.Renew(ctx, token.Claim(), l.cfg.TTL)
	took = time.Since(sent)
	if err != nil {
		return took, h.heed("renew", err)
	}
	if !time.Now().Before(sent.Add(e.Remaining)) {
		return took, ErrLeaseWindowExhausted
	}
	h.confirm(sent, e)
	return took, nil
}

func (l *lease) Release(ctx context.Context, token Token, opts ...ReleaseOption) error {
	o := apply(releaseOptions{exit: ExitReleased, timeout: farewellTime}, opts)
	took, err := l.release(ctx, token, o)
	err = fail("release", token.workID, err)
	l.observer.released(ctx, ReleaseEvent{Token: token, Exit: o.exit, Duration: took, Err: err})
	return err
}

func (l *lease) release(ctx context.Context, token Token, o releaseOptions) (took time.Duration, err error) {
	if err := errors.Join(checkToken(ctx, token), l.checkState(o.state), checkExit(o.exit)); err != nil {
		return 0, err
	}
	ending := ctxerr.Outlive(ctx, o.timeout)
	defer ending.Cancel()
	ctx = ending
	h := l.hold(token)
	h.leave()
	for failures := 1; ; failures++ {
		sent := time.Now()
		err = h.sendFarewell(ctx, o)
		took = time.Since(sent)
		if err == nil {
			h.gone()
			return took, nil
		}
		if isVerdict(err) || isPermanent(err) || ctxerr.Sleep(ctx, farewellBackoff.Wait(failures)) != nil {
			return took, h.heed("release", err)
		}
	}
}

// sendFarewell sends the release once. A state whose outcome stayed unknown goes
// out again under the number that it had.
func (h *hold) sendFarewell(ctx context.Context, o releaseOptions) error {
	claim, backend := h.token.Claim(), h.lease.backend
	if o.state == nil {
		return backend.Release(ctx, claim, Farewell{Exit: o.exit})
	}
	digest := sha256.Sum256(o.state)
	h.lease.mu.Lock()
	last := h.farewell
	h.lease.mu.Unlock()
	send := func(number int64) error {
		err := backend.Release(ctx, claim, Farewell{Exit: o.exit, State: o.state, Number: number, Hold: h.name})
		if err != nil && !isVerdict(err) {
			h.lease.mu.Lock()
			h.farewell = farewell{digest: digest, number: number}
			h.lease.mu.Unlock()
		}
		return err
	}
	if last.number > 0 && last.digest == digest {
		if err := send(last.number); !errors.As(err, new(*OvertakenError)) {
			return err
		}
	}
	err := h.saveNumbered(ctx, send)
	if errors.Is(err, ErrFenced) && h.unnumbered() {
		// The number could not be read, for there is a successor. If this is the repeat of
		// what made room for it, the row may show that.
		err = send(1)
	}
	return err
}

func (l *lease) ReadCheckpoint(ctx context.Context, token Token) (state []byte, cleanHandoff bool, err error) {
	began := time.Now()
	stored, err := l.read(ctx, token)
	took := time.Since(began)
	err = fail("read checkpoint of", token.workID, err)
	clean := stored.Prior.CleanHandoff()
	l.observer.read(ctx, ReadCheckpointEvent{Token: token, Duration: took, CleanHandoff: clean, Size: len(stored.State), Err: err})
	return stored.State, clean, err
}

func (l *lease) read(ctx context.Context, token Token) (Stored, error) {
	if err := checkToken(ctx, token); err != nil {
		return Stored{}, err
	}
	stored, err := l.backend.ReadCheckpoint(ctx, token.Claim(), true)
	if err != nil {
		if h := l.known(token); h != nil {
			h.heed("read checkpoint of", err)
		}
		return Stored{}, err
	}
	return stored, nil
}

func (l *lease) Prior(ctx context.Context, token Token) (Prior, error) {
	if err := checkToken(ctx, token); err != nil {
		return Prior{}, fail("read prior of", token.workID, err)
	}
	h := l.hold(token)
	if err := h.readPrior(ctx); err != nil {
		return Prior{}, fail("read prior of", token.workID, h.heed("read prior of", err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	prior := h.prior
	prior.State = slices.Clone(prior.State)
	return prior, nil
}

// readPrior reads from the row what did not come with a grant.
func (h *hold) readPrior(ctx context.Context) error {
	l := h.lease
	l.mu.Lock()
	known := h.priorKnown
	l.mu.Unlock()
	if known {
		return h.readPriorState(ctx)
	}
	stored, err := l.backend.ReadCheckpoint(ctx, h.token.Claim(), true)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.priorKnown {
		h.prior, h.priorKnown, h.priorWhole = stored.Prior, true, true
		h.prior.State = stored.State
	}
	return nil
}

// readPriorState reads the prior state that was too large to come with the grant.
func (h *hold) readPriorState(ctx context.Context) error {
	l := h.lease
	l.mu.Lock()
	missing := h.priorKnown && !h.priorWhole
	l.mu.Unlock()
	if !missing {
		return nil
	}
	stored, err := l.backend.ReadCheckpoint(ctx, h.token.Claim(), true)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !h.priorWhole {
		h.prior.State, h.priorWhole = stored.State, true
	}
	return nil
}

func (l *lease) Deadline(token Token) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	h, ok := l.holds[token.Claim()]
	if !ok || !h.trusted || h.lost != nil || h.left {
		return time.Time{}, false
	}
	end := h.end()
	return end, time.Now().Before(end)
}

func (l *lease) Forget(ctx context.Context, token Token) error {
	return fail("forget", token.workID, l.forget(ctx, token))
}

func (l *lease) forget(ctx context.Context, token Token) error {
	if err := checkToken(ctx, token); err != nil {
		return err
	}
	f, ok := l.backend.(Forgetter)
	if !ok {
		return errors.ErrUnsupported
	}
	h := l.hold(token)
	h.leave()
	if err := f.Forget(ctx, token.Claim()); err != nil {
		return h.heed("forget", err)
	}
	h.gone()
	return nil
}
