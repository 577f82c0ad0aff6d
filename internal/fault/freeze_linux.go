package fault

import (
	"os"
	"os/exec"
	"syscall"
)

// attach makes the child die with the thread that starts it. Its own process
// group keeps a Ctrl-C in the terminal for the parent, which then winds up.
func attach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func freeze(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	// The parent is told when the last thread has stopped. WNOWAIT leaves the
	// news, and an exit status above all, to exec.Cmd.
	const idTypePid = 1
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, idTypePid, uintptr(p.Pid), 0,
			syscall.WSTOPPED|syscall.WEXITED|syscall.WNOWAIT, 0, 0)
		switch errno {
		case 0:
			return nil
		case syscall.EINTR:
		default:
			return os.ErrProcessDone
		}
	}
}

func thaw(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
