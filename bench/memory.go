package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// byHand does what Acquire and Release of the memory backend are for, in as few words as
// somebody would write for one program: who holds what until when, with tokens that grow,
// and what the last owner left.
type byHand struct {
	mu      sync.Mutex
	counter uint64
	entries map[string]*entry
}

type entry struct {
	holder   string
	token    uint64
	expires  time.Time
	released bool
	state    []byte
}

var errHandHeld, errHandFenced = errors.New("held"), errors.New("fenced")

func (h *byHand) acquire(id, holder string, ttl time.Duration) (token uint64, prior entry, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	e := h.entries[id]
	switch {
	case e == nil:
		e = new(entry)
		h.entries[id] = e
	case !e.released && now.Before(e.expires):
		return 0, entry{}, errHandHeld
	}
	prior = *e
	h.counter++
	e.holder, e.token, e.expires, e.released = holder, h.counter, now.Add(ttl), false
	return e.token, prior, nil
}

func (h *byHand) release(id string, token uint64, state []byte) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.entries[id]
	if e == nil || e.token != token {
		return errHandFenced
	}
	e.released = true
	if state != nil {
		e.state = state
	}
	return nil
}

// P12
func measureMemory(ctx context.Context, p *place) (result, error) {
	hand := byHand{entries: map[string]*entry{}}
	ids := workIDs(1000)
	yardstick := func(ctx context.Context, i int) error {
		id := ids[i%len(ids)]
		token, _, err := hand.acquire(id, "bench", long)
		if err != nil {
			return err
		}
		return hand.release(id, token, nil)
	}
	b := memory.New()
	backend := func(ctx context.Context, i int) error {
		a := worklease.Attempt{WorkID: ids[i%len(ids)], HolderID: "bench", TTL: long, Nonce: "nonce"}
		g, err := b.Acquire(ctx, a)
		if err != nil {
			return err
		}
		c := worklease.Claim{WorkID: a.WorkID, HolderID: a.HolderID, FencingToken: g.FencingToken, Nonce: a.Nonce}
		return b.Release(ctx, c, worklease.Farewell{Exit: worklease.ExitReleased})
	}
	l := newLease(memory.New(), long)
	lease := func(ctx context.Context, i int) error {
		token, err := l.Acquire(ctx, ids[i%len(ids)])
		if err != nil {
			return err
		}
		return l.Release(ctx, token)
	}
	c := contest{rounds: p.scale(5, 15), ops: p.scale(20_000, 100_000), clients: 1}
	got, err := c.run(ctx, side{do: backend}, side{do: lease}, side{do: yardstick})
	if err != nil {
		return result{}, err
	}
	byHandCost := fmt.Sprintf("by hand: %.1f allocations", allocations(ctx, yardstick))
	var r result
	for i, way := range []struct {
		name string
		do   func(ctx context.Context, i int) error
	}{{"memory backend", backend}, {"Lease on the memory backend", lease}} {
		slower, allocs := got[2].ratio(got[i]), allocations(ctx, way.do)
		r.lines = append(r.lines, line{
			what: way.name + ", Acquire + Release",
			ours: nanoseconds(got[i]), yardstick: "mutex and map by hand " + nanoseconds(got[2]), ratio: times(slower),
			aims:  []aim{atMost("≤ 3", slower, 3), atMost("≤ 4 allocations", allocs, 4)},
			costs: []string{fmt.Sprintf("%.1f allocations; %s", allocs, byHandCost)},
		})
	}
	return r, nil
}

func nanoseconds(r rates) string { return fmt.Sprintf("%.0f ns", 1e9/r.median()) }

// allocations returns how many do makes each time.
func allocations(ctx context.Context, do func(ctx context.Context, i int) error) float64 {
	const n = 10_000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		_ = do(ctx, i) // it was done without an error before
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / n
}
