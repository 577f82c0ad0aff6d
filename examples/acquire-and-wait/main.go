// Acquire-and-wait shows the ways to ask for work that somebody else has: once, which says
// who has it and for how long yet; for a while; and until it is free. A waiter does not
// poll: it is woken by the release, or when a crashed owner's lease runs out.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

const ttl = 500 * time.Millisecond

// turnstile says when somebody was refused. A backend is wrapped by embedding it, so that
// it keeps its further powers, such as to wake who waits.
type turnstile struct {
	*memory.Backend
	refused chan struct{}
}

func (t turnstile) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	grant, err := t.Backend.Acquire(ctx, a)
	if errors.Is(err, worklease.ErrLeaseHeld) {
		select {
		case t.refused <- struct{}{}:
		default:
		}
	}
	return grant, err
}

func main() {
	ctx := context.Background()
	leases := turnstile{memory.New(), make(chan struct{}, 1)}
	alice := newLease(leases, "alice", time.Hour)
	bob := newLease(leases, "bob", ttl)
	carol := newLease(leases, "carol", ttl)

	token, err := alice.Acquire(ctx, "tenant-7")
	check(err)
	fmt.Println("alice has tenant-7, for an hour")

	// Once.
	_, err = bob.Acquire(ctx, "tenant-7")
	var held *worklease.HeldError
	if errors.As(err, &held) {
		fmt.Printf("bob asks once: %s has it, for about %v\n", held.HolderID, held.Remaining.Round(time.Minute))
	}

	// For a while.
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = bob.Acquire(short, "tenant-7", worklease.WithWaitForLease())
	fmt.Println("bob waits for a while: out of time:", errors.Is(err, context.DeadlineExceeded))

	// Until it is free.
	<-leases.refused // so far
	got := wait(bob)
	<-leases.refused // once more
	fmt.Println("bob waits until it is free")
	check(alice.Release(ctx, token, worklease.WithState([]byte("page 17"))))
	fmt.Println("alice releases it")
	token = <-got
	prior, err := bob.Prior(ctx, token)
	check(err)
	fmt.Printf("bob was woken, an hour early: %s %s it and saved %q\n", prior.HolderID, prior.Exit, prior.State)

	// A crash is a release by the clock.
	got = wait(carol)
	expiry, _ := bob.Deadline(token)
	fmt.Println("carol waits, and bob crashes")
	token = <-got
	fmt.Println("carol had to wait until bob's lease ran out:", !time.Now().Before(expiry))
	check(carol.Release(ctx, token))
}

// wait begins to wait and returns at once.
func wait(lease worklease.Lease) <-chan worklease.Token {
	got := make(chan worklease.Token)
	go func() {
		token, err := lease.Acquire(context.Background(), "tenant-7", worklease.WithWaitForLease())
		check(err)
		got <- token
	}()
	return got
}

func newLease(leases worklease.Backend, name string, ttl time.Duration) worklease.Lease {
	lease, err := worklease.New(leases, worklease.Config{TTL: ttl, HolderID: name})
	check(err)
	return lease
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
