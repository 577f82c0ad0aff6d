package pgxbackend_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"
)

// clock is memory's clock: it stands still but for leaps.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) leap(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// pair is two backends that are asked the same.
type pair struct {
	t     *rapid.T
	ctx   context.Context
	mem   *memory.Backend
	pg    worklease.Backend
	pool  *pgxpool.Pool
	clock *clock

	prefix string // of the work IDs
	// The two count tokens in different steps: claims are drawn as indexes.
	claims    []claimPair
	tokens    map[uint64]int // PostgreSQL's, as indexes of claims
	memTokens map[uint64]int
}

type claimPair struct{ mem, pg worklease.Claim }

// T1 to D2, as far as one statement after the other shows: memory and PostgreSQL
// give the same verdicts, the same priors and the same states, whatever the order.
func TestLockstepWithMemory(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	setRapid(t, rounds(15, 40, 3000))
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		c := &clock{now: time.Now()}
		p := &pair{
			t: rt, ctx: t.Context(), mem: memory.New(memory.WithClock(c)), pg: b, pool: pool, clock: c,
			prefix: fmt.Sprintf("run %d, ", n), tokens: map[uint64]int{}, memTokens: map[uint64]int{},
		}
		rt.Repeat(map[string]func(*rapid.T){
			"acquire":         p.acquire,
			"acquire again":   p.acquireAgain,
			"checkpoint":      p.checkpoint,
			"checkpoint more": p.checkpoint,
			"renew":           p.renew,
			"release":         p.release,
			"release more":    p.release,
			"give back":       p.giveBack,
			"forget":          p.forget,
			"read":            p.read,
			"time passes":     p.lapse,
			"":                p.compareRows,
		})
	})
}

// setRapid sets how many sequences rapid tries, and that it leaves no files behind,
// unless its flags were given.
func setRapid(t *testing.T, checks int) {
	t.Helper()
	given := map[string]bool{}
	flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for name, value := range map[string]string{
		"rapid.checks": fmt.Sprint(checks), "rapid.nofailfile": "true", "rapid.shrinktime": "10s",
	} {
		if !given[name] {
			must(t, flag.Set(name, value))
		}
	}
}

func (p *pair) workID(t *rapid.T) string {
	return p.prefix + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "work ID")
}

// claim draws one that was granted, of whatever age, perhaps as it is resumed, or
// spoilt.
func (p *pair) claim(t *rapid.T) claimPair {
	if len(p.claims) == 0 {
		none := worklease.Claim{WorkID: p.workID(t), HolderID: "h", FencingToken: 1, Nonce: "n"}
		return claimPair{none, none}
	}
	// The youngest are the most interesting.
	i := len(p.claims) - 1 - min(rapid.IntRange(0, 6).Draw(t, "age"), len(p.claims)-1)
	c := p.claims[i]
	switch rapid.IntRange(0, 11).Draw(t, "spoil") {
	case 0, 1:
		c.mem.Nonce, c.pg.Nonce = "", ""
	case 2:
		c.mem.Nonce, c.pg.Nonce = "another", "another"
	case 3:
		c.mem.HolderID, c.pg.HolderID = "another", "another"
	}
	return c
}

func (p *pair) acquire(t *rapid.T) {
	p.send(t, worklease.Attempt{
		WorkID: p.workID(t), HolderID: rapid.SampledFrom([]string{"h", "h2"}).Draw(t, "holder"),
		TTL: time.Hour, Nonce: fmt.Sprint("nonce ", len(p.claims), rapid.IntRange(0, 1<<30).Draw(t, "nonce")),
		Reopen: rapid.Bool().Draw(t, "reopen"),
	})
}

// acquireAgain repeats an attempt that was won, as after a lost reply.
func (p *pair) acquireAgain(t *rapid.T) {
	if len(p.claims) == 0 {
		t.Skip("nothing was acquired yet")
	}
	c := p.claims[len(p.claims)-1-min(rapid.IntRange(0, 2).Draw(t, "age"), len(p.claims)-1)].pg
	p.send(t, worklease.Attempt{
		WorkID: c.WorkID, HolderID: c.HolderID, TTL: time.Hour, Nonce: c.Nonce, Reopen: rapid.Bool().Draw(t, "reopen"),
	})
}

