// Crash-recovery shows what a successor is told after a crash: where the last owner had
// got to, that it left without a word, and how many in a row have done so since the work
// last moved. Two owners crash on the same row; the third one takes the hint.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/worker"
)

const (
	rows   = 500
	broken = 301
)

func main() {
	leases := memory.New() // in a service: pgxbackend.New(pool)
	for i := 1; i <= 3; i++ {
		name := fmt.Sprintf("worker-%d", i)
		if run(leases, name) {
			fmt.Printf("%s is done: %d rows, one of them set aside\n", name, rows)
		}
	}
}

// run is the life of one process. It reports whether that ended in order.
func run(leases worklease.Backend, name string) (finished bool) {
	lease, err := worklease.New(leases, worklease.Config{TTL: 500 * time.Millisecond, HolderID: name})
	check(err)
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease:          lease,
		AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()}, // a crashed owner's lease runs out
		WorkFn: func(ctx context.Context, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
			return importRows(ctx, lease, token)
		},
	})
	check(err)
	// Only so that this program outlives its workers: a panic is a crash to the Runner
	// too, which stops renewing, tells nobody, and lets it go on up.
	defer func() {
		if p := recover(); p != nil {
			fmt.Printf("%s crashes: %v\n", name, p)
		}
	}()
	check(runner.Run(context.Background(), "import-7"))
	return true
}

func importRows(ctx context.Context, lease worklease.Lease, token worklease.Token) ([]byte, error) {
	prior, err := lease.Prior(ctx, token)
	if err != nil {
		return nil, err
	}
	done, err := checkpoint.Decode[int](checkpoint.JSON(), prior.State)
	if err != nil {
		return nil, err
	}
	name := token.HolderID()
	if prior.Exit == worklease.ExitNone {
		fmt.Printf("%s is the first owner and begins with row 1\n", name)
	} else {
		fmt.Printf("%s goes on after row %d: %s left as %q, crashes in a row: %d\n", name, done, prior.HolderID, prior.Exit, prior.Crashes)
	}
	for row := done + 1; row <= rows; row++ {
		if row == broken {
			if prior.Crashes < 2 {
				panic(fmt.Sprintf("row %d is broken", row))
			}
			fmt.Printf("%s sets row %d aside, as nobody survives it\n", name, row)
		}
		if row%100 != 0 {
			continue
		}
		state, err := checkpoint.Encode(checkpoint.JSON(), row)
		if err != nil {
			return nil, err
		}
		if err := lease.Checkpoint(ctx, token, state); err != nil {
			return nil, err
		}
		fmt.Printf("%s has saved row %d\n", name, row)
	}
	return nil, nil // the last state is saved
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
