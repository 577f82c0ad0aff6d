package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/aetomala/worklease"
)

// operations are those of P13, in an order in which each can follow the one before.
var operations = []struct {
	name string
	do   func(ctx context.Context, s *sample, i int) error
}{
	{"Acquire", func(ctx context.Context, s *sample, i int) (err error) {
		s.tokens[i], err = s.lease.Acquire(ctx, s.ids[i])
		return err
	}},
	{"refused Acquire", func(ctx context.Context, s *sample, i int) error {
		_, err := s.lease.Acquire(ctx, s.ids[i])
		return refused(err)
	}},
	{"Checkpoint", func(ctx context.Context, s *sample, i int) error {
		return s.lease.Checkpoint(ctx, s.tokens[i], s.state)
	}},
	{"Renew", func(ctx context.Context, s *sample, i int) error { return s.lease.Renew(ctx, s.tokens[i]) }},
	{"ReadCheckpoint", func(ctx context.Context, s *sample, i int) error {
		_, _, err := s.lease.ReadCheckpoint(ctx, s.tokens[i])
		return err
	}},
	{"renewal of 100 at once", func(ctx context.Context, s *sample, i int) error {
		if i%100 != 0 {
			return nil
		}
		var claims []worklease.Claim
		for _, t := range s.tokens[i:min(i+100, len(s.tokens))] {
			claims = append(claims, t.Claim())
		}
		_, err := s.rig.backend.RenewBatch(ctx, claims, long)
		return err
	}},
	{"Release", func(ctx context.Context, s *sample, i int) error { return s.lease.Release(ctx, s.tokens[i]) }},
	{rawName + "upsert", func(ctx context.Context, s *sample, i int) error {
		var expires time.Time
		return s.rig.pool.QueryRow(ctx, s.place.sql(rawAcquireSQL), s.ids[i], "bench", long).Scan(&s.raw[i], &expires)
	}},
	{rawName + "UPDATE that releases", func(ctx context.Context, s *sample, i int) error {
		_, err := s.rig.pool.Exec(ctx, s.place.sql(rawReleaseSQL), s.ids[i], s.raw[i])
		return err
	}},
}

// rawName is what the names of raw statements begin with: they tell what any statement on so
// large a table has to bear, and are not judged.
const rawName = "raw "

// sample is work of a table, taken anywhere.
type sample struct {
	place  *place
	rig    *rig
	size   int
	n      int
	state  []byte
	lease  worklease.Lease
	ids    []string
	tokens []worklease.Token
	raw    []int64
}

func newSample(ctx context.Context, p *place, size, n int) (*sample, error) {
	if err := p.fill(ctx, size); err != nil {
		return nil, err
	}
	r, err := p.rig(ctx, 1)
	if err != nil {
		return nil, err
	}
	return &sample{place: p, rig: r, size: size, n: n, state: noise(100)}, nil
}

// draw chooses work, each at most once.
func (s *sample) draw() {
	s.lease = s.rig.lease(long)
	s.ids, s.tokens, s.raw = make([]string, s.n), make([]worklease.Token, s.n), make([]int64, s.n)
	chosen := map[int]bool{}
	for i := range s.ids {
		k := 1 + rand.IntN(s.size)
		for chosen[k] {
			k = 1 + rand.IntN(s.size)
		}
		chosen[k] = true
		s.ids[i] = fmt.Sprintf("b%07d", k)
	}
}

// run does all operations on new work, and returns how long each took.
func (s *sample) run(ctx context.Context) ([]time.Duration, error) {
	s.draw()
	var took []time.Duration
	for _, op := range operations {
		began := time.Now()
		for i := range s.n {
			if err := op.do(ctx, s, i); err != nil {
				return nil, fmt.Errorf("%s: %w", op.name, err)
			}
		}
		took = append(took, time.Since(began))
	}
	return took, nil
}

// P13
func measureLargeTable(ctx context.Context, small *place) (result, error) {
	large, err := small.open(ctx)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = large.remove() }()
	const few = 1000
	many := small.scale(100_000, 1_000_000)
	n := small.scale(50, 100)
	var samples []*sample
	for _, t := range []struct {
		place *place
		size  int
	}{{large, many}, {small, few}} {
		s, err := newSample(ctx, t.place, t.size, n)
		if err != nil {
			return result{}, err
		}
		defer s.rig.close()
		samples = append(samples, s)
	}
	took := make([][2][]time.Duration, len(operations))
	for round := range small.scale(3, 41) + 1 {
		for side, s := range samples {
			spans, err := s.run(ctx)
			if err != nil {
				return result{}, err
			}
			for op, span := range spans {
				if round > 0 { // the first one warms caches
					took[op][side] = append(took[op][side], span)
				}
			}
		}
	}
	return result{lines: []line{sizeLine(many, few, n, took)}}, nil
}

// sizeLine tells the operation that suffers most, and the others below.
func sizeLine(many, few, n int, took [][2][]time.Duration) line {
	l := line{costs: []string{"", "the same operations on random rows, at one connection"}}
	worst := 0.0
	for i, op := range operations {
		var ratios []float64
		for round := range took[i][0] {
			ratios = append(ratios, float64(took[i][0][round])/float64(took[i][1][round]))
		}
		ratio := median(ratios)
		if i > 0 {
			l.costs[0] += ", "
		}
		l.costs[0] += fmt.Sprintf("%s %.2f", op.name, ratio)
		if ratio > worst && !strings.HasPrefix(op.name, rawName) {
			worst = ratio
			l.what = fmt.Sprintf("table of %d rows, the worst operation: %s", many, op.name)
			l.ours = milliseconds(median(took[i][0]) / time.Duration(n))
			l.yardstick = fmt.Sprintf("%d rows %s", few, milliseconds(median(took[i][1])/time.Duration(n)))
		}
	}
	l.ratio = times(worst)
	l.aims = []aim{atMost("≤ 1.3", worst, 1.3)}
	return l
}
