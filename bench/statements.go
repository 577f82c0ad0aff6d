package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
)

// standing is a contest of single statements on one rig.
type standing struct {
	*place
	*rig
	contest
	ids    []string
	lease  worklease.Lease
	tokens []worklease.Token
}

// stand prepares a contest with that many clients, each with its connection.
func (p *place) stand(ctx context.Context, clients int) (*standing, error) {
	r, err := p.rig(ctx, clients)
	if err != nil {
		return nil, err
	}
	// Many short slices rather than few long ones: what else the machine does comes in bursts.
	c := contest{rounds: p.scale(2, 31), ops: p.scale(30, 150), clients: clients}
	if clients > 1 {
		c.ops *= 4
	}
	return &standing{place: p, rig: r, contest: c, ids: workIDs(c.reach()), lease: r.lease(long)}, nil
}

// clear begins anew: nothing is held, and a new Lease value has nothing in mind.
func (s *standing) clear(ctx context.Context) error {
	s.lease = s.rig.lease(long)
	if err := s.place.exec(ctx, emptySQL); err != nil {
		return err
	}
	return s.vacuum(ctx)
}

// hold has all work held, in our table.
func (s *standing) hold(ctx context.Context) error {
	if err := s.clear(ctx); err != nil {
		return err
	}
	var err error
	s.tokens, err = take(ctx, s.lease, s.clients, s.ids)
	return errors.Join(err, s.vacuum(ctx))
}

// holdRaw has all work held that our table knows, in the raw twin.
func (s *standing) holdRaw(ctx context.Context) error {
	if err := s.place.exec(ctx, holdRawSQL); err != nil {
		return err
	}
	return s.vacuum(ctx)
}

// one runs a raw statement, which must change one row.
func (s *standing) one(ctx context.Context, sql string, args ...any) error {
	tag, err := s.pool.Exec(ctx, sql, args...)
	if err == nil && tag.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows: %s", tag.RowsAffected(), sql)
	}
	return err
}

func (s *standing) acquire(ctx context.Context, i int) error {
	_, err := s.lease.Acquire(ctx, s.ids[i])
	return err
}

