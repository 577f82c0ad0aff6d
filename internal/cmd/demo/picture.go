package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A paint is how a piece of text looks: the parameters of an ANSI escape sequence, or "" for plain.
type paint string

const (
	plain  paint = ""
	bold   paint = "1"
	dim    paint = "2"
	red    paint = "31"
	green  paint = "32"
	yellow paint = "33"
)

// ownerPaints tell the workers' bars apart.
var ownerPaints = []paint{"36", "35", "34", "33", "32", "96", "95", "94"}

// A piece of a line has one paint. Its text is one column to a rune: see printable.
type piece struct {
	text  string
	paint paint
}

type pieces []piece

// fit cuts a line off at a width and renders it.
func (p pieces) fit(width int, colour bool) string {
	var b strings.Builder
	for _, piece := range p {
		text := []rune(piece.text)
		text = text[:min(len(text), width)]
		width -= len(text)
		if colour && piece.paint != plain && len(text) > 0 {
			fmt.Fprintf(&b, "\x1b[%sm%s\x1b[0m", piece.paint, string(text))
		} else {
			b.WriteString(string(text))
		}
	}
	return b.String()
}

// A view is what the picture shows: a copy of the board.
type view struct {
	elapsed time.Duration
	lines   int
	total   int
	works   []workView // largest first
	crew    []handView
	news    []entry
	kills   int
	seed    uint64
	ttl     time.Duration
	naive   bool
}

type workView struct {
	id       string
	lines    int
	position int
	token    uint64
	owner    int // index in crew; -1: nobody
	state    handState
	done     bool
	left     []parting
}

type handView struct {
	name  string
	state handState
	owns  int
}

func (d *demo) look() view {
	b := d.board
	b.mu.Lock()
	defer b.mu.Unlock()
	v := view{elapsed: time.Since(b.begun), kills: b.kills, seed: d.seed, ttl: d.ttl, naive: d.naive, news: slices.Clone(b.news)}
	for _, h := range b.crew {
		v.crew = append(v.crew, handView{name: h.name, state: h.state})
	}
	slices.SortFunc(v.crew, func(a, b handView) int {
		return cmp.Or(len(a.name)-len(b.name), cmp.Compare(a.name, b.name))
	})
	for _, w := range b.works {
		wv := workView{
			id: printable(w.Source.ID), lines: w.Source.Lines, position: w.position,
			token: w.token, owner: -1, done: w.done, left: slices.Clone(w.left),
		}
		if w.owner != nil && !w.done {
			wv.owner = slices.IndexFunc(v.crew, func(h handView) bool { return h.name == w.owner.name })
			wv.state = w.owner.state
			if w.owner.state == running {
				v.crew[wv.owner].owns++
			}
		}
		v.lines += w.position
		v.total += w.Source.Lines
		v.works = append(v.works, wv)
	}
	return v
}

// newsShown is how many lines of what happened the picture ends with.
const newsShown = 5

// draw returns the picture in at most height lines.
func (v view) draw(width, height int) []pieces {
	lines := []pieces{v.title(width), v.crewLine(), nil}
	lines = append(lines, v.table(width, height-len(lines)-newsShown-1)...)
	lines = append(lines, nil)
	for i := range newsShown {
		at := max(len(v.news)-newsShown, 0) + i
		if at < len(v.news) {
			lines = append(lines, v.news[at].line())
		} else {
			lines = append(lines, nil)
		}
	}
	return lines[:min(len(lines), max(height, 1))]
}

func (e entry) line() pieces {
	p := pieces{{fmt.Sprintf("%6.1f s  ", e.at.Seconds()), dim}, {e.text, plain}}
	switch word, _, _ := strings.Cut(e.text, " "); word {
	case "SIGKILL":
		p[1].paint = red
	case "SIGSTOP":
		p[1].paint = yellow
	case "SIGTERM":
		p[1].paint = green
	}
	return p
}

func (v view) title(width int) pieces {
	p := pieces{{"worklease demo", bold}}
	if v.naive {
		p = append(p, piece{" NAIVE", red})
	}
	share := float64(v.lines) / float64(max(v.total, 1))
	p = append(p, piece{fmt.Sprintf("  %s of %s lines ", grouped(v.lines), grouped(v.total)), plain})
	p = append(p, bar(share, min(max(width-80, 10), 40), green)...)
	return append(p, piece{percent(share), bold},
		piece{fmt.Sprintf("%.0f s  TTL %v  seed %d", v.elapsed.Seconds(), v.ttl, v.seed), dim})
}

