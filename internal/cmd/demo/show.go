package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// A show is the live picture, or, where the output is no terminal, lines.
type show struct {
	demo   *demo
	out    *os.File
	live   bool
	colour bool

	drawn        int // lines of the picture on the screen
	width, lines int // of the terminal when it was drawn
	told         int // news printed as lines
	nextProgress time.Duration
}

const (
	frame         = 100 * time.Millisecond
	progressEvery = 2 * time.Second
)

const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	eraseLine  = "\x1b[K"
	eraseBelow = "\x1b[J"
)

func newShow(d *demo, out *os.File) *show {
	_, _, terminal := terminalSize(out)
	return &show{
		demo: d, out: out,
		live:   terminal && os.Getenv("TERM") != "dumb",
		colour: os.Getenv("NO_COLOR") == "",
	}
}

// run shows until ctx ends. Whatever the end is, the last picture stays and the cursor is back.
func (s *show) run(ctx context.Context) {
	tick := time.NewTicker(frame)
	defer tick.Stop()
	if s.live {
		fmt.Fprint(s.out, hideCursor)
		defer fmt.Fprint(s.out, showCursor)
	}
	for {
		s.next()
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.next()
			return
		}
	}
}

func (s *show) next() {
	if s.live {
		s.draw()
	} else {
		s.tell()
	}
}

// draw draws over the picture before, in one write.
func (s *show) draw() {
	width, height, _ := terminalSize(s.out)
	// The last column stays free: some terminals wrap when it is filled. So does the last line,
	// where the cursor is.
	picture := s.demo.look().draw(width-1, height-1)
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	if width != s.width || height != s.lines {
		// What was drawn may be wrapped by now: begin anew on a clear screen.
		if s.drawn > 0 {
			b.Reset()
			b.WriteString("\x1b[2J\x1b[H")
		}
		s.width, s.lines = width, height
	}
	for _, line := range picture {
		b.WriteString("\r" + line.fit(width-1, s.colour) + eraseLine + "\n")
	}
	b.WriteString(eraseBelow)
	s.drawn = len(picture)
	fmt.Fprint(s.out, b.String())
}

// tell prints what is new, and now and then how far the import is.
func (s *show) tell() {
	v := s.demo.look()
	if s.told == 0 && s.nextProgress == 0 {
		fmt.Fprintf(s.out, "%s lines in %d works, %d workers, TTL %v, seed %d\n", grouped(v.total), len(v.works), s.demo.workers, v.ttl, v.seed)
		s.nextProgress = progressEvery
	}
	for _, e := range v.news[s.told:] {
		fmt.Fprintf(s.out, "%6.1f s  %s\n", e.at.Seconds(), e.text)
	}
	s.told = len(v.news)
	if v.elapsed >= s.nextProgress && v.lines < v.total {
		s.nextProgress = v.elapsed + progressEvery
		done := 0
		for _, w := range v.works {
			if w.done {
				done++
			}
		}
		fmt.Fprintf(s.out, "%6.1f s  %3.0f %%  %s lines, %d works done\n",
			v.elapsed.Seconds(), 100*float64(v.lines)/float64(v.total), grouped(v.lines), done)
	}
}
