package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// patience bounds the wait for what is sure to come.
	patience = time.Minute
	// restPatience bounds the wait for a worker to come to a point. It does not come if it has
	// lost its works meanwhile, as may happen on a machine that is very busy.
	restPatience = 15 * time.Second
	// victims is how many workers are tried then.
	victims = 4
)

// play does to the workers what the demo is about, in an order that the seed chooses, spread over
// the import. Each fault waits until the one before has taken its full effect.
func (d *demo) play(ctx context.Context) error {
	faults := []func(context.Context) error{d.freezeInside, d.freezeOutside, d.stop}
	for i := range d.kills {
		faults = append(faults, func(ctx context.Context) error { return d.kill(ctx, i%2 == 0) })
	}
	d.dice.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
	for i, fault := range faults {
		// The works go on meanwhile, but never to their ends: there must be somebody to hit.
		d.board.update(func() { d.board.ceiling = due(i+1, len(faults)) })
		err := d.board.await(ctx, patience+d.duration, "for the works to go on", func() bool {
			return d.board.pace >= due(i, len(faults))
		})
		if err == nil {
			err = fault(ctx)
		}
		if err != nil {
			return err
		}
	}
	d.board.update(func() { d.board.ceiling = 1 })
	return nil
}

// due is how far the works are when the i-th of n faults comes, from 0.
func due(i, n int) float64 {
	const first, last = 0.06, 0.92
	return first + (last-first)*float64(i)/float64(n)
}

// kill ends a worker with SIGKILL: between its rows and its checkpoint, or wherever it is.
func (d *demo) kill(ctx context.Context, between bool) error {
	h, err := d.victim(ctx)
	where := "at a random moment"
	if err == nil && between {
		var r resting
		h, r, err = d.victimAt(ctx, inside)
		where = "between the rows and the checkpoint of " + r.Work
	}
	if err != nil {
		return err
	}
	began := time.Now()
	d.board.update(func() { d.board.endLocked(h, killed); d.board.kills++ })
	h.child.Kill()
	owned := d.owned(h)
	d.board.report("SIGKILL for %s %s; it owned %d", h.name, where, len(owned))
	if err := d.replace(h); err != nil {
		return err
	}
	return d.succession(ctx, h, owned, began)
}

// freezeInside stops a worker inside a transaction, after its rows, and wakes it when others have
// taken over all it had. What it then writes is the database's to refuse.
func (d *demo) freezeInside(ctx context.Context) error {
	return d.freeze(ctx, inside, byDatabase, "between the rows and the checkpoint of")
}

// freezeOutside stops a worker that is about to begin a batch. When it wakes, its context is dead.
func (d *demo) freezeOutside(ctx context.Context) error {
	return d.freeze(ctx, outside, byContext, "before a batch of")
}

func (d *demo) freeze(ctx context.Context, p point, by, where string) error {
	h, r, err := d.victimAt(ctx, p)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := h.child.Freeze(); err != nil {
		return err
	}
	d.board.update(func() { d.board.endLocked(h, frozen) })
	owned := d.owned(h)
	d.board.report("SIGSTOP for %s %s %s; it owned %d", h.name, where, r.Work, len(owned))
	if err := d.succession(ctx, h, owned, began); err != nil {
		return err
	}
	_, before := d.refusals(hold{})
	if err := errors.Join(h.child.Send(eventGo, nil), h.child.Thaw()); err != nil {
		return err
	}
	zombie := hold{r.Work, r.Token}
	err = d.board.await(ctx, patience, "for the zombie to be refused by the "+by, func() bool {
		return slices.ContainsFunc(d.board.refusals, func(f refused) bool {
			return hold{f.Work, f.Token} == zombie && f.By == by && (by == byContext || f.Why != idleInTransaction)
		})
	})
	if err != nil {
		return err
	}
	why, all := d.refusals(zombie)
	d.board.report("%s woken: %s refused by %s; %d refusals in all", h.name, r.Work, why, all-before)
	d.board.update(func() { h.state, h.rest, h.resting = running, nil, false })
	return nil
}

