package worklease

import "context"

// StopTimers keeps the timers of a renewal's context from firing, as in a process
// that was stopped and whose first act is to look at the context.
func StopTimers(ctx context.Context) { ctx.(renewalContext).renewal.timer.Stop() }
