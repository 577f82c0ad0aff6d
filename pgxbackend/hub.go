package pgxbackend

import (
	"container/heap"
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
)

const (
	// markPeriod is for how long a mark asks for notifications. Nobody sleeps for
	// longer than what is sure to be left of it.
	markPeriod = time.Minute

	// safetyLook is the longest sleep while notifications are heard.
	safetyLook = markPeriod / 2

	// gatherTime is how long a new watcher waits for others to be looked at with.
	gatherTime = 2 * time.Millisecond

	// lookBatch is the largest number of work IDs that one statement looks at.
	lookBatch = 500

	// lookBound is how long a look may take.
	lookBound = 5 * time.Second

	// lingerTime is how long the hub keeps its connection when nobody waits.
	lingerTime = time.Minute
)

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
	ears    ears
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	wake    chan struct{} // one slot: what is due first has changed
	crowd   atomic.Int64  // number of watched work IDs, to be asked without the lock

	mu      sync.Mutex
	ids     map[string]*watched
	due     lookHeap
	looking bool // the loop runs
	hears   bool // notifications arrive
	closed  bool
	looks   int64
}

// watched is one work ID and those who wait for it, first come first.
type watched struct {
	id      string
	waiters []*waiter

	nudges   uint64    // counts what the first in line was told
	nudged   bool      // and no verdict has come since the last
	looked   time.Time // when the last look was sent
	expiry   time.Time // of the lease, as last heard, by our clock
	marked   time.Time // until when the mark is sure to stand, by our clock
	unmarked int       // looks in a row that did not confirm it

	since time.Time // when the present sleep began
	at    time.Time // when to look next
	index int       // in the heap
}

type waiter struct {
	nudge chan struct{}
	poll  time.Duration
}

func newHub(b *Backend, o options) *hub {
	h := &hub{backend: b, log: o.log, wake: make(chan struct{}, 1), ids: make(map[string]*watched)}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.ears = newEars(h, o)
	return h
}

// Watch implements [worklease.Waker].
func (b *Backend) Watch(workID string, poll time.Duration) (nudge <-chan struct{}, stop func()) {
	return b.hub.watch(workID, poll)
}

