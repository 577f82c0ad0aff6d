package main

import "syscall"

// endWithParent ends the command when we are killed: its server is gone then.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGTERM }
