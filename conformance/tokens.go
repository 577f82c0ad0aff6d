package conformance

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/aetomala/worklease"
)

func tokensRise(s *suite) {
	id := s.id("work")
	last := s.acquire(id, "a")
	rises := func(after string, next *owner) *owner {
		s.Helper()
		if next.FencingToken <= last.FencingToken {
			s.Errorf("after %s token %d followed %d", after, next.FencingToken, last.FencingToken)
		}
		last = next
		return next
	}
	for _, exit := range declared {
		last.leave(exit)
		rises(exit.String(), s.reopen(id, "a"))
	}
	last.leave(worklease.ExitReleased)
	rises("a release", s.acquireToLapse(id, "a"))
	s.lapse(id)
	rises("a lapse", s.acquire(id, "a"))
	s.must("giving back", last.undo())
	a := s.attempt(id, "a")
	a.TTL = s.lapsing()
	rises("what was given back", s.send(a))
	s.lapse(id)
	rises("the lapse of its own nonce", s.send(a))
}

func tokensRiseAcrossForget(s *suite) {
	f := s.forgetter()
	id := s.id("work")
	first := s.acquire(id, "a")
	last := first.FencingToken
	s.must("Forget", f.Forget(s.Context(), first.Claim))
	for range 5 {
		o := s.acquire(id, "a")
		if o.FencingToken <= last {
			s.Fatalf("after Forget token %d followed %d", o.FencingToken, last)
		}
		last = o.FencingToken
		s.refused("Checkpoint with a token from before Forget", first.checkpoint([]byte("zombie")), worklease.ErrFenced)
		s.must("Forget", f.Forget(s.Context(), o.Claim))
	}
}

func tokensRiseAcrossWorkIDs(s *suite) {
	var last uint64
	for _, name := range []string{"a", "b", "c", "a", "d", "b"} {
		o := s.acquire(s.id(name), "x")
		if o.FencingToken <= last {
			s.Errorf("%s got token %d after another work ID got %d", name, o.FencingToken, last)
		}
		last = o.FencingToken
		o.leave(worklease.ExitReleased)
	}
}

const (
	racing = 8
	rounds = 5
)

// race runs try at once in some goroutines and returns the token of the one winner.
func (s *suite) race(try func(i int) (uint64, error)) uint64 {
	s.Helper()
	tokens, errs := make([]uint64, racing), make([]error, racing)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range racing {
		wg.Go(func() {
			<-start
			tokens[i], errs[i] = try(i)
		})
	}
	close(start)
	wg.Wait()
	var winner uint64
	for i, err := range errs {
		switch {
		case err == nil && winner != 0:
			s.Fatalf("two won at once, with the tokens %d and %d", winner, tokens[i])
		case err == nil:
			winner = tokens[i]
		default:
			s.refused("Acquire in a race", err, worklease.ErrLeaseHeld)
		}
	}
	if winner == 0 {
		s.Fatal("nobody won the race for a free lease")
	}
	return winner
}

func racers(s *suite) {
	id := s.id("work")
	var last uint64
	for round := range rounds {
		claims := make([]worklease.Claim, racing)
		winner := s.race(func(i int) (uint64, error) {
			a := s.attempt(id, "equal")
			g, err := s.b.Acquire(s.Context(), a)
			claims[i] = worklease.Claim{WorkID: id, HolderID: "equal", FencingToken: g.FencingToken, Nonce: a.Nonce}
			return g.FencingToken, err
		})
		if winner <= last {
			s.Fatalf("in round %d token %d followed %d", round, winner, last)
		}
		last = winner
		for _, c := range claims {
			if c.FencingToken == winner {
				s.must("Release", s.b.Release(s.Context(), c, worklease.Farewell{Exit: worklease.ExitReleased}))
			}
		}
	}
}

