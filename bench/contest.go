package main

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// side is one way to do a job.
type side struct {
	prepare func(ctx context.Context) error // before each slice, not timed; nil: nothing

	// do is the i-th operation of a slice. Those from the number of operations on, warmUp for
	// each client, come first and are not timed: VACUUM has had all plans forgotten.
	do func(ctx context.Context, i int) error

	ops    int // in a slice; 0: the contest's
	weight int // what one operation counts for; 0: 1
}

// contest lets sides take turns, a slice each: A B A B…
type contest struct {
	rounds  int // a first one is not counted
	ops     int // in a slice
	clients int // goroutines that share them
}

const warmUp = 8

// reach is how many different i there are.
func (c contest) reach() int { return c.ops + warmUp*c.clients }

// rates are operations per second, by round.
type rates []float64

// run returns the rates of each side.
func (c contest) run(ctx context.Context, sides ...side) ([]rates, error) {
	all := make([]rates, len(sides))
	for round := range c.rounds + 1 {
		for i, s := range sides {
			rate, err := c.slice(ctx, s)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				all[i] = append(all[i], rate)
			}
		}
	}
	return all, nil
}

func (c contest) slice(ctx context.Context, s side) (float64, error) {
	if s.prepare != nil {
		if err := s.prepare(ctx); err != nil {
			return 0, err
		}
	}
	ops := c.ops
	if s.ops > 0 {
		ops = s.ops
	}
	if err := share(c.clients, warmUp*c.clients, func(i int) error { return s.do(ctx, ops+i) }); err != nil {
		return 0, err
	}
	runtime.GC()
	began := time.Now()
	if err := share(c.clients, ops, func(i int) error { return s.do(ctx, i) }); err != nil {
		return 0, err
	}
	return float64(ops*max(s.weight, 1)) / time.Since(began).Seconds(), nil
}

// share has that many goroutines do all of the operations, and returns the first error.
func share(clients, ops int, do func(i int) error) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			for failed.Load() == nil {
				i := int(next.Add(1)) - 1
				if i >= ops {
					return
				}
				if err := do(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func median[T int64 | float64 | time.Duration](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

func (r rates) median() float64 { return median(r) }

// ratio is the median of the ratios of slices that stood side by side.
func (r rates) ratio(to rates) float64 {
	var ratios []float64
	for i := range r {
		ratios = append(ratios, r[i]/to[i])
	}
	return median(ratios)
}
