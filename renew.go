package worklease

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/aetomala/worklease/internal/due"
	link "github.com/aetomala/worklease/internal/hold"
)

// keeper is the one loop that renews the leases of a Lease value. It knows when
// each renewal is due and sends it; it waits for no answer. Windows are ended by
// timers of their own, so that nothing the loop or a statement does can delay them.
type keeper struct {
	// Guarded by lease.mu.
	due     due.Queue[*renewal]
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
	due.Slot
	attempt int // in this cycle of retries; while there is a flight, its own
	flight  *flight
	lastErr error
	since   time.Time // from when on progress is asked for
	ended   bool
}

// flight is a statement under way, for one renewal or many.
type flight struct {
	renewals []*renewal
	sent     time.Time
	ctx      context.Context
	cancel   context.CancelFunc
	landed   chan struct{}
	of       func() map[link.Claim][]*renewal
}

// landingTime is how long stopRenewal waits for a statement under way. It is not
// cancelled before that: it would cost its connection.
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
	r := &renewal{options: l.renewalOptions(opts), ctx: inner, cancel: cancel, since: time.Now()}
	l.mu.Lock()
	others, cause := l.startLocked(r, token)
	l.mu.Unlock()
	cancelAll(others, cause)
	if cause != nil {
		cancel(cause)
		return inner, func() {}
	}
	return renewalContext{inner, r}, r.stop
}

// startLocked adds r to the loop, unless the hold is lost. If it finds that it is, the
// others that stood on it end with it.
func (l *lease) startLocked(r *renewal, token Token) (others []*renewal, cause error) {
	h := l.holdLocked(token)
	r.hold = h
	switch {
	case h.lost != nil:
		return nil, h.lost
	case h.left:
		return nil, expiredCause("renew", token.workID)
	case h.trusted && !time.Now().Before(h.end()):
		cause = r.windowCause()
		return h.loseLocked(cause), cause
	case !h.trusted && len(h.renewals) == 0:
		// Nothing is known yet: the first renewal must come through within a TTL.
		h.until.Store(int64(time.Now().Add(l.cfg.TTL).Sub(h.start)))
	}
	h.renewals = append(h.renewals, r)
	l.observer.kept.Add(1)
	r.timer = time.AfterFunc(r.nextEndLocked(time.Now()), r.checkEnds)
	r.unhook = context.AfterFunc(r.ctx, func() { r.end(nil) })
	r.replanLocked()
	return nil, nil
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
		err = exhausted{r.lastErr}
	}
	return fail("renew", r.hold.token.workID, err)
}

// exhausted is ErrLeaseWindowExhausted after a renewal that failed. What that failed of
// can be looked at by its type, but says nothing of this error: a statement that was given
// up is a context that ended, and no such is the cause; nor is a fault for good.
type exhausted struct{ last error }

func (e exhausted) Error() string {
	return ErrLeaseWindowExhausted.Error() + "; last: " + e.last.Error()
}

func (e exhausted) Unwrap() error { return ErrLeaseWindowExhausted }

func (e exhausted) As(target any) bool {
	return reflect.TypeOf(target).Elem().Kind() != reflect.Interface && errors.As(e.last, target)
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
	if f.lands(landingTime) || len(f.renewals) > 1 {
		// A flight for many leaves out, when it is sent, what was stopped before.
		return
	}
	f.cancel()
	f.lands(landingTime)
}

