package worklease

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// keeper is the one loop that renews the leases of a Lease value. It knows when
// each renewal is due and sends it; it waits for no answer. Windows are ended by
// timers of their own, so that nothing the loop or a statement does can delay them.
type keeper struct {
	// Guarded by lease.mu.
	due     dueHeap
	running bool

	wake chan struct{} // one slot: the earliest renewal has changed
}

// renewal is what one StartRenewal keeps going.
type renewal struct {
	hold    *hold
	options renewalOptions
	ctx     context.Context // what the caller works under, without the look at the window
	cancel  context.CancelCauseFunc
	timer   *time.Timer // fires when the window or the progress deadline is over
	unhook  func() bool

	// Guarded by lease.mu.
	due     time.Time
	index   int // in the heap; -1: not there
	attempt int // in this cycle of retries
	flight  *flight
	lastErr error
	since   time.Time // from when on progress is asked for
	ended   bool
}

// flight is a statement under way.
type flight struct {
	sent   time.Time
	cancel context.CancelFunc
	landed chan struct{}
}

// landingTime is how long stopRenewal lets a statement under way finish before it
// is cancelled, and how long it then waits for that: a cancelled statement costs
// its connection.
const landingTime = time.Second

func (l *lease) StartRenewal(ctx context.Context, token Token, opts ...RenewalOption) (context.Context, func()) {
	if ctx == nil {
		panic("worklease: StartRenewal: nil context")
	}
	inner, cancel := context.WithCancelCause(ctx)
	if err := checkToken(ctx, token); err != nil {
		cancel(fail("renew", token.workID, err))
		return inner, func() {}
	}
	r := &renewal{options: l.renewalOptions(opts), ctx: inner, cancel: cancel, index: -1, since: time.Now()}
	if cause := l.start(r, token); cause != nil {
		cancel(cause)
		return inner, func() {}
	}
	return renewalContext{inner, r}, r.stop
}

// start adds r to the loop, unless the hold is lost.
func (l *lease) start(r *renewal, token Token) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.holdLocked(token)
	r.hold = h
	switch {
	case h.lost != nil:
		return h.lost
	case h.left:
		return expiredCause("renew", token.workID)
	case h.trusted && !time.Now().Before(h.end()):
		h.lost = r.windowCause()
		return h.lost
	case !h.trusted && len(h.renewals) == 0:
		// Nothing is known yet: the first renewal must come through within a TTL.
		h.until.Store(int64(time.Since(h.start) + l.cfg.TTL))
	}
	h.renewals = append(h.renewals, r)
	r.timer = time.AfterFunc(r.nextEndLocked(time.Now()), r.checkEnds)
	r.unhook = context.AfterFunc(r.ctx, func() { r.end(nil) })
	r.replanLocked()
	return nil
}

// renewalContext ends with the window also when its timer has had no chance to
// fire: in a process that was stopped and goes on.
type renewalContext struct {
	context.Context
	renewal *renewal
}

func (c renewalContext) Done() <-chan struct{} {
	c.renewal.checkWindow()
	return c.Context.Done()
}

func (c renewalContext) Err() error {
	c.renewal.checkWindow()
	return c.Context.Err()
}

func (r *renewal) checkWindow() {
	h := r.hold
	if time.Since(h.start) >= time.Duration(h.until.Load()) {
		r.checkEnds()
	}
}

// checkEnds ends the renewal if its window or its progress deadline is over, and
// sets the timer for the next look if not.
func (r *renewal) checkEnds() {
	h := r.hold
	l := h.lease
	now := time.Now()
	l.mu.Lock()
	if r.ended {
		l.mu.Unlock()
		return
	}
	var ended []*renewal
	var cause error
	switch {
	case !now.Before(h.end()):
		cause = r.windowCause()
		ended = h.loseLocked(cause)
	case r.stalledLocked(now):
		cause = fail("renew", h.token.workID, fmt.Errorf("%w: none for %v", ErrStalled, r.options.progress))
		ended = []*renewal{r}
		r.endLocked()
	default:
		r.timer.Reset(r.nextEndLocked(now))
	}
	l.mu.Unlock()
	cancelAll(ended, cause)
}

func (r *renewal) windowCause() error {
	err := ErrLeaseWindowExhausted
	if r.lastErr != nil {
		err = fmt.Errorf("%w; last: %v", err, r.lastErr)
	}
	return fail("renew", r.hold.token.workID, err)
}

func (r *renewal) progressEndLocked() time.Time {
	since := r.since
	if p := r.hold.progress; p.After(since) {
		since = p
	}
	return since.Add(r.options.progress)
}

func (r *renewal) stalledLocked(now time.Time) bool {
	return r.options.progress > 0 && !now.Before(r.progressEndLocked())
}

func (r *renewal) nextEndLocked(now time.Time) time.Duration {
	next := r.hold.end().Sub(now)
	if r.options.progress > 0 {
		next = min(next, r.progressEndLocked().Sub(now))
	}
	return next
}

// stop is the caller's stopRenewal.
func (r *renewal) stop() {
	r.end(context.Canceled)
	l := r.hold.lease
	l.mu.Lock()
	f := r.flight
	l.mu.Unlock()
	if f == nil {
		return
	}
	if f.wait(landingTime) {
		return
	}
	f.cancel()
	f.wait(landingTime)
}

