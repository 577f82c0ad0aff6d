// Zombie-fencing shows an owner that was frozen for longer than its lease lasts, as by a
// virtual machine that was moved, and wakes up believing that it still owns the work.
// Whatever it sends comes with an old token: the backend refuses it, and so does any other
// system that compares tokens.
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

// Storage is another system, such as an object store. It refuses a token smaller than one
// that it has seen. No lease service can do that for it.
type Storage struct {
	content string
	seen    uint64
}

var errOldToken = errors.New("a newer token has written here")

// Write is what each write to another system should look like.
func (s *Storage) Write(token worklease.Token, content string) error {
	if token.FencingToken() < s.seen {
		return errOldToken
	}
	s.seen, s.content = token.FencingToken(), content
	return nil
}

func main() {
	ctx := context.Background()
	leases := memory.New()
	storage := &Storage{}

	first := newLease(leases, "first")
	old, err := first.Acquire(ctx, "report")
	check(err)
	check(storage.Write(old, "draft"))
	check(first.Checkpoint(ctx, old, []byte("draft")))
	fmt.Printf("first owns the work with token %d and has written a draft\n", old.FencingToken())

	fmt.Println("first freezes: it neither works nor renews")

	// Nobody can tell it from a crash. When the lease has run out, the next one has it.
	second := newLease(leases, "second")
	current, err := second.Acquire(ctx, "report", worklease.WithWaitForLease())
	check(err)
	prior, err := second.Prior(ctx, current)
	check(err)
	fmt.Printf("second owns the work with token %d; first left as %q and had saved %q\n", current.FencingToken(), prior.Exit, prior.State)
	check(storage.Write(current, "final"))
	check(second.Checkpoint(ctx, current, []byte("final")))
	fmt.Println("second has written the final report")

	fmt.Println("first wakes up and goes on as if nothing had happened")
	_, trusted := first.Deadline(old) // no round trip; the context of StartRenewal ends at this time
	fmt.Println("  its own clock could have told it: may it trust its token?", trusted)
	fmt.Println("  its checkpoint is refused:", errors.Is(first.Checkpoint(ctx, old, []byte("draft 2")), worklease.ErrFenced))
	fmt.Println("  its renewal is refused:", errors.Is(first.Renew(ctx, old), worklease.ErrFenced))
	fmt.Println("  its release is refused:", errors.Is(first.Release(ctx, old), worklease.ErrFenced))
	fmt.Println("  its write to the storage is refused:", errors.Is(storage.Write(old, "draft 2"), errOldToken))

	state, _, err := second.ReadCheckpoint(ctx, current)
	check(err)
	fmt.Printf("the storage holds %q, the checkpoint is %q, and second still owns the work\n", storage.content, state)
	check(second.Release(ctx, current))
}

func newLease(leases worklease.Backend, name string) worklease.Lease {
	lease, err := worklease.New(leases, worklease.Config{TTL: 300 * time.Millisecond, HolderID: name})
	check(err)
	return lease
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