func (p *pair) send(t *rapid.T, a worklease.Attempt) {
	m, merr := p.mem.Acquire(p.ctx, a)
	g, gerr := p.pg.Acquire(p.ctx, a)
	p.same(t, "Acquire", merr, gerr)
	if merr != nil {
		return
	}
	mi, known := p.memTokens[m.FencingToken]
	if gi, pgKnown := p.tokens[g.FencingToken]; known != pgKnown || mi != gi {
		t.Fatalf("Acquire: memory says that grant %d is known: %v, PostgreSQL that %d is: %v", mi, known, gi, pgKnown)
	}
	if !known {
		if last := len(p.claims) - 1; last >= 0 && (m.FencingToken <= p.claims[last].mem.FencingToken || g.FencingToken <= p.claims[last].pg.FencingToken) {
			t.Fatalf("Acquire: tokens %d and %d after %+v", m.FencingToken, g.FencingToken, p.claims[last])
		}
		i := len(p.claims)
		p.memTokens[m.FencingToken], p.tokens[g.FencingToken] = i, i
		c := worklease.Claim{WorkID: a.WorkID, HolderID: a.HolderID, Nonce: a.Nonce}
		both := claimPair{c, c}
		both.mem.FencingToken, both.pg.FencingToken = m.FencingToken, g.FencingToken
		p.claims = append(p.claims, both)
	}
	p.samePrior(t, "Acquire", m.Prior, g.Prior)
	p.sameRemaining(t, "Acquire", m.Remaining, g.Remaining)
	if m.StateOmitted != g.StateOmitted {
		t.Fatalf("Acquire: state omitted: memory %v, PostgreSQL %v", m.StateOmitted, g.StateOmitted)
	}
}

func (p *pair) state(t *rapid.T) []byte {
	switch state := rapid.SampledFrom([]string{"none", "", "x", "y", "large"}).Draw(t, "state"); state {
	case "none":
		return nil
	case "large":
		return make([]byte, worklease.MaxInlineState+1)
	default:
		return []byte(state)
	}
}

func (p *pair) number(t *rapid.T) (int64, string) {
	return rapid.Int64Range(1, 4).Draw(t, "number"), rapid.SampledFrom([]string{"hold", "hold", "hold 2"}).Draw(t, "hold")
}

func (p *pair) checkpoint(t *rapid.T) {
	c := p.claim(t)
	s := worklease.Save{State: p.state(t), TTL: time.Hour}
	s.Number, s.Hold = p.number(t)
	m, merr := p.mem.Checkpoint(p.ctx, c.mem, s)
	g, gerr := p.pg.Checkpoint(p.ctx, c.pg, s)
	p.same(t, "Checkpoint", merr, gerr)
	p.sameRemaining(t, "Checkpoint", m.Remaining, g.Remaining)
}

func (p *pair) renew(t *rapid.T) {
	c := p.claim(t)
	m, merr := p.mem.Renew(p.ctx, c.mem, time.Hour)
	g, gerr := p.pg.Renew(p.ctx, c.pg, time.Hour)
	p.same(t, "Renew", merr, gerr)
	p.sameRemaining(t, "Renew", m.Remaining, g.Remaining)
}

func (p *pair) release(t *rapid.T) {
	c := p.claim(t)
	f := worklease.Farewell{State: p.state(t)}
	f.Exit = rapid.SampledFrom([]worklease.Exit{worklease.ExitReleased, worklease.ExitAbandoned, worklease.ExitRetired}).Draw(t, "exit")
	f.Number, f.Hold = p.number(t)
	p.same(t, "Release", p.mem.Release(p.ctx, c.mem, f), p.pg.Release(p.ctx, c.pg, f))
}

func (p *pair) giveBack(t *rapid.T) {
	c := p.claim(t)
	if rapid.Bool().Draw(t, "number unknown") {
		c.mem.FencingToken, c.pg.FencingToken = 0, 0
	}
	p.same(t, "giving back", p.mem.Release(p.ctx, c.mem, worklease.Farewell{}), p.pg.Release(p.ctx, c.pg, worklease.Farewell{}))
}

func (p *pair) forget(t *rapid.T) {
	c := p.claim(t)
	p.same(t, "Forget", p.mem.Forget(p.ctx, c.mem), p.pg.(worklease.Forgetter).Forget(p.ctx, c.pg))
}

func (p *pair) read(t *rapid.T) { p.sameStored(t, p.claim(t), rapid.Bool().Draw(t, "with state")) }

