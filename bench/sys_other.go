//go:build !unix

package main

import (
	"syscall"
	"time"
)

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }

func apart() *syscall.SysProcAttr { return nil }
