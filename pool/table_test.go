package pool_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/aetomala/worklease/internal/tenure/tenuretest"
)

// A pool has lines of its own for what its slots make of an ending.
var ownLines = map[string]string{
	"error":                                  "returns another error",
	"error that tells of other work's lease": "returns another error",
	"PermanentError that is none":            "returns another error",
	"PermanentError":                         "returns an error that is a PermanentError",
	"PermanentError, wrapped":                "returns an error that is a PermanentError",
	"PermanentError, cancelled":              "returns an error that is a PermanentError",
	"PermanentError after a loss":            "has lost the lease, returns a PermanentError",
	"permanent Retire":                       "returns an error that Is worklease.Retire",
	"cancelled, nil":                         "returns nil after ctx has ended",
	"cancelled, kept for the wind-down":      "returns nil after ctx has ended",
	"cancelled, ctx.Err()":                   "returns ctx.Err() after ctx has ended",
	"cancelled, the cause":                   "returns ctx.Err() after ctx has ended",
	"cancelled, error":                       "returns another error after ctx has ended",
	"farewell fails, cancelled":              "returns after that, but the farewell fails",
	"cancelled before the function":          "is not called: ctx has ended in OnSlotAcquired",
	"lost before the function":               "is not called: it is lost in OnSlotAcquired",
	"cancelled before":                       "does not get the lease: ctx has ended",
	"cancelled while waiting":                "does not get the lease: ctx has ended",
	"retired before":                         "does not get the lease: the work is retired",
	"acquisition fails for good":             "does not get the lease: Acquire fails for good",
}

// The table of the package comment says what the endings do. A state that is too large is
// one of package tenure's own.
func TestTableOfEndings(t *testing.T) {
	t.Parallel()
	words := strings.NewReplacer("acquired", "Acquired", "released abandoned", "Released", "released", "Released",
		"backoff 45s", "Backoff", "backoff 0s", "Backoff of 0 s", "lost", "Lost", "dead", "Dead", "retired", "Retired")
	tenuretest.ReadTable(t, "pool.go").Check(t, endings, []string{"returns a state that is too large"},
		func(e tenuretest.Ending) string { return cmp.Or(ownLines[e.Name], e.Line) },
		func(t *testing.T, e tenuretest.Ending, columns []string) {
			if told := cmp.Or(words.Replace(tenuretest.Told(outcomes[e.Name])), "nothing"); columns[0] != told {
				t.Errorf("%s: told %s, the table says %s", e.Name, told, columns[0])
			}
		})
}
