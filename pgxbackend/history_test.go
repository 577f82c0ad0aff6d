package pgxbackend_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5/pgxpool"
)

// What a client asks and hears. Nonces name acquisitions.
type asked struct {
	do     string // acquire, save, release, give back, read
	nonce  string
	number int64
	state  string
}

type heard struct {
	verdict string // done, held, fenced, expired, unknown
	token   uint64
	state   string
}

// leaseRow is one work ID as one client after the other would see it.
type leaseRow struct {
	nonce  string
	token  uint64 // 0: given to a call that has not heard of it
	floor  uint64 // every token so far is at most this
	held   bool
	gone   bool // released, not given back
	number int64
	state  string
	before string // the nonce of the owner before, if that one released
}

// answer returns what may become of the row, and what is heard; nothing if the verdict
// cannot be.
func (r leaseRow) answer(in asked, out heard) []leaseRow {
	mine := r.nonce == in.nonce
	switch in.do {
	case "acquire":
		switch {
		case r.held && mine:
			if r.token == 0 && out.token > r.floor {
				r.token, r.floor = out.token, out.token
			}
			return when(out.verdict == "done" && out.token == r.token && out.state == r.state, r)
		case r.held:
			return when(out.verdict == "held", r)
		}
		next := leaseRow{nonce: in.nonce, token: out.token, floor: out.token, held: true, state: r.state}
		if r.gone {
			next.before = r.nonce
		} else {
			next.before = r.before
		}
		return when(out.verdict == "done" && out.token > r.floor && out.state == r.state, next)
	case "save":
		switch {
		case !mine:
			return when(out.verdict == "fenced", r)
		case in.number <= r.number:
			return when(out.verdict == "done", r)
		case !r.held:
			return when(out.verdict == "expired", r)
		}
		r.number, r.state = in.number, in.state
		return when(out.verdict == "done", r)
	case "release":
		switch {
		case !mine && r.before == in.nonce:
			return when(out.verdict == "done", r)
		case !mine:
			return when(out.verdict == "fenced", r)
		case !r.held:
			return when(out.verdict == "done" && r.gone || out.verdict == "expired" && !r.gone, r)
		}
		r.held, r.gone = false, true
		return when(out.verdict == "done", r)
	case "give back":
		switch {
		case !mine:
			return when(out.verdict == "fenced", r)
		case !r.held:
			return when(out.verdict == "done" && !r.gone || out.verdict == "expired" && r.gone, r)
		}
		r.held = false
		return when(out.verdict == "done", r)
	default: // read
		return when(out.verdict == "done" && mine && out.state == r.state || out.verdict == "fenced" && !mine, r)
	}
}

func when(so bool, r leaseRow) []leaseRow {
	if so {
		return []leaseRow{r}
	}
	return nil
}

// unheard returns what may become of the row by a statement whose answer was lost.
func (r leaseRow) unheard(in asked) []leaseRow {
	if in.do == "acquire" && r.held {
		return []leaseRow{r}
	}
	next := r.answer(in, heard{verdict: "done", token: r.floor + 1, state: r.state})
	if in.do == "acquire" {
		// Which token it got nobody knows yet.
		next[0].token, next[0].floor = 0, r.floor
	}
	return append(next, r)
}

var leaseModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{leaseRow{}} },
	Step: func(state, input, output any) (next []any) {
		r, in, out := state.(leaseRow), input.(asked), output.(heard)
		rows := r.answer(in, out)
		if out.verdict == "unknown" {
			rows = r.unheard(in)
		}
		for _, row := range rows {
			next = append(next, row)
		}
		return next
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v → %+v", in, out) },
	DescribeState:     func(s any) string { return fmt.Sprintf("%+v", s) },
}).ToModel()

// recorder writes a history down.
type recorder struct {
	mu    sync.Mutex
	began time.Time
	ops   []porcupine.Operation
}

// run does what was asked and writes down what was heard. A statement without an
// answer may take effect at any later time.
func (r *recorder) run(client int, in asked, do func() heard) heard {
	call := time.Since(r.began)
	out := do()
	end := time.Since(r.began)
	if out.verdict == "unknown" {
		end = time.Hour
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, porcupine.Operation{
		ClientId: client + 1000*len(r.ops), Input: in, Call: int64(call), Output: out, Return: int64(end),
	})
	return out
}

// client is somebody who acquires, works and leaves, through a network that loses
// answers.
type client struct {
	*recorder
	id  int
	ctx context.Context
	b   worklease.Backend
	w   string
}

func (c *client) verdict(err error) string {
	switch {
	case err == nil:
		return "done"
	case errors.Is(err, worklease.ErrLeaseHeld):
		return "held"
	case errors.Is(err, worklease.ErrFenced):
		return "fenced"
	case errors.Is(err, worklease.ErrLeaseExpired):
		return "expired"
	}
	return "unknown"
}

