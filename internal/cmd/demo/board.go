package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aetomala/worklease/internal/fault"
)

// board is what the parent knows, from what its workers tell it.
type board struct {
	begun time.Time

	mu      sync.Mutex // guards all that follows, and the fields of work and hand that say so
	changed chan struct{}
	over    bool  // the workers are dismissed
	failed  error // a worker left without being told to
	works   []*work
	byID    map[string]*work
	crew    []*hand // the current process of each worker
	pace    float64
	ceiling float64 // how far the pace may go
	news    []entry

	kills     int
	takeovers []acquired
	refusals  []refused
	parted    map[hold]time.Time // when owners were killed, frozen or about to leave
}

// A work is one folder on its way into the table.
type work struct {
	assignment

	// Guarded by board.mu.
	position int
	token    uint64
	owner    *hand // the last one known
	done     bool
	left     []parting
}

// A parting is how an owner left, in words.
type parting struct{ name, how string }

// hold is one ownership of one work.
type hold struct {
	work  string
	token uint64
}

// hand is one worker process.
type hand struct {
	name  string
	child *fault.Child

	// Guarded by board.mu.
	state   handState
	rest    *resting // where it stands, once it was told to rest
	resting bool     // it was told to
}

type handState string

const (
	running handState = "running"
	killed  handState = "killed"
	frozen  handState = "frozen"
	stopped handState = "told to stop"
	gone    handState = "gone" // it left by itself
)

// An entry is one line of what happened.
type entry struct {
	at   time.Duration
	text string
}

func newBoard(works []assignment) *board {
	b := &board{
		begun: time.Now(), changed: make(chan struct{}),
		byID: map[string]*work{}, parted: map[hold]time.Time{},
	}
	for _, a := range works {
		w := &work{assignment: a}
		b.works = append(b.works, w)
		b.byID[a.Source.ID] = w
	}
	return b
}

// update changes what f changes, and lets those look who await something.
func (b *board) update(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

// report adds a line of what happened.
func (b *board) report(format string, args ...any) {
	b.update(func() {
		b.news = append(b.news, entry{time.Since(b.begun), fmt.Sprintf(format, args...)})
	})
}

// await waits until cond, which is called under the lock, is true. It gives up after bound and when
// a worker has failed; what says what was waited for.
func (b *board) await(ctx context.Context, bound time.Duration, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("waited %v in vain: %s", bound, what))
	defer cancel()
	for {
		b.mu.Lock()
		met, failed, changed := cond(), b.failed, b.changed
		b.mu.Unlock()
		if failed != nil || met {
			return failed
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// heard takes in an event of a worker.
func (b *board) heard(h *hand, e fault.Event) {
	b.update(func() {
		if err := b.takeLocked(h, e); err != nil && b.failed == nil {
			b.failed = fmt.Errorf("event %v of %s: %w", e, h.name, err)
		}
	})
}

func (b *board) takeLocked(h *hand, e fault.Event) error {
	switch e.Name {
	case eventAcquired:
		return decoded(e, func(a acquired) { b.acquiredLocked(h, a) })
	case eventStepped:
		return decoded(e, func(s stepped) {
			if w := b.byID[s.Work]; w.token == s.Token {
				w.position = s.Position
			}
		})
	case eventResting:
		return decoded(e, func(r resting) {
			if h.rest = &r; !h.resting {
				go h.child.Send(eventGo, nil) // It was called off meanwhile.
			}
		})
	case eventRefused:
		return decoded(e, func(r refused) { b.refusals = append(b.refusals, r) })
	case eventLeaving:
		return decoded(e, func(l leaving) { b.partLocked(hold{l.Work, l.Token}, l.At) })
	case eventRetired:
		return decoded(e, func(id string) {
			w := b.byID[id]
			w.done, w.position = true, w.Source.Lines
		})
	}
	return fmt.Errorf("unknown")
}

func decoded[T any](e fault.Event, take func(T)) error {
	var data T
	if err := e.Decode(&data); err != nil {
		return err
	}
	take(data)
	return nil
}

func (b *board) acquiredLocked(h *hand, a acquired) {
	w := b.byID[a.Work]
	if a.Exit != "none" {
		b.takeovers = append(b.takeovers, a)
		w.left = append(w.left, parting{a.PriorHolder, w.howLocked(a)})
	}
	// Events of two workers may overtake each other.
	if a.Token > w.token {
		w.token, w.owner, w.position = a.Token, h, a.Position
	}
}

// howLocked tells how the prior owner left: what the successor was told, and for a crash what the
// parent knows of it.
func (w *work) howLocked(a acquired) string {
	switch {
	case a.Exit == "released":
		return "handed over"
	case a.Exit == "expired" && w.owner != nil && w.token == a.PriorToken && w.owner.state != running:
		return string(w.owner.state)
	}
	return a.Exit
}

// partLocked notes when a hold ended; the first time is the one that counts.
func (b *board) partLocked(h hold, at time.Time) {
	if _, known := b.parted[h]; !known {
		b.parted[h] = at
	}
}

// ownedLocked returns the works that h owns and that are not done.
func (b *board) ownedLocked(h *hand) []*work {
	var owned []*work
	for _, w := range b.works {
		if w.owner == h && !w.done {
			owned = append(owned, w)
		}
	}
	return owned
}

// endLocked notes that h was killed, frozen or told to stop.
func (b *board) endLocked(h *hand, how handState) {
	now := time.Now()
	h.state = how
	for _, w := range b.ownedLocked(h) {
		if how != stopped {
			b.partLocked(hold{w.Source.ID, w.token}, now)
		}
	}
}

// tookOverLocked tells in words who owns the works now.
func tookOverLocked(works []*work) string {
	count := map[string]int{}
	for _, w := range works {
		if w.owner != nil {
			count[w.owner.name]++
		}
	}
	text := ""
	for _, name := range slices.Sorted(maps.Keys(count)) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%s %d", name, count[name])
	}
	return text
}
