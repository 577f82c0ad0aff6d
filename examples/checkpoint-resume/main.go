// Checkpoint-resume shows a deployment in the middle of a long job: the old process is
// told to stop, saves its progress with the release, and the new one goes on from there at
// once. The progress is a Go value, saved with package checkpoint.
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

// Progress is what a successor needs to go on.
type Progress struct {
	Page  int // the last one that was read
	Users int // on all pages so far
}

// pages is the job: users on each page.
var pages = []int{120, 80, 95, 110, 60, 35}

func main() {
	leases := memory.New()

	// In a service: signal.NotifyContext(context.Background(), syscall.SIGTERM).
	ctx, sigterm := context.WithCancel(context.Background())
	defer sigterm()
	old := process{leases: leases, name: "v1", read: func(page int) {
		if page == 4 {
			fmt.Println("v1 is told to stop while it reads page 4")
			sigterm()
		}
	}}
	old.run(ctx)
	process{leases: leases, name: "v2"}.run(context.Background())
	// Nothing is left to do, and the third one sees it.
	process{leases: leases, name: "v3"}.run(context.Background())
}

type process struct {
	leases worklease.Backend
	name   string
	read   func(page int)
}

func (p process) run(ctx context.Context) {
	lease, err := worklease.New(p.leases, worklease.Config{TTL: time.Minute, HolderID: p.name})
	check(err)
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease,
		WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, cleanHandoff bool) ([]byte, error) {
			progress, err := checkpoint.Decode[Progress](checkpoint.JSON(), prior) // nothing saved yet: zero
			if err != nil {
				return nil, err
			}
			fmt.Printf("%s begins after page %d with %d users; clean handoff: %v\n", p.name, progress.Page, progress.Users, cleanHandoff)
			return p.readPages(ctx, lease, token, progress)
		},
	})
	check(err)
	check(runner.Run(ctx, "count users"))
}

// readPages reads until the end, or until it is told to stop: both is a clean handoff.
func (p process) readPages(ctx context.Context, lease worklease.Lease, token worklease.Token, progress Progress) ([]byte, error) {
	for progress.Page < len(pages) {
		if p.read != nil {
			p.read(progress.Page + 1)
		}
		progress.Users += pages[progress.Page]
		progress.Page++
		state, err := checkpoint.Encode(checkpoint.JSON(), progress)
		if err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			fmt.Printf("%s hands over after page %d\n", p.name, progress.Page)
			return state, nil // saved in the statement that releases
		}
		// A crash costs the work since here, and no more.
		if err := lease.Checkpoint(ctx, token, state); err != nil {
			return nil, err
		}
		fmt.Printf("%s has saved page %d\n", p.name, progress.Page)
	}
	fmt.Printf("%s has nothing left to read: %d users\n", p.name, progress.Users)
	return nil, nil // keeps what is saved
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