func (f *flight) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-f.landed:
		return true
	case <-t.C:
		return false
	}
}

// end takes the renewal off. A nil cause leaves the context to its parent, which
// has ended it.
func (r *renewal) end(cause error) {
	l := r.hold.lease
	l.mu.Lock()
	already := r.ended
	if !already {
		r.endLocked()
	}
	l.mu.Unlock()
	if !already {
		r.cancel(cause)
	}
}

func (r *renewal) endLocked() {
	r.ended = true
	r.timer.Stop()
	r.unhook()
	h := r.hold
	if i := slices.Index(h.renewals, r); i >= 0 {
		h.renewals = slices.Delete(h.renewals, i, i+1)
	}
	k := &h.lease.keeper
	if r.index >= 0 {
		heap.Remove(&k.due, r.index)
		k.nudge() // the loop ends when there is nothing left
	}
}

// cancelAll ends contexts, outside of every lock: what hangs on them is not ours.
func cancelAll(ended []*renewal, cause error) {
	for _, r := range ended {
		r.cancel(cause)
	}
}

// replanLocked plans the next renewal from the last extension that was confirmed;
// a resumed hold has none and is renewed at once. A statement under way plans when
// it lands.
func (r *renewal) replanLocked() {
	if r.ended || r.flight != nil {
		return
	}
	r.attempt = 0
	due := time.Now()
	if r.hold.trusted {
		due = r.hold.extended.Add(min(r.options.interval, r.hold.span/2))
	}
	r.planLocked(due)
}

func (r *renewal) planLocked(due time.Time) {
	k := &r.hold.lease.keeper
	r.due = due
	if r.index >= 0 {
		heap.Fix(&k.due, r.index)
	} else {
		heap.Push(&k.due, r)
	}
	if !k.running {
		k.running = true
		go r.hold.lease.keepRenewing()
	} else if r.index == 0 {
		k.nudge()
	}
}

func (k *keeper) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// keepRenewing is the loop. It lives while any renewal is planned.
func (l *lease) keepRenewing() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		pause, ok := l.sendDue()
		if !ok {
			return
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-l.keeper.wake:
		}
	}
}

// sendDue sends what is due and returns the time until the next.
func (l *lease) sendDue() (pause time.Duration, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := &l.keeper
	for len(k.due) > 0 {
		r := k.due[0]
		if pause := time.Until(r.due); pause > 0 {
			return pause, true
		}
		heap.Pop(&k.due)
		r.sendLocked()
	}
	k.running = false
	return 0, false
}

// sendLocked sends one renewal, bounded so that there is time for another.
func (r *renewal) sendLocked() {
	h := r.hold
	now := time.Now()
	left := h.end().Sub(now)
	if left <= 0 {
		return // the timer is about to say so
	}
	bound := min(h.lease.cfg.TTL/3, left/2)
	bound = max(bound, min(left, 20*time.Millisecond))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), bound)
	r.attempt++
	r.flight = &flight{sent: now, cancel: cancel, landed: make(chan struct{})}
	go r.fly(ctx, r.flight, r.attempt)
}

// fly sends the statement and takes in its answer.
func (r *renewal) fly(ctx context.Context, f *flight, attempt int) {
	defer f.cancel()
	h := r.hold
	l := h.lease
	e, err := l.backend.Renew(ctx, h.token.Claim(), l.cfg.TTL)
	took := time.Since(f.sent)
	l.observer.renewedLater(r.ctx, RenewEvent{
		Token: h.token, Duration: took, Attempt: attempt, Err: fail("renew", h.token.workID, err),
	})
	r.land(f, e, err)
	if isVerdict(err) {
		h.heed("renew", err)
	}
	r.checkWindow()
}

// land plans what follows the answer.
func (r *renewal) land(f *flight, e Extension, err error) {
	h := r.hold
	l := h.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	r.flight = nil
	close(f.landed)
	if r.ended {
		return
	}
	left := time.Until(h.end())
	switch {
	case isVerdict(err) || left <= 0:
		// The hold is lost, and fly is about to say so.
	case err == nil && h.confirmLocked(f.sent, e):
		r.lastErr = nil
	case h.extended.After(f.sent):
		r.replanLocked() // a checkpoint has done it meanwhile
	default:
		if r.lastErr = err; err == nil {
			r.lastErr = errors.New("the reply came too late")
		}
		pause := r.options.backoff.Wait(r.attempt)
		r.planLocked(time.Now().Add(min(pause, max(left/2, time.Millisecond))))
	}
}

// dueHeap orders renewals by when they are due.
type dueHeap []*renewal

func (d dueHeap) Len() int           { return len(d) }
func (d dueHeap) Less(i, j int) bool { return d[i].due.Before(d[j].due) }
func (d dueHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *dueHeap) Push(x any) {
	r := x.(*renewal)
	r.index = len(*d)
	*d = append(*d, r)
}

func (d *dueHeap) Pop() any {
	old := *d
	n := len(old) - 1
	r := old[n]
	old[n] = nil
	*d = old[:n]
	r.index = -1
	return r
}
