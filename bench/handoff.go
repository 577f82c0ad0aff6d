package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
)

// The taker is the process that the work is handed to.
const takerRole = "taker"

// Events between the parent and the taker.
const (
	eventPlace  = "place"  // to a child: place, what its role is played with
	eventReady  = "ready"  // from a child
	eventWait   = "wait"   // string: wait for that work ID
	eventListen = "listen" // string: the same, raw
	eventAsleep = "asleep" // the raw listener is about to wait for its notification
	eventTaken  = "taken"  // taken
)

// taken says when the taker had the work, by clock, and in how many statements since it slept.
type taken struct {
	At         time.Duration
	Statements int
}

// handoffs are the spans of all rounds.
type handoffs struct{ ours, raw []time.Duration }

// begin starts a child and waits until it is ready. settings are what its role receives.
func begin(ctx context.Context, role string, settings any) (*fault.Child, error) {
	c, err := fault.Start(fault.Command{Role: role})
	if err != nil {
		return nil, err
	}
	if err = c.Send(eventPlace, settings); err == nil {
		_, err = c.Await(ctx, fault.Named(eventReady))
	}
	if err != nil {
		c.Kill()
		return nil, err
	}
	return c, nil
}

// receive is the child's side of begin.
func receive(ctx context.Context, settings any) error {
	e, err := fault.Receive(ctx)
	if err != nil {
		return err
	}
	return e.Decode(settings)
}

// P6. The span of a handoff begins before Release is called in this process and ends when
// Acquire has returned in the other. The yardstick's begins before an UPDATE that notifies is
// sent and ends when the other process, woken by that, has its answer to one statement.
func measureHandoff(ctx context.Context, p *place) (result, error) {
	if err := p.fill(ctx, usual); err != nil {
		return result{}, err
	}
	r, err := p.rig(ctx, 4)
	if err != nil {
		return result{}, err
	}
	defer r.close()
	c, err := begin(ctx, takerRole, p)
	if err != nil {
		return result{}, err
	}
	defer c.Kill()
	g := giver{place: p, rig: r, taker: c, lease: r.lease(long)}
	const warm = 10
	rounds := p.scale(100, 1000)
	var h handoffs
	statements := map[int]int{}
	for i := range warm + rounds {
		ours, n, err := g.handOver(ctx, fmt.Sprint("w", i))
		if err != nil {
			return result{}, err
		}
		raw, err := g.handOverRaw(ctx, fmt.Sprint("w", i))
		if err != nil {
			return result{}, err
		}
		if i >= warm {
			h.ours, h.raw = append(h.ours, ours), append(h.raw, raw)
			statements[n]++
		}
	}
	return result{lines: h.lines(statements), handoff: &h}, nil
}

// giver is the process that hands work over.
type giver struct {
	place *place
	rig   *rig
	taker *fault.Child
	lease worklease.Lease
}

// handOver lets the taker wait until its wait is marked in the row, which says that it
// sleeps, and releases.
func (g giver) handOver(ctx context.Context, id string) (span time.Duration, statements int, err error) {
	token, err := g.lease.Acquire(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	if err := g.taker.Send(eventWait, id); err != nil {
		return 0, 0, err
	}
	marked := g.place.sql(`SELECT awaited_until > clock_timestamp() FROM {table} WHERE work_id = $1`)
	for sleeps := new(bool); sleeps == nil || !*sleeps; pause(ctx, time.Millisecond) {
		if err := g.place.admin.QueryRow(ctx, marked, id).Scan(&sleeps); err != nil {
			return 0, 0, err
		}
	}
	settle(ctx)
	began := clock()
	if err := g.lease.Release(ctx, token); err != nil {
		return 0, 0, err
	}
	return g.taken(ctx, began)
}

func (g giver) handOverRaw(ctx context.Context, id string) (time.Duration, error) {
	var token int64
	var expires time.Time
	if err := g.rig.pool.QueryRow(ctx, g.place.sql(rawAcquireSQL), id, "bench", long).Scan(&token, &expires); err != nil {
		return 0, err
	}
	if err := g.taker.Send(eventListen, id); err != nil {
		return 0, err
	}
	if _, err := g.taker.Await(ctx, fault.Named(eventAsleep)); err != nil {
		return 0, err
	}
	settle(ctx)
	sql := g.place.sql(rawNotifyingReleaseSQL)
	began := clock()
	if _, err := g.rig.pool.Exec(ctx, sql, id, token); err != nil {
		return 0, err
	}
	span, _, err := g.taken(ctx, began)
	return span, err
}

// settle lets the other process fall asleep, and rounds begin at no particular moment.
func settle(ctx context.Context) { pause(ctx, 2*time.Millisecond+rand.N(6*time.Millisecond)) }

func (g giver) taken(ctx context.Context, began time.Duration) (time.Duration, int, error) {
	e, err := g.taker.Await(ctx, fault.Named(eventTaken))
	if err != nil {
		return 0, 0, err
	}
	var t taken
	err = e.Decode(&t)
	return t.At - began, t.Statements, err
}

func playTaker(ctx context.Context) error {
	var p place
	if err := receive(ctx, &p); err != nil {
		return err
	}
	r, err := p.counter(ctx, 4)
	if err != nil {
		return err
	}
	defer r.close()
	raw, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return err
	}
	defer raw.Close(context.Background())
	if _, err := raw.Exec(ctx, p.sql(`LISTEN {channel}`)); err != nil {
		return err
	}
	l := r.lease(long)
	fault.Emit(eventReady, nil)
	for {
		e, err := fault.Receive(ctx)
		if err != nil {
			return nil // the parent has seen enough
		}
		var id string
		if err := e.Decode(&id); err != nil {
			return err
		}
		if e.Name == eventWait {
			err = takeOver(ctx, r, l, id)
		} else {
			err = takeOverRaw(ctx, &p, r, raw, id)
		}
		if err != nil {
			return err
		}
	}
}

