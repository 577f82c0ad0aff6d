package pgserver

import "syscall"

// memDir is a file system in memory.
const memDir = "/dev/shm"

const kernelEndsChildren = true

// endWithParent makes the kernel send the signal when the thread that starts the child ends. Go sets
// this after the change of user, which would clear it.
func endWithParent(attr *syscall.SysProcAttr, by syscall.Signal) { attr.Pdeathsig = by }

func freeBytes(path string) uint64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}