func (v view) crewLine() pieces {
	var p pieces
	for i, h := range v.crew {
		p = append(p, piece{h.name + " ", ownerPaint(i)})
		switch h.state {
		case running:
			p = append(p, piece{fmt.Sprintf("owns %-3d", h.owns), plain})
		case frozen:
			p = append(p, piece{"FROZEN  ", yellow})
		case killed:
			p = append(p, piece{"KILLED  ", red})
		case stopped:
			p = append(p, piece{"LEAVING ", green})
		default:
			p = append(p, piece{"done    ", dim})
		}
		p = append(p, piece{"  ", plain})
	}
	return append(p, piece{fmt.Sprintf("%d killed so far", v.kills), dim})
}

func ownerPaint(i int) paint { return ownerPaints[i%len(ownerPaints)] }

// table shows the largest works, and the rest of them in one line.
func (v view) table(width, height int) []pieces {
	height = max(height, 3)
	shown := len(v.works)
	if shown+1 > height {
		shown = height - 2
	}
	idWidth := len("work ID")
	for _, w := range v.works[:shown] {
		idWidth = max(idWidth, len([]rune(w.id)))
	}
	idWidth = min(idWidth, max(width/3, 12))
	barWidth := min(max(width-idWidth-72, 8), 40)
	// Where there is little room, how owners left tells more than how large a work is.
	size := func(text string) string { return fmt.Sprintf("%8s", text) }
	if width < 100 {
		size = func(string) string { return "" }
	}
	head := fmt.Sprintf("%-*s%s %-*s        owner   token  how earlier owners left", idWidth, "work ID", size("lines"), barWidth, "")
	rows := []pieces{{{head, dim}}}
	for _, w := range v.works[:shown] {
		name := fmt.Sprintf("%-*s%s ", idWidth, cut(w.id, idWidth), size(grouped(w.lines)))
		rows = append(rows, w.row(name, barWidth, width))
	}
	if shown < len(v.works) {
		rest := v.works[shown:]
		lines := 0
		for _, w := range rest {
			lines += w.lines
		}
		name := fmt.Sprintf("%-*s%s ", idWidth, cut(fmt.Sprintf("%d smaller", len(rest)), idWidth), size(grouped(lines)))
		rows = append(rows, restRow(name, rest, lines, barWidth))
	}
	return rows
}

func (w workView) row(name string, barWidth, width int) pieces {
	colour := dim
	owner := piece{"-     ", dim}
	switch {
	case w.done:
		owner = piece{"done  ", dim}
		colour = green
	case w.owner >= 0:
		colour = ownerPaint(w.owner)
		owner = piece{fmt.Sprintf("w%-5d", w.owner+1), colour}
		switch w.state {
		case killed:
			owner.paint, colour = red, red
		case frozen:
			owner.paint, colour = yellow, yellow
		}
	}
	share := float64(w.position) / float64(w.lines)
	p := pieces{{name, plain}}
	p = append(p, bar(share, barWidth, colour)...)
	p = append(p, piece{percent(share), plain}, owner, piece{fmt.Sprintf("%7d  ", w.token), dim})
	used := 0
	for _, piece := range p {
		used += len([]rune(piece.text))
	}
	return append(p, partings(w.left, width-used)...)
}

func restRow(name string, works []workView, lines, barWidth int) pieces {
	position, done := 0, 0
	for _, w := range works {
		position += w.position
		if w.done {
			done++
		}
	}
	share := float64(position) / float64(lines)
	p := append(pieces{{name, plain}}, bar(share, barWidth, dim)...)
	return append(p, piece{percent(share), plain}, piece{fmt.Sprintf("%d done", done), dim})
}

// percent is 100 only where nothing is missing.
func percent(share float64) string { return fmt.Sprintf(" %3d %%  ", int(100*share)) }

// partings tells how the last owners left, as many as there is room for.
func partings(left []parting, width int) pieces {
	first := len(left)
	for room := width; first > 0; first-- {
		if room -= len(left[first-1].text()) + 2; room < 0 {
			break
		}
	}
	var p pieces
	if first > 0 && first < len(left) && width > 2 {
		p = append(p, piece{"… ", dim})
	}
	for i, l := range left[first:] {
		if i > 0 {
			p = append(p, piece{", ", dim})
		}
		colour := red
		switch l.how {
		case "handed over":
			colour = green
		case string(frozen):
			colour = yellow
		}
		p = append(p, piece{l.text(), colour})
	}
	return p
}

func (p parting) text() string { return p.name + " " + p.how }

// bar is width columns, filled to a share.
func bar(share float64, width int, colour paint) pieces {
	full := min(int(share*float64(width)+0.5), width)
	return pieces{{strings.Repeat("█", full), colour}, {strings.Repeat("░", width-full), dim}}
}

func cut(s string, width int) string {
	r := []rune(s)
	if len(r) <= width {
		return s
	}
	return "…" + string(r[len(r)-width+1:])
}

// printable keeps what is one column wide, as the width of a line is counted in runes.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x300 {
			return '?'
		}
		return r
	}, s)
}
