package worklease

import (
	"context"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// checkID names the fault of an ID, or returns nil.
func checkID(what, id string) error {
	switch {
	case id == "":
		return invalid("%s is empty", what)
	case len(id) > MaxIDBytes:
		return invalid("%s has %d bytes, at most %d are allowed", what, len(id), MaxIDBytes)
	case !utf8.ValidString(id):
		return invalid("%s is not valid UTF-8", what)
	case strings.IndexByte(id, 0) >= 0:
		return invalid("%s contains a NUL byte", what)
	}
	return nil
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return invalid("context is nil")
	}
	return nil
}

// checkToken names the fault of a token that no acquisition can have returned.
func checkToken(ctx context.Context, t Token) error {
	if err := checkContext(ctx); err != nil {
		return err
	}
	if t == (Token{}) {
		return invalid("token is zero")
	}
	if err := checkID("token's work ID", t.workID); err != nil {
		return err
	}
	if err := checkID("token's holder ID", t.holderID); err != nil {
		return err
	}
	if t.fencingToken == 0 || t.fencingToken > math.MaxInt64 {
		return invalid("fencing token %d is out of range", t.fencingToken)
	}
	return nil
}

func (l *lease) checkState(state []byte) error {
	if limit := l.cfg.MaxCheckpointBytes; limit >= 0 && len(state) > limit {
		return invalid("checkpoint has %d bytes, at most %d are allowed (Config.MaxCheckpointBytes)", len(state), limit)
	}
	return nil
}

func checkExit(e Exit) error {
	switch e {
	case ExitReleased, ExitAbandoned, ExitRetired:
		return nil
	}
	return invalid("nobody may declare the exit %q", e)
}

func failNew(err error) error { return fmt.Errorf("worklease: new: %w", err) }

// enumName returns the name of value i of an enumeration, or a text that shows the
// number.
func enumName(what string, names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", what, i)
}
