//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// prepare gives the command a process group of its own, so that a signal that was sent to us alone
// reaches all of it: go test does not pass an interrupt on to the tests it runs.
func prepare(cmd *exec.Cmd, group bool) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: group}
	endWithParent(cmd.SysProcAttr)
}

func send(p *os.Process, sig os.Signal, group bool) {
	if group {
		_ = syscall.Kill(-p.Pid, sig.(syscall.Signal))
		return
	}
	_ = p.Signal(sig)
}

// exitCode is the shell's for a process that a signal ended.
func exitCode(sig os.Signal) int { return 128 + int(sig.(syscall.Signal)) }

func stateCode(state *os.ProcessState) int {
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitCode(ws.Signal())
	}
	return state.ExitCode()
}
