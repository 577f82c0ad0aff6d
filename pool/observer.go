package pool

import (
	"context"
	"time"

	"github.com/aetomala/worklease"
)

// Observer is told what happens to the slots. It is called with a context of Run's,
// which may have ended, in the slot's own goroutine: events of a slot come in order and
// one at a time, those of several slots at once. One that blocks holds up its slot,
// which keeps a lease that it has, and Run with it. A panic is one of the slot; see
// [Pool.Run].
//
// An OnSlotAcquired is followed by one of OnSlotBackoff, OnSlotLost, OnSlotDead and
// OnSlotRetired, once the function has returned and the farewell is over, or by the
// OnSlotReleased of an observer that is a [ReleaseObserver] too, unless the slot panics.
// All but OnSlotReleased also come by themselves, for an acquisition that failed or a
// lease that was not the slot's for long enough to call the function.
//
// The interface may grow: embed [NopObserver].
type Observer interface {
	// OnSlotAcquired: the slot has its lease, and the function is about to be called.
	OnSlotAcquired(ctx context.Context, e SlotAcquiredEvent)

	// OnSlotBackoff: the function, the acquisition or the farewell failed, and the slot
	// goes on after a pause.
	OnSlotBackoff(ctx context.Context, e SlotBackoffEvent)

	// OnSlotLost: the lease was lost, stalled or outlived, and the function, whose
	// context ended at that moment, has returned. The slot goes on.
	OnSlotLost(ctx context.Context, e SlotLostEvent)

	// OnSlotDead: the slot has ended with a PermanentError.
	OnSlotDead(ctx context.Context, e SlotDeadEvent)

	// OnSlotRetired: the slot has ended, as its work is done for good.
	OnSlotRetired(ctx context.Context, e SlotRetiredEvent)
}

// ReleaseObserver is an [Observer] that is also told when all went well. [NopObserver]
// is one.
type ReleaseObserver interface {
	// OnSlotReleased: the function returned nil, or that ctx had ended, and the lease was
	// given back in order.
	OnSlotReleased(ctx context.Context, e SlotReleasedEvent)
}

// SlotAcquiredEvent tells of a lease acquired.
type SlotAcquiredEvent struct {
	WorkID string
}

// SlotReleasedEvent tells of a lease given back. Exit is how: ExitReleased, or
// ExitAbandoned by a function that was interrupted on shutdown and said so.
type SlotReleasedEvent struct {
	WorkID string
	Exit   worklease.Exit
}

// SlotBackoffEvent tells of a failure. Duration is the pause that follows; zero when
// ctx has ended.
type SlotBackoffEvent struct {
	WorkID   string
	Err      error
	Duration time.Duration
}

// SlotLostEvent tells of a loss. Err Is its cause, joined with the function's error.
type SlotLostEvent struct {
	WorkID string
	Err    error
}

// SlotDeadEvent tells of a death, and what the slot died of.
type SlotDeadEvent struct {
	WorkID string
	Err    error
}

// SlotRetiredEvent tells of work that is done for good.
type SlotRetiredEvent struct {
	WorkID string
}

// NopObserver ignores every event. Embed it, and implement what you want to see.
type NopObserver struct{}

// OnSlotAcquired does nothing.
func (NopObserver) OnSlotAcquired(context.Context, SlotAcquiredEvent) {}

// OnSlotReleased does nothing.
func (NopObserver) OnSlotReleased(context.Context, SlotReleasedEvent) {}

// OnSlotBackoff does nothing.
func (NopObserver) OnSlotBackoff(context.Context, SlotBackoffEvent) {}

// OnSlotLost does nothing.
func (NopObserver) OnSlotLost(context.Context, SlotLostEvent) {}

// OnSlotDead does nothing.
func (NopObserver) OnSlotDead(context.Context, SlotDeadEvent) {}

// OnSlotRetired does nothing.
func (NopObserver) OnSlotRetired(context.Context, SlotRetiredEvent) {}
