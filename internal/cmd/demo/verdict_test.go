package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	lines := []line{
		{"a", 1, []byte("one\n")},
		{"a", 2, []byte("two\x00\xff")},
		{"b", 1, []byte("\n")},
	}
	in := func(token uint64, l line) row { return row{l, token} }
	changed := line{"a", 2, []byte("two")}
	for name, test := range map[string]struct {
		rows []row
		want tally
	}{
		"whole":             {[]row{in(1, lines[0]), in(1, lines[1]), in(4, lines[2])}, tally{Found: 3}},
		"nothing":           {nil, tally{Lost: 3}},
		"lost":              {[]row{in(1, lines[0]), in(1, lines[2])}, tally{Found: 2, Lost: 1}},
		"doubled":           {[]row{in(1, lines[0]), in(2, lines[0]), in(2, lines[1]), in(2, lines[2])}, tally{Found: 4, Doubled: 1}},
		"three times":       {[]row{in(1, lines[0]), in(1, lines[1]), in(1, lines[2]), in(1, lines[0]), in(1, lines[0])}, tally{Found: 5, Doubled: 2}},
		"out of order":      {[]row{in(1, lines[1]), in(1, lines[0]), in(1, lines[2])}, tally{Found: 3, OutOfOrder: 1}},
		"not byte by byte":  {[]row{in(1, lines[0]), in(1, changed), in(1, lines[2])}, tally{Found: 3, Lost: 1, Foreign: 1}},
		"of no file":        {[]row{in(1, lines[0]), in(1, lines[1]), in(1, lines[2]), in(1, line{"c", 1, nil})}, tally{Found: 4, Foreign: 1}},
		"a zombie's":        {[]row{in(1, lines[0]), in(2, lines[1]), in(1, lines[1]), in(2, lines[2])}, tally{Found: 4, Doubled: 1, Fallen: 1}},
		"a zombie's, alone": {[]row{in(1, lines[0]), in(3, lines[1]), in(2, lines[2])}, tally{Found: 3, Fallen: 1}},
	} {
		test.want.Expected = len(lines)
		if diff := cmp.Diff(compare(lines, test.rows), test.want); diff != "" {
			t.Errorf("%s (-got +want):\n%s", name, diff)
		}
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	sound := func() verdict {
		return verdict{
			tally:      tally{Expected: 1234567, Found: 1234567},
			killsAsked: 5, kills: 5, crashes: 7, handovers: 1, context: 1,
			database: map[string]int{idleInTransaction: 1, "fenced": 1},
			crashed:  []time.Duration{time.Second, 3 * time.Second, 2 * time.Second},
		}
	}
	for name, test := range map[string]struct {
		change func(*verdict)
		says   string
	}{
		"sound":           {func(*verdict) {}, ""},
		"lost":            {func(v *verdict) { v.Lost = 2 }, "2 lines are lost"},
		"doubled":         {func(v *verdict) { v.Doubled = 2 }, "2 rows are doubled"},
		"out of order":    {func(v *verdict) { v.OutOfOrder = 2 }, "out of order"},
		"foreign":         {func(v *verdict) { v.Foreign = 2 }, "no line of the files"},
		"fallen":          {func(v *verdict) { v.Fallen = 2 }, "token fell"},
		"kills":           {func(v *verdict) { v.kills = 4 }, "4 SIGKILLs instead of 5"},
		"crashes":         {func(v *verdict) { v.crashes = 4 }, "fewer takeovers"},
		"handovers":       {func(v *verdict) { v.handovers = 0 }, "no clean handover"},
		"database":        {func(v *verdict) { v.database = nil }, "the database refused no zombie"},
		"context":         {func(v *verdict) { v.context = 0 }, "context dead"},
		"naive, as said":  {func(v *verdict) { v.naive, v.Doubled, v.OutOfOrder, v.Fallen = true, 2, 2, 2 }, ""},
		"naive, and fine": {func(v *verdict) { v.naive = true }, "no line is doubled"},
		"naive, and lost": {func(v *verdict) { v.naive, v.Doubled, v.Lost = true, 2, 2 }, "2 lines are lost"},
	} {
		v := sound()
		test.change(&v)
		if got := strings.Join(v.wrong(), "; "); test.says == "" && got != "" || !strings.Contains(got, test.says) {
			t.Errorf("%s: %q, want %q", name, got, test.says)
		}
		var out strings.Builder
		v.print(&out)
		if strings.Contains(out.String(), "OFF: ") == v.good() {
			t.Errorf("%s: good is %v, and the verdict:\n%s", name, v.good(), &out)
		}
	}
	var out strings.Builder
	v := sound()
	v.print(&out)
	for _, want := range []string{"1,234,567", "median 2.00 s, longest 3.00 s", "by the database: 1 × 25P03, 1 × fenced"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
}
