package worklease_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// newExample returns a Lease on memory, and a second one of another process.
func newExample() (lease, other worklease.Lease) {
	backend := memory.New()
	lease, err := worklease.New(backend, worklease.Config{TTL: time.Minute, HolderID: "worker-1"})
	check(err)
	other, err = worklease.New(backend, worklease.Config{TTL: time.Minute, HolderID: "worker-2"})
	check(err)
	return lease, other
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func Example() {
	ctx := context.Background()
	backend := memory.New() // pgxbackend.New(pool) in a service
	lease, err := worklease.New(backend, worklease.Config{TTL: 30 * time.Second, HolderID: "worker-1"})
	check(err)

	for range 3 {
		token, err := lease.Acquire(ctx, "tenant-7/import")
		check(err)
		renewCtx, stopRenewal := lease.StartRenewal(ctx, token)
		prior, err := lease.Prior(renewCtx, token)
		check(err)
		fmt.Printf("%d: found %q, %v\n", token.FencingToken(), prior.State, prior.Exit)
		err = lease.Checkpoint(renewCtx, token, fmt.Appendf(nil, "page %d", token.FencingToken()))
		check(err)
		stopRenewal()
		check(lease.Release(ctx, token))
	}
	// Output:
	// 1: found "", none
	// 2: found "page 1", released
	// 3: found "page 2", released
}

func ExampleLease_acquire() {
	ctx := context.Background()
	lease, other := newExample()

	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	fmt.Println("token", token.FencingToken())

	_, err = other.Acquire(ctx, "tenant-7")
	var held *worklease.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.HolderID, "for less than", held.Remaining.Round(time.Minute))
	}
	// Output:
	// token 1
	// held by worker-1 for less than 1m0s
}

func ExampleWithWaitForLease() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	time.AfterFunc(10*time.Millisecond, func() { check(lease.Release(ctx, token)) })

	next, err := other.Acquire(ctx, "tenant-7", worklease.WithWaitForLease(), worklease.WithPollInterval(5*time.Millisecond))
	check(err)
	fmt.Println(next.HolderID(), "goes on with token", next.FencingToken())
	// Output: worker-2 goes on with token 2
}

func ExampleLease_checkpoint() {
	ctx := context.Background()
	lease, _ := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)

	for page := range 3 {
		// … the work …
		check(lease.Checkpoint(ctx, token, fmt.Appendf(nil, "page %d", page)))
	}
	state, _, err := lease.ReadCheckpoint(ctx, token)
	fmt.Printf("%s %v\n", state, err)
	// Output: page 2 <nil>
}

func ExampleLease_prior() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	check(lease.Checkpoint(ctx, token, []byte("page 2")))
	check(lease.Release(ctx, token, worklease.WithExit(worklease.ExitAbandoned)))

	next, err := other.Acquire(ctx, "tenant-7")
	check(err)
	prior, err := other.Prior(ctx, next)
	check(err)
	fmt.Printf("%s %v the work at %q, clean: %t\n", prior.HolderID, prior.Exit, prior.State, prior.CleanHandoff())
	// Output: worker-1 abandoned the work at "page 2", clean: false
}

func ExampleLease_renew() {
	ctx := context.Background()
	lease, _ := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)

	check(lease.Renew(ctx, token))
	trustedUntil, ok := lease.Deadline(token)
	fmt.Println(ok, time.Until(trustedUntil).Round(time.Minute))

	check(lease.Release(ctx, token))
	err = lease.Renew(ctx, token)
	fmt.Println(errors.Is(err, worklease.ErrLeaseExpired), err)
	// Output:
	// true 1m0s
	// true worklease: renew "tenant-7": lease has expired
}

func ExampleLease_startRenewal() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	renewCtx, stopRenewal := lease.StartRenewal(ctx, token)
	defer stopRenewal()

	// An operator takes the work away: the token is known elsewhere too.
	check(other.Release(ctx, worklease.NewToken("tenant-7", "worker-1", token.FencingToken(), token.ExpiresAt())))
	_, err = other.Acquire(ctx, "tenant-7")
	check(err)

	err = lease.Checkpoint(renewCtx, token, []byte("page 3"))
	fmt.Println(err)
	<-renewCtx.Done() // whatever was going on under it ends
	fmt.Println(errors.Is(context.Cause(renewCtx), worklease.ErrFenced))
	// Output:
	// worklease: checkpoint "tenant-7": fenced by a newer token
	// true
}

