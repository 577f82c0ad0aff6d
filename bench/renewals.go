package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
)

// P5
func measureRenewals(ctx context.Context, p *place) (result, error) {
	var r result
	if err := p.fill(ctx, usual); err != nil {
		return r, err
	}
	for _, clients := range []int{1, 8} {
		l, err := renewalLine(ctx, p, clients)
		if err != nil {
			return r, err
		}
		r.lines = append(r.lines, l)
	}
	l, err := soakLine(ctx, p)
	r.lines = append(r.lines, l)
	return r, err
}

// renewalLine compares what a connection renews in batches with what it renews one by one.
func renewalLine(ctx context.Context, p *place, clients int) (line, error) {
	s, err := p.stand(ctx, clients)
	if err != nil {
		return line{}, err
	}
	defer s.close()
	s.ids = workIDs(p.scale(5000, 10_000))
	if err := errors.Join(s.hold(ctx), s.holdRaw(ctx)); err != nil {
		return line{}, err
	}
	claims := claimsOf(s.tokens)
	// Each batch is one client's at a time: rows that another has locked are left out.
	batches := make(chan []worklease.Claim, len(claims))
	for batch := range slices.Chunk(claims, worklease.MaxRenewBatch) {
		batches <- batch
	}
	batch := func(ctx context.Context, _ int) error {
		claims := <-batches
		defer func() { batches <- claims }()
		return renewAll(ctx, s.backend, claims)
	}
	raw := p.sql(rawRenewSQL)
	one := s.contest.ops
	s.contest.rounds = p.scale(2, 15)
	got, err := s.run(ctx,
		side{prepare: s.vacuum, do: batch, ops: len(claims) / worklease.MaxRenewBatch, weight: worklease.MaxRenewBatch},
		side{prepare: s.vacuum, ops: one, do: func(ctx context.Context, i int) error {
			_, err := s.backend.Renew(ctx, claims[i], long)
			return err
		}},
		side{prepare: s.vacuum, ops: one, do: func(ctx context.Context, i int) error {
			return s.one(ctx, raw, claims[i].WorkID, int64(claims[i].FencingToken), long)
		}})
	if err != nil {
		return line{}, err
	}
	l := rateLine("leases renewed, "+connections(clients), got[0], got[1], "one by one", 20)
	l.costs = append(l.costs, fmt.Sprintf("raw UPDATE, one by one: %s, ratio %.1f", perSecond(got[2].median()), got[0].ratio(got[2])))
	return l, nil
}

// soak is what it took to keep many leases for some TTLs.
type soak struct {
	statements, lost, goroutines int
	rounds                       float64
	bytes                        float64 // per lease
	cpu                          time.Duration
}

// soakLine has one process keep its leases for some TTLs, in batches and one by one.
func soakLine(ctx context.Context, p *place) (line, error) {
	n, ttls := p.scale(1000, 10_000), p.scale(2, 5)
	ttl := time.Duration(p.scale(3, 30)) * time.Second
	if err := p.exec(ctx, emptySQL); err != nil {
		return line{}, err
	}
	ours, err := p.soak(ctx, n, ttl, ttls, func(b worklease.Backend) worklease.Backend { return b })
	if err != nil {
		return line{}, err
	}
	one, err := p.soak(ctx, n, ttl, 2, func(b worklease.Backend) worklease.Backend { return single{b} })
	if err != nil {
		return line{}, err
	}
	perRound := func(s soak) float64 { return float64(s.statements) / s.rounds }
	costs := func(name string, s soak) string {
		return fmt.Sprintf("%s: %d lost, %d statements in %.0f rounds, %.2f s CPU of this process, %.0f bytes each, %d goroutines",
			name, s.lost, s.statements, s.rounds, s.cpu.Seconds(), s.bytes, s.goroutines)
	}
	return line{
		what:      fmt.Sprintf("statements per round, %d leases, %d TTLs of %v", n, ttls, ttl),
		ours:      fmt.Sprintf("%.1f", perRound(ours)),
		yardstick: fmt.Sprintf("one by one %.0f", perRound(one)),
		ratio:     fmt.Sprintf("%.4f", perRound(ours)/perRound(one)),
		aims:      []aim{atMost("≤ 50", perRound(ours), 50), atMost("none lost", float64(ours.lost), 0)},
		costs:     []string{costs("in batches", ours), costs("one by one", one)},
	}, nil
}

