//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package pgserver

import (
	"os"
	"syscall"
)

// supported is false where processes and locks work otherwise: there, tests need a DATABASE_URL.
const supported = false

func childAttr(*account) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}

func alive(int) bool { return true }

func tryLock(*os.File) bool { return false }
