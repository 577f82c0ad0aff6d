package pool_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/pool"
)

// A Pool works on each of its partitions while no other process does. On shutdown each
// function returns what it has done with nil, and the next owner goes on from there.
func ExamplePool_Run() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	// In a service: signal.NotifyContext(context.Background(), syscall.SIGTERM).
	ctx, sigterm := context.WithCancel(context.Background())
	var working atomic.Int32
	var p *pool.Pool
	read := func(ctx context.Context, workID string, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
		if working.Add(1) == 3 {
			fmt.Println("working on", p.ActiveSlots())
			sigterm()
		}
		<-ctx.Done()
		return []byte("offset 500"), nil
	}
	p, err = pool.New(lease, pool.Config{WorkIDs: []string{"orders-0", "orders-1", "orders-2"}}, read)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.Run(ctx))
	fmt.Println("working on", p.ActiveSlots())

	token, err := lease.Acquire(context.Background(), "orders-1")
	if err != nil {
		log.Fatal(err)
	}
	prior, err := lease.Prior(context.Background(), token)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the next owner of orders-1 is told %q, %v\n", prior.State, prior.Exit)
	// Output:
	// working on [orders-0 orders-1 orders-2]
	// <nil>
	// working on []
	// the next owner of orders-1 is told "offset 500", released
}

// A slot ends when its work is done for good, or when no repetition would help. Run
// returns when all have ended.
func ExamplePermanent() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := pool.New(lease, pool.Config{WorkIDs: []string{"2023.csv"}, Observer: printer{}}, func(context.Context, string, worklease.Token, []byte, bool) ([]byte, error) {
		return nil, pool.Permanent(errors.New("line 7 has no date"))
	})
	if err != nil {
		log.Fatal(err)
	}
	err = p.Run(context.Background())
	fmt.Println(errors.Is(err, pool.ErrAllSlotsDead))
	// Output:
	// acquired 2023.csv
	// dead: worklease: run "2023.csv": line 7 has no date
	// true
}

type printer struct{ pool.NopObserver }

func (printer) OnSlotAcquired(_ context.Context, e pool.SlotAcquiredEvent) {
	fmt.Println("acquired", e.WorkID)
}

func (printer) OnSlotDead(_ context.Context, e pool.SlotDeadEvent) {
	fmt.Println("dead:", e.Err)
}

func ExampleNew() {
	_, err := pool.New(nil, pool.Config{WorkIDs: []string{"a", "a"}}, nil)
	fmt.Println(err)
	// Output:
	// worklease: new pool: invalid pool configuration: lease is nil
	// invalid pool configuration: function is nil
	// invalid pool configuration: duplicate work ID: WorkIDs[1] is WorkIDs[0], "a"
}
