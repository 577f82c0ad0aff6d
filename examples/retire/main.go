// Retire shows work that ends for good: a migration that must run once and never again,
// whoever asks. Whoever runs it returns worklease.Retire; later calls are refused, a Pool
// drops the slot, and only WithReopen takes the work up again.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/pool"
	"github.com/aetomala/worklease/worker"
)

func main() {
	ctx := context.Background()
	lease, err := worklease.New(memory.New(), worklease.Config{TTL: time.Minute, HolderID: "host-1"})
	check(err)

	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
			fmt.Println("host-1 runs migration-42")
			return []byte("1200 rows moved"), worklease.Retire // an instruction, no failure
		},
	})
	check(err)
	check(runner.Run(ctx, "migration-42"))
	fmt.Println("it is done for good")

	err = runner.Run(ctx, "migration-42")
	var retired *worklease.RetiredError
	if errors.As(err, &retired) {
		fmt.Printf("a second run is refused: %s was retired by %s with token %d\n", retired.WorkID, retired.HolderID, retired.FencingToken)
	}

	// Waiting does not help either, and is not tried.
	_, err = lease.Acquire(ctx, "migration-42", worklease.WithWaitForLease())
	fmt.Println("waiting for it is refused at once:", errors.Is(err, worklease.ErrLeaseRetired))

	// A pool works on what is left, and returns when nothing is.
	p, err := pool.New(lease, pool.Config{
		WorkIDs:  []string{"migration-42", "migration-43"},
		Observer: printer{},
	}, func(_ context.Context, workID string, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
		<-skipped // so that this program always prints the same
		fmt.Println("pool: runs", workID)
		return nil, worklease.Retire
	})
	check(err)
	check(p.Run(ctx))
	fmt.Println("the pool has nothing left to do")

	// An operator who knows better.
	token, err := lease.Acquire(ctx, "migration-42", worklease.WithReopen())
	check(err)
	prior, err := lease.Prior(ctx, token)
	check(err)
	fmt.Printf("reopened: the last owner %s it and left %q\n", prior.Exit, prior.State)
	check(lease.Release(ctx, token, worklease.WithExit(worklease.ExitRetired)))
}

// skipped is closed when the pool has dropped migration-42.
var skipped = make(chan struct{})

type printer struct{ pool.NopObserver }

func (printer) OnSlotRetired(_ context.Context, e pool.SlotRetiredEvent) {
	fmt.Println("pool: no more of", e.WorkID)
	if e.WorkID == "migration-42" {
		close(skipped)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
