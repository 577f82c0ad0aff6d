package worklease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease/internal/isnil"
)

// LeaseObserver is told of every operation after it ended, successful or not, with
// the error that the caller gets; Duration is that of the last backend call, and zero
// if there was none. It is called in the caller's goroutine, by many at once, and
// OnFenced after the operation's own event. Events of renewals that StartRenewal
// makes come from a goroutine of their own, one at a time and in order, out of a
// bounded queue: an observer that blocks or panics there costs no lease, only
// events; drops are counted and panics recovered, and both are logged to
// [slog.Default]. In the caller's goroutine a panic goes on up.
//
// Prior, Forget and Deadline have no events; a Step of pgxbackend is a checkpoint.
//
// The interface may grow: embed [NopObserver].
type LeaseObserver interface {
	// OnAcquire: a call of Acquire has ended, however often it asked.
	OnAcquire(ctx context.Context, e AcquireEvent)

	// OnCheckpoint: a Checkpoint or a Step has ended; a Step whose function failed has not
	// come to it.
	OnCheckpoint(ctx context.Context, e CheckpointEvent)

	// OnRenew: a renewal has ended, of Renew or of StartRenewal.
	OnRenew(ctx context.Context, e RenewEvent)

	// OnRelease: a Release has ended.
	OnRelease(ctx context.Context, e ReleaseEvent)

	// OnReadCheckpoint: a ReadCheckpoint has ended.
	OnReadCheckpoint(ctx context.Context, e ReadCheckpointEvent)

	// OnFenced: the event before it was a Checkpoint, Renew or Release that was fenced.
	OnFenced(ctx context.Context, e FencedEvent)
}

// AcquireEvent tells of one call of Acquire, however often it asked. Duration is
// the last backend call, Waited all that came before it. Token is zero when Err is
// set.
type AcquireEvent struct {
	WorkID   string
	Token    Token
	Duration time.Duration
	Waited   time.Duration
	Err      error
}

// CheckpointEvent tells of one Checkpoint, or a Step. Size is the length in bytes of
// what the caller passed.
type CheckpointEvent struct {
	Token    Token
	Size     int
	Duration time.Duration
	Err      error
}

// RenewEvent tells of one renewal. Attempt counts from 1 inside one cycle of
// retries; it is always 1 for a direct Renew.
type RenewEvent struct {
	Token    Token
	Duration time.Duration
	Attempt  int
	Err      error
}

// ReleaseEvent tells of a release and the exit it declared.
type ReleaseEvent struct {
	Token    Token
	Exit     Exit
	Duration time.Duration
	Err      error
}

// ReadCheckpointEvent tells of one ReadCheckpoint. Size is in bytes, of what is stored.
type ReadCheckpointEvent struct {
	Token        Token
	Duration     time.Duration
	CleanHandoff bool
	Size         int
	Err          error
}

// FencedEvent tells that a Checkpoint, Renew or Release was refused, as a newer token
// exists or the row is gone: an owner went on for longer than it owned.
type FencedEvent struct {
	Token     Token
	Operation Operation
}

// Operation is what was being done when the fence was met.
type Operation uint8

// The operations that can be fenced.
const (
	OperationCheckpoint Operation = iota
	OperationRenew
	OperationRelease
)

var operationNames = [...]string{"checkpoint", "renew", "release"}

// String returns checkpoint, renew or release.
func (o Operation) String() string { return enumName("Operation", operationNames[:], int(o)) }

// NopObserver ignores every event. Embed it, and implement what you want to see.
type NopObserver struct{}

// OnAcquire does nothing.
func (NopObserver) OnAcquire(context.Context, AcquireEvent) {}

// OnCheckpoint does nothing.
func (NopObserver) OnCheckpoint(context.Context, CheckpointEvent) {}

// OnRenew does nothing.
func (NopObserver) OnRenew(context.Context, RenewEvent) {}

// OnRelease does nothing.
func (NopObserver) OnRelease(context.Context, ReleaseEvent) {}

// OnReadCheckpoint does nothing.
func (NopObserver) OnReadCheckpoint(context.Context, ReadCheckpointEvent) {}

// OnFenced does nothing.
func (NopObserver) OnFenced(context.Context, FencedEvent) {}

// observer delivers events; its zero value tells nobody.
type observer struct {
	to    LeaseObserver
	queue eventQueue
	kept  atomic.Int64 // renewals that may have an event at the same time
}

func observed(to LeaseObserver) *observer {
	if isnil.Value(to) {
		to = nil
	}
	return &observer{to: to}
}

func (o *observer) acquired(ctx context.Context, e AcquireEvent) {
	if o.to != nil {
		o.to.OnAcquire(ctx, e)
	}
}

func (o *observer) checkpointed(ctx context.Context, e CheckpointEvent) {
	if o.to != nil {
		o.to.OnCheckpoint(ctx, e)
		o.fenced(ctx, e.Token, OperationCheckpoint, e.Err)
	}
}

func (o *observer) renewed(ctx context.Context, e RenewEvent) {
	if o.to != nil {
		o.to.OnRenew(ctx, e)
		o.fenced(ctx, e.Token, OperationRenew, e.Err)
	}
}

func (o *observer) released(ctx context.Context, e ReleaseEvent) {
	if o.to != nil {
		o.to.OnRelease(ctx, e)
		o.fenced(ctx, e.Token, OperationRelease, e.Err)
	}
}

func (o *observer) read(ctx context.Context, e ReadCheckpointEvent) {
	if o.to != nil {
		o.to.OnReadCheckpoint(ctx, e)
	}
}

func (o *observer) fenced(ctx context.Context, t Token, op Operation, err error) {
	if errors.Is(err, ErrFenced) {
		o.to.OnFenced(ctx, FencedEvent{Token: t, Operation: op})
	}
}

// renewedLater queues the event of a renewal that no caller is waiting for.
func (o *observer) renewedLater(ctx context.Context, e RenewEvent) {
	if o.to != nil {
		o.queue.push(func() { o.renewed(ctx, e) }, max(minQueuedEvents, 4*int(o.kept.Load())))
	}
}

// minQueuedEvents bounds what a blocked observer can make us keep. Where there are many
// leases it is more: a batch has an event for each, all at once.
const minQueuedEvents = 1024

// eventQueue runs events in order, in one goroutine that lives while there are any.
type eventQueue struct {
	mu       sync.Mutex
	events   []func()
	draining bool
	dropped  int
}

func (q *eventQueue) push(event func(), most int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) >= most {
		q.dropped++
		if q.dropped == 1 {
			slog.Warn("worklease: observer is too slow, renewal events are dropped", "queued", len(q.events))
		}
		return
	}
	q.events = append(q.events, event)
	if !q.draining {
		q.draining = true
		go q.drain()
	}
}

func (q *eventQueue) drain() {
	empty := false
	// An event may end this goroutine with runtime.Goexit; the rest is still owed.
	defer func() {
		if !empty {
			go q.drain()
		}
	}()
	for {
		event, ok := q.next()
		if !ok {
			empty = true
			return
		}
		deliver(event)
	}
}

func (q *eventQueue) next() (event func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		q.events = nil
		q.draining = false
		if q.dropped > 0 {
			slog.Warn("worklease: renewal events were dropped", "count", q.dropped)
			q.dropped = 0
		}
		return nil, false
	}
	event = q.events[0]
	q.events[0] = nil
	q.events = q.events[1:]
	return event, true
}

func deliver(event func()) {
	defer func() {
		if r := recover(); r != nil {
			slog.Error("worklease: observer panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
		}
	}()
	event()
}
