package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/pool"
)

// Roles of the processes that own work and wait for it.
const (
	ownerRole  = "owner"
	memberRole = "member"
)

// Events between the parent and these two.
const (
	eventReset = "reset" // to either: count from now
	eventTally = "tally" // to either, and its answer
)

// owner is what an owner is told: it acquires and renews until it is killed.
type owner struct {
	Place *place
	TTL   time.Duration
	IDs   []string
}

func playOwner(ctx context.Context) error {
	var o owner
	if err := receive(ctx, &o); err != nil {
		return err
	}
	r, err := o.Place.rig(ctx, 4)
	if err != nil {
		return err
	}
	defer r.close()
	l := r.lease(o.TTL)
	contexts := make([]context.Context, len(o.IDs))
	err = share(4, len(o.IDs), func(i int) error {
		token, err := l.Acquire(ctx, o.IDs[i])
		if err == nil {
			contexts[i], _ = l.StartRenewal(ctx, token)
		}
		return err
	})
	if err != nil {
		return err
	}
	fault.Emit(eventReady, nil)
	for {
		if _, err := fault.Receive(ctx); err != nil {
			return nil
		}
		lost := 0
		for _, c := range contexts {
			if c.Err() != nil {
				lost++
			}
		}
		fault.Emit(eventTally, lost)
	}
}

// P7
func measureTakeover(ctx context.Context, p *place) (result, error) {
	if err := p.fill(ctx, usual); err != nil {
		return result{}, err
	}
	r, err := p.counter(ctx, 4)
	if err != nil {
		return result{}, err
	}
	defer r.close()
	ids := workIDs(100)
	ttl := time.Duration(p.scale(2, 3)) * time.Second
	var overs, lates, raws []time.Duration
	var statements []string
	for range p.scale(1, 7) {
		span, late, n, err := p.takeover(ctx, r, ttl, ids)
		if err != nil {
			return result{}, err
		}
		overs, lates = append(overs, span-ttl), append(lates, late)
		statements = append(statements, fmt.Sprint(n))
		raw, err := p.takeRaw(ctx, r, ids)
		if err != nil {
			return result{}, err
		}
		raws = append(raws, raw)
	}
	worst := slices.Max(overs)
	return result{lines: []line{{
		what:      fmt.Sprintf("SIGKILL of an owner of %d → the last is acquired", len(ids)),
		ours:      fmt.Sprintf("TTL %+.0f ms", worst.Seconds()*1000),
		yardstick: fmt.Sprintf("TTL %v", ttl), ratio: times((ttl + worst).Seconds() / ttl.Seconds()),
		aims: []aim{atMost("≤ TTL + 100 ms", worst.Seconds(), 0.100)},
		costs: []string{
			fmt.Sprintf("%d kills, each just after a renewal; beyond the TTL: %v; the line has the worst", len(overs), overs),
			fmt.Sprintf("from the last expiry to the last acquisition: median %s, worst %s", milliseconds(median(lates)), milliseconds(slices.Max(lates))),
			fmt.Sprintf("as many raw upserts on the same connections, right after each: median %s, worst %s", milliseconds(median(raws)), milliseconds(slices.Max(raws))),
			fmt.Sprintf("statements of the taker from the kill on: %v", statements),
		},
	}}}, nil
}

// takeover kills an owner as soon as it has renewed, and returns the time until the last of
// its work was acquired here, and how long after the last expiry that was.
func (p *place) takeover(ctx context.Context, r *rig, ttl time.Duration, ids []string) (span, late time.Duration, statements int, err error) {
	if err := p.exec(ctx, emptySQL); err != nil {
		return 0, 0, 0, err
	}
	if err := p.vacuum(ctx); err != nil {
		return 0, 0, 0, err
	}
	c, err := begin(ctx, ownerRole, owner{p, ttl, ids})
	if err != nil {
		return 0, 0, 0, err
	}
	defer c.Kill()
	l := r.lease(long)
	acquired := make([]time.Time, len(ids))
	done := make(chan error, 1)
	go func() {
		done <- share(len(ids), len(ids), func(i int) error {
			_, err := l.Acquire(ctx, ids[i], worklease.WithWaitForLease())
			acquired[i] = time.Now()
			return err
		})
	}()
	pause(ctx, ttl+rand.N(ttl/2))
	left := p.sql(`SELECT max(expires_at - clock_timestamp()) FROM {table} WHERE work_id = ANY ($1)`)
	var most time.Duration
	var asked time.Time
	for most < ttl-ttl/50 {
		asked = time.Now()
		if err := p.admin.QueryRow(ctx, left, ids).Scan(&most); err != nil {
			return 0, 0, 0, err
		}
		if most > ttl {
			return 0, 0, 0, errors.New("the owner lost a lease by itself")
		}
		pause(ctx, time.Millisecond)
	}
	r.tracer.Reset()
	killed := time.Now()
	c.Kill()
	if err := <-done; err != nil {
		return 0, 0, 0, err
	}
	last := slices.MaxFunc(acquired, time.Time.Compare)
	return last.Sub(killed), last.Sub(asked.Add(most)), len(r.tracer.Statements()), nil
}