func (h *hub) watch(id string, poll time.Duration) (<-chan struct{}, func()) {
	me := &waiter{nudge: make(chan struct{}, 1), poll: poll}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		me.nudge <- struct{}{} // the try will say so
		return me.nudge, func() {}
	}
	w, ok := h.ids[id]
	if !ok {
		w = &watched{id: id, index: -1}
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
		heap.Remove(&h.due, w.index)
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
	h.planLocked(w, time.Now().Add(safetyLook))
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

// found is called when the acquisition has found the work held, or has taken it, for
// so long yet. It ends the turn, unless something has happened since it was sent.
func (h *hub) found(a attempt, remaining time.Duration) {
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
	w.expiry = a.sent.Add(remaining)
	h.sleepLocked(w, time.Now())
}

// sleepLocked plans the next look at work that is held.
func (h *hub) sleepLocked(w *watched, now time.Time) {
	expiry := w.expiry.Add(2*time.Millisecond + rand.N(6*time.Millisecond))
	switch mark := w.marked.Add(-markPeriod / 4); {
	case !h.hears:
		poll := w.waiters[0].poll
		for _, other := range w.waiters[1:] {
			poll = min(poll, other.poll)
		}
		poll -= rand.N(poll/10 + 1)
		h.planLocked(w, earliest(now.Add(poll), expiry))
	case now.Before(mark):
		h.planLocked(w, earliest(expiry, mark, w.looked.Add(safetyLook)))
	default:
		h.planLocked(w, now.Add(gatherTime))
	}
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
	w.since, w.at = time.Now(), at
	if w.index < 0 {
		heap.Push(&h.due, w)
	} else {
		heap.Fix(&h.due, w.index)
	}
	if w.index == 0 {
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
// begin to arrive everything is looked at: until then anything may have happened.
func (h *hub) setHearsLocked(hears bool) {
	if h.hears == hears {
		return
	}
	h.hears = hears
	now := time.Now()
	for _, w := range h.ids {
		w.unmarked = 0
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
		if len(batch) > 0 {
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
				sleep(h.ctx, lookBackoff.Wait(failures)) // new watchers mend no fault
			}
		case <-h.ctx.Done():
			return
		}
	}
}

// next returns what to look at now, or how long there is nothing. Work IDs that have
// slept for more than half of their time come along: so all that are held with one
// TTL soon travel together, twice per TTL.
func (h *hub) next() (batch []string, pause time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ids) == 0 || h.closed {
		h.looking = false
		return nil, 0, false
	}
	now := time.Now()
	if pause := h.due[0].at.Sub(now); pause > 0 {
		return nil, pause, true
	}
	var rest []string
	for _, w := range h.due {
		switch {
		case !w.at.After(now):
			batch = append(batch, w.id)
		case !w.nudged && w.at.Sub(now) <= now.Sub(w.since)+gatherTime:
			rest = append(rest, w.id)
		}
		if len(batch) == lookBatch {
			break
		}
	}
	batch = append(batch, rest[:min(len(rest), lookBatch-len(batch))]...)
	return batch, 0, true
}

// sight is what a look saw of one work ID.
type sight struct {
	free      bool
	remaining *time.Duration
	marked    *time.Duration
}

// look looks at a batch and returns the number of failures in a row.
func (h *hub) look(batch []string, failures int) int {
	sent := time.Now()
	seen, err := h.backend.look(h.ctx, batch)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looks++
	switch {
	case err == nil:
		for id, s := range seen {
			if w, ok := h.ids[id]; ok {
				h.sawLocked(w, s, sent)
			}
		}
		return 0
	case h.ctx.Err() != nil:
		return failures
	case isPermanent(err):
		// No waiting mends this: each waiter's own try says what it is.
		for _, w := range h.ids {
			h.nudgeAllLocked(w)
		}
	}
	if failures == 0 {
		h.log.Warn("worklease: cannot look at leases that are waited for; trying on", "error", err)
	}
	return failures + 1
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

func (h *hub) sawLocked(w *watched, s sight, sent time.Time) {
	w.looked = sent
	if s.free {
		h.nudgeLocked(w)
		return
	}
	w.expiry = sent.Add(value(s.remaining))
	if s.marked != nil && *s.marked > 0 {
		w.marked = sent.Add(*s.marked)
	}
	if w.nudged {
		h.planLocked(w, time.Now().Add(safetyLook))
		return
	}
	// Half the period is what a look leaves at the least where it could mark.
	if h.hears && value(s.marked) < markPeriod/2-time.Second {
		w.unmarked++
		w.marked = time.Time{}
		h.planLocked(w, time.Now().Add(min(time.Millisecond<<min(w.unmarked, 6), 50*time.Millisecond)))
		return
	}
	w.unmarked = 0
	h.sleepLocked(w, time.Now())
}

// look asks the database about many work IDs and marks those that are held.
func (b *Backend) look(ctx context.Context, ids []string) (map[string]sight, error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	conn, err := b.control.lane(ctx)
	if err != nil {
		return nil, notSent(err)
	}
	defer conn.Release()
	rows, err := conn.Query(ctx, b.sql.look, ids, markPeriod)
	if err != nil {
		return nil, classify(err)
	}
	defer rows.Close()
	seen := make(map[string]sight, len(ids))
	for rows.Next() {
		var id string
		var s sight
		if err := rows.Scan(&id, &s.free, &s.remaining, &s.marked, nil); err != nil {
			return nil, err
		}
		seen[id] = s
	}
	if err := rows.Err(); err != nil {
		return nil, classify(err)
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

// sleep waits for d or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// lookHeap orders work IDs by when to look next.
type lookHeap []*watched

func (d lookHeap) Len() int           { return len(d) }
func (d lookHeap) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d lookHeap) Swap(i, j int) {
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

func (d *lookHeap) Push(x any) {
	w := x.(*watched)
	w.index = len(*d)
	*d = append(*d, w)
}

func (d *lookHeap) Pop() any {
	old := *d
	n := len(old) - 1
	w := old[n]
	old[n] = nil
	*d = old[:n]
	w.index = -1
	return w
}
