package fault

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

const roleVariable = "WORKLEASE_FAULT_ROLE"

// attentiveEvent is RunRole's own: from here on SIGTERM ends the role's context.
// The parent's Await and Events do not see it.
const attentiveEvent = "fault: attentive"

// Role returns the role this process was started in by [Start] or [Spawn], and
// "" in any other process.
func Role() string { return os.Getenv(roleVariable) }

// RunRole plays this process's role and exits: 0 when the function returned nil,
// 1 after printing its error. In a process without a role it returns at once,
// so it stands first in TestMain or main. SIGTERM and SIGINT end the context.
func RunRole(roles map[string]func(context.Context) error) {
	if Role() == "" {
		return
	}
	play, ok := roles[Role()]
	if !ok {
		fmt.Fprintf(os.Stderr, "fault: no role %q\n", Role())
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	Emit(attentiveEvent, nil)
	err := play(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "fault: role %q: %v\n", Role(), err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Emit sends an event to the parent. It panics when data has no JSON form. It
// is safe for concurrent use.
func Emit(name string, data any) {
	raw, err := line(name, data)
	if err != nil {
		panic(fmt.Sprintf("fault: emit %q: %v", name, err))
	}
	os.Stdout.Write(raw) // A parent that is gone takes this process with it.
}

// Receive waits, without bound, for the next event from the parent's
// [Child.Send]. It returns io.EOF once the parent sends no more.
func Receive(ctx context.Context) (Event, error) {
	select {
	case e, ok := <-fromParent():
		if !ok {
			return Event{}, io.EOF
		}
		return e, nil
	case <-ctx.Done():
		return Event{}, context.Cause(ctx)
	}
}

// fromParent reads standard input from its first use to the process's end: a
// read of it cannot be cancelled.
var fromParent = sync.OnceValue(func() <-chan Event {
	events := make(chan Event)
	go func() {
		defer close(events)
		in := bufio.NewScanner(os.Stdin)
		in.Buffer(nil, 16<<20)
		for in.Scan() {
			if e, ok := parseLine(in.Bytes()); ok {
				events <- e
			}
		}
	}()
	return events
})
