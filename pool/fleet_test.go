package pool_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/pool"
)

// host is a process with a Pool: what it sends gets lost once it is cut off.
type host struct {
	worklease.Backend
	off atomic.Bool
}

var errCutOff = errors.New("cut off")

func (h *host) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	if h.off.Load() {
		return worklease.Grant{}, errCutOff
	}
	return h.Backend.Acquire(ctx, a)
}

func (h *host) Renew(ctx context.Context, c worklease.Claim, ttl time.Duration) (worklease.Extension, error) {
	if h.off.Load() {
		return worklease.Extension{}, errCutOff
	}
	return h.Backend.Renew(ctx, c, ttl)
}

func (h *host) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	if h.off.Load() {
		return errCutOff
	}
	return h.Backend.Release(ctx, c, f)
}

// census knows which host trusts itself with which ID.
type census struct {
	t *testing.T

	mu    sync.Mutex
	owner map[string]worklease.Token
	last  map[string]uint64
}

// enter is called as work begins, and left when its context has ended.
func (c *census) enter(ctx context.Context, token worklease.Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := token.WorkID()
	if other, owned := c.owner[id]; owned {
		c.t.Errorf("%v begins while %v works", token, other)
	}
	if token.FencingToken() <= c.last[id] {
		c.t.Errorf("%v after token %d", token, c.last[id])
	}
	c.owner[id], c.last[id] = token, token.FencingToken()
	context.AfterFunc(ctx, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.owner, id)
	})
}

func (c *census) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.owner)
}

// Four Pools on the same 64 IDs, whose hosts crash, are cut off for a while, and leave in
// order, all of one name: each time all IDs are owned again within a TTL and a moment,
// and never by two.
func TestFleetConverges(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testFleet(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func testFleet(t *testing.T, random *rand.Rand) {
	const moment = 2 * time.Second
	shared, ids := memory.New(), names(64)
	all := &census{t: t, owner: map[string]worklease.Token{}, last: map[string]uint64{}}
	work := func(ctx context.Context, _ string, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		all.enter(ctx, token)
		<-ctx.Done()
		return []byte("state"), ctx.Err()
	}
	type member struct {
		*host
		pool *pool.Pool
		stop context.CancelFunc
		done chan error
	}
	start := func() member {
		m := member{host: &host{Backend: shared}, done: make(chan error, 1)}
		m.pool = newPool(t, newLease(t, m.host, "same name"), pool.Config{IdleInterval: time.Second}, work, ids...)
		ctx, stop := context.WithCancel(context.Background())
		m.stop = stop
		go func() { m.done <- m.pool.Run(ctx) }()
		return m
	}
	var fleet []member
	for range 4 {
		fleet = append(fleet, start())
	}
	converged := func(what string, within time.Duration) {
		t.Helper()
		time.Sleep(within)
		synctest.Wait()
		if n := all.size(); n != len(ids) {
			t.Errorf("%v after %s %d IDs have owners", within, what, n)
		}
		active := 0
		for _, m := range fleet {
			active += len(m.pool.ActiveSlots())
		}
		if active != len(ids) {
			t.Errorf("%v after %s %d slots are active", within, what, active)
		}
	}
	converged("the start", moment)
	for range 12 {
		i := random.IntN(len(fleet))
		time.Sleep(time.Duration(random.Int64N(int64(ttl))))
		switch random.IntN(3) {
		case 0: // a crash: nobody says goodbye
			fleet[i].off.Store(true)
			fleet[i].stop()
			fleet[i] = start()
			converged("a crash", ttl+moment)
		case 1: // cut off for longer than its leases last
			fleet[i].off.Store(true)
			time.Sleep(ttl + time.Duration(random.Int64N(int64(ttl))))
			fleet[i].off.Store(false)
			converged("a cut", moment+5*time.Second) // it may be in a pause between failures
		case 2: // a restart
			fleet[i].stop()
			if err := <-fleet[i].done; err != nil {
				t.Error(err)
			}
			converged("leaving", moment)
			fleet[i] = start()
		}
	}
	for _, m := range fleet {
		m.stop()
	}
	for _, m := range fleet {
		if err := <-m.done; err != nil {
			t.Error(err)
		}
	}
	time.Sleep(ttl) // what acquisitions of crashed hosts may have won is looked for until now
}

// ActiveSlots is exact: it says of each slot what its function would.
func TestActiveSlots(t *testing.T) {
	t.Parallel()
	const n = 20
	var mu sync.Mutex
	running := map[string]bool{}
	var p *pool.Pool
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var calls atomic.Int32
	p = newPool(t, newLease(t, memory.New(), "p"), pool.Config{RerunInterval: 1, BackoffInterval: 1}, func(_ context.Context, id string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
		mu.Lock()
		running[id] = true
		mu.Unlock()
		if !slices.Contains(p.ActiveSlots(), id) {
			t.Errorf("%s runs and is not active", id)
		}
		if calls.Add(1) == 2000 {
			cancel()
		}
		mu.Lock()
		delete(running, id)
		mu.Unlock()
		if rand.IntN(2) == 0 {
			return nil, errCutOff
		}
		return nil, nil
	}, names(n)...)
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	for ctx.Err() == nil {
		mu.Lock()
		active := p.ActiveSlots()
		for id := range running { // none can return meanwhile
			if !slices.Contains(active, id) {
				t.Errorf("%s runs and is not active", id)
			}
		}
		mu.Unlock()
		if !slices.IsSorted(active) || len(slices.Compact(slices.Clone(active))) != len(active) || len(active) > n {
			t.Fatalf("active: %v", active)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if active := p.ActiveSlots(); len(active) != 0 || len(running) != 0 {
		t.Errorf("active: %v, running: %v", active, running)
	}
}
