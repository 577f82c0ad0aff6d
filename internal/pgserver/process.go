package pgserver

import (
	"context"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// A process is a child whose end can be waited for by many.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and was reaped
}

// startProcess starts the child from a goroutine that keeps its thread until the child's end: to
// Linux the parent of a child is the thread that started it, and Go ends idle threads.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// immediately is PostgreSQL's immediate shutdown.
const immediately = syscall.SIGQUIT

// quit asks the postmaster to end at once and take its children along.
func (p *process) quit() { _ = p.cmd.Process.Signal(immediately) }

// interrupt asks it for a fast shutdown.
func (p *process) interrupt() { _ = p.cmd.Process.Signal(syscall.SIGINT) }

// kill ends the child's whole group.
func (p *process) kill() { killGroup(p.cmd.Process.Pid) }

// runWithin runs a child to its end, or kills it when ctx ends, and returns what it wrote.
func runWithin(ctx context.Context, cmd *exec.Cmd) (string, error) {
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	endWithParent(cmd.SysProcAttr, immediately)
	p, err := startProcess(cmd)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.kill()
		<-p.done
		return out.String(), context.Cause(ctx)
	}
	if !cmd.ProcessState.Success() {
		return out.String(), &exec.ExitError{ProcessState: cmd.ProcessState}
	}
	return out.String(), nil
}
