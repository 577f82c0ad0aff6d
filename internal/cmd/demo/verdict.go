package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A tally compares the table with the files.
type tally struct {
	Expected   int // lines in the files
	Found      int // rows in the table
	Lost       int // lines that have no row
	Doubled    int // rows beyond a line's first
	OutOfOrder int // first rows of lines that came after those of later lines
	Foreign    int // rows that are no line of the files, byte by byte
	Fallen     int // rows with a smaller token than the row before
}

func (t *tally) add(other tally) {
	t.Expected += other.Expected
	t.Found += other.Found
	t.Lost += other.Lost
	t.Doubled += other.Doubled
	t.OutOfOrder += other.OutOfOrder
	t.Foreign += other.Foreign
	t.Fallen += other.Fallen
}

// compare compares the lines of a work, in order, with its rows, in the order of their commits.
func compare(lines []line, rows []row) tally {
	t := tally{Expected: len(lines), Found: len(rows)}
	type place struct {
		file   string
		number int
	}
	places := make(map[place]int, len(lines))
	for i, l := range lines {
		places[place{l.file, l.number}] = i
	}
	seen := make([]bool, len(lines))
	furthest := -1
	var token uint64
	for _, r := range rows {
		if r.token < token {
			t.Fallen++
		}
		token = r.token
		i, known := places[place{r.file, r.number}]
		switch {
		case !known || !bytes.Equal(lines[i].text, r.text):
			t.Foreign++
		case seen[i]:
			t.Doubled++
		default:
			seen[i] = true
			if i < furthest {
				t.OutOfOrder++
			}
			furthest = max(furthest, i)
		}
	}
	for _, s := range seen {
		if !s {
			t.Lost++
		}
	}
	return t
}

// A verdict is what the demo has shown.
type verdict struct {
	tally
	naive      bool
	ttl        time.Duration
	works      int
	killsAsked int
	kills      int
	database   map[string]int // zombie writes refused by the database, by why
	context    int            // and by the dead context
	crashed    []time.Duration
	clean      []time.Duration
	crashes    int // takeovers after a crash
	handovers  int // takeovers after a clean handover
}

// judge reads the files again, and the table.
func (d *demo) judge(ctx context.Context) (verdict, error) {
	v := d.board.verdict()
	v.naive, v.ttl, v.killsAsked = d.naive, d.ttl, d.options.kills
	table := tableName(d.db.schema).Sanitize()
	if _, err := d.db.pool.Exec(ctx, fmt.Sprintf(createIndexSQL, table)); err != nil {
		return v, err
	}
	var ids []string
	for _, w := range d.board.works {
		ids = append(ids, w.Source.ID)
		lines, err := w.Source.read()
		if err != nil {
			return v, err
		}
		rows, err := readRows(ctx, d.db.pool, d.db.schema, w.Source.ID)
		if err != nil {
			return v, err
		}
		v.add(compare(lines, rows))
	}
	var strays int
	err := d.db.pool.QueryRow(ctx, fmt.Sprintf(strayRowsSQL, table), ids).Scan(&strays)
	v.Found += strays
	v.Foreign += strays
	return v, err
}

// verdict is the part that the workers' events tell.
func (b *board) verdict() verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := verdict{works: len(b.works), kills: b.kills, database: map[string]int{}}
	for _, r := range b.refusals {
		if r.By == byDatabase {
			v.database[r.Why]++
		} else {
			v.context++
		}
	}
	for _, a := range b.takeovers {
		left, known := b.parted[hold{a.Work, a.PriorToken}]
		took := a.At.Sub(left)
		switch a.Exit {
		case "expired":
			if v.crashes++; known {
				v.crashed = append(v.crashed, took)
			}
		case "released":
			if v.handovers++; known {
				v.clean = append(v.clean, took)
			}
		}
	}
	return v
}

func (v verdict) refusedByDatabase() int {
	sum := 0
	for _, n := range v.database {
		sum += n
	}
	return sum
}

// wrong says what is off; nothing if all is as it must be.
func (v verdict) wrong() []string {
	var wrong []string
	check := func(off bool, format string, args ...any) {
		if off {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	check(v.Lost > 0, "%d lines are lost", v.Lost)
	check(v.Foreign > 0, "%d rows are no line of the files", v.Foreign)
	check(v.kills < v.killsAsked, "%d SIGKILLs instead of %d", v.kills, v.killsAsked)
	check(v.refusedByDatabase() == 0, "the database refused no zombie")
	check(v.context == 0, "no zombie found its context dead")
	check(v.crashes < v.kills, "fewer takeovers after a crash than SIGKILLs")
	check(v.handovers == 0, "no clean handover")
	if v.naive {
		check(v.Doubled == 0, "no line is doubled: that was to be shown")
		return wrong
	}
	check(v.Doubled > 0, "%d rows are doubled", v.Doubled)
	check(v.OutOfOrder > 0, "%d rows are out of order", v.OutOfOrder)
	check(v.Fallen > 0, "the token fell %d times", v.Fallen)
	return wrong
}

func (v verdict) good() bool { return len(v.wrong()) == 0 }

func (v verdict) print(out io.Writer) {
	show := func(name string, n int, more string) {
		fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf("  %-24s %9s  %s", name, grouped(n), more), " "))
	}
	fmt.Fprintf(out, "\nThe table against the files (work IDs: %d)\n", v.works)
	show("lines in the files", v.Expected, "")
	show("rows in the table", v.Found, "")
	show("lost", v.Lost, "")
	show("doubled", v.Doubled, "")
	show("out of order", v.OutOfOrder, "")
	show("not in the files", v.Foreign, "")
	show("fallen tokens", v.Fallen, "")
	fmt.Fprintln(out, "What was done to the workers")
	show("SIGKILL", v.kills, "")
	show("takeovers after a crash", v.crashes, spread(v.crashed)+fmt.Sprintf(" (TTL %v)", v.ttl))
	show("clean handovers", v.handovers, spread(v.clean))
	show("zombie writes refused", v.refusedByDatabase(), "by the database"+v.reasons())
	show("", v.context, "by the dead context, nothing sent")
	wrong := v.wrong()
	switch {
	case len(wrong) > 0:
		fmt.Fprintf(out, "\nOFF: %s.\n", strings.Join(wrong, "; "))
	case v.naive:
		fmt.Fprintf(out, "\n%s doubled rows, as expected: that is what Step prevents.\n", grouped(v.Doubled))
	default:
		fmt.Fprintln(out, "\nEvery line is there exactly once.")
	}
}

func (v verdict) reasons() string {
	text := ""
	for _, why := range []string{idleInTransaction, "fenced", "expired"} {
		if n := v.database[why]; n > 0 {
			text += fmt.Sprintf(", %d × %s", n, why)
		}
	}
	return strings.Replace(text, ", ", ": ", 1)
}

// spread is the middle and the longest of durations.
func spread(all []time.Duration) string {
	if len(all) == 0 {
		return ""
	}
	slices.Sort(all)
	return fmt.Sprintf("median %s, longest %s", short(all[len(all)/2]), short(all[len(all)-1]))
}

func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.2f s", d.Seconds())
}

// grouped writes 228111 as 228,111.
func grouped(n int) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
