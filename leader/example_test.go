package leader_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/leader"
	"github.com/aetomala/worklease/memory"
)

// Two replicas of a service, of which one leads. When it is stopped the other takes over
// at once.
func ExampleElect() {
	leases := memory.New()
	replica := func(ctx context.Context, name string, led chan<- string) error {
		lease, err := worklease.New(leases, worklease.Config{TTL: 30 * time.Second, HolderID: name})
		if err != nil {
			return err
		}
		return leader.Elect(ctx, lease, "scheduler", leader.Config{
			AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
			OnElected: func(_ context.Context, token worklease.Token) {
				fmt.Printf("%s leads, with token %d\n", name, token.FencingToken())
			},
			OnRelinquished: func(context.Context, worklease.Token) { fmt.Println(name, "has left") },
		}, func(ctx context.Context) error {
			led <- name
			<-ctx.Done() // schedule until the service is stopped
			return nil
		})
	}

	led, ended := make(chan string), make(chan error)
	// In a service: signal.NotifyContext(context.Background(), syscall.SIGTERM).
	ctx, sigterm := context.WithCancel(context.Background())
	go func() { ended <- replica(ctx, "first", led) }()
	<-led
	ctx2, sigterm2 := context.WithCancel(context.Background())
	go func() { ended <- replica(ctx2, "second", led) }()

	sigterm()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	<-led
	sigterm2()
	if err := <-ended; err != nil {
		log.Fatal(err)
	}
	// Output:
	// first leads, with token 1
	// first has left
	// second leads, with token 2
	// second has left
}

// A service that wants to lead whenever it can calls Elect in a loop, whose floor is
// BackoffInterval.
func ExampleElect_loop() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	terms := 0
	for ctx.Err() == nil {
		err := leader.Elect(ctx, lease, "scheduler", leader.Config{
			AcquireOptions:  []worklease.AcquireOption{worklease.WithWaitForLease()},
			BackoffInterval: 10 * time.Millisecond,
		}, func(ctx context.Context) error {
			if terms++; terms == 3 {
				stop()
			}
			return errors.New("no connection to the scheduler")
		})
		fmt.Println(err)
	}
	// Output:
	// worklease: run "scheduler": no connection to the scheduler
	// worklease: run "scheduler": no connection to the scheduler
	// worklease: run "scheduler": no connection to the scheduler
}
