// Renewal-lifecycle shows a lease kept by hand, for code that does not fit into
// worker.Runner. There are two rules:
//
//  1. Stop renewing before you release.
//  2. Release with the context that StartRenewal was given, not with the one it returned.
//
// The release is no defer: that would call a failure a clean handover.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

const ttl = 400 * time.Millisecond

// cable leads to the backend, until somebody pulls it.
type cable struct {
	worklease.Backend
	pulled atomic.Bool
}

func (c *cable) Renew(ctx context.Context, claim worklease.Claim, ttl time.Duration) (worklease.Extension, error) {
	if c.pulled.Load() {
		return worklease.Extension{}, errors.New("no route to the database")
	}
	return c.Backend.Renew(ctx, claim, ttl)
}

// keep runs work under a lease, from its acquisition to its end.
func keep(ctx context.Context, lease worklease.Lease, workID string, work func(context.Context, worklease.Token) ([]byte, error)) error {
	token, err := lease.Acquire(ctx, workID, worklease.WithWaitForLease())
	if err != nil {
		return err
	}
	renewCtx, stopRenewal := lease.StartRenewal(ctx, token)
	state, err := work(renewCtx, token)
	// Asked before the stop: after it, renewCtx has ended in any case.
	cause := context.Cause(renewCtx)

	stopRenewal() // rule 1: when it has returned, no renewal follows
	if cause != nil && !errors.Is(cause, context.Cause(ctx)) {
		return errors.Join(cause, err) // not ours any more: nothing to release
	}
	exit := worklease.ExitReleased
	if err != nil {
		exit = worklease.ExitAbandoned
	}
	// Rule 2: ctx. That it may have ended is all right, a shutdown must release too.
	return errors.Join(err, lease.Release(ctx, token, worklease.WithState(state), worklease.WithExit(exit)))
}

func main() {
	ctx := context.Background()
	line := &cable{Backend: memory.New()}
	lease, err := worklease.New(line, worklease.Config{TTL: ttl, HolderID: "host-1"})
	check(err)

	check(keep(ctx, lease, "tenant-7", func(ctx context.Context, token worklease.Token) ([]byte, error) {
		first, _ := lease.Deadline(token)
		work(ctx, 3*ttl)
		now, _ := lease.Deadline(token)
		fmt.Println("work for three TTLs: the lease was renewed meanwhile:", now.After(first), "and is still ours:", ctx.Err() == nil)
		return []byte("page 17"), nil
	}))
	tell(ctx, lease)

	err = keep(ctx, lease, "tenant-7", func(context.Context, worklease.Token) ([]byte, error) {
		return []byte("page 18"), errors.New("page 19 is missing")
	})
	fmt.Println("work that fails:", err)
	tell(ctx, lease)

	err = keep(ctx, lease, "tenant-7", func(ctx context.Context, _ worklease.Token) ([]byte, error) {
		line.pulled.Store(true)
		work(ctx, time.Minute)
		return []byte("page 19"), nil
	})
	fmt.Println("work that is cut off: its context ended within the TTL, as the window was exhausted:", errors.Is(err, worklease.ErrLeaseWindowExhausted))
	line.pulled.Store(false)
	tell(ctx, lease)
}

// work works for d, or as long as it may.
func work(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// tell prints what a successor is told, and leaves the work as it was.
func tell(ctx context.Context, lease worklease.Lease) {
	token, err := lease.Acquire(ctx, "tenant-7", worklease.WithWaitForLease())
	check(err)
	prior, err := lease.Prior(ctx, token)
	check(err)
	fmt.Printf("  the next owner is told: %s, %q\n", prior.Exit, prior.State)
	check(lease.Release(ctx, token))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
