package main

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/aetomala/worklease/internal/fault"
)

// orders is what the parent has told a worker.
type orders struct {
	standBy chan struct{} // closed when it comes
	goOn    chan struct{} // a batch at rest may go on

	mu      sync.Mutex
	pace    float64
	rest    point // for the next batch; "": none
	changed chan struct{}
}

func newOrders() *orders {
	return &orders{standBy: make(chan struct{}), goOn: make(chan struct{}, 1), changed: make(chan struct{})}
}

// heed takes in what the parent sends, until ctx ends.
func (o *orders) heed(ctx context.Context) {
	for {
		e, err := fault.Receive(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			os.Exit(1) // The parent is gone, and nobody would wake a batch at rest.
		}
		if err := o.take(e); err != nil {
			panic(err)
		}
	}
}

func (o *orders) take(e fault.Event) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var err error
	switch e.Name {
	case eventStandBy:
		close(o.standBy)
	case eventGo:
		o.goOn <- struct{}{}
	case eventPace:
		err = e.Decode(&o.pace)
	case eventRest:
		err = e.Decode(&o.rest)
	default:
		err = errors.New("unknown order " + e.Name)
	}
	close(o.changed)
	o.changed = make(chan struct{})
	return err
}

// await waits until the pace allows the next batch, which ready tells, or a batch is to rest: then
// it is this one, and where is told. It returns early when ctx ends.
func (o *orders) await(ctx context.Context, ready func(pace float64) bool) point {
	for {
		if ctx.Err() != nil {
			return ""
		}
		rest, ok, changed := o.look(ready)
		if ok {
			return rest
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (o *orders) look(ready func(pace float64) bool) (rest point, ok bool, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rest != "" {
		rest, o.rest = o.rest, ""
		return rest, true, nil
	}
	return "", ready(o.pace), o.changed
}
