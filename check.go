package worklease

import (
	"cmp"
	"context"
	"fmt"

	"github.com/aetomala/worklease/internal/id"
)

// checkID names the fault of an ID, or returns nil.
func checkID(what, s string) error {
	if fault := id.Fault(s, MaxIDBytes); fault != "" {
		return invalid("%s %s", what, fault)
	}
	return nil
}

func checkContext(ctx context.Context) error {
	if ctx == nil {
		return invalid("context is nil")
	}
	return nil
}

func checkToken(ctx context.Context, t Token) error {
	return cmp.Or(checkContext(ctx), t.Validate())
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