func racingLeases(s *suite) {
	id := s.id("work")
	leases := make([]worklease.Lease, racing)
	for i := range leases {
		leases[i] = s.lease("equal", long)
	}
	var last uint64
	for round := range rounds {
		tokens := make([]worklease.Token, racing)
		winner := s.race(func(i int) (token uint64, err error) {
			tokens[i], err = leases[i].Acquire(s.Context(), id)
			return tokens[i].FencingToken(), err
		})
		if winner <= last {
			s.Fatalf("in round %d token %d followed %d", round, winner, last)
		}
		last = winner
		if s.canLapse() {
			s.lapse(id)
			continue
		}
		for i, token := range tokens {
			if token.FencingToken() == winner {
				s.must("Release", leases[i].Release(s.Context(), token))
			}
		}
	}
}

func wholeClaim(s *suite) {
	s.acquire(s.id("first"), "holder") // the next token has a smaller one, which is not zero
	o := s.acquire(s.id("work"), "holder")
	o.save("kept")
	for what, change := range map[string]func(*worklease.Claim){
		"another work ID":        func(c *worklease.Claim) { c.WorkID += "x" },
		"a shorter work ID":      func(c *worklease.Claim) { c.WorkID = c.WorkID[:len(c.WorkID)-1] },
		"another holder":         func(c *worklease.Claim) { c.HolderID = "other" },
		"a longer holder":        func(c *worklease.Claim) { c.HolderID += "1" },
		"a holder in upper case": func(c *worklease.Claim) { c.HolderID = strings.ToUpper(c.HolderID) },
		"a smaller token":        func(c *worklease.Claim) { c.FencingToken-- },
		"a greater token":        func(c *worklease.Claim) { c.FencingToken++ },
		"another nonce":          func(c *worklease.Claim) { c.Nonce = "other" },
		"a nonce in lower case":  func(c *worklease.Claim) { c.Nonce = strings.ToLower(c.Nonce) },
	} {
		zombie := &owner{Claim: o.Claim, s: s, hold: "zombie", saves: 100}
		change(&zombie.Claim)
		zombie.refusedAsFenced("with " + what)
	}
	o.stored("after claims that do not match", []byte("kept"))
	o.heldBy("after claims that do not match")

	// A resumed token has no nonce, and is matched by the rest.
	resumed := &owner{Claim: o.Claim, s: s, hold: "resumed", saves: 100}
	resumed.Nonce = ""
	s.must("Renew of a resumed token", resumed.renew())
	s.must("Checkpoint of a resumed token", resumed.checkpoint([]byte("resumed")))
	resumed.stored("of a resumed token", []byte("resumed"))
	s.must("Release of a resumed token", resumed.release(worklease.ExitReleased))
}

func idsByteByByte(s *suite) {
	base := s.id("Zo\u00eb")
	names := []string{
		base, base + " ", " " + base, base + "\t", base + "\n", base + "1", base[:len(base)-1],
		s.id("Zoe\u0308"), s.id("zo\u00eb"), s.id("ZO\u00cb"), s.id("Zoe"),
		base + "%", base + "_", base + "'", base + `"`, base + `\`, base + "''", base + `\'`, base + ";--", base + "$1", base + "{{.}}",
		base + "\x01", base + "\x7f", base + "\u200b", base + "\ufeff", base + "\U0001f512",
		base + strings.Repeat("x", worklease.MaxIDBytes-len(base)),
		base + strings.Repeat("x", worklease.MaxIDBytes-len(base)-1),
	}
	var owners []*owner
	for _, name := range names {
		o := s.acquire(name, name)
		s.samePrior("of the first owner", o.grant.Prior, worklease.Prior{})
		o.save(name)
		owners = append(owners, o)
	}
	for i, o := range owners {
		o.heldBy("among similar work IDs")
		o.stored("among similar work IDs", []byte(names[i]))
		similar := *o
		similar.HolderID = names[(i+1)%len(names)]
		s.refused("Renew under a similar holder ID", similar.renew(), worklease.ErrFenced)
	}
}

