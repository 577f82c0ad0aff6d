//go:build !linux

package main

import "time"

const clockName = "the wall clock"

// clock is the wall clock: one for all processes of a machine, as long as nobody sets it.
func clock() time.Duration { return time.Duration(time.Now().UnixNano()) }
