package pgxbackend

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/backoff"
	"github.com/aetomala/worklease/internal/ctxerr"
	"github.com/aetomala/worklease/internal/due"
)

const (
	// markPeriod is for how long a mark asks for notifications. Nobody sleeps for
	// longer than what is sure to be left of it.
	markPeriod = time.Minute

	// gatherTime is how long a new watcher waits for others to be looked at with.
	gatherTime = 2 * time.Millisecond

	// lookBatch is the largest number of work IDs that one statement looks at.
	lookBatch = 500

	// lookBound is how long a look may take.
	lookBound = 5 * time.Second
)

// pace is how long a hub takes over what tests do not wait for.
type pace struct {
	safety time.Duration // the longest sleep while notifications are heard
	linger time.Duration // for how long the listening connection is kept when nobody waits

	// quiet is how long the listener hears nothing before it asks whether it would; the
	// answer has ask. Together they bound how long a connection can be dead without a
	// sign.
	quiet, ask time.Duration

	// deaf is how long a session that hears nothing (a transaction pooler) is left
	// alone before the next try.
	deaf time.Duration
}

var usualPace = pace{
	safety: markPeriod / 2, linger: time.Minute, quiet: 8 * time.Second, ask: 5 * time.Second, deaf: time.Minute,
}

var lookBackoff = backoff.Policy{Initial: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.5}

// hub is the one place of a Backend for everything about waiting. It knows who waits
// for what and in which order, looks at and marks all watched work IDs in batched
// statements, and tells the first waiter in line when a try is worth it. What it
// knows comes from three sources: its own looks, notifications, and the verdicts of
// the Backend's acquisitions. Correctness rests on the looks alone.
//
// # States of a watched work ID
//
// Nudged: the first in line has been told, and no verdict has come since; the others
// wait for it. Asleep: the last look found the work held and confirmed the mark, or
// nothing is heard and it is polled; the next look is planned for the expiry, the end
// of the mark's first half, the safety look or the poll, whichever is first. Restless:
// held, and the mark was not confirmed; looked at again within milliseconds.
type hub struct {
	backend *Backend
	log     *slog.Logger
	pace    pace
	ears    ears
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	wake    chan struct{} // one slot: what is due first has changed
	crowd   atomic.Int64  // number of watched work IDs, to be asked without the lock

	mu      sync.Mutex
	ids     map[string]*watched
	due     due.Queue[*watched]
	looking bool // the loop runs
	hears   bool // notifications arrive
	turns   int  // of hears: what was asked before one proves nothing after it
	closed  bool
	looks   int64

	late     []string // freed without a notice, which is still to be sent
	noticing bool     // it is being sent
}

// watched is one work ID and those who wait for it, first come first.
type watched struct {
	id      string
	waiters []*waiter

	nudges   uint64    // counts what the first in line was told
	nudged   bool      // and no verdict has come since the last
	looked   time.Time // when the last look was sent
	token    int64     // of the lease, as last heard
	expiry   time.Time // of that lease, by our clock
	learned  time.Time // when that was heard
	marked   time.Time // until when the mark is sure to stand, by our clock
	unmarked int       // looks in a row that did not confirm it

	since    time.Time // when the present sleep began
	due.Slot           // when to look next
}

type waiter struct {
	nudge chan struct{}
	poll  time.Duration
}

func newHub(b *Backend, o options) *hub {
	h := &hub{backend: b, log: o.log, pace: o.pace, wake: make(chan struct{}, 1), ids: make(map[string]*watched)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.ears = newEars(h, o)
	return h
}

// Watch implements [worklease.Waker].
func (b *Backend) Watch(workID string, poll time.Duration) (nudge <-chan struct{}, stop func()) {
	return b.hub.watch(workID, poll)
}

func (h *hub) watch(id string, poll time.Duration) (<-chan struct{}, func()) {
	me := &waiter{nudge: make(chan struct{}, 1), poll: max(poll, time.Millisecond)}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		me.nudge <- struct{}{} // the try will say so
		return me.nudge, func() {}
	}
	w, ok := h.ids[id]
	if !ok {
		w = &watched{id: id}
		h.ids[id] = w
		h.crowd.Add(1)
	}
	w.waiters = append(w.waiters, me)
	if len(w.waiters) == 1 {
		h.nudgeLocked(w)
	}
	h.startLocked()
	return me.nudge, func() { h.leave(w, me) }
}

func (h *hub) startLocked() {
	if !h.looking {
		h.looking = true
		h.wg.Go(h.run)
	}
	h.ears.startLocked()
}

