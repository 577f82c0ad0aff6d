// Package id knows what a work ID and a holder ID may be.
package id

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Fault says what is wrong with an ID of which maxBytes are allowed, as the rest of a
// sentence that begins with its name. It returns "" where nothing is.
func Fault(id string, maxBytes int) string {
	switch {
	case id == "":
		return "is empty"
	case len(id) > maxBytes:
		return fmt.Sprintf("has %d bytes, at most %d are allowed", len(id), maxBytes)
	case !utf8.ValidString(id):
		return "is not valid UTF-8"
	case strings.IndexByte(id, 0) >= 0:
		return "contains a NUL byte"
	}
	return ""
}