func (p *place) soak(ctx context.Context, n int, ttl time.Duration, ttls int, as func(worklease.Backend) worklease.Backend) (s soak, err error) {
	r, err := p.counter(ctx, 8)
	if err != nil {
		return s, err
	}
	defer r.close()
	if err := p.vacuum(ctx); err != nil {
		return s, err
	}
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	l := newLease(as(r.backend), ttl)
	contexts := make([]context.Context, n)
	stops := make([]func(), n)
	ids := workIDs(n)
	err = share(8, n, func(i int) error {
		token, err := l.Acquire(ctx, ids[i])
		if err == nil {
			contexts[i], stops[i] = l.StartRenewal(ctx, token)
		}
		return err
	})
	defer func() {
		for _, stop := range stops {
			if stop != nil {
				stop()
			}
		}
	}()
	if err != nil {
		return s, err
	}
	r.tracer.Reset()
	cpu, began := cpuTime(), time.Now()
	pause(ctx, time.Duration(ttls)*ttl)
	s.cpu = cpuTime() - cpu
	s.rounds = time.Since(began).Seconds() / (ttl / 2).Seconds()
	s.statements = len(r.tracer.Statements())
	for _, c := range contexts {
		if c.Err() != nil {
			s.lost++
		}
	}
	s.goroutines = runtime.NumGoroutine() - goroutines
	r.tracer.Reset()
	s.bytes = float64(heapInUse()-heap) / float64(n)
	runtime.KeepAlive(l)
	return s, p.free(ctx)
}

// free ends all leases.
func (p *place) free(ctx context.Context) error { return p.exec(ctx, freeSQL) }

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // what pools keep goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// P10
func measureLargeCheckpoint(ctx context.Context, p *place) (result, error) {
	if err := p.fill(ctx, usual); err != nil {
		return result{}, err
	}
	s, err := p.stand(ctx, 1)
	if err != nil {
		return result{}, err
	}
	defer s.close()
	sizes := []int{10_000_000, 10}
	s.ids = []string{"w large", "w small"}
	if err := s.hold(ctx); err != nil {
		return result{}, err
	}
	renew := func(which int) func(ctx context.Context, i int) error {
		return func(ctx context.Context, _ int) error { return s.lease.Renew(ctx, s.tokens[which]) }
	}
	for which, size := range sizes {
		if err := s.lease.Checkpoint(ctx, s.tokens[which], noise(size)); err != nil {
			return result{}, err
		}
	}
	if err := p.exec(ctx, holdRawSQL+`; UPDATE {raw} r SET checkpoint = t.checkpoint FROM {table} t WHERE t.work_id = r.work_id AND t.checkpoint IS NOT NULL`); err != nil {
		return result{}, err
	}
	raw := p.sql(rawRenewSQL)
	// Medians of single renewals: now and then one comes with a page that was cleaned, or with
	// a whole page after a checkpoint of the server.
	var spent [4][]int64 // ours over the large and the small one, raw over them
	for i := range p.scale(200, 1000) {
		which := i % 2
		for kind, act := range []func() error{
			func() error { return renew(which)(ctx, 0) },
			func() error { return s.one(ctx, raw, s.ids[which], int64(s.tokens[which].FencingToken()), long) },
		} {
			cost, err := fault.Least(ctx, p.admin, 1, act)
			if err != nil {
				return result{}, err
			}
			spent[2*kind+which] = append(spent[2*kind+which], cost.WAL)
		}
	}
	var wal [4]float64
	for i := range spent {
		wal[i] = float64(median(spent[i]))
	}
	s.contest.ops = p.scale(100, 500)
	got, err := s.run(ctx, side{do: renew(0)}, side{do: renew(1)})
	if err != nil {
		return result{}, err
	}
	off := max(wal[0], wal[1])/min(wal[0], wal[1]) - 1
	return result{lines: []line{{
		what: "WAL of a Renew over a checkpoint of 10 MB",
		ours: fmt.Sprintf("%.0f bytes", wal[0]), yardstick: fmt.Sprintf("over 10 bytes %.0f bytes", wal[1]), ratio: times(wal[0] / wal[1]),
		aims: []aim{atMost("within 10 %", off, 0.10), atMost("< 1 kB", wal[0], 1000)},
		costs: []string{
			fmt.Sprintf("raw UPDATE: %.0f bytes over 10 MB, %.0f over 10 bytes, ratio %.2f", wal[2], wal[3], wal[2]/wal[3]),
			"before a row with a value stored apart is updated, PostgreSQL logs a lock on it: 56 bytes, whoever updates it",
			fmt.Sprintf("renewals: %s over 10 MB, %s over 10 bytes, ratio %.2f",
				perSecond(got[0].median()), perSecond(got[1].median()), got[0].ratio(got[1])),
		},
	}}}, nil
}