// stop ends workers with SIGTERM until one has handed over what it had: the first one does, unless it
// had lost all that without knowing.
func (d *demo) stop(ctx context.Context) error {
	for range victims {
		h, err := d.victim(ctx)
		if err != nil {
			return err
		}
		if clean, err := d.stopOne(ctx, h); clean || err != nil {
			return err
		}
	}
	return errors.New("workers were told to stop, and no successor was told of a clean handover")
}

// stopOne reports whether a successor was told of a clean handover.
func (d *demo) stopOne(ctx context.Context, h *hand) (clean bool, err error) {
	began := time.Now()
	owned := d.owned(h)
	d.board.update(func() { d.board.endLocked(h, stopped) })
	if err := h.child.Terminate(); err != nil {
		return false, err
	}
	d.board.report("SIGTERM for %s; it owns %d", h.name, len(owned))
	if err := h.child.Wait(ctx); err != nil {
		return false, err
	}
	if err := d.replace(h); err != nil {
		return false, err
	}
	if err := d.succession(ctx, h, owned, began); err != nil {
		return false, err
	}
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	return slices.ContainsFunc(d.board.takeovers, func(a acquired) bool {
		return a.Exit == "released" && a.PriorHolder == h.name
	}), nil
}

// succession waits until h owns nothing that is not done, and reports it.
func (d *demo) succession(ctx context.Context, h *hand, owned []*work, began time.Time) error {
	err := d.board.await(ctx, patience, "for successors of "+h.name, func() bool {
		return len(d.board.ownedLocked(h)) == 0
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	d.board.mu.Lock()
	heirs := tookOverLocked(owned)
	d.board.mu.Unlock()
	d.board.report("  after %.2f s all are taken over: %s", took.Seconds(), heirs)
	return nil
}

// replace starts a new process in the place of h, standing by for every work.
func (d *demo) replace(h *hand) error {
	next, err := d.hire(h.name, nil)
	if err != nil {
		return err
	}
	return next.child.Send(eventStandBy, nil)
}

// victim chooses among the workers that own a work which will not be done before all has happened.
func (d *demo) victim(ctx context.Context) (*hand, error) {
	var candidates []*hand
	err := d.board.await(ctx, patience, "for somebody to own a work", func() bool {
		found := map[string]*hand{}
		for _, w := range d.board.works {
			if w.Speed == 1 && !w.done && w.owner != nil && w.owner.state == running {
				found[w.owner.name] = w.owner
			}
		}
		candidates = nil
		for _, name := range slices.Sorted(maps.Keys(found)) {
			candidates = append(candidates, found[name])
		}
		return len(candidates) > 0
	})
	if err != nil {
		return nil, err
	}
	return candidates[d.dice.IntN(len(candidates))], nil
}

// victimAt chooses a worker and waits until it stands at a point.
func (d *demo) victimAt(ctx context.Context, p point) (*hand, resting, error) {
	var last error
	for range victims {
		h, err := d.victim(ctx)
		if err != nil {
			return nil, resting{}, err
		}
		d.board.update(func() { h.resting = true })
		if err := h.child.Send(eventRest, p); err != nil {
			return nil, resting{}, err
		}
		last = d.board.await(ctx, restPatience, "for "+h.name+" to come to a point", func() bool { return h.rest != nil })
		var r *resting
		d.board.update(func() { r = h.rest; h.resting = r != nil })
		if r != nil {
			return h, *r, nil
		}
		if err := h.child.Send(eventRest, point("")); err != nil || ctx.Err() != nil {
			return nil, resting{}, errors.Join(last, err)
		}
	}
	return nil, resting{}, last
}

func (d *demo) owned(h *hand) []*work {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	return d.board.ownedLocked(h)
}

// refusals tells who refused the writes of a hold, and counts those of all holds.
func (d *demo) refusals(of hold) (text string, all int) {
	d.board.mu.Lock()
	defer d.board.mu.Unlock()
	by := ""
	var why []string
	for _, r := range d.board.refusals {
		if of == (hold{r.Work, r.Token}) {
			by = r.By
			why = append(why, r.Why)
		}
	}
	return fmt.Sprintf("the %s (%s)", by, strings.Join(why, ", then ")), len(d.board.refusals)
}
