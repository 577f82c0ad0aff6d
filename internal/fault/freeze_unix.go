//go:build unix && !linux

package fault

import (
	"os"
	"os/exec"
	"syscall"
)

func attach(*exec.Cmd) {}

func freeze(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