// takeRaw returns how long it takes to acquire the work with as few words as can be, all of
// it free.
func (p *place) takeRaw(ctx context.Context, r *rig, ids []string) (time.Duration, error) {
	if err := p.exec(ctx, emptySQL); err != nil {
		return 0, err
	}
	sql := p.sql(rawAcquireSQL)
	began := time.Now()
	err := share(len(ids), len(ids), func(i int) error {
		_, err := r.pool.Exec(ctx, sql, ids[i], "bench", long)
		return err
	})
	return time.Since(began), err
}

// Ways to wait.
const (
	byAcquire = "acquire" // Acquire with WithWaitForLease
	byPool    = "pool"    // a pool.Pool
	byV05     = "v0.5"    // as v0.5 does: an Acquire every 2 s
)

const v05Interval = 2 * time.Second

// member is what a process that waits is told.
type member struct {
	Place   *place
	Way     string
	IDs     []string
	Waiters int // goroutines; a pool has one for each work ID
}

// tally is what a member counted since it was told to.
type tally struct {
	Statements, Trips int
	Goroutines, Bytes float64 // for each waiter
	CPU               time.Duration
}

func playMember(ctx context.Context) error {
	var m member
	if err := receive(ctx, &m); err != nil {
		return err
	}
	r, err := m.Place.counter(ctx, 4)
	if err != nil {
		return err
	}
	defer r.close()
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	failed := make(chan error, 1)
	go func() { failed <- m.wait(ctx, r) }()
	for n := 0; n < m.Waiters; pause(ctx, 5*time.Millisecond) {
		if n = len(r.tracer.Statements()); m.Way != byV05 {
			if s := r.backend.Stats(); !s.Listening {
				n = 0
			} else {
				n = s.Waiters
			}
		}
		select {
		case err := <-failed:
			return err
		default:
		}
	}
	fault.Emit(eventReady, nil)
	var cpu time.Duration
	var trips int64
	for {
		e, err := fault.Receive(ctx)
		if err != nil {
			return nil
		}
		t := tally{Statements: len(r.tracer.Statements()), Trips: int(r.trips.Load() - trips), CPU: cpuTime() - cpu}
		if e.Name == eventTally {
			r.tracer.Reset()
			t.Goroutines = float64(runtime.NumGoroutine()-goroutines) / float64(m.Waiters)
			t.Bytes = float64(heapInUse()-heap) / float64(m.Waiters)
		}
		r.tracer.Reset()
		cpu, trips = cpuTime(), r.trips.Load()
		fault.Emit(eventTally, t)
	}
}

