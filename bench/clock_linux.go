package main

import (
	"syscall"
	"time"
	"unsafe"
)

const clockName = "CLOCK_MONOTONIC"

// clock reads CLOCK_MONOTONIC, which is one for all processes of a machine and which nobody
// sets. Package time has it too, but only as a difference within one process.
func clock() time.Duration {
	var ts syscall.Timespec
	const monotonic = 1
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic(errno)
	}
	return time.Duration(ts.Nano())
}