// rawAcquire reads what the statement returns, as any caller would.
func (s *standing) rawAcquire(sql string) func(ctx context.Context, i int) error {
	sql = s.place.sql(sql)
	return func(ctx context.Context, i int) error {
		var token int64
		var expires time.Time
		return s.pool.QueryRow(ctx, sql, s.ids[i], "bench", long).Scan(&token, &expires)
	}
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// rateLine is a line about two rates.
func rateLine(what string, ours, yardstick rates, name string, bound float64) line {
	ratio := ours.ratio(yardstick)
	return line{
		what: what, ours: perSecond(ours.median()), yardstick: name + " " + perSecond(yardstick.median()), ratio: times(ratio),
		aims: []aim{atLeast(fmt.Sprintf("≥ %.2f", bound), ratio, bound)},
	}
}

// P1
func measureAcquire(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	for _, clients := range []int{1, 8} {
		if err := acquireLines(ctx, p, clients, &r); err != nil {
			return r, err
		}
	}
	return r, nil
}

func acquireLines(ctx context.Context, p *place, clients int, r *result) error {
	s, err := p.stand(ctx, clients)
	if err != nil {
		return err
	}
	defer s.close()
	free := func(ctx context.Context) error {
		s.lease = s.rig.lease(long)
		return errors.Join(p.exec(ctx, freeSQL), p.vacuum(ctx))
	}
	for _, c := range []struct {
		what    string
		prepare func(ctx context.Context) error
	}{{"new", s.clear}, {"released", free}} {
		// After the contest for new work, all of it is there in both tables.
		got, err := s.run(ctx, side{prepare: c.prepare, do: s.acquire}, side{prepare: c.prepare, do: s.rawAcquire(rawAcquireSQL)})
		if err != nil {
			return err
		}
		r.lines = append(r.lines, rateLine(fmt.Sprintf("Acquire of %s work, %s", c.what, connections(clients)), got[0], got[1], "raw upsert", 0.85))
		if c.what == "new" {
			if err := s.hold(ctx); err != nil {
				return err
			}
			if err := s.holdRaw(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// P2
func measureCheckpoint(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	for _, clients := range []int{1, 8} {
		l, err := checkpointLine(ctx, p, clients)
		if err != nil {
			return r, err
		}
		r.lines = append(r.lines, l)
	}
	return r, nil
}

func checkpointLine(ctx context.Context, p *place, clients int) (line, error) {
	s, err := p.stand(ctx, clients)
	if err != nil {
		return line{}, err
	}
	defer s.close()
	if err := errors.Join(s.hold(ctx), s.holdRaw(ctx)); err != nil {
		return line{}, err
	}
	state := noise(1000)
	sql := p.sql(rawCheckpointSQL)
	got, err := s.run(ctx, side{prepare: s.vacuum, do: func(ctx context.Context, i int) error {
		return s.lease.Checkpoint(ctx, s.tokens[i], state)
	}}, side{prepare: s.vacuum, do: func(ctx context.Context, i int) error {
		return s.one(ctx, sql, s.ids[i], int64(s.tokens[i].FencingToken()), state, long)
	}})
	if err != nil {
		return line{}, err
	}
	return rateLine("Checkpoint of 1 kB, "+connections(clients), got[0], got[1], "raw UPDATE", 0.90), nil
}

// P3
func measureRefusal(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	for _, clients := range []int{1, 8} {
		l, err := refusalLine(ctx, p, clients)
		if err != nil {
			return r, err
		}
		r.lines = append(r.lines, l)
	}
	return r, countRefusals(ctx, p, &r.lines[0])
}

// refused turns the refusal that is wanted into no error.
func refused(err error) error {
	if errors.Is(err, worklease.ErrLeaseHeld) {
		return nil
	}
	return errors.Join(errors.New("not refused"), err)
}

func refusalLine(ctx context.Context, p *place, clients int) (line, error) {
	s, err := p.stand(ctx, clients)
	if err != nil {
		return line{}, err
	}
	defer s.close()
	if err := s.holdV05(ctx); err != nil {
		return line{}, err
	}
	got, err := s.run(ctx, side{prepare: s.vacuum, do: s.refusal}, side{prepare: s.vacuum, do: s.v05Refusal()})
	if err != nil {
		return line{}, err
	}
	return rateLine("Acquire of held work, "+connections(clients), got[0], got[1], "v0.5", 3), nil
}

// holdV05 has all work held, in our table and in v0.5's.
func (s *standing) holdV05(ctx context.Context) error {
	return errors.Join(s.hold(ctx), s.place.exec(ctx, `TRUNCATE {v05};
		INSERT INTO {v05} (work_id, holder_id, expires_at) SELECT work_id, 'bench', clock_timestamp() + interval '1 hour' FROM {table}`),
		s.place.exec(ctx, `VACUUM ANALYZE {v05}`))
}

func (s *standing) refusal(ctx context.Context, i int) error { return refused(s.acquire(ctx, i)) }

func (s *standing) v05Refusal() func(ctx context.Context, i int) error {
	sql := s.place.sql(v05AcquireSQL)
	return func(ctx context.Context, i int) error {
		tag, err := s.pool.Exec(ctx, sql, s.ids[i], "other", long)
		if err == nil && tag.RowsAffected() > 0 {
			err = errors.New("not refused")
		}
		return err
	}
}

// countRefusals counts what 1,000 refused acquires cost the server.
func countRefusals(ctx context.Context, p *place, l *line) error {
	s, err := p.stand(ctx, 1)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.holdV05(ctx); err != nil {
		return err
	}
	const n = 1000
	cost := func(do func(ctx context.Context, i int) error) (fault.Cost, error) {
		return fault.Least(ctx, p.admin, 3, func() error {
			return share(1, n, func(i int) error { return do(ctx, i%len(s.ids)) })
		}, p.sql("{sequence}"), p.sql("{v05sequence}"))
	}
	ours, err := cost(s.refusal)
	if err != nil {
		return err
	}
	v05, err := cost(s.v05Refusal())
	if err != nil {
		return err
	}
	statements, trips, err := countOne(ctx, p, func(ctx context.Context, l worklease.Lease) error {
		_, err := l.Acquire(ctx, s.ids[0])
		return refused(err)
	})
	if err != nil {
		return err
	}
	l.costs = append(l.costs,
		fmt.Sprintf("1,000 refused: %d bytes of WAL, %d xids, %d sequence values; v0.5: %d, %d, %d",
			ours.WAL, ours.XIDs, ours.Sequences, v05.WAL, v05.XIDs, v05.Sequences),
		fmt.Sprintf("each: %d statement, %d round trip", statements, trips))
	l.aims = append(l.aims, atMost("0 WAL, xids, values", float64(ours.WAL+ours.XIDs+ours.Sequences), 0))
	return nil
}

// countOne counts the statements and round trips of act, once its statements are prepared.
func countOne(ctx context.Context, p *place, act func(ctx context.Context, l worklease.Lease) error) (statements, trips int, err error) {
	r, err := p.counter(ctx, 1)
	if err != nil {
		return 0, 0, err
	}
	defer r.close()
	l := r.lease(long)
	if err := act(ctx, l); err != nil {
		return 0, 0, err
	}
	return r.count(func() error { return act(ctx, l) })
}

// P4
func measureRelease(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	for _, clients := range []int{8, 32} {
		l, err := releaseLine(ctx, p, clients)
		if err != nil {
			return r, err
		}
		r.lines = append(r.lines, l...)
	}
	return r, countNotices(ctx, p, &r.lines[0])
}

func releaseLine(ctx context.Context, p *place, clients int) ([]line, error) {
	s, err := p.stand(ctx, clients)
	if err != nil {
		return nil, err
	}
	defer s.close()
	got, err := s.run(ctx,
		side{prepare: s.hold, do: s.release},
		side{prepare: s.holdRaw, do: s.rawRelease(rawReleaseSQL)},
		side{prepare: s.holdRaw, do: s.rawRelease(rawNotifyingReleaseSQL), ops: s.contest.ops / 4}) // it takes long
	if err != nil {
		return nil, err
	}
	what := "Release nobody waits for, " + connections(clients)
	raw := rateLine(what, got[0], got[1], "raw UPDATE", 0.95)
	always := line{
		what: what, ours: perSecond(got[0].median()), yardstick: "raw, always notifying " + perSecond(got[2].median()),
		ratio: times(got[0].ratio(got[2])),
		costs: []string{fmt.Sprintf("always notifying reaches %.2f of the raw UPDATE", got[2].ratio(got[1]))},
	}
	return []line{raw, always}, nil
}

func (s *standing) release(ctx context.Context, i int) error {
	return s.lease.Release(ctx, s.tokens[i])
}

func (s *standing) rawRelease(sql string) func(ctx context.Context, i int) error {
	sql = s.place.sql(sql)
	return func(ctx context.Context, i int) error {
		return s.one(ctx, sql, s.ids[i], int64(s.tokens[i].FencingToken()))
	}
}

// countNotices counts the notifications of 1,000 releases nobody waits for, and what one
// release costs.
func countNotices(ctx context.Context, p *place, l *line) error {
	s, err := p.stand(ctx, 1)
	if err != nil {
		return err
	}
	defer s.close()
	s.ids = workIDs(1000)
	ears, err := eavesdrop(ctx, p)
	if err != nil {
		return err
	}
	defer ears.close()
	spent := func(prepare func(ctx context.Context) error, do func(ctx context.Context, i int) error) (fault.Cost, int, error) {
		if err := prepare(ctx); err != nil {
			return fault.Cost{}, 0, err
		}
		cost, err := fault.Least(ctx, p.admin, 1, func() error {
			return share(1, len(s.ids), func(i int) error { return do(ctx, i) })
		})
		if err != nil {
			return cost, 0, err
		}
		heard, err := ears.count(ctx)
		return cost, heard, err
	}
	ours, oursHeard, err := spent(s.hold, s.release)
	if err != nil {
		return err
	}
	raw, rawHeard, err := spent(s.holdRaw, s.rawRelease(rawNotifyingReleaseSQL))
	if err != nil {
		return err
	}
	l.costs = append(l.costs, fmt.Sprintf("1,000 releases: %d notifications, %d bytes of WAL; always notifying: %d, %d",
		oursHeard, ours.WAL, rawHeard, raw.WAL))
	l.aims = append(l.aims, atMost("0 notifications", float64(oursHeard), 0))
	statements, trips, err := countOne(ctx, p, func(ctx context.Context, l worklease.Lease) error {
		token, err := l.Acquire(ctx, "w counted")
		if err != nil {
			return err
		}
		return l.Release(ctx, token)
	})
	l.costs = append(l.costs, fmt.Sprintf("Acquire and Release: %d statements, %d round trips", statements, trips))
	return err
}