func (c *client) term() {
	nonce := rand.Text()
	a := worklease.Attempt{WorkID: c.w, HolderID: "holder", TTL: time.Hour, Nonce: nonce}
	claim := worklease.Claim{WorkID: c.w, HolderID: "holder", Nonce: nonce}
	acquired := c.run(c.id, asked{do: "acquire", nonce: nonce}, func() heard {
		g, err := c.b.Acquire(c.ctx, a)
		return heard{c.verdict(err), g.FencingToken, string(g.Prior.State)}
	})
	switch acquired.verdict {
	case "held":
		return
	case "unknown":
		if mathrand.IntN(2) == 0 {
			c.leave("give back", nonce, func() error { return c.b.Release(c.ctx, claim, worklease.Farewell{}) })
			return
		}
		if acquired = c.repeat(a); acquired.verdict != "done" {
			return
		}
	}
	claim.FencingToken = acquired.token
	for number := int64(1); number <= 1+mathrand.Int64N(3); number++ {
		state := fmt.Sprint(nonce[:4], " ", number)
		saved := c.run(c.id, asked{"save", nonce, number, state}, func() heard {
			_, err := c.b.Checkpoint(c.ctx, claim, worklease.Save{State: []byte(state), Number: number, Hold: nonce, TTL: time.Hour})
			return heard{verdict: c.verdict(err)}
		})
		if saved.verdict == "fenced" || saved.verdict == "expired" {
			return
		}
	}
	if mathrand.IntN(2) == 0 {
		c.run(c.id, asked{do: "read", nonce: nonce}, func() heard {
			s, err := c.b.ReadCheckpoint(c.ctx, claim, true)
			return heard{verdict: c.verdict(err), state: string(s.State)}
		})
	}
	c.leave("release", nonce, func() error { return c.b.Release(c.ctx, claim, worklease.Farewell{Exit: worklease.ExitReleased}) })
}

// repeat sends an attempt with an unknown outcome again, until it has an answer.
func (c *client) repeat(a worklease.Attempt) heard {
	for {
		out := c.run(c.id, asked{do: "acquire", nonce: a.Nonce}, func() heard {
			g, err := c.b.Acquire(c.ctx, a)
			return heard{c.verdict(err), g.FencingToken, string(g.Prior.State)}
		})
		if out.verdict != "unknown" {
			return out
		}
	}
}

// leave says farewell until there is an answer: else nobody else would get the work.
func (c *client) leave(do, nonce string, call func() error) {
	for {
		out := c.run(c.id, asked{do: do, nonce: nonce}, func() heard { return heard{verdict: c.verdict(call())} })
		if out.verdict != "unknown" {
			return
		}
	}
}

// T1, W7, N1, N2: whatever several clients hear at once, some order of one after the
// other explains it, also where answers get lost.
func TestHistoriesAreLinearizable(t *testing.T) {
	t.Parallel()
	s := newStage(t, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 8 }))
	all := fault.Containing("-- worklease: ")
	for round := range rounds(1, 3, 100) {
		r := &recorder{began: time.Now()}
		done := make(chan struct{})
		var saboteur, clients sync.WaitGroup
		saboteur.Go(func() {
			for range 6 {
				// The next statement after a while, whosever it is.
				select {
				case <-done:
					return
				case <-time.After(time.Duration(mathrand.IntN(20)) * time.Millisecond):
				}
				if s.SwallowReply(all, 1, fault.Reset).Fired(t.Context()) != nil {
					return
				}
			}
		})
		for id := range 4 {
			c := &client{recorder: r, id: id, ctx: t.Context(), b: s.b, w: fmt.Sprint("w", round)}
			clients.Go(func() {
				for range 6 {
					c.term()
				}
			})
		}
		clients.Wait()
		close(done)
		// Should the saboteur still wait for a statement, it gets one.
		_, _ = s.b.ReadCheckpoint(t.Context(), worklease.Claim{WorkID: "none", HolderID: "none", FencingToken: 1}, false)
		saboteur.Wait()

		unknown, granted := 0, 0
		for _, op := range r.ops {
			switch out := op.Output.(heard); {
			case out.verdict == "unknown":
				unknown++
			case out.verdict == "done" && op.Input.(asked).do == "acquire":
				granted++
			}
		}
		switch result := porcupine.CheckOperationsTimeout(leaseModel, r.ops, 20*time.Second); result {
		case porcupine.Ok:
			t.Logf("%d operations, %d granted, %d unknown: linearizable", len(r.ops), granted, unknown)
		default:
			t.Errorf("%d operations, %d granted, %d unknown: %v", len(r.ops), granted, unknown, result)
			for _, op := range r.ops {
				t.Logf("%8d %8d %+v → %+v", op.Call/1000, op.Return/1000, op.Input, op.Output)
			}
		}
		if granted == 0 {
			t.Error("nobody got the work")
		}
	}
}

// The model is no yes-man: it refuses histories that must not be.
func TestTheModelRefuses(t *testing.T) {
	t.Parallel()
	op := func(i int, in asked, out heard) porcupine.Operation {
		return porcupine.Operation{ClientId: i, Input: in, Call: int64(2 * i), Output: out, Return: int64(2*i + 1)}
	}
	acquire := func(n string) asked { return asked{do: "acquire", nonce: n} }
	for name, history := range map[string][]porcupine.Operation{
		"two owners": {
			op(0, acquire("a"), heard{"done", 1, ""}),
			op(1, acquire("b"), heard{"done", 2, ""}),
		},
		"a token twice": {
			op(0, acquire("a"), heard{"done", 1, ""}),
			op(1, asked{do: "release", nonce: "a"}, heard{verdict: "done"}),
			op(2, acquire("b"), heard{"done", 1, ""}),
		},
		"an acknowledged checkpoint lost": {
			op(0, acquire("a"), heard{"done", 1, ""}),
			op(1, asked{"save", "a", 1, "x"}, heard{verdict: "done"}),
			op(2, asked{do: "release", nonce: "a"}, heard{verdict: "done"}),
			op(3, acquire("b"), heard{"done", 2, ""}),
		},
		"a zombie's checkpoint": {
			op(0, acquire("a"), heard{"done", 1, ""}),
			op(1, asked{do: "release", nonce: "a"}, heard{verdict: "done"}),
			op(2, acquire("b"), heard{"done", 2, ""}),
			op(3, asked{"save", "a", 1, "x"}, heard{verdict: "done"}),
		},
	} {
		if porcupine.CheckOperations(leaseModel, history) {
			t.Errorf("%s is called linearizable", name)
		}
	}
}
