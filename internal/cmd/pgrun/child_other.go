//go:build !unix

package main

import (
	"os"
	"os/exec"
)

func prepare(*exec.Cmd, bool) {}

func send(p *os.Process, sig os.Signal, _ bool) { _ = p.Signal(sig) }

func exitCode(os.Signal) int { return 130 }

func stateCode(state *os.ProcessState) int { return state.ExitCode() }
