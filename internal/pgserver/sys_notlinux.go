//go:build !linux

package pgserver

import "syscall"

const memDir = ""

const kernelEndsChildren = false

func endWithParent(*syscall.SysProcAttr, syscall.Signal) {}

func freeBytes(string) uint64 { return 0 }
