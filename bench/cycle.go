package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/worker"
)

// P9
func measureCycle(ctx context.Context, p *place) (result, error) {
	if err := p.fill(ctx, usual); err != nil {
		return result{}, err
	}
	c, err := p.counter(ctx, 2)
	if err != nil {
		return result{}, err
	}
	defer c.close()
	counted, err := newRunner(c.lease(long))
	if err != nil {
		return result{}, err
	}
	for range 2 { // the first one prepares the statements
		if err := counted.Run(ctx, "w counted"); err != nil {
			return result{}, err
		}
	}
	statements, trips, err := c.count(func() error { return counted.Run(ctx, "w counted") })
	if err != nil {
		return result{}, err
	}
	got, err := p.cycles(ctx)
	if err != nil {
		return result{}, err
	}
	return result{lines: []line{{
		what: "cycle of a Runner around an empty function",
		ours: fmt.Sprintf("%d statements", statements), yardstick: "v0.5: 5", ratio: times(float64(statements) / 5),
		aims: []aim{atMost("2", float64(statements), 2)},
		costs: []string{
			fmt.Sprintf("%d round trips", trips),
			fmt.Sprintf("%s, beside %s of a raw upsert and a raw UPDATE: %.2f", perSecond(got[0].median()), perSecond(got[1].median()), got[0].ratio(got[1])),
		},
	}}}, nil
}

// newRunner has a Runner whose function does nothing but return a state.
func newRunner(l worklease.Lease) (*worker.Runner, error) {
	return worker.NewRunner(worker.RunnerConfig{
		Lease: l,
		WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
			return []byte("state"), nil
		},
	})
}

// cycles compares the rates of whole cycles, at one connection.
func (p *place) cycles(ctx context.Context) ([]rates, error) {
	s, err := p.stand(ctx, 1)
	if err != nil {
		return nil, err
	}
	defer s.close()
	if err := errors.Join(s.hold(ctx), s.holdRaw(ctx), p.free(ctx)); err != nil {
		return nil, err
	}
	runner, err := newRunner(s.lease)
	if err != nil {
		return nil, err
	}
	acquire, release := p.sql(rawAcquireSQL), p.sql(rawReleaseSQL)
	return s.run(ctx, side{prepare: s.vacuum, do: func(ctx context.Context, i int) error {
		return runner.Run(ctx, s.ids[i])
	}}, side{prepare: s.vacuum, do: func(ctx context.Context, i int) error {
		var token int64
		var expires time.Time
		if err := s.pool.QueryRow(ctx, acquire, s.ids[i], "bench", long).Scan(&token, &expires); err != nil {
			return err
		}
		return s.one(ctx, release, s.ids[i], token)
	}})
}
