package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/aetomala/worklease/internal/fault"
)

func TestRoleOfTheTestItself(t *testing.T) {
	if got := fault.Role(); got != "" {
		t.Errorf("Role() = %q in a process that nobody started", got)
	}
}

func TestChildEchoes(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	await(t, c, "ready")
	for _, name := range []string{"first", "second"} {
		if err := c.Send(name, map[string]int{"n": 7}); err != nil {
			t.Fatal(err)
		}
	}
	// Out of order: an event that was passed over is still there.
	for _, name := range []string{"second", "first"} {
		e, err := c.Await(t.Context(), func(e fault.Event) bool {
			var inner fault.Event
			return e.Decode(&inner) == nil && inner.Name == name
		})
		if err != nil {
			t.Fatal(err)
		}
		var inner fault.Event
		var data map[string]int
		if err := errors.Join(e.Decode(&inner), inner.Decode(&data)); err != nil || data["n"] != 7 {
			t.Errorf("%v came back as %v: %v", name, e, err)
		}
	}
	names := []string{}
	for _, e := range c.Events() {
		names = append(names, e.Name)
	}
	if diff := cmp.Diff(names, []string{"ready", "echo", "echo"}); diff != "" {
		t.Errorf("events (-got +want):\n%s", diff)
	}
}

func TestChildTerminate(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	await(t, c, "ready")
	if err := c.Terminate(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Errorf("Wait after SIGTERM = %v", err)
	}
	await(t, c, "bye")
	// Each event is awaited once; the next wait ends because the child has.
	if _, err := c.Await(t.Context(), fault.Named("bye")); err == nil || !strings.Contains(err.Error(), "exit status 0") {
		t.Errorf("Await of a child that left = %v", err)
	}
	if err := c.Freeze(); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Freeze of a child that left = %v", err)
	}
}

// Before the role runs, SIGTERM would kill it: a child that was only just started
// ends as any other.
func TestChildTerminateAtOnce(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	if err := c.Terminate(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Errorf("Wait after SIGTERM = %v", err)
	}
}

func TestChildKill(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	await(t, c, "ready")
	c.Kill()
	var exit *exec.ExitError
	if err := c.Wait(t.Context()); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Errorf("Wait after SIGKILL = %v", err)
	}
}

func TestChildFreeze(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	await(t, c, "ready")
	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(stat), ") "); state[0] != 'T' {
			t.Errorf("state of a frozen child: %s", stat)
		}
	}
	if err := c.Send("while frozen", nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Thaw(); err != nil {
		t.Fatal(err)
	}
	await(t, c, "echo")

	if err := c.Freeze(); err != nil {
		t.Fatal(err)
	}
	c.Kill() // Works on a frozen one.
}

func TestChildFails(t *testing.T) {
	t.Parallel()
	c, err := fault.Start(fault.Command{Role: "fail"})
	if err != nil {
		t.Fatal(err)
	}
	_, awaited := c.Await(t.Context(), fault.Named("never"))
	for _, err := range []error{awaited, c.Wait(t.Context())} {
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 ||
			!strings.Contains(err.Error(), "on standard error") || !strings.Contains(err.Error(), "on purpose") {
			t.Errorf("error of a child that failed: %v", err)
		}
	}
}

func TestChildUnknownRole(t *testing.T) {
	t.Parallel()
	c, err := fault.Start(fault.Command{Role: "nobody"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), `no role "nobody"`) {
		t.Errorf("Wait = %v", err)
	}
}

func TestChildPrints(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "print")
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := c.Output(); !strings.Contains(got, "a word\n") || len(c.Events()) != 0 {
		t.Errorf("output %q, events %v", got, c.Events())
	}
}

func TestAwaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	c := fault.Spawn(t, "echo")
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := c.Await(ctx, fault.Named("never")); !errors.Is(err, why) {
		t.Errorf("Await = %v", err)
	}
	if err := c.Wait(ctx); !errors.Is(err, why) {
		t.Errorf("Wait = %v", err)
	}
}

func TestStartAnotherProgram(t *testing.T) {
	t.Parallel()
	var seen []fault.Event
	c, err := fault.Start(fault.Command{
		Path:    "/bin/sh",
		Args:    []string{"-c", `echo '{"event":"hello","data":"'$WHO'"}'`},
		Env:     []string{"WHO=you"},
		OnEvent: func(e fault.Event) { seen = append(seen, e) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []fault.Event{{Name: "hello", Data: []byte(`"you"`)}}
	if diff := cmp.Diff(seen, want); diff != "" {
		t.Errorf("events (-got +want):\n%s", diff)
	}
	if _, err := fault.Start(fault.Command{Path: "/nowhere"}); err == nil {
		t.Error("a program that is not there was started")
	}
}

// A grandchild holds a connection; killing its parent must close it.
func TestChildDiesWithItsParent(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("promised on Linux only")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	listener.(*net.TCPListener).SetDeadline(time.Now().Add(fault.Patience))
	parent := fault.Spawn(t, "nest", "FAULT_TEST_ADDR="+listener.Addr().String())
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	parent.Kill()
	conn.SetDeadline(time.Now().Add(fault.Patience))
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the grandchild lives on")
	}
}

func await(t *testing.T, c *fault.Child, name string) {
	t.Helper()
	if _, err := c.Await(t.Context(), fault.Named(name)); err != nil {
		t.Fatal(err)
	}
}
