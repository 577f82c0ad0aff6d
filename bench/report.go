package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// machine is what the figures were measured on.
type machine struct {
	command  string
	date     time.Time
	postgres string
	settings string
}

func host(ctx context.Context, o options) (machine, error) {
	conn, err := pgx.Connect(ctx, o.database)
	if err != nil {
		return machine{}, err
	}
	defer conn.Close(ctx)
	m := machine{command: "make bench", date: time.Now().UTC()}
	if o.short {
		m.command += " SHORT=1"
	}
	if len(o.rows) < len(rows) {
		var names []string
		for _, r := range o.rows {
			names = append(names, r.name)
		}
		m.command += " ROWS=" + strings.Join(names, ",")
	}
	if o.file != "" {
		m.command += " OUT=" + filepath.ToSlash(o.file)
	}
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version'),
		(SELECT string_agg(s || ' ' || current_setting(s), ', ' ORDER BY s)
		 FROM unnest(ARRAY['autovacuum', 'fsync', 'full_page_writes', 'shared_buffers', 'synchronous_commit']) s)`).
		Scan(&m.postgres, &m.settings)
	return m, err
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores, PostgreSQL %s (%s), %s %s/%s, %s",
		runtime.NumCPU(), m.postgres, m.settings, runtime.Version(), runtime.GOOS, runtime.GOARCH, m.date.Format(time.DateOnly))
}

// report is all that was measured.
type report struct {
	host    machine
	lines   []line
	handoff *handoffs
}

func (r *report) add(measured result) {
	r.lines = append(r.lines, measured.lines...)
	if measured.handoff != nil {
		r.handoff = measured.handoff
	}
}

var heads = []string{"#", "what", "ours", "yardstick", "ratio", "aim", ""}

// cells are a line's columns.
func (l line) cells() []string {
	var aims []string
	for _, a := range l.aims {
		aims = append(aims, a.text)
	}
	verdict := l.verdict()
	if len(l.aims) == 0 {
		verdict = ""
	}
	return []string{l.row, l.what, l.ours, l.yardstick, l.ratio, strings.Join(aims, ", "), verdict}
}

// text is the report for a terminal.
func (r report) text() string {
	table := [][]string{slices.Clone(heads)}
	for _, l := range r.lines {
		table = append(table, l.cells())
	}
	widths := make([]int, len(heads))
	for _, cells := range table {
		for i, c := range cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n\n", r.host)
	for i, cells := range table {
		for j := range cells {
			cells[j] = pad(cells[j], widths[j])
		}
		fmt.Fprintln(&out, strings.TrimRight(strings.Join(cells, "  "), " "))
		if i > 0 {
			for _, cost := range r.lines[i-1].costs {
				fmt.Fprintf(&out, "%s%s\n", strings.Repeat(" ", widths[0]+4), cost)
			}
		}
	}
	fmt.Fprintf(&out, "\n%s\n", r.summary())
	return out.String()
}

func pad(s string, width int) string {
	return s + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(s)))
}

func (r report) summary() string {
	var missed []string
	judged := 0
	for _, l := range r.lines {
		if len(l.aims) == 0 {
			continue
		}
		judged++
		if l.verdict() != "ok" {
			missed = append(missed, l.row+" "+l.what)
		}
	}
	if len(missed) == 0 {
		return fmt.Sprintf("All %d lines with an aim meet it.", judged)
	}
	return fmt.Sprintf("%d of %d lines with an aim meet it. Missed: %s.", judged-len(missed), judged, strings.Join(missed, "; "))
}

// write writes the report as Markdown, and its plots beside it.
func (r report) write(file string) error {
	var out strings.Builder
	fmt.Fprintf(&out, "# Measured beside yardsticks\n\n`%s`: %s.\n\n%s\n\n", r.host.command, r.host, r.summary())
	out.WriteString("Both sides of a row took turns in short slices of one run. A rate is the median of its slices, a ratio the median " +
		"of the ratios of neighbouring slices. Only ratios compare with other machines.\n\n")
	fmt.Fprintf(&out, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat("---|", len(heads)))
	for _, l := range r.lines {
		fmt.Fprintf(&out, "| %s |\n", strings.Join(l.cells(), " | "))
	}
	stem := strings.TrimSuffix(file, filepath.Ext(file))
	plots := map[string]string{"-aims": r.plotAims()}
	order := []string{"-aims"}
	if r.handoff != nil {
		plots["-handoff"] = r.handoff.plot()
		order = append(order, "-handoff")
	}
	for _, name := range order {
		if err := os.WriteFile(stem+name+".svg", []byte(plots[name]), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&out, "\n![%s](%s)\n", strings.Trim(name, "-"), filepath.Base(stem)+name+".svg")
	}
	out.WriteString("\n## What was counted\n")
	for _, l := range r.lines {
		if len(l.costs) > 0 {
			fmt.Fprintf(&out, "\n**%s** %s\n\n```\n%s\n```\n", l.row, l.what, strings.Join(l.costs, "\n"))
		}
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

// plotAims has a bar for each line: how many times better than its aim it is.
func (r report) plotAims() string {
	var bars []bar
	for _, l := range r.lines {
		if room := l.room(); !math.IsNaN(room) {
			bars = append(bars, bar{l.row + " " + l.what, room})
		}
	}
	return barPlot("times better than the aim (1: just met)", bars)
}

// plot is the share of handoffs that took no longer than so many milliseconds.
func (h *handoffs) plot() string {
	return curvePlot("handoff between two processes: share that took no longer", []curve{
		{"worklease: Release → Acquire", inMilliseconds(h.ours)},
		{"raw: NOTIFY → one statement", inMilliseconds(h.raw)},
	})
}

func inMilliseconds(spans []time.Duration) []float64 {
	values := make([]float64, len(spans))
	for i, d := range spans {
		values[i] = d.Seconds() * 1000
	}
	return values
}
