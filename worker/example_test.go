package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/worker"
)

// A Runner is set up once and runs its function under a lease of any work ID.
func ExampleRunner_Run() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
			fmt.Printf("%s: continue after %q\n", token.WorkID(), prior)
			if err := lease.Checkpoint(ctx, token, []byte("row 500")); err != nil {
				return nil, err
			}
			return []byte("row 1000"), nil
		},
		AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
	})
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		if err := runner.Run(context.Background(), "tenant-7"); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// tenant-7: continue after ""
	// tenant-7: continue after "row 1000"
}

// On shutdown, save what was done and return it with nil: the next owner goes on at
// once, and is told that all is in order. An error tells it that it is not.
func ExampleRunner_Run_handoff() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	// In a service: signal.NotifyContext(context.Background(), syscall.SIGTERM).
	ctx, sigterm := context.WithCancel(context.Background())

	first, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(ctx context.Context, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
			for row := 1; ; row++ {
				if ctx.Err() != nil {
					return fmt.Appendf(nil, "row %d", row), nil
				}
				if row == 300 {
					sigterm()
				}
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first:", first.Run(ctx, "tenant-7"))

	second, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
			fmt.Printf("second: %s, clean handoff: %v\n", prior, cleanHandoff)
			return nil, errors.New("file is broken")
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second:", second.Run(context.Background(), "tenant-7"))
	// Output:
	// first: <nil>
	// second: row 301, clean handoff: true
	// second: worklease: run "tenant-7": file is broken
}

// Work that is done for good is retired: nobody acquires it again.
func ExampleRunner_Run_retire() {
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
			return []byte("migrated"), worklease.Retire
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(runner.Run(context.Background(), "migration-42"))
	err = runner.Run(context.Background(), "migration-42")
	fmt.Println(errors.Is(err, worklease.ErrLeaseRetired))
	// Output:
	// <nil>
	// true
}

func ExampleNewRunner() {
	_, err := worker.NewRunner(worker.RunnerConfig{})
	fmt.Println(errors.Is(err, worker.ErrLeaseRequired), errors.Is(err, worker.ErrWorkFnRequired))
	// Output: true true
}