// lands waits for the answer, for d at the most.
func (f *flight) lands(d time.Duration) bool {
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
	r.hold.lease.observer.kept.Add(-1)
	r.timer.Stop()
	r.unhook()
	h := r.hold
	if i := slices.Index(h.renewals, r); i >= 0 {
		h.renewals = slices.Delete(h.renewals, i, i+1)
	}
	k := &h.lease.keeper
	if k.due.Remove(r) {
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
	at := time.Now()
	if r.hold.trusted {
		at = r.hold.extended.Add(max(min(r.options.interval, r.hold.span/2), time.Millisecond))
	}
	r.planLocked(at)
}

func (r *renewal) planLocked(at time.Time) {
	k := &r.hold.lease.keeper
	first := k.due.Plan(r, at)
	if !k.running {
		k.running = true
		go r.hold.lease.keepRenewing()
	} else if first {
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
	now := time.Now()
	due := l.takeDueLocked(now)
	for len(due) > 0 {
		n, bound := l.fillFlight(due)
		l.flyLocked(due[:n], now, bound)
		due = due[n:]
	}
	if l.keeper.due.Len() == 0 {
		l.keeper.running = false
		return 0, false
	}
	return time.Until(l.keeper.due.Head().Due()), true
}

// takeDueLocked takes what is due from the queue, those that are closest to the end of
// their windows first. Where many leases can go in one statement, those that are due
// soon come along, a tenth of their interval early at the most: they then stay
// together.
func (l *lease) takeDueLocked(now time.Time) []*renewal {
	k := &l.keeper
	var due []*renewal
	for k.due.Len() > 0 {
		r := k.due.Head()
		early := time.Duration(0)
		if len(due) > 0 && r.attempt == 0 && l.batches != nil {
			early = r.options.interval / 10
		}
		if r.Due().Sub(now) > early {
			break
		}
		k.due.Remove(r)
		if r.hold.end().After(now) { // else its timer is about to say so
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *renewal) int { return a.hold.end().Compare(b.hold.end()) })
	return due
}

// fillFlight returns how many of the renewals go in one statement, and for how long
// that may take: there must be time for another attempt.
func (l *lease) fillFlight(due []*renewal) (n int, bound time.Duration) {
	bound = due[0].bound()
	if l.batches == nil {
		return 1, bound
	}
	for n = 1; n < min(len(due), MaxRenewBatch); n++ {
		// A lease in a hurry must not make others give up early.
		if due[n].bound() > 2*bound {
			break
		}
	}
	return n, bound
}

func (r *renewal) bound() time.Duration {
	left := time.Until(r.hold.end())
	return max(min(r.hold.lease.cfg.TTL/3, left/2), min(left, 20*time.Millisecond))
}

func (l *lease) flyLocked(renewals []*renewal, now time.Time, bound time.Duration) {
	f := &flight{renewals: renewals, sent: now, landed: make(chan struct{})}
	f.of = sync.OnceValue(f.byClaim)
	for _, r := range renewals {
		r.attempt++
		r.flight = f
	}
	f.ctx, f.cancel = context.WithTimeout(link.WithWanted(f.values(), f.wanted), bound)
	go l.fly(f)
}

func (f *flight) byClaim() map[link.Claim][]*renewal {
	of := make(map[link.Claim][]*renewal, len(f.renewals))
	for _, r := range f.renewals {
		c := link.Claim(r.hold.token.Claim())
		of[c] = append(of[c], r)
	}
	return of
}

// wanted reports whether any renewal of c goes on. Of a claim that is none of this
// flight it knows nothing.
func (f *flight) wanted(c link.Claim) bool {
	renewals, ok := f.of()[c]
	return !ok || slices.ContainsFunc(renewals, func(r *renewal) bool { return !r.over() })
}

func (r *renewal) over() bool {
	r.hold.lease.mu.Lock()
	defer r.hold.lease.mu.Unlock()
	return r.ended
}

// fly sends the statement and takes in its answers.
func (l *lease) fly(f *flight) {
	defer f.cancel()
	answers := l.renewAll(f.ctx, f.renewals)
	took := time.Since(f.sent)
	for i, r := range f.renewals {
		if answers[i].Err == context.Canceled && r.over() {
			continue // it was not sent
		}
		l.observer.renewedLater(r.ctx, RenewEvent{
			Token: r.hold.token, Duration: took, Attempt: r.attempt, Err: fail("renew", r.hold.token.workID, answers[i].Err),
		})
	}
	l.land(f, answers)
	for i, r := range f.renewals {
		if err := answers[i].Err; isVerdict(err) {
			r.hold.heed("renew", err)
		}
		r.checkWindow()
	}
}

// values are the caller's where there is one caller.
func (f *flight) values() context.Context {
	if len(f.renewals) > 1 {
		return context.Background()
	}
	return context.WithoutCancel(f.renewals[0].ctx)
}

// renewAll sends one statement and returns an answer for each renewal.
func (l *lease) renewAll(ctx context.Context, renewals []*renewal) []Renewal {
	if l.batches == nil {
		e, err := l.backend.Renew(ctx, renewals[0].hold.token.Claim(), l.cfg.TTL)
		return []Renewal{{Extension: e, Err: err}}
	}
	claims := make([]Claim, len(renewals))
	for i, r := range renewals {
		claims[i] = r.hold.token.Claim()
	}
	answers, err := l.batches.RenewBatch(ctx, claims, l.cfg.TTL)
	if err == nil && len(answers) == len(claims) {
		return answers
	}
	if err == nil {
		err = fmt.Errorf("backend returned %d results for %d leases", len(answers), len(claims))
	}
	answers = make([]Renewal, len(claims))
	for i := range answers {
		answers[i].Err = err
	}
	return answers
}

// land plans what follows the answers.
func (l *lease) land(f *flight, answers []Renewal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range f.renewals {
		r.flight = nil
	}
	close(f.landed)
	for i, r := range f.renewals {
		if !r.ended {
			r.landLocked(f.sent, answers[i])
		}
	}
}

func (r *renewal) landLocked(sent time.Time, a Renewal) {
	h := r.hold
	left := time.Until(h.end())
	switch {
	case isVerdict(a.Err) || left <= 0:
		// The hold is lost, and fly is about to say so.
	case a.Err == nil && h.confirmLocked(sent, a.Extension):
		r.lastErr = nil
	case h.extended.After(sent):
		r.replanLocked() // a checkpoint has done it meanwhile
	default:
		if r.lastErr = a.Err; a.Err == nil {
			r.lastErr = errors.New("the reply came too late")
		}
		pause := r.options.backoff.Wait(r.attempt)
		r.planLocked(time.Now().Add(min(pause, max(left/2, time.Millisecond))))
	}
}
