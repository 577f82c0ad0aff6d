package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// row is a numbered promise and how it is measured.
type row struct {
	name, what string
	measure    func(ctx context.Context, p *place) (result, error)
}

var rows = []row{
	{"P1", "acquire", measureAcquire},
	{"P2", "checkpoint", measureCheckpoint},
	{"P3", "refused acquire", measureRefusal},
	{"P4", "release nobody waits for", measureRelease},
	{"P5", "leases of one process renewed", measureRenewals},
	{"P6", "handoff between processes", measureHandoff},
	{"P7", "takeover after SIGKILL", measureTakeover},
	{"P8", "waiting goroutines", measureWaiters},
	{"P9", "cycle of a Runner", measureCycle},
	{"P10", "renewal over a large checkpoint", measureLargeCheckpoint},
	{"P11", "heartbeats stay HOT", measureHOT},
	{"P12", "memory backend", measureMemory},
	{"P13", "large table", measureLargeTable},
	{"P14", "pools of four processes", measurePools},
}

// run measures in a schema of the row's own.
func (r row) run(ctx context.Context, b bench) (measured result, err error) {
	p, err := b.open(ctx)
	if err != nil {
		return result{}, err
	}
	defer func() {
		if e := p.remove(); err == nil {
			err = e
		}
	}()
	measured, err = r.measure(ctx, p)
	for i := range measured.lines {
		measured.lines[i].row = r.name
	}
	return measured, err
}

// result is what a row has to say.
type result struct {
	lines   []line
	handoff *handoffs // P6
}

// line is one line of the table.
type line struct {
	row, what       string
	ours, yardstick string
	ratio           string
	aims            []aim
	costs           []string // counted beside
}

// aim is a bound and what was measured against it.
type aim struct {
	text       string
	got, bound float64
	upper      bool
}

func atLeast(text string, got, bound float64) aim { return aim{text, got, bound, false} }
func atMost(text string, got, bound float64) aim  { return aim{text, got, bound, true} }

func (a aim) met() bool {
	if a.upper {
		return a.got <= a.bound
	}
	return a.got >= a.bound
}

// room is how many times better than its bound the figure is, below 1 if it misses. A
// bound of zero has none.
func (a aim) room() float64 {
	switch {
	case a.bound == 0:
		return math.NaN()
	case a.upper:
		return a.bound / max(a.got, a.bound/1000)
	}
	return a.got / a.bound
}

func (l line) verdict() string {
	for _, a := range l.aims {
		if !a.met() {
			return "misses"
		}
	}
	return "ok"
}

// room is that of the aim with the least.
func (l line) room() float64 {
	least := math.NaN()
	for _, a := range l.aims {
		if room := a.room(); !(room >= least) && !math.IsNaN(room) {
			least = room
		}
	}
	return least
}

func times(ratio float64) string { return fmt.Sprintf("%.2f", ratio) }

func perSecond(rate float64) string { return fmt.Sprintf("%.0f/s", rate) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