// wait waits until ctx ends.
func (m member) wait(ctx context.Context, r *rig) error {
	if m.Way == byPool {
		p, err := pool.New(r.lease(long), pool.Config{WorkIDs: m.IDs}, func(context.Context, string, worklease.Token, []byte, bool) ([]byte, error) {
			return nil, errors.New("acquired what another process holds")
		})
		if err != nil {
			return err
		}
		return p.Run(ctx)
	}
	l, sql := r.lease(long), m.Place.sql(v05AcquireSQL)
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, m.Waiters)
	for i := range m.Waiters {
		id := m.IDs[i%len(m.IDs)]
		wg.Go(func() {
			if m.Way == byAcquire {
				_, err := l.Acquire(ctx, id, worklease.WithWaitForLease())
				failed <- err
				return
			}
			for ctx.Err() == nil {
				if tag, err := r.pool.Exec(ctx, sql, id, "member", long); err != nil || tag.RowsAffected() > 0 {
					failed <- errors.Join(err, errors.New("acquired what another process holds"))
					return
				}
				pause(ctx, v05Interval)
			}
		})
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

// P8
func measureWaiters(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	waiters := p.scale(200, 1000)
	for _, ids := range []int{1, waiters} {
		l, err := p.crowdLine(ctx, crowd{processes: 1, way: byAcquire, ids: ids, waiters: waiters})
		if err != nil {
			return r, err
		}
		l.what = fmt.Sprintf("%d goroutines waiting for %d work IDs: statements per TTL", waiters, ids)
		r.lines = append(r.lines, l)
	}
	return r, nil
}

// P14
func measurePools(ctx context.Context, p *place) (result, error) {
	if err := p.fill(ctx, usual); err != nil {
		return result{}, err
	}
	ids := p.scale(200, 1000)
	l, err := p.crowdLine(ctx, crowd{processes: 4, way: byPool, ids: ids, waiters: ids})
	l.what = fmt.Sprintf("4 processes, pools of %d held elsewhere: statements per TTL, process", ids)
	return result{lines: []line{l}}, err
}

// crowd is a number of processes that wait for work that another owns.
type crowd struct {
	processes    int
	way          string
	ids, waiters int
}

func (p *place) crowdLine(ctx context.Context, c crowd) (line, error) {
	ttl := time.Duration(p.scale(2, 3)) * time.Second
	ttls := p.scale(1, 5)
	ids := workIDs(c.ids)
	if err := errors.Join(p.exec(ctx, emptySQL), p.vacuum(ctx)); err != nil {
		return line{}, err
	}
	owns, err := begin(ctx, ownerRole, owner{p, ttl, ids})
	if err != nil {
		return line{}, err
	}
	defer owns.Kill()
	if err := p.exec(ctx, `TRUNCATE {v05}; INSERT INTO {v05} (work_id, holder_id, expires_at)
		SELECT work_id, 'bench', clock_timestamp() + interval '1 hour' FROM {table} WHERE work_id LIKE 'w%'`); err != nil {
		return line{}, err
	}
	ours, err := p.crowd(ctx, c, ids, ttl, ttls)
	if err != nil {
		return line{}, err
	}
	c.way = byV05
	v05, err := p.crowd(ctx, c, ids, ttl, ttls)
	if err != nil {
		return line{}, err
	}
	lost, err := ask[int](ctx, owns, eventTally)
	if err != nil {
		return line{}, err
	}
	worst := func(all []tally) float64 {
		most := 0.0
		for _, t := range all {
			most = max(most, float64(t.Statements)/float64(ttls))
		}
		return most
	}
	budget := float64(2 * ((c.ids + 499) / 500))
	costs := func(name string, t tally) string {
		return fmt.Sprintf("%s, for each waiter: %.1f goroutines, %.0f bytes; %d statements, %d round trips, %.2f s CPU in %d TTLs of %v",
			name, t.Goroutines, t.Bytes, t.Statements, t.Trips, t.CPU.Seconds(), ttls, ttl)
	}
	return line{
		ours: fmt.Sprintf("%.1f", worst(ours)), yardstick: fmt.Sprintf("v0.5 %.0f", worst(v05)),
		ratio: fmt.Sprintf("%.4f", worst(ours)/worst(v05)),
		aims:  []aim{atMost(fmt.Sprintf("≤ %.0f", budget), worst(ours), budget)},
		costs: []string{costs("ours", ours[0]), costs("v0.5 polling every 2 s", v05[0]), fmt.Sprintf("leases that the owner lost meanwhile: %d", lost)},
	}, nil
}

// crowd has the processes wait for some TTLs, from when they sleep, and returns their tallies.
func (p *place) crowd(ctx context.Context, c crowd, ids []string, ttl time.Duration, ttls int) ([]tally, error) {
	tallies := make([]tally, c.processes)
	children := make([]*fault.Child, c.processes)
	for i := range children {
		child, err := begin(ctx, memberRole, member{p, c.way, ids, c.waiters})
		if err != nil {
			return nil, err
		}
		defer child.Kill()
		children[i] = child
	}
	pause(ctx, ttl) // the first looks and marks
	for _, child := range children {
		if _, err := ask[tally](ctx, child, eventReset); err != nil {
			return nil, err
		}
	}
	pause(ctx, time.Duration(ttls)*ttl)
	for i, child := range children {
		var err error
		if tallies[i], err = ask[tally](ctx, child, eventTally); err != nil {
			return nil, err
		}
	}
	return tallies, nil
}

// ask sends an event and returns what the tally that answers it says.
func ask[T any](ctx context.Context, c *fault.Child, event string) (answer T, err error) {
	if err := c.Send(event, nil); err != nil {
		return answer, err
	}
	e, err := c.Await(ctx, fault.Named(eventTally))
	if err != nil {
		return answer, err
	}
	return answer, e.Decode(&answer)
}
