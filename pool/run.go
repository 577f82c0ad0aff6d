package pool

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"sync"
)

// run is what the slots of one Run leave behind.
type run struct {
	stop context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	deaths   []error
	crashed  bool
	panicked any // nil: by Goexit
}

// shield runs a slot, notes how it ended, and stops the others when that was a crash.
func (r *run) shield(s *slot) {
	returned := false
	defer func() {
		if !returned {
			r.crash(s.workID, recover())
		}
	}()
	death := s.run()
	returned = true
	if death != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.deaths = append(r.deaths, death)
	}
}

func (r *run) crash(workID string, panicked any) {
	how := "called runtime.Goexit"
	if panicked != nil {
		how = fmt.Sprintf("panicked: %v", panicked)
		// Where Run panics, this stack is gone.
		slog.Error("worklease: slot of a pool panicked", "work_id", workID, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	}
	r.mu.Lock()
	r.crashed = true
	if r.panicked == nil {
		r.panicked = panicked
	}
	r.mu.Unlock()
	r.stop(fmt.Errorf("worklease: run pool: the slot of %q %s", workID, how))
}

// raise repeats a crash in the goroutine of Run.
func (r *run) raise() {
	switch {
	case r.panicked != nil:
		panic(r.panicked)
	case r.crashed:
		runtime.Goexit()
	}
}
