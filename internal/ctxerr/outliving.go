package ctxerr

import (
	"context"
	"sync"
	"time"
)

// Outliving is a context with the values of its parent and an end of its own, as
// context.WithTimeout(context.WithoutCancel(parent), d) is. It is for what mostly is
// over before anybody asked for Done: the timer is made when somebody does.
type Outliving struct {
	parent   context.Context
	deadline time.Time

	mu       sync.Mutex
	timed    context.Context // nil until it is needed
	stop     context.CancelFunc
	canceled bool
}

// Outlive returns an Outliving that ends in d. The caller cancels it.
func Outlive(ctx context.Context, d time.Duration) *Outliving {
	return &Outliving{parent: ctx, deadline: time.Now().Add(d)}
}

func (o *Outliving) made() context.Context {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.timed == nil {
		o.timed, o.stop = context.WithDeadline(context.WithoutCancel(o.parent), o.deadline)
		if o.canceled {
			o.stop()
		}
	}
	return o.timed
}

// Cancel ends the context now, as a [context.CancelFunc] does.
func (o *Outliving) Cancel() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.canceled = true
	if o.stop != nil {
		o.stop()
	}
}

// Deadline implements [context.Context].
func (o *Outliving) Deadline() (time.Time, bool) { return o.deadline, true }

// Done implements [context.Context].
func (o *Outliving) Done() <-chan struct{} { return o.made().Done() }

// Value implements [context.Context].
func (o *Outliving) Value(key any) any { return o.made().Value(key) }

// Err implements [context.Context].
func (o *Outliving) Err() error {
	o.mu.Lock()
	lives := o.timed == nil && !o.canceled && time.Now().Before(o.deadline)
	o.mu.Unlock()
	if lives {
		return nil
	}
	return o.made().Err()
}
