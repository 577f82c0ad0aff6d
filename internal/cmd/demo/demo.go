package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/aetomala/worklease/internal/fault"
)

// demo is one run.
type demo struct {
	options
	db    *database
	board *board
	dice  *rand.Rand
	watch sync.WaitGroup // one goroutine for each worker process
}

// steps is how many batches the whole import is made of, whatever its size: fast enough to be
// watched, slow enough for two busy cores.
const steps = 1400

// stepsOfWork is how many batches a work has at least, if it has that many lines.
const stepsOfWork = 16

// run is the demo from its beginning to its removal. good is the verdict.
func run(ctx context.Context, o options, out *os.File) (good bool, err error) {
	if o.dirs == nil {
		if o.dirs, err = standardLibrary(ctx); err != nil {
			return false, err
		}
	}
	sources, err := readTrees(o.dirs)
	if err != nil {
		return false, err
	}
	if len(sources) == 0 {
		return false, errors.New("there is not one line in these trees")
	}
	db, err := openDatabase(ctx, o.database, out)
	if err != nil {
		return false, err
	}
	defer func() {
		if o.keep && err == nil {
			db.keep(ctx, out)
			if db.server == nil {
				db.close()
				return
			}
		}
		err = errors.Join(err, db.remove())
	}()
	d := &demo{options: o, db: db, board: newBoard(o.assign(sources)), dice: rand.New(rand.NewPCG(o.seed, 0))}
	if err := d.importAll(ctx, out); err != nil {
		return false, err
	}
	v, err := d.judge(ctx)
	if err != nil {
		return false, err
	}
	v.print(out)
	return v.good(), nil
}

// assign says how each work is done. Every other one may be quicker than the whole: the picture
// would be dull otherwise.
func (o options) assign(sources []source) []assignment {
	size := o.batch
	if size == 0 {
		size = max(sumLines(sources)/steps, 1)
	}
	var works []assignment
	for i, s := range sources {
		a := assignment{Source: s, Batch: min(size, max(s.Lines/stepsOfWork, 1)), Speed: 1}
		if i%2 == 1 {
			h := fnv.New32()
			fmt.Fprint(h, s.ID, o.seed)
			a.Speed += float64(h.Sum32()%1000) / 1000
		}
		works = append(works, a)
	}
	return works
}

// importAll hires the workers, does to them what the demo is about, and returns when every work is
// done and every worker has left. No worker is left whatever happens.
func (d *demo) importAll(ctx context.Context, out *os.File) error {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	defer d.dismiss()
	beside.Go(func() { d.keepPace(ctx) })
	beside.Go(func() { newShow(d, out).run(ctx) })

	if err := d.hireAll(ctx); err != nil {
		return err
	}
	if err := d.play(ctx); err != nil {
		return err
	}
	return d.finish(ctx)
}

// finish waits for the last line and the last worker.
func (d *demo) finish(ctx context.Context) error {
	bound := 5*time.Minute + d.duration
	err := d.board.await(ctx, bound, "for every work to be done", func() bool {
		return !slices.ContainsFunc(d.board.works, func(w *work) bool { return !w.done })
	})
	if err != nil {
		return err
	}
	d.board.report("all works are done")
	for _, h := range d.board.crew {
		if err := h.child.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// paceTick is how often workers hear how far they may be.
const paceTick = 50 * time.Millisecond

// keepPace lets the works go on, evenly over the duration, but never past what is still to happen
// to the workers.
func (d *demo) keepPace(ctx context.Context) {
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		share := float64(now.Sub(last)) / float64(max(d.duration, time.Nanosecond))
		last = now
		var pace float64
		var crew []*hand
		d.board.update(func() {
			d.board.pace = min(d.board.pace+share, d.board.ceiling)
			pace = d.board.pace
			for _, h := range d.board.crew {
				if h.state == running {
					crew = append(crew, h)
				}
			}
		})
		for _, h := range crew {
			_ = h.child.Send(eventPace, pace) // One that is gone needs no pace.
		}
	}
}

// hireAll starts the workers, each with a share of the works, and lets them stand by for all once
// every work has an owner.
func (d *demo) hireAll(ctx context.Context) error {
	for i := range d.workers {
		var share []string
		for j, w := range d.board.works {
			if j%d.workers == i {
				share = append(share, w.Source.ID)
			}
		}
		if _, err := d.hire(fmt.Sprintf("w%d", i+1), share); err != nil {
			return err
		}
	}
	err := d.board.await(ctx, patience, "for every work to have an owner", func() bool {
		return !slices.ContainsFunc(d.board.works, func(w *work) bool { return w.owner == nil })
	})
	if err != nil {
		return err
	}
	d.board.report("%d workers own %d works", d.workers, len(d.board.works))
	for _, h := range d.board.crew {
		if err := h.child.Send(eventStandBy, nil); err != nil {
			return err
		}
	}
	return nil
}

// hire starts a worker process, in the place of an earlier one of that name.
func (d *demo) hire(name string, share []string) (*hand, error) {
	h := &hand{name: name, state: running}
	var err error
	d.board.mu.Lock() // no event before the child is known
	h.child, err = fault.Start(fault.Command{Role: workerRole, OnEvent: func(e fault.Event) { d.board.heard(h, e) }})
	d.board.mu.Unlock()
	if err != nil {
		return nil, err
	}
	d.watch.Go(func() { d.watchOver(h) })
	works := make([]assignment, len(d.board.works))
	for i, w := range d.board.works {
		works[i] = w.assignment
	}
	// The first event, so before the others know of h.
	err = h.child.Send(eventBegin, brief{
		Name: name, Database: d.db.url, Schema: d.db.schema, TTL: d.ttl, Naive: d.naive, Works: works, Share: share,
	})
	d.board.update(func() {
		same := func(other *hand) bool { return other.name == name }
		if i := slices.IndexFunc(d.board.crew, same); i >= 0 {
			d.board.crew[i] = h
		} else {
			d.board.crew = append(d.board.crew, h)
		}
	})
	return h, err
}

// watchOver notices a worker that leaves without being told to.
func (d *demo) watchOver(h *hand) {
	<-h.child.Done()
	err := h.child.Wait(context.Background())
	d.board.update(func() {
		switch {
		case err == nil:
			h.state = gone
		case h.state != killed && !d.board.over && d.board.failed == nil:
			d.board.failed = fmt.Errorf("%s left: %w", h.name, err)
		}
	})
}

// dismiss ends every worker that is still there.
func (d *demo) dismiss() {
	d.board.mu.Lock()
	crew := slices.Clone(d.board.crew)
	d.board.over = true
	d.board.mu.Unlock()
	for _, h := range crew {
		h.child.Kill()
	}
	d.watch.Wait()
}
