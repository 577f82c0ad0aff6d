//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package main

import (
	"os"
	"syscall"
	"unsafe"
)

// terminalSize asks f for its size in columns and lines, and tells whether it is a terminal at all.
func terminalSize(f *os.File) (width, height int, ok bool) {
	var size struct{ rows, columns, x, y uint16 }
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), syscall.TIOCGWINSZ, uintptr(unsafe.Pointer(&size)))
	if errno != 0 {
		return 0, 0, false
	}
	if size.columns == 0 || size.rows == 0 { // as on a serial line
		return 80, 24, true
	}
	return int(size.columns), int(size.rows), true
}
