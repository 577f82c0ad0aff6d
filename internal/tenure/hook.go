package tenure

import (
	"context"
	"sync"
	"time"
)

// hook is a function that runs at most once in a goroutine of its own, some time
// after a context has ended, and that can be called off and waited for. A panic in it
// is raised in the goroutine that waits.
type hook struct {
	mu      sync.Mutex
	off     bool // called off: it will not start any more
	started bool
	cancel  func() bool // of what will start it

	done     chan struct{} // closed when it has run
	panicked any
}

// after returns a hook that runs f when ctx has ended and d has passed since.
func after(ctx context.Context, d time.Duration, f func()) *hook {
	h := &hook{done: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cancel = context.AfterFunc(ctx, func() {
		if d == 0 {
			h.run(f)
			return
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if !h.off {
			h.cancel = time.AfterFunc(d, func() { h.run(f) }).Stop
		}
	})
	return h
}

func (h *hook) run(f func()) {
	h.mu.Lock()
	if h.off {
		h.mu.Unlock()
		return
	}
	h.started = true
	h.mu.Unlock()
	defer close(h.done)
	defer func() { h.panicked = recover() }()
	f()
}

// callOff keeps the hook from starting and reports whether it has started already.
func (h *hook) callOff() (started bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.off = true
	h.cancel()
	return h.started
}

// stop calls the hook off, or waits for it if it has started.
func (h *hook) stop() {
	if !h.callOff() {
		return
	}
	<-h.done
	if h.panicked != nil {
		panic(h.panicked)
	}
}