// heartbeats are those of the leases of P11, in the ways that there are: a checkpoint of the
// same size, a renewal of its own, and most often one together with others.
type heartbeats struct {
	*standing
	claims []worklease.Claim
	state  []byte
}

func (h *heartbeats) beat(ctx context.Context, i int) error {
	n := len(h.claims)
	switch i % 10 {
	case 0:
		return share(h.clients, n, func(i int) error { return h.lease.Checkpoint(ctx, h.tokens[i], h.state) })
	case 5:
		return share(h.clients, n, func(i int) error { return h.lease.Renew(ctx, h.tokens[i]) })
	}
	return renewAll(ctx, h.backend, h.claims)
}

// renewAll renews a batch, and each of it must have been renewed.
func renewAll(ctx context.Context, b worklease.BatchRenewer, claims []worklease.Claim) error {
	answers, err := b.RenewBatch(ctx, claims, long)
	for _, a := range answers {
		err = cmp.Or(err, a.Err)
	}
	return err
}

func claimsOf(tokens []worklease.Token) []worklease.Claim {
	claims := make([]worklease.Claim, len(tokens))
	for i, token := range tokens {
		claims[i] = token.Claim()
	}
	return claims
}

// P11
func measureHOT(ctx context.Context, p *place) (result, error) {
	const n, settling = 200, 20
	beats := p.scale(20, 200)
	s, err := p.stand(ctx, 4)
	if err != nil {
		return result{}, err
	}
	defer s.close()
	s.ids = workIDs(n)
	if err := s.holdV05(ctx); err != nil {
		return result{}, err
	}
	h := heartbeats{standing: s, claims: claimsOf(s.tokens), state: noise(200)}
	run := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := h.beat(ctx, i); err != nil {
				return err
			}
		}
		return nil
	}
	// In the first beats the rows make room for themselves: a batch needs more of it, in one
	// transaction, than new pages have.
	if err := run(0, settling); err != nil {
		return result{}, err
	}
	first, err := p.updates(ctx, s, "worklease_leases")
	if err != nil {
		return result{}, err
	}
	if err := run(settling, settling+beats); err != nil {
		return result{}, err
	}
	ours, err := p.updates(ctx, s, "worklease_leases")
	if err != nil {
		return result{}, err
	}
	ours.all -= first.all
	ours.hot -= first.hot
	sql := p.sql(v05BeatSQL)
	if err := share(4, n*beats, func(i int) error { return s.one(ctx, sql, s.ids[i%n], long) }); err != nil {
		return result{}, err
	}
	v05, err := p.updates(ctx, s, "v05_leases")
	if err != nil {
		return result{}, err
	}
	return result{lines: []line{{
		what: fmt.Sprintf("HOT share of updates, %d leases, %d heartbeats each", n, beats),
		ours: fmt.Sprintf("%.4f", ours.share()), yardstick: fmt.Sprintf("v0.5 %.4f", v05.share()),
		aims: []aim{atLeast("≥ 0.99", ours.share(), 0.99)},
		costs: []string{
			fmt.Sprintf("%d updates, then %d dead tuples and %d kB of table and indexes; v0.5: %d, %d, %d kB", ours.all, ours.dead, ours.bytes/1000, v05.all, v05.dead, v05.bytes/1000),
			fmt.Sprintf("in the first %d heartbeats, as rows of 200 bytes of state find room: %.4f", settling, first.share()),
		},
	}}}, nil
}

// updates are what the server counted of a table.
type updates struct{ all, hot, dead, bytes int64 }

func (u updates) share() float64 { return float64(u.hot) / float64(max(u.all, 1)) }

// updates reads the counts of a table. Sessions hand theirs in when they end, so all of them
// do; then it waits until no more come.
func (p *place) updates(ctx context.Context, s *standing, table string) (u updates, err error) {
	s.pool.Reset()
	ctx, cancel := context.WithTimeout(ctx, fault.Patience)
	defer cancel()
	for last := int64(-1); u.all != last; {
		last = u.all
		pause(ctx, 600*time.Millisecond)
		err := p.admin.QueryRow(ctx, `SELECT n_tup_upd, n_tup_hot_upd, n_dead_tup, pg_total_relation_size(relid)
			FROM pg_stat_user_tables WHERE schemaname = $1 AND relname = $2`, p.Schema, table).Scan(&u.all, &u.hot, &u.dead, &u.bytes)
		if err != nil {
			return u, err
		}
	}
	return u, nil
}
