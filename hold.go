package worklease

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	link "github.com/aetomala/worklease/internal/hold"
)

// hold is what a Lease knows of one token that it gave out or that was resumed
// with it: until when it may be trusted, and how its checkpoints are numbered.
type hold struct {
	lease *lease
	token Token
	// name tells this hold's checkpoint numbers from those of another hold of the
	// same token.
	name string

	// start is the origin of until, which renewCtx.Err reads without the lock.
	start time.Time
	until atomic.Int64 // nanoseconds after start at which trust ends

	// Guarded by lease.mu.
	trusted  bool          // until is a time that the backend confirmed
	extended time.Time     // when the last confirmed extension was sent
	span     time.Duration // for how long that was
	progress time.Time     // when the last checkpoint was confirmed
	lost     error         // final
	left     bool          // a Release or Forget was sent
	renewals []*renewal
	farewell farewell // the last one whose outcome is unknown

	numbered bool // number continues from what the row holds
	number   int64

	prior      Prior
	priorKnown bool
	priorWhole bool // prior.State is not waiting to be read
}

// farewell is a last state and the number it was sent under: the caller's repeat
// of it goes out under the same.
type farewell struct {
	digest [sha256.Size]byte
	number int64
}

// deadHoldAge is how long a hold that nobody renews is kept: a lease that was lost
// must not come back while somebody may still ask for it.
const deadHoldAge = 10 * time.Minute

func (l *lease) newHold(token Token, name string, now time.Time) *hold {
	return &hold{lease: l, token: token, name: name, start: now, extended: now, progress: now}
}

// keep records a grant that was asked for at sent.
func (l *lease) keep(token Token, g Grant, sent time.Time) {
	h := l.newHold(token, token.nonce, sent)
	h.numbered = true
	h.span = g.Remaining
	h.trusted = true
	h.until.Store(int64(g.Remaining))
	h.prior, h.priorKnown, h.priorWhole = g.Prior, true, !g.StateOmitted
	l.mu.Lock()
	defer l.mu.Unlock()
	l.addLocked(h)
}

func (l *lease) addLocked(h *hold) {
	if len(l.holds) >= max(l.sweep, 64) {
		l.dropDeadLocked()
		l.sweep = 2 * len(l.holds)
	}
	l.holds[h.token.Claim()] = h
	l.linkLocked(h)
}

func (l *lease) dropDeadLocked() {
	for claim, h := range l.holds {
		if len(h.renewals) == 0 && time.Since(h.end()) > deadHoldAge {
			delete(l.holds, claim)
			l.unlinkLocked(h)
		}
	}
}

// hold returns what is known of token; for one that came from elsewhere that is
// nothing yet.
func (l *lease) hold(token Token) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holdLocked(token)
}

func (l *lease) holdLocked(token Token) *hold {
	h, ok := l.holds[token.Claim()]
	if !ok {
		h = l.newHold(token, rand.Text(), time.Now())
		l.addLocked(h)
	}
	return h
}

// known returns the hold of token, or nil.
func (l *lease) known(token Token) *hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds[token.Claim()]
}

// end returns when trust ends, with a monotonic reading.
func (h *hold) end() time.Time { return h.start.Add(time.Duration(h.until.Load())) }

// confirm counts an extension that was sent at sent, and plans the renewals anew. A
// late confirmation of an earlier one never shortens the time left.
func (h *hold) confirm(sent time.Time, e Extension) {
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	h.confirmLocked(sent, e)
}

func (h *hold) confirmLocked(sent time.Time, e Extension) bool {
	now, until := time.Now(), sent.Add(e.Remaining)
	if h.lost != nil || h.left || !now.Before(until) {
		return false
	}
	if len(h.renewals) > 0 && !now.Before(h.end()) {
		return false // too late: the contexts are about to end, and none comes back
	}
	if !h.trusted || until.After(h.end()) {
		h.until.Store(int64(until.Sub(h.start)))
	}
	h.trusted = true
	if !sent.Before(h.extended) {
		h.extended, h.span = sent, e.Remaining
	}
	for _, r := range h.renewals {
		r.timer.Reset(r.nextEndLocked(now)) // a resumed window may have become shorter
		r.replanLocked()
	}
	return true
}

// advance counts a checkpoint as progress.
func (h *hold) advance() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.progress = time.Now()
}

// heed takes what a verdict about this token means for the hold: fenced or expired
// is lost, for good. It returns err.
func (h *hold) heed(operation string, err error) error {
	switch {
	case errors.Is(err, ErrFenced):
		h.lose(fail(operation, h.token.workID, ErrFenced))
	case errors.Is(err, ErrLeaseExpired):
		h.lose(expiredCause(operation, h.token.workID))
	}
	return err
}

func expiredCause(operation, workID string) error {
	return fail(operation, workID, fmt.Errorf("%w: %w", ErrLeaseWindowExhausted, ErrLeaseExpired))
}

// lose ends the hold and every context that stands on it.
func (h *hold) lose(cause error) {
	h.lease.mu.Lock()
	ended := h.loseLocked(cause)
	h.lease.mu.Unlock()
	cancelAll(ended, cause)
}

func (h *hold) loseLocked(cause error) (ended []*renewal) {
	if h.lost != nil {
		return nil
	}
	h.lost = cause
	return h.endRenewalsLocked()
}

// leave ends trust before a statement is sent that gives the lease up.
func (h *hold) leave() {
	h.lease.mu.Lock()
	h.left = true
	ended := h.endRenewalsLocked()
	h.lease.mu.Unlock()
	cancelAll(ended, context.Canceled)
}

func (h *hold) endRenewalsLocked() []*renewal {
	ended := slices.Clone(h.renewals)
	for _, r := range ended {
		r.endLocked()
	}
	return ended
}

// gone forgets the hold: the row has confirmed that the lease was given up.
func (h *hold) gone() {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	delete(h.lease.holds, h.token.Claim())
	h.lease.unlinkLocked(h)
}

// nextNumber draws the number of the hold's next checkpoint. A resumed hold reads
// the stored one first.
func (h *hold) nextNumber(ctx context.Context) (int64, error) {
	l := h.lease
	if h.unnumbered() {
		stored, err := l.backend.ReadCheckpoint(ctx, h.token.Claim(), false)
		if err != nil {
			return 0, err
		}
		h.renumber(stored.Number)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return h.drawLocked()
}

// unnumbered reports whether the stored number has yet to be read.
func (h *hold) unnumbered() bool {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	return !h.numbered
}

func (h *hold) drawLocked() (int64, error) {
	if h.number == math.MaxInt64 {
		return 0, invalid("the numbers for checkpoints are used up")
	}
	h.number++
	return h.number, nil
}

// renumber continues above the number that another hold stored.
func (h *hold) renumber(stored int64) {
	h.lease.mu.Lock()
	defer h.lease.mu.Unlock()
	h.renumberLocked(stored)
}

func (h *hold) renumberLocked(stored int64) {
	h.numbered = true
	h.number = max(h.number, link.Beyond(stored))
}

// saveNumbered sends a save under the next number, and again under a higher one
// while another hold of the same token has been quicker.
func (h *hold) saveNumbered(ctx context.Context, send func(number int64) error) error {
	for {
		number, err := h.nextNumber(ctx)
		if err != nil {
			return err
		}
		err = send(number)
		var overtaken *OvertakenError
		if !errors.As(err, &overtaken) {
			return err
		}
		if ctx.Err() != nil {
			return err
		}
		h.renumber(overtaken.Number)
	}
}