func takeOver(ctx context.Context, r *rig, l worklease.Lease, id string) error {
	r.tracer.Reset()
	_, err := l.Acquire(ctx, id, worklease.WithWaitForLease())
	at := clock()
	if err == nil {
		fault.Emit(eventTaken, taken{At: at, Statements: len(r.tracer.Statements())})
	}
	return err
}

func takeOverRaw(ctx context.Context, p *place, r *rig, raw *pgx.Conn, id string) error {
	fault.Emit(eventAsleep, nil)
	heard, err := raw.WaitForNotification(ctx)
	if err != nil {
		return err
	}
	var token int64
	var expires time.Time
	err = r.pool.QueryRow(ctx, p.sql(rawAcquireSQL), heard.Payload, "taker", long).Scan(&token, &expires)
	at := clock()
	if err == nil && heard.Payload != id {
		err = fmt.Errorf("heard of %q, not of %q", heard.Payload, id)
	}
	if err == nil {
		fault.Emit(eventTaken, taken{At: at})
	}
	return err
}

func (h *handoffs) lines(statements map[int]int) []line {
	p50, p99, most := quantile(h.ours, 0.50), quantile(h.ours, 0.99), slices.Max(h.ours)
	raw50, raw99, rawMost := quantile(h.raw, 0.50), quantile(h.raw, 0.99), slices.Max(h.raw)
	ratio := float64(p50) / float64(raw50)
	var sent []string
	for _, n := range sortedKeys(statements) {
		sent = append(sent, fmt.Sprintf("%d in %d", n, statements[n]))
	}
	what := "handoff between two processes"
	return []line{{
		what: what + ", p50", ours: milliseconds(p50), yardstick: "raw NOTIFY + statement " + milliseconds(raw50), ratio: times(ratio),
		aims: []aim{atMost("≤ 2", ratio, 2)},
		costs: []string{
			fmt.Sprintf("from the call of Release to the return of Acquire, by %s, %d rounds; v0.5 polls every 2 s", clockName, len(h.ours)),
			"statements of the taker, from before it slept: " + strings.Join(sent, ", ") + " rounds",
		},
	}, {
		what: what + ", p99", ours: milliseconds(p99), yardstick: "raw " + milliseconds(raw99), ratio: times(float64(p99) / float64(raw99)),
		aims: []aim{atMost("< 50 ms", p99.Seconds(), 0.050)},
	}, {
		what: what + ", max", ours: milliseconds(most), yardstick: "raw " + milliseconds(rawMost), ratio: times(float64(most) / float64(rawMost)),
		costs: h.histogram(),
	}}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	var keys []K
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func quantile(spans []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(spans))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// histogram has a line for each span of time, each √2 times the one before.
func (h *handoffs) histogram() []string {
	bin := func(d time.Duration) int { return int(math.Floor(2 * math.Log2(float64(d)/float64(time.Microsecond)))) }
	counts := map[int][2]int{}
	for i := range h.ours {
		c := counts[bin(h.ours[i])]
		c[0]++
		counts[bin(h.ours[i])] = c
		c = counts[bin(h.raw[i])]
		c[1]++
		counts[bin(h.raw[i])] = c
	}
	bins := sortedKeys(counts)
	bar := func(n int) string {
		const width = 40
		return strings.TrimSpace(fmt.Sprintf("%s %d", strings.Repeat("█", (n*width+len(h.ours)-1)/len(h.ours)), n))
	}
	lines := []string{fmt.Sprintf("%10s  %-46s  %s", "up to", "ours", "raw")}
	for b := bins[0]; b <= bins[len(bins)-1]; b++ {
		end := time.Duration(math.Exp2(float64(b+1)/2) * float64(time.Microsecond))
		c := counts[b]
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%10s  %s  %s", milliseconds(end),
			pad(bar(c[0]), 46), bar(c[1])), " "))
	}
	return lines
}
