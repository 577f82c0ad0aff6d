package worklease

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/aetomala/worklease/internal/backoff"
	"github.com/aetomala/worklease/internal/ctxerr"
)

// Waiters come back soon after a fault that may pass, and no more often than that.
var acquireBackoff = backoff.Policy{Initial: 20 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}

func (l *lease) Acquire(ctx context.Context, workID string, opts ...AcquireOption) (Token, error) {
	began := time.Now()
	a := acquisition{lease: l, workID: workID, options: collect(opts)}
	token, err := a.run(ctx)
	err = fail("acquire", workID, err)
	if l.observer.to != nil {
		e := AcquireEvent{WorkID: workID, Token: token, Duration: a.took, Err: err}
		if a.options.wait && !a.sent.IsZero() {
			e.Waited = a.sent.Sub(began)
		}
		l.observer.acquired(ctx, e)
	}
	return token, err
}

// acquisition is one call of Acquire.
type acquisition struct {
	lease   *lease
	workID  string
	options acquireOptions
	nonce   string
	sent    time.Time     // when the last attempt left
	took    time.Duration // how long it took
	unsure  bool          // an attempt may have won without our hearing of it
}

func (a *acquisition) run(ctx context.Context) (Token, error) {
	if err := errors.Join(checkContext(ctx), checkID("work ID", a.workID)); err != nil {
		return Token{}, err
	}
	a.nonce = rand.Text()
	if err := ctxerr.Of(ctx); err != nil {
		return Token{}, err
	}
	var token Token
	var err error
	if a.options.wait {
		token, err = a.wait(ctx)
	} else {
		token, err = a.try(ctx)
	}
	if err != nil && a.unsure {
		go a.lease.giveBackLate(a.workID, a.nonce)
	}
	return token, err
}

// wait is the wait loop: wait for a turn, try, and again when that can help.
func (a *acquisition) wait(ctx context.Context) (Token, error) {
	turn := a.queue()
	defer turn.leave()
	faults := 0
	for {
		if err := turn.come(ctx); err != nil {
			return Token{}, err
		}
		token, err := a.try(ctx)
		for err != nil && !isPermanent(err) && !errors.Is(err, ErrLeaseHeld) {
			// The turn is still ours.
			faults++
			if err := ctxerr.Sleep(ctx, acquireBackoff.Wait(faults)); err != nil {
				return Token{}, err
			}
			token, err = a.try(ctx)
		}
		faults = 0
		var held *HeldError
		if !errors.As(err, &held) {
			return token, err
		}
		turn.pass(held.Remaining)
	}
}

// queue returns how this call waits for its turns.
func (a *acquisition) queue() turn {
	if w, ok := a.lease.backend.(Waker); ok {
		nudge, stop := w.Watch(a.workID, a.options.poll)
		return watchedTurn{nudge, stop}
	}
	return &polledTurn{poll: a.options.poll}
}

// turn says when to try.
type turn interface {
	come(ctx context.Context) error // waits for the turn
	pass(remaining time.Duration)   // the try found the work held, for so long yet
	leave()
}

// watchedTurn is told by the backend.
type watchedTurn struct {
	nudge <-chan struct{}
	stop  func()
}

func (w watchedTurn) come(ctx context.Context) error {
	if err := ctxerr.Of(ctx); err != nil {
		return err
	}
	select {
	case <-w.nudge:
		return nil
	case <-ctx.Done():
		return ctxerr.Of(ctx)
	}
}

func (w watchedTurn) pass(time.Duration) {}
func (w watchedTurn) leave()             { w.stop() }

// polledTurn asks again until the expiry if that is near, else about every poll
// interval. The first turn comes at once.
type polledTurn struct {
	poll, pause time.Duration
}

func (p *polledTurn) come(ctx context.Context) error {
	if p.pause == 0 {
		return ctxerr.Of(ctx)
	}
	return ctxerr.Sleep(ctx, p.pause)
}

// The random share keeps a crowd apart.
func (p *polledTurn) pass(remaining time.Duration) {
	poll := p.poll - time.Duration(mathrand.Int64N(int64(p.poll)/10+1))
	// The lesser of the two first: the longest TTL has no room for a share on top.
	expiry := min(max(remaining, 0), poll) + time.Millisecond + time.Duration(mathrand.Int64N(int64(4*time.Millisecond)))
	p.pause = min(poll, expiry)
}

func (p *polledTurn) leave() {}

// try sends one attempt.
func (a *acquisition) try(ctx context.Context) (Token, error) {
	l := a.lease
	a.sent = time.Now()
	g, err := l.backend.Acquire(ctx, Attempt{
		WorkID: a.workID, HolderID: l.cfg.HolderID, TTL: l.cfg.TTL, Nonce: a.nonce, Reopen: a.options.reopen,
	})
	a.took = time.Since(a.sent)
	if err != nil {
		a.unsure = a.unsure || !notApplied(err)
		return Token{}, err
	}
	if a.took >= g.Remaining {
		a.giveBack(ctx)
		return Token{}, ErrLeaseExpired
	}
	claim := Claim{WorkID: a.workID, HolderID: l.cfg.HolderID, FencingToken: g.FencingToken, Nonce: a.nonce}
	token := newToken(claim, g.ExpiresAt)
	l.keep(token, g, a.sent)
	return token, nil
}

// giveBack undoes a grant that arrived when its time was over, and waits for that
// while anybody waits for the call. The next attempt is a new one in any case.
func (a *acquisition) giveBack(ctx context.Context) {
	given := make(chan struct{})
	go func(l *lease, workID, nonce string) {
		defer close(given)
		l.giveBackLate(workID, nonce)
	}(a.lease, a.workID, a.nonce)
	a.nonce = rand.Text()
	a.unsure = false
	select {
	case <-given:
	case <-ctx.Done():
	}
}

// giveBackLate undoes what an attempt may have won after nobody was waiting for it
// any more. Its statement may still be running or on its way, so that one look is not
// enough; few are, for there may be many such calls.
func (l *lease) giveBackLate(workID, nonce string) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	claim := Claim{WorkID: workID, HolderID: l.cfg.HolderID, Nonce: nonce}
	for pause := 250 * time.Millisecond; ; pause = min(4*pause, 3500*time.Millisecond) {
		err := l.backend.Release(ctx, claim, Farewell{Exit: ExitNone})
		if err == nil || isPermanent(err) || ctxerr.Sleep(ctx, pause) != nil {
			return
		}
	}
}