// An owner that lives but does not move must not keep the work for ever.
func ExampleWithProgressDeadline() {
	ctx := context.Background()
	lease, _ := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	renewCtx, stopRenewal := lease.StartRenewal(ctx, token, worklease.WithProgressDeadline(20*time.Millisecond))
	defer stopRenewal()

	<-renewCtx.Done() // the work hangs: no checkpoint comes
	fmt.Println(errors.Is(context.Cause(renewCtx), worklease.ErrStalled))
	fmt.Println(context.Cause(renewCtx))
	// Output:
	// true
	// worklease: renew "tenant-7": no progress within the deadline: none for 20ms
}

func ExampleWithState() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	// The last checkpoint and the release are one statement.
	check(lease.Release(ctx, token, worklease.WithState([]byte("page 9"))))

	next, err := other.Acquire(ctx, "tenant-7")
	check(err)
	prior, err := other.Prior(ctx, next)
	fmt.Printf("%s %v %v\n", prior.State, prior.Exit, err)
	// Output: page 9 released <nil>
}

func ExampleWithExit() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	check(lease.Release(ctx, token, worklease.WithExit(worklease.ExitRetired)))

	_, err = other.Acquire(ctx, "tenant-7", worklease.WithWaitForLease()) // there is nothing to wait for
	var retired *worklease.RetiredError
	fmt.Println(errors.As(err, &retired), "with token", retired.FencingToken)

	again, err := other.Acquire(ctx, "tenant-7", worklease.WithReopen())
	fmt.Println(again.FencingToken(), err)
	// Output:
	// true with token 1
	// 2 <nil>
}

func ExampleLease_release() {
	ctx, cancel := context.WithCancel(context.Background())
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	cancel() // the service shuts down
	check(lease.Release(ctx, token, worklease.WithState([]byte("page 4"))))

	next, err := other.Acquire(context.Background(), "tenant-7")
	fmt.Println(next.HolderID(), err)
	// Output: worker-2 <nil>
}

func ExampleLease_readCheckpoint() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	check(lease.Release(ctx, token, worklease.WithState([]byte("page 4"))))

	next, err := other.Acquire(ctx, "tenant-7")
	check(err)
	state, cleanHandoff, err := other.ReadCheckpoint(ctx, next)
	fmt.Printf("%s, clean: %t, %v\n", state, cleanHandoff, err)

	_, _, err = lease.ReadCheckpoint(ctx, token)
	fmt.Println(errors.Is(err, worklease.ErrFenced))
	// Output:
	// page 4, clean: true, <nil>
	// true
}

func ExampleLease_forget() {
	ctx := context.Background()
	lease, other := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	check(lease.Checkpoint(ctx, token, []byte("personal data")))
	check(lease.Forget(ctx, token))

	next, err := other.Acquire(ctx, "tenant-7")
	check(err)
	prior, err := other.Prior(ctx, next)
	fmt.Println(prior.State == nil, prior.Exit, err)
	fmt.Println("yet the token grows:", token.FencingToken(), next.FencingToken())
	// Output:
	// true none <nil>
	// yet the token grows: 1 2
}

func ExampleNewToken() {
	ctx := context.Background()
	lease, restarted := newExample()
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	fmt.Println("written down:", token.WorkID(), token.HolderID(), token.FencingToken())

	// Another process resumes the hold: it renews first, and trusts from that on.
	same := worklease.NewToken("tenant-7", "worker-1", 1, token.ExpiresAt())
	_, trusted := restarted.Deadline(same)
	fmt.Println(trusted)
	check(restarted.Renew(ctx, same))
	_, trusted = restarted.Deadline(same)
	fmt.Println(trusted, same.Equal(token))
	// Output:
	// written down: tenant-7 worker-1 1
	// false
	// true true
}

// logger sees what it wants to see; NopObserver ignores the rest.
type logger struct{ worklease.NopObserver }

func (logger) OnAcquire(_ context.Context, e worklease.AcquireEvent) {
	fmt.Println("acquire", e.WorkID, e.Token.FencingToken(), e.Err)
}

func (logger) OnFenced(_ context.Context, e worklease.FencedEvent) {
	fmt.Println("fenced at", e.Operation)
}

func ExampleLeaseObserver() {
	ctx := context.Background()
	lease, err := worklease.New(memory.New(), worklease.Config{
		TTL: time.Minute, HolderID: "worker-1", Observer: logger{},
	})
	check(err)
	token, err := lease.Acquire(ctx, "tenant-7")
	check(err)
	check(lease.Release(ctx, token))
	_, err = lease.Acquire(ctx, "tenant-7")
	check(err)
	_ = lease.Checkpoint(ctx, token, []byte("too late"))
	// Output:
	// acquire tenant-7 1 <nil>
	// acquire tenant-7 2 <nil>
	// fenced at checkpoint
}
