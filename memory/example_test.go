package memory_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// Leases on one Backend exclude each other, as those of processes on one database do.
func ExampleNew() {
	ctx := context.Background()
	backend := memory.New()
	first, err := worklease.New(backend, worklease.Config{TTL: time.Minute, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	second, err := worklease.New(backend, worklease.Config{TTL: time.Minute, HolderID: "host-2"})
	if err != nil {
		log.Fatal(err)
	}
	token, err := first.Acquire(ctx, "tenant-7")
	fmt.Println(token.FencingToken(), err)
	_, err = second.Acquire(ctx, "tenant-7")
	fmt.Println(err != nil)
	// Output:
	// 1 <nil>
	// true
}

type fastClock struct{ ahead time.Duration }

func (c *fastClock) Now() time.Time { return time.Now().Add(c.ahead) }

// A crash, in a test without a wait: the database's clock is set forward.
func ExampleWithClock() {
	ctx := context.Background()
	ahead := new(fastClock)
	lease, err := worklease.New(memory.New(memory.WithClock(ahead)), worklease.Config{TTL: time.Minute, HolderID: "host-1"})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := lease.Acquire(ctx, "tenant-7"); err != nil {
		log.Fatal(err)
	}
	ahead.ahead = time.Minute
	token, err := lease.Acquire(ctx, "tenant-7")
	if err != nil {
		log.Fatal(err)
	}
	prior, err := lease.Prior(ctx, token)
	fmt.Println(prior.Exit, prior.Crashes, err)
	// Output: expired 1 <nil>
}
