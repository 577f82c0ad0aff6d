// Cluster-leader shows a service of which one node leads at a time. The first leader is
// stopped in order: the next one leads at once. The second is cut off from the database:
// it stops by its own clock, before anybody else can lead. Both nodes are told by
// callbacks, and the function of a leader by its context.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync/atomic"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/leader"
	"github.com/aetomala/worklease/memory"
)

// cable leads to the backend, until somebody pulls it.
type cable struct {
	*memory.Backend
	pulled atomic.Bool
}

var errPulled = errors.New("no route to the database")

func (c *cable) RenewBatch(ctx context.Context, claims []worklease.Claim, ttl time.Duration) ([]worklease.Renewal, error) {
	if c.pulled.Load() {
		return nil, errPulled
	}
	return c.Backend.RenewBatch(ctx, claims, ttl)
}

func (c *cable) Renew(ctx context.Context, claim worklease.Claim, ttl time.Duration) (worklease.Extension, error) {
	if c.pulled.Load() {
		return worklease.Extension{}, errPulled
	}
	return c.Backend.Renew(ctx, claim, ttl)
}

// node is one process of the service.
type node struct {
	name    string
	line    *cable
	sigterm context.CancelFunc // in a service: signal.NotifyContext

	elected, lost, relinquished chan worklease.Token
	stopped                     chan error
}

func start(leases *memory.Backend, name string) *node {
	ctx, sigterm := context.WithCancel(context.Background())
	n := &node{
		name: name, line: &cable{Backend: leases}, sigterm: sigterm,
		elected: make(chan worklease.Token, 1), lost: make(chan worklease.Token, 1), relinquished: make(chan worklease.Token, 1),
		stopped: make(chan error, 1),
	}
	go func() { n.stopped <- n.candidate(ctx) }()
	return n
}

// candidate leads whenever it can. A term that was lost ends it here, so that the story
// has an end; a service would go round.
func (n *node) candidate(ctx context.Context) error {
	lease, err := worklease.New(n.line, worklease.Config{TTL: time.Second, HolderID: n.name})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := leader.Elect(ctx, lease, "scheduler", leader.Config{
			AcquireOptions:  []worklease.AcquireOption{worklease.WithWaitForLease()},
			BackoffInterval: 100 * time.Millisecond,
			OnElected:       func(_ context.Context, token worklease.Token) { n.elected <- token },
			OnLost:          func(_ context.Context, token worklease.Token) { n.lost <- token },
			OnRelinquished:  func(_ context.Context, token worklease.Token) { n.relinquished <- token },
		}, schedule)
		if err != nil {
			return err
		}
	}
	return nil
}

// schedule is what the leader does, until its context ends: with the service, or with the
// lease.
func schedule(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func main() {
	leases := memory.New() // in a service: pgxbackend.New(pool)

	first := start(leases, "node-1")
	token := <-first.elected
	fmt.Printf("%s leads, with token %d\n", first.name, token.FencingToken())

	second := start(leases, "node-2")
	first.sigterm()
	<-first.relinquished
	fmt.Printf("%s is stopped and hands leadership over; its error: %v\n", first.name, <-first.stopped)
	token = <-second.elected
	fmt.Printf("%s leads, with token %d\n", second.name, token.FencingToken())

	third := start(leases, "node-3")
	second.line.pulled.Store(true)
	fmt.Println(second.name, "is cut off and cannot renew")
	<-second.lost
	fmt.Println(second.name, "has stopped leading: its lease is over by its own clock:", errors.Is(<-second.stopped, worklease.ErrLeaseWindowExhausted))
	token = <-third.elected
	fmt.Printf("%s leads, with token %d\n", third.name, token.FencingToken())

	third.sigterm()
	check(<-third.stopped)
	fmt.Println("the service is stopped")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
