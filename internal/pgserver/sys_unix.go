//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package pgserver

import (
	"errors"
	"os"
	"syscall"
)

const supported = true

// childAttr puts a child into a process group of its own, so that ^C reaches only us and we end the
// child in order, and makes it run as the account.
func childAttr(a *account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }

// alive holds a process of somebody else, which we may not signal, for alive too.
func alive(pid int) bool {
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// tryLock locks a file as long as it is open in this process; the lock is not inherited by programs
// that this process starts.
func tryLock(f *os.File) bool {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil
}