func (p *pair) sameStored(t *rapid.T, c claimPair, withState bool) {
	m, merr := p.mem.ReadCheckpoint(p.ctx, c.mem, withState)
	g, gerr := p.pg.ReadCheckpoint(p.ctx, c.pg, withState)
	p.same(t, "ReadCheckpoint", merr, gerr)
	p.samePrior(t, "ReadCheckpoint", m.Prior, g.Prior)
	comparable := func(s worklease.Stored) string {
		return fmt.Sprintf("%s, number %d by %q", stateName(s.State), s.Number, s.Hold)
	}
	if diff := cmp.Diff(comparable(m), comparable(g)); diff != "" {
		t.Fatalf("ReadCheckpoint: memory (-) and PostgreSQL (+):\n%s", diff)
	}
}

// stateName tells nil, empty and large apart.
func stateName(state []byte) string {
	switch {
	case state == nil:
		return "no state"
	case len(state) > 10:
		return fmt.Sprintf("%d bytes, %x", len(state), sha256.Sum256(state))
	}
	return fmt.Sprintf("%q", state)
}

// lapse has every lease of both lapse.
func (p *pair) lapse(t *rapid.T) {
	p.clock.leap(2 * time.Hour)
	_, err := p.pool.Exec(p.ctx, `UPDATE worklease_leases SET expires_at = expires_at - interval '2 hours' WHERE starts_with(work_id, $1)`, p.prefix)
	if err != nil {
		t.Fatal(err)
	}
}

// compareRows looks at the rows after every step.
func (p *pair) compareRows(t *rapid.T) {
	newest := map[string]claimPair{}
	for _, c := range p.claims {
		newest[c.pg.WorkID] = c
	}
	for _, c := range newest {
		p.sameStored(t, c, true)
	}
}

// same reports answers that differ.
func (p *pair) same(t *rapid.T, what string, mem, pg error) {
	t.Helper()
	if m, g := p.verdict(mem, p.memTokens), p.verdict(pg, p.tokens); m != g {
		t.Fatalf("%s: memory: %s (%v); PostgreSQL: %s (%v)", what, m, mem, g, pg)
	}
}

// verdict puts an answer into words that are the same for both.
func (p *pair) verdict(err error, tokens map[uint64]int) string {
	var held *worklease.HeldError
	var retired *worklease.RetiredError
	var overtaken *worklease.OvertakenError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &held):
		if held.Remaining <= 59*time.Minute || held.Remaining > time.Hour {
			return fmt.Sprint("held for ", held.Remaining)
		}
		return fmt.Sprintf("%q held by %q with grant %d", held.WorkID, held.HolderID, tokens[held.FencingToken])
	case errors.As(err, &retired):
		return fmt.Sprintf("%q retired by %q with grant %d", retired.WorkID, retired.HolderID, tokens[retired.FencingToken])
	case errors.As(err, &overtaken):
		return fmt.Sprint("overtaken by ", overtaken.Number)
	case errors.Is(err, worklease.ErrFenced):
		return "fenced"
	case errors.Is(err, worklease.ErrLeaseExpired):
		return "expired"
	}
	return err.Error()
}

func (p *pair) samePrior(t *rapid.T, what string, mem, pg worklease.Prior) {
	t.Helper()
	type prior struct {
		State        string
		Exit         worklease.Exit
		Holder       string
		Grant        int
		Checkpointed bool
		Crashes      int
	}
	comparable := func(q worklease.Prior, tokens map[uint64]int) prior {
		grant := -1
		if q.FencingToken != 0 {
			grant = tokens[q.FencingToken]
		}
		return prior{stateName(q.State), q.Exit, q.HolderID, grant, !q.CheckpointedAt.IsZero(), q.Crashes}
	}
	if diff := cmp.Diff(comparable(mem, p.memTokens), comparable(pg, p.tokens)); diff != "" {
		t.Fatalf("%s: prior of memory (-) and PostgreSQL (+):\n%s", what, diff)
	}
}

// sameRemaining allows PostgreSQL the minute that its clock goes on.
func (p *pair) sameRemaining(t *rapid.T, what string, mem, pg time.Duration) {
	t.Helper()
	if mem < pg || mem-pg > time.Minute {
		t.Fatalf("%s: remaining: memory %v, PostgreSQL %v", what, mem, pg)
	}
}
