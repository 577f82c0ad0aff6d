// Observability shows what a service can measure of its leases, with the standard library
// alone: how often operations came and how long they took, which errors there were, how
// near a renewal came to losing its lease, and how long work lay idle between two owners,
// by how the first of them had left. Meter is an expvar.Var, for expvar.Publish.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

const ttl = 600 * time.Millisecond

// Meter counts. It is the observer of any number of leases.
type Meter struct {
	worklease.NopObserver                 // what is not measured here, and what later versions tell
	lease                 worklease.Lease // to ask how a last owner left: no round trip

	mu      sync.Mutex // guards what follows
	samples map[string]sample
	alive   map[string]time.Time // by work ID: when its owner sent the last sign of life
}

type sample struct {
	count             int
	shortest, longest time.Duration
}

func (m *Meter) add(name string, d time.Duration) {
	s, seen := m.samples[name]
	if !seen {
		s.shortest = d
	}
	m.samples[name] = sample{s.count + 1, min(s.shortest, d), max(s.longest, d)}
}

// operation is common to all. Its error is a kind: an error's text would be a counter each.
func (m *Meter) operation(verb, workID string, took time.Duration, err error) {
	m.add(verb, took)
	if err == nil {
		m.alive[workID] = time.Now().Add(-took)
		return
	}
	for _, kind := range []error{worklease.ErrLeaseHeld, worklease.ErrFenced, worklease.ErrLeaseExpired, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			m.add(verb+" failed: "+kind.Error(), took)
			return
		}
	}
	m.add(verb+" failed otherwise", took)
}

// OnAcquire measures a handover: from the last sign of life of the one to the other's first.
func (m *Meter) OnAcquire(ctx context.Context, e worklease.AcquireEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, known := m.alive[e.WorkID]; known && e.Err == nil {
		if prior, err := m.lease.Prior(ctx, e.Token); err == nil {
			m.add("idle after "+prior.Exit.String(), time.Since(last))
		}
	}
	m.operation("acquire", e.WorkID, e.Duration, e.Err)
}

// OnRenew measures what was left of the lease when its renewal was confirmed. The nearer
// that comes to zero, the nearer is a lost lease: alert on it.
func (m *Meter) OnRenew(_ context.Context, e worklease.RenewEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last, known := m.alive[e.Token.WorkID()]; known && e.Err == nil {
		m.add("slack of renewal", ttl-time.Since(last))
	}
	m.operation("renew", e.Token.WorkID(), e.Duration, e.Err)
}

func (m *Meter) OnCheckpoint(_ context.Context, e worklease.CheckpointEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.operation("checkpoint", e.Token.WorkID(), e.Duration, e.Err)
}

func (m *Meter) OnRelease(_ context.Context, e worklease.ReleaseEvent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.operation("release", e.Token.WorkID(), e.Duration, e.Err)
}

// String is all that was measured.
func (m *Meter) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(m.samples)) {
		s := m.samples[name]
		fmt.Fprintf(&text, "%s: %d, from %v to %v\n", name, s.count, s.shortest.Round(time.Microsecond), s.longest.Round(time.Microsecond))
	}
	return text.String()
}

func main() {
	ctx := context.Background()
	meter := &Meter{samples: map[string]sample{}, alive: map[string]time.Time{}}
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: ttl, HolderID: "host-1", Observer: meter})
	check(err)
	meter.lease = lease
	own := func() worklease.Token { // in a service: worker.Runner
		token, err := lease.Acquire(ctx, "tenant-7", worklease.WithWaitForLease())
		check(err)
		return token
	}
	token := own()
	renewCtx, stopRenewal := lease.StartRenewal(ctx, token)
	select {
	case <-time.After(2 * ttl): // work
	case <-renewCtx.Done():
	}
	_, err = lease.Acquire(ctx, "tenant-7")
	fmt.Println("somebody else is refused:", errors.Is(err, worklease.ErrLeaseHeld))
	stopRenewal()
	check(lease.Release(ctx, token, worklease.WithState([]byte("page 17"))))
	fmt.Println("the first owner hands over")

	check(lease.Release(ctx, own(), worklease.WithExit(worklease.ExitAbandoned)))
	fmt.Println("the second owner gives up")

	token = own()
	fmt.Println("the third owner crashes")

	own()
	err = lease.Checkpoint(ctx, token, []byte("page 18"))
	fmt.Println("and comes back too late:", errors.Is(err, worklease.ErrFenced))
	fmt.Print(meter)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