// leave takes a waiter out of the line. If it was its turn, the turn goes on.
func (h *hub) leave(w *watched, me *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i := slices.Index(w.waiters, me)
	if i < 0 {
		return
	}
	w.waiters = slices.Delete(w.waiters, i, i+1)
	switch {
	case len(w.waiters) == 0:
		delete(h.ids, w.id)
		h.crowd.Add(-1)
		h.due.Remove(w)
		h.ears.emptyLocked()
	case i == 0 && w.nudged:
		h.nudgeLocked(w)
	}
}

// nudgeLocked tells the first in line to try.
func (h *hub) nudgeLocked(w *watched) {
	w.nudges++
	w.nudged = true
	select {
	case w.waiters[0].nudge <- struct{}{}:
	default:
	}
	// Its verdict plans the next look. This one is for a waiter that has none.
	h.planLocked(w, time.Now().Add(h.pace.safety))
}

// notified takes in a notification: a hint that id has been freed.
func (h *hub) notified(id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w, ok := h.ids[id]; ok {
		h.nudgeLocked(w)
	}
}

// attempt is what the hub is told of an acquisition before it is sent.
type attempt struct {
	id     string
	sent   time.Time
	nudges uint64
	on     bool
}

// trying is called before an acquisition of id is sent.
func (h *hub) trying(id string) attempt {
	a := attempt{id: id}
	if h.crowd.Load() == 0 {
		return a
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if w, ok := h.ids[id]; ok {
		a.on, a.sent, a.nudges = true, time.Now(), w.nudges
	}
	return a
}

// found is called when the acquisition has found the work held under token, or has
// taken it, for so long yet. It ends the turn, unless something has happened since it
// was sent.
func (h *hub) found(a attempt, token int64, remaining time.Duration) {
	if !a.on {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w, ok := h.ids[a.id]
	if !ok || w.nudges != a.nudges {
		return
	}
	w.nudged = false
	w.learn(token, a.sent, a.sent.Add(remaining))
	h.sleepLocked(w, time.Now())
}

// learn takes in what a statement that was sent at sent says of the lease. It returns
// false if the answer was overtaken by news of a later owner, whose expiry is another.
// Tokens tell, except that they may start anew when the row was deleted.
func (w *watched) learn(token int64, sent, expiry time.Time) bool {
	if token < w.token && !sent.After(w.learned) {
		return false
	}
	w.token, w.expiry, w.learned = token, expiry, time.Now()
	return true
}

// sleepLocked plans the next look at work that is held.
func (h *hub) sleepLocked(w *watched, now time.Time) {
	expiry := w.expiry.Add(grace(w.expiry.Sub(now)))
	switch mark := w.marked.Add(-markPeriod / 4); {
	case !h.hears:
		poll := w.waiters[0].poll
		for _, other := range w.waiters[1:] {
			poll = min(poll, other.poll)
		}
		poll -= rand.N(poll/10 + 1)
		h.planLocked(w, earliest(now.Add(poll), expiry))
	case now.Before(mark):
		h.planLocked(w, earliest(expiry, mark, w.looked.Add(h.pace.safety)))
	default:
		h.planLocked(w, now.Add(gatherTime))
	}
}

// grace is how long after a lease's expiry it is looked at. Its owner renews twice per
// TTL, so that an expiry is when a renewal is due: a look that came just before it would
// see the one before, and have to come back after half a TTL.
func grace(remaining time.Duration) time.Duration {
	return min(max(remaining/50, 2*time.Millisecond), 20*time.Millisecond) + rand.N(6*time.Millisecond)
}

func earliest(first time.Time, others ...time.Time) time.Time {
	for _, t := range others {
		if t.Before(first) {
			first = t
		}
	}
	return first
}

func (h *hub) planLocked(w *watched, at time.Time) {
	w.since = time.Now()
	if h.due.Plan(w, at) {
		h.rouse()
	}
}

func (h *hub) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// setHearsLocked switches between sleeping on marks and polling. When notifications
// begin to arrive everything is looked at: until then anything may have happened, and
// a mark that was set before proves nothing.
func (h *hub) setHearsLocked(hears bool) {
	if h.hears == hears {
		return
	}
	h.hears = hears
	h.turns++
	now := time.Now()
	for _, w := range h.ids {
		w.unmarked = 0
		w.marked = time.Time{}
		if !w.nudged {
			h.planLocked(w, now)
		}
	}
}

// run is the loop of looks. It lives while anybody waits.
func (h *hub) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	failures := 0
	for {
		batch, pause, ok := h.next()
		if !ok {
			return
		}
		if len(batch.ids) > 0 {
			if failures = h.look(batch, failures); failures == 0 {
				continue
			}
			pause = lookBackoff.Wait(failures)
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-h.wake:
			if failures > 0 {
				_ = ctxerr.Sleep(h.ctx, lookBackoff.Wait(failures)) // new watchers mend no fault
			}
		case <-h.ctx.Done():
			return
		}
	}
}

// batch is what one statement looks at.
type batch struct {
	ids   []string
	turns int // of hub.hears, when it was put together
	sent  time.Time
}

// next returns what to look at now, or how long there is nothing. Work IDs that have
// slept for more than half of their time come along: so all that are held with one
// TTL soon travel together, twice per TTL.
func (h *hub) next() (b batch, pause time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 || h.closed {
		h.looking = false
		return batch{}, 0, false
	}
	now := time.Now()
	if pause := h.due.Head().Due().Sub(now); pause > 0 {
		return batch{}, pause, true
	}
	b.turns, b.sent = h.turns, now
	var rest []string
	for _, w := range h.due.Items() {
		switch {
		case !w.Due().After(now):
			b.ids = append(b.ids, w.id)
		case !w.nudged && w.Due().Sub(now) <= now.Sub(w.since)+gatherTime:
			rest = append(rest, w.id)
		}
		if len(b.ids) == lookBatch {
			break
		}
	}
	b.ids = append(b.ids, rest[:min(len(rest), lookBatch-len(b.ids))]...)
	return b, 0, true
}

// sight is what a look saw of one work ID.
type sight struct {
	ID        string
	Free      bool
	Token     *int64
	Remaining *time.Duration
	Marked    *time.Duration
	Sequence  *uint32
}

// look looks at a batch and returns the number of failures in a row.
func (h *hub) look(b batch, failures int) int {
	seen, err := h.backend.look(h.ctx, b.ids)
	switch {
	case err == nil:
		h.saw(b, seen)
		return 0
	case h.ctx.Err() != nil:
		return failures
	case failures == 0:
		h.log.Warn("worklease: cannot look at leases that are waited for; trying on", "error", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	if isPermanent(err) {
		// No waiting mends this: each waiter's own try says what it is.
		for _, w := range h.ids {
			h.nudgeAllLocked(w)
		}
	}
	return failures + 1
}

func (h *hub) saw(b batch, seen map[string]sight) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	for id, s := range seen {
		if w, ok := h.ids[id]; ok {
			h.sawLocked(w, s, b)
		}
	}
}

func isPermanent(err error) bool {
	var b *worklease.BackendError
	return errors.As(err, &b) && b.Permanent
}

func (h *hub) nudgeAllLocked(w *watched) {
	for _, other := range w.waiters[1:] {
		select {
		case other.nudge <- struct{}{}:
		default:
		}
	}
	h.nudgeLocked(w)
}

func (h *hub) sawLocked(w *watched, s sight, b batch) {
	now := time.Now()
	w.looked = b.sent
	if !w.learn(value(s.Token), b.sent, b.sent.Add(value(s.Remaining))) {
		return // what overtook this has planned the next look
	}
	if s.Free {
		h.nudgeLocked(w)
		return
	}
	// What was freed between the look and LISTEN has notified nobody.
	proves := h.hears && b.turns == h.turns
	if proves && s.Marked != nil && *s.Marked > 0 {
		w.marked = b.sent.Add(*s.Marked)
	}
	switch {
	case w.nudged:
		h.planLocked(w, now.Add(h.pace.safety))
	case h.hears && !proves:
		h.planLocked(w, now)
	// A look renews a mark that has half of its period left, where no lock is in the way.
	// Where one is, the mark will do as long as it covers a sleep.
	case h.hears && value(s.Marked) < markPeriod/4+time.Second:
		w.unmarked++
		w.marked = time.Time{}
		h.planLocked(w, now.Add(min(time.Millisecond<<min(w.unmarked, 6), 50*time.Millisecond)))
	default:
		w.unmarked = 0
		h.sleepLocked(w, now)
	}
}

// look asks the database about many work IDs and marks those that are held.
func (b *Backend) look(ctx context.Context, ids []string) (seen map[string]sight, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	conn, err := b.control.quick(ctx)
	if err != nil {
		return nil, notSent(err)
	}
	defer giveBack(conn, &err)
	rows, err := many[sight](ctx, conn, b.sql.look, []any{ids, markPeriod})
	if err != nil {
		return nil, err
	}
	seen = make(map[string]sight, len(rows))
	for _, s := range rows {
		seen[s.ID] = s
	}
	return seen, nil
}

// close ends the hub: everybody who waits is told, and their tries say that the
// Backend is closed.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	for _, w := range h.ids {
		h.nudgeAllLocked(w)
	}
	h.ears.closeLocked()
	h.mu.Unlock()
	h.cancel()
	h.wg.Wait()
}
