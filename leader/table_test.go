package leader_test

import (
	"cmp"
	"testing"

	"github.com/aetomala/worklease/internal/tenure/tenuretest"
)

// What happens in OnElected has lines of its own.
var ownLines = map[string]string{
	"cancelled before the function": "is not called: ctx has ended during OnElected",
	"lost before the function":      "is not called: the lease is lost in OnElected",
}

// The table of the package comment says what the endings do.
func TestTableOfEndings(t *testing.T) {
	t.Parallel()
	tenuretest.ReadTable(t, "leader.go").Check(t, tenuretest.Endings, nil,
		func(e tenuretest.Ending) string { return cmp.Or(ownLines[e.Name], e.Line) },
		func(t *testing.T, e tenuretest.Ending, columns []string) {
			if told := cmp.Or(tenuretest.Told(outcomes[e.Name].told), "none"); columns[0] != told {
				t.Errorf("%s: told %s, the table says %s", e.Name, told, columns[0])
			}
			tenuretest.CompareError(t, e, columns[1])
		})
}
