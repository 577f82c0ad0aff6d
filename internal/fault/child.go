package fault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command says what [Start] starts.
type Command struct {
	Role    string      // what [RunRole] plays in the child
	Path    string      // the program; by default this one
	Args    []string    // its arguments, without the program's name
	Env     []string    // added to this process's environment, as KEY=value
	OnEvent func(Event) // called for each event in order, before Await sees it; it must not block
}

// Child is a process under the parent's thumb. Its methods are safe for
// concurrent use.
type Child struct {
	role  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // how it left; set before done is closed

	onEvent   func(Event)
	output    tail
	plays     bool          // RunRole is on its way
	attentive chan struct{} // closed when it heeds signals

	mu      sync.Mutex
	events  []Event
	awaited []bool // parallel to events: returned by Await
	changed chan struct{}
}

// Start starts a child process. On Linux it dies with its parent, however that
// ends; elsewhere the caller's Kill is all there is.
func Start(c Command) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	child := &Child{
		role:      c.Role,
		cmd:       exec.Command(cmp.Or(c.Path, self), c.Args...),
		done:      make(chan struct{}),
		plays:     c.Path == "" && c.Role != "",
		attentive: make(chan struct{}),
		onEvent:   c.OnEvent,
		changed:   make(chan struct{}),
	}
	child.cmd.Env = append(append(os.Environ(), c.Env...), roleVariable+"="+c.Role)
	child.cmd.Stdout = &eventWriter{child: child}
	child.cmd.Stderr = &child.output
	// A grandchild that inherited the pipes must not keep Wait from returning.
	child.cmd.WaitDelay = 5 * time.Second
	if child.stdin, err = child.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	attach(child.cmd)

	started := make(chan error)
	go child.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("fault: start %q: %w", c.Role, err)
	}
	return child, nil
}

// run starts the process and waits for its end on one thread: the kernel ties
// the child's life to the thread that started it, not to the process.
func (c *Child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err == nil {
		c.err = c.cmd.Wait()
		close(c.done)
	}
}

// Spawn starts this test binary in a role, for one test: the child is killed at
// the test's end. What it printed is logged when it failed or the test did, and
// a data race in it fails the test.
func Spawn(t TB, role string, env ...string) *Child {
	t.Helper()
	c, err := Start(Command{Role: role, Env: env})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		alive := c.alive()
		c.Kill()
		if strings.Contains(c.Output(), "WARNING: DATA RACE") {
			t.Errorf("data race in child %q", role)
		}
		if t.Failed() || !alive && c.err != nil && c.cmd.ProcessState.ExitCode() != -1 {
			t.Logf("child %q: %v\n%s", role, c.err, c.Output())
		}
	})
	return c
}

// Pid returns the child's process ID.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Done is closed when the child is gone and all its events have arrived.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits until the child is gone. It returns nil after exit status 0, and
// otherwise an error that wraps *exec.ExitError and tells what the child printed.
func (c *Child) Wait(ctx context.Context) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	select {
	case <-c.done:
	case <-ctx.Done():
		return fmt.Errorf("fault: wait for child %q: %w\n%s", c.role, context.Cause(ctx), c.Output())
	}
	if c.err != nil {
		return fmt.Errorf("fault: child %q: %w\n%s", c.role, c.err, c.Output())
	}
	return nil
}

// Kill ends the child with SIGKILL, frozen or not, and returns when it is gone.
func (c *Child) Kill() {
	c.cmd.Process.Kill()
	<-c.done
}

// Terminate sends SIGTERM, which ends the role's context, and does not wait for
// what follows. A role of this program that was only just started is first let come to
// where [RunRole] heeds signals: before, SIGTERM would kill it.
func (c *Child) Terminate() error {
	if c.plays {
		ctx, cancel := patient(context.Background())
		defer cancel()
		select {
		case <-c.attentive:
		case <-c.done:
		case <-ctx.Done():
			return fmt.Errorf("fault: terminate child %q: it never heeded signals: %w", c.role, context.Cause(ctx))
		}
	}
	return c.cmd.Process.Signal(syscall.SIGTERM)
}

// Freeze sends SIGSTOP. On Linux it returns when every thread of the child
// stands still; elsewhere that follows shortly.
func (c *Child) Freeze() error {
	if err := freeze(c.cmd.Process); err != nil {
		return fmt.Errorf("fault: freeze child %q: %w", c.role, err)
	}
	return nil
}

// Thaw sends SIGCONT to a frozen child.
func (c *Child) Thaw() error {
	if err := thaw(c.cmd.Process); err != nil {
		return fmt.Errorf("fault: thaw child %q: %w", c.role, err)
	}
	return nil
}

// Send gives the child's [Receive] an event.
func (c *Child) Send(name string, data any) error {
	raw, err := line(name, data)
	if err == nil {
		_, err = c.stdin.Write(raw)
	}
	if err != nil {
		return fmt.Errorf("fault: send %q to child %q: %w", name, c.role, err)
	}
	return nil
}

// Await waits for an event that matches and that no Await returned before.
// Events it passes over stay for later calls. When the child is gone without
// such an event, the error tells how it left and what it printed.
func (c *Child) Await(ctx context.Context, match func(Event) bool) (Event, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	for {
		// Asked before looking: when it was gone, the look saw all there is.
		alive := c.alive()
		e, found, changed := c.take(match)
		switch {
		case found:
			return e, nil
		case !alive:
			return Event{}, fmt.Errorf("fault: child %q left before the event: %w\n%s", c.role, cmp.Or(c.err, errExit0), c.Output())
		}
		select {
		case <-changed:
		case <-c.done:
		case <-ctx.Done():
			return Event{}, fmt.Errorf("fault: await an event of child %q: %w; so far %v\n%s", c.role, context.Cause(ctx), c.Events(), c.Output())
		}
	}
}

var errExit0 = errors.New("exit status 0")

// Events returns a copy of all events so far, awaited or not.
func (c *Child) Events() []Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]Event(nil), c.events...)
}

// Output returns the end of what the child printed: standard error, and lines
// of standard output that are no events.
func (c *Child) Output() string { return c.output.String() }

func (c *Child) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

func (c *Child) take(match func(Event) bool) (e Event, found bool, changed <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range c.events {
		if !c.awaited[i] && match(e) {
			c.awaited[i] = true
			return e, true, nil
		}
	}
	return Event{}, false, c.changed
}

func (c *Child) heard(e Event) {
	if e.Name == attentiveEvent {
		close(c.attentive)
		return
	}
	if c.onEvent != nil {
		c.onEvent(e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, e)
	c.awaited = append(c.awaited, false)
	close(c.changed)
	c.changed = make(chan struct{})
}

// eventWriter cuts the child's standard output into events.
type eventWriter struct {
	child   *Child
	partial []byte
}

func (w *eventWriter) Write(p []byte) (int, error) {
	w.partial = append(w.partial, p...)
	for {
		raw, rest, whole := bytes.Cut(w.partial, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		if e, ok := parseLine(raw); ok {
			w.child.heard(e)
		} else {
			fmt.Fprintf(&w.child.output, "%s\n", raw)
		}
		w.partial = rest
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailSize = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if over := len(t.end) - tailSize; over > 0 {
		t.end = append(t.end[:0], t.end[over:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