func equalHolders(s *suite) {
	first, second := s.lease("equal", long), s.lease("equal", long)
	token := s.take(first, s.id("work"))
	for _, l := range []worklease.Lease{first, second} {
		_, err := l.Acquire(s.Context(), token.WorkID())
		s.refused("Acquire under the same holder ID", err, worklease.ErrLeaseHeld)
	}
	s.must("Release", first.Release(s.Context(), token))
	next := s.take(second, token.WorkID())
	s.must("a repeated Release", first.Release(s.Context(), token)) // its own, one successor on
	s.refused("Checkpoint with the earlier token", first.Checkpoint(s.Context(), token, []byte("zombie")), worklease.ErrFenced)
	s.refused("Checkpoint with the earlier token by another", second.Checkpoint(s.Context(), token, []byte("zombie")), worklease.ErrFenced)
	s.must("Renew of the later token", second.Renew(s.Context(), next))
	s.sameState("the checkpoint", s.read(second, next), nil)
}

func (s *suite) read(l worklease.Lease, token worklease.Token) []byte {
	s.Helper()
	state, _, err := l.ReadCheckpoint(s.Context(), token)
	s.must("ReadCheckpoint", err)
	return state
}

func refusalDrawsNothing(s *suite) {
	// Others may draw tokens of the same backend meanwhile, so that a gap proves
	// something only if it is there every time.
	const refusals = 40
	for range 20 {
		o := s.acquire(s.id("held"), "a")
		for range refusals {
			_, err := s.b.Acquire(s.Context(), s.attempt(o.WorkID, "b"))
			s.refused("Acquire of a held lease", err, worklease.ErrLeaseHeld)
		}
		next := s.acquire(s.id("next"), "a")
		gap := next.FencingToken - o.FencingToken
		o.leave(worklease.ExitReleased)
		next.leave(worklease.ExitReleased)
		if gap <= refusals {
			return
		}
	}
	s.Errorf("%d refused acquires used up as many tokens", refusals)
}

// twoHolds has the holds of one token save in turn.
func twoHolds(s *suite) {
	ctx := s.Context()
	first, second := s.lease("a", long), s.lease("a", long)
	token := s.take(first, s.id("work"))
	resumed := worklease.NewToken(token.WorkID(), token.HolderID(), token.FencingToken(), token.ExpiresAt())
	if _, ok := second.Deadline(resumed); ok {
		s.Error("a resumed token has a deadline before its first renewal")
	}
	s.must("Renew of a resumed token", second.Renew(ctx, resumed))
	if _, ok := second.Deadline(resumed); !ok {
		s.Error("a resumed token has no deadline after its renewal")
	}
	saves := []struct {
		l     worklease.Lease
		token worklease.Token
		state string
	}{
		{first, token, "1"}, {first, token, "2"}, {second, resumed, "3"}, {first, token, "4"}, {second, resumed, "5"},
		{second, resumed, "6"}, {first, token, "7"}, {first, token, "8"},
	}
	for _, save := range saves {
		s.must("Checkpoint by one of two holds", save.l.Checkpoint(ctx, save.token, []byte(save.state)))
		s.sameState("the checkpoint", s.read(first, token), []byte(save.state))
	}
	s.must("Release by the resumed hold", second.Release(ctx, resumed, worklease.WithState([]byte("9"))))
	s.refused("Checkpoint by the other hold after Release", first.Checkpoint(ctx, token, []byte("10")), worklease.ErrLeaseExpired)
	third := s.lease("b", long)
	next := s.take(third, token.WorkID())
	s.samePrior("after two holds", s.prior(third, next),
		worklease.Prior{State: []byte("9"), Exit: worklease.ExitReleased, HolderID: "a", FencingToken: token.FencingToken()})
	var none *worklease.OvertakenError
	if err := first.Checkpoint(context.WithoutCancel(ctx), token, []byte("zombie")); errors.As(err, &none) || !errors.Is(err, worklease.ErrFenced) {
		s.Errorf("Checkpoint after a successor came: %v, want ErrFenced", err)
	}
}
