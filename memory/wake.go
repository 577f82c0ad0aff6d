package memory

import (
	"slices"
	"time"

	"github.com/aetomala/worklease"
)

// watched is one work ID and those who wait for it, first come first. It is guarded
// by Backend.mu.
type watched struct {
	waiters []*waiter
	nudged  bool        // the first in line has been told, and no verdict has come since
	timer   *time.Timer // fires when the lease runs out
}

type waiter struct {
	nudge chan struct{}
	poll  time.Duration
}

// Watch implements [worklease.Waker]. Waiters are woken by what frees the work in
// this Backend and by package time when a lease runs out; under a clock of
// [WithClock], which timers do not follow, they also poll.
func (b *Backend) Watch(workID string, poll time.Duration) (nudge <-chan struct{}, stop func()) {
	me := &waiter{nudge: make(chan struct{}, 1), poll: max(poll, time.Millisecond)}
	b.mu.Lock()
	defer b.mu.Unlock()
	w := b.watched[workID]
	if w == nil {
		w = &watched{}
		b.watched[workID] = w
	}
	w.waiters = append(w.waiters, me)
	if len(w.waiters) == 1 {
		w.nudge()
	}
	return me.nudge, func() { b.leave(workID, w, me) }
}

func (b *Backend) leave(workID string, w *watched, me *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.Index(w.waiters, me)
	if i < 0 {
		return
	}
	w.waiters = slices.Delete(w.waiters, i, i+1)
	switch {
	case len(w.waiters) == 0:
		w.stopTimer()
		delete(b.watched, workID)
	case i == 0 && w.nudged:
		w.nudge()
	}
}

// nudge tells the first in line to try.
func (w *watched) nudge() {
	w.nudged = true
	select {
	case w.waiters[0].nudge <- struct{}{}:
	default:
	}
}

func (w *watched) stopTimer() {
	if w.timer != nil {
		w.timer.Stop()
	}
}

// freedLocked wakes who waits for work that has become free.
func (b *Backend) freedLocked(workID string) {
	if w := b.watched[workID]; w != nil {
		w.nudge()
	}
}

// judgedLocked ends the turn of the first in line: an attempt has found the work held,
// or has taken it, for so long yet.
func (b *Backend) judgedLocked(workID string, remaining time.Duration) {
	w := b.watched[workID]
	if w == nil {
		return
	}
	w.nudged = false
	w.stopTimer()
	if b.clock != (systemClock{}) {
		remaining = min(remaining, w.waiters[0].poll)
	}
	w.timer = time.AfterFunc(max(remaining, 0), func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.watched[workID] == w && len(w.waiters) > 0 {
			w.nudge()
		}
	})
}

var (
	_ worklease.Waker        = (*Backend)(nil)
	_ worklease.BatchRenewer = (*Backend)(nil)
)
