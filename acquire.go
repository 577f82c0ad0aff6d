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
		if !a.sent.IsZero() {
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
	token, err := a.wait(ctx)
	if err != nil && a.unsure {
		go a.lease.giveBackLate(a.workID, a.nonce)
	}
	return token, err
}

// wait is the wait loop: try, and try again when that can help.
func (a *acquisition) wait(ctx context.Context) (Token, error) {
	faults := 0
	for {
		if err := ctxerr.Of(ctx); err != nil {
			return Token{}, err
		}
		token, err := a.try(ctx)
		if err == nil {
			return token, nil
		}
		if !a.options.wait || isPermanent(err) {
			return Token{}, err
		}
		var held *HeldError
		var pause time.Duration
		if errors.As(err, &held) {
			faults = 0
			pause = a.pollPause(held.Remaining)
		} else {
			faults++
			pause = acquireBackoff.Wait(faults)
		}
		if err := sleep(ctx, pause); err != nil {
			return Token{}, err
		}
	}
}

// pollPause is how long to wait before asking again: until the expiry if that is
// near, else about the poll interval. The random share keeps a crowd apart.
func (a *acquisition) pollPause(remaining time.Duration) time.Duration {
	poll := a.options.poll - time.Duration(mathrand.Int64N(int64(a.options.poll)/10+1))
	expiry := max(remaining, 0) + time.Millisecond + time.Duration(mathrand.Int64N(int64(4*time.Millisecond)))
	return min(poll, expiry)
}

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
	claim := Claim{WorkID: a.workID, HolderID: l.cfg.HolderID, FencingToken: g.FencingToken, Nonce: a.nonce}
	if a.took >= g.Remaining {
		a.giveBack(ctx, claim)
		return Token{}, ErrLeaseExpired
	}
	token := newToken(claim, g.ExpiresAt)
	l.keep(token, g, a.sent)
	return token, nil
}

// giveBack undoes a grant that arrived when its time was over. What cannot be
// undone now may be later, and the next attempt is a new one in any case.
func (a *acquisition) giveBack(ctx context.Context, c Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewellTime)
	defer cancel()
	if err := a.lease.backend.Release(ctx, c, Farewell{Exit: ExitNone}); err != nil && !isVerdict(err) {
		go a.lease.giveBackLate(c.WorkID, c.Nonce)
	}
	a.nonce = rand.Text()
	a.unsure = false
}

// lateLooks is how often a grant that may have been won is looked for and not
// found, before it is believed that it was not.
const lateLooks = 3

// giveBackLate undoes what an attempt may have won after nobody was waiting for it
// any more. Its statement may still be running, so that one look is not enough.
func (l *lease) giveBackLate(workID, nonce string) {
	ctx, cancel := context.WithTimeout(context.Background(), farewellTime)
	defer cancel()
	claim := Claim{WorkID: workID, HolderID: l.cfg.HolderID, Nonce: nonce}
	looks := 0
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := l.backend.Release(ctx, claim, Farewell{Exit: ExitNone})
		if isVerdict(err) {
			looks++
		}
		if err == nil || looks == lateLooks || isPermanent(err) || sleep(ctx, pause) != nil {
			return
		}
	}
}
