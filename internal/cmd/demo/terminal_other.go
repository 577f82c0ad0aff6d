//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package main

import "os"

// terminalSize knows no terminal here: the demo prints lines.
func terminalSize(*os.File) (width, height int, ok bool) { return 0, 0, false }
