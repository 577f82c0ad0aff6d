// Partition-processor shows two processes that share six partitions by a pool.Pool each:
// a partition is read by one of them at a time. When the first is stopped, the second
// takes each partition over at the message where the first has left it, and retires it at
// its end.
package main

import (
	"context"
	"fmt"
	"log"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/pool"
)

const (
	partitions = 6
	messages   = 20 // in each
)

// audit counts how often each message was read, and by whom.
type audit struct {
	mu    sync.Mutex
	reads map[string]int // "partition-3/17" → 1
	by    map[string]int // "host-1" → 42
}

func (a *audit) read(host, partition string, message int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reads[fmt.Sprintf("%s/%d", partition, message)]++
	a.by[host]++
}

// host is one process.
type host struct {
	name    string
	lease   worklease.Lease
	audit   *audit
	pauseAt int           // waits here to be stopped; 0: nowhere
	paused  chan struct{} // for each partition that has got there
}

// read is what each slot does under its lease.
func (h *host) read(ctx context.Context, partition string, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
	offset, err := checkpoint.Decode[int](checkpoint.JSON(), prior)
	if err != nil {
		return nil, err
	}
	for offset < messages {
		offset++
		h.audit.read(h.name, partition, offset)
		state, err := checkpoint.Encode(checkpoint.JSON(), offset)
		if err != nil {
			return nil, err
		}
		if offset == h.pauseAt {
			h.paused <- struct{}{}
			<-ctx.Done()
		}
		if ctx.Err() != nil {
			return state, nil // a clean handover
		}
		if err := h.lease.Checkpoint(ctx, token, state); err != nil {
			return nil, err
		}
	}
	return nil, worklease.Retire // nothing will ever come after the end
}

func (h *host) run(ctx context.Context, leases worklease.Backend) error {
	var err error
	h.lease, err = worklease.New(leases, worklease.Config{TTL: 5 * time.Second, HolderID: h.name})
	if err != nil {
		return err
	}
	var ids []string
	for i := range partitions {
		ids = append(ids, fmt.Sprintf("partition-%d", i))
	}
	p, err := pool.New(h.lease, pool.Config{WorkIDs: ids}, h.read)
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

func main() {
	leases := memory.New() // in a service: pgxbackend.New(pool)
	a := &audit{reads: map[string]int{}, by: map[string]int{}}

	ctx, sigterm := context.WithCancel(context.Background())
	first := &host{name: "host-1", audit: a, pauseAt: messages / 2, paused: make(chan struct{})}
	stopped := make(chan error)
	go func() { stopped <- first.run(ctx, leases) }()
	for range partitions {
		<-first.paused
	}
	fmt.Println("host-1 is alone, and in the middle of all partitions")

	second := &host{name: "host-2", audit: a}
	finished := make(chan error)
	go func() { finished <- second.run(context.Background(), leases) }()
	fmt.Println("host-2 starts, and host-1 is told to stop")
	sigterm()
	check(<-stopped)
	fmt.Println("host-1 has handed over")
	check(<-finished)
	fmt.Println("host-2 has retired every partition, and its pool has ended by itself")

	for _, name := range slices.Sorted(maps.Keys(a.by)) {
		fmt.Printf("%s has read %d messages\n", name, a.by[name])
	}
	repeated := 0
	for _, times := range a.reads {
		if times > 1 {
			repeated++
		}
	}
	fmt.Printf("messages: %d, read: %d, read more than once: %d\n", partitions*messages, len(a.reads), repeated)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
