package worklease

import "context"

// StopTimers keeps the timers of a renewal's context from firing, as in a process
// that was stopped and whose first act is to look at the context.
func StopTimers(ctx context.Context) { ctx.(renewalContext).renewal.timer.Stop() }

// Holds returns of how many tokens a Lease knows something.
func Holds(l Lease) int {
	inner := l.(*lease)
	inner.mu.Lock()
	defer inner.mu.Unlock()
	return len(inner.holds)
}
