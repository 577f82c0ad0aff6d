//go:build !unix

package fault

import (
	"errors"
	"os"
	"os/exec"
)

func attach(*exec.Cmd) {}

func freeze(*os.Process) error { return errors.ErrUnsupported }

func thaw(*os.Process) error { return errors.ErrUnsupported }
