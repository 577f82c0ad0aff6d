package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// renewEvents passes on the events of renewals.
type renewEvents struct {
	worklease.NopObserver
	to chan worklease.RenewEvent
}

func (r renewEvents) OnRenew(_ context.Context, e worklease.RenewEvent) { r.to <- e }

func newRenewEvents() renewEvents { return renewEvents{to: make(chan worklease.RenewEvent, 100)} }

// S21: with the default interval two renewals in a row may get lost. Each is sent
// and never answered, the worst that a network does.
func TestLostRenewals(t *testing.T) {
	t.Parallel()
	for k := range 3 {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.warmUp(t)
			// A machine that is busy with other things may lose one more.
			for tries := 1; ; tries++ {
				err := loseRenewals(t, s, fmt.Sprint("w", tries), k, []time.Duration{2 * time.Second, 4 * time.Second, 6 * time.Second}[k])
				if err == nil {
					return
				}
				if t.Logf("try %d: %v", tries, err); tries == 3 {
					t.Fatalf("%d lost renewals cost the lease, three times", k)
				}
			}
		})
	}
}

// loseRenewals keeps a lease over k lost renewals and one that succeeds.
func loseRenewals(t *testing.T, s *stage, workID string, k int, ttl time.Duration) error {
	events := newRenewEvents()
	l := newObserved(t, s.b, "holder", ttl, events)
	token := take(t, l, workID)
	first, _ := l.Deadline(token)
	if k > 0 {
		s.DropRequest(sqlRenew, k, fault.Silence)
	}
	ctx, stop := l.StartRenewal(t.Context(), token)
	defer stop()
	for attempt := 1; ; attempt++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e := <-events.to:
			if e.Attempt != attempt || e.Err == nil && attempt <= k || errors.Is(e.Err, worklease.ErrFenced) {
				t.Errorf("attempt %d, with %d lost: %d, %v", attempt, k, e.Attempt, e.Err)
			}
			if e.Err != nil {
				continue
			}
		}
		eventually(t, "the window moves", func() bool {
			now, ok := l.Deadline(token)
			return ok && now.After(first) || ctx.Err() != nil
		})
		return context.Cause(ctx)
	}
}

// S22, R4: a backend that is killed under a renewal is no loss.
func TestKilledRenewalIsRepeated(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "owner" }))
	events := newRenewEvents()
	l := newObserved(t, newBackend(t, pool), "holder", 9*time.Second, events)
	token := take(t, l, "w")
	blocker := fault.Block(t, url, `LOCK TABLE worklease_leases IN EXCLUSIVE MODE`)
	ctx, stop := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(time.Millisecond))
	defer stop()
	must(t, blocker.Await(t.Context()))
	n, err := fault.Terminate(t.Context(), direct, fault.Backends{App: "owner", Query: "-- worklease: renew%"})
	must(t, err)
	if n == 0 {
		t.Fatal("there was no renewal to kill")
	}
	blocker.Release()
	e := await(t, "the killed renewal", events.to)
	if e.Err == nil || e.Attempt != 1 || sqlState(e.Err) != "57P01" {
		t.Errorf("attempt %d: %v", e.Attempt, e.Err)
	}
	if e = await(t, "the next", events.to); e.Err != nil || e.Attempt != 2 {
		t.Errorf("attempt %d: %v", e.Attempt, e.Err)
	}
	if ctx.Err() != nil {
		t.Errorf("the lease was lost: %v", context.Cause(ctx))
	}
}

// S22, R1: a reply that comes after the window does not bring trust back.
func TestRenewalAnsweredTooLate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const ttl = 3 * time.Second // a busy machine must be able to renew in time
	l := newLeaseFor(t, s.b, "holder", ttl)
	token := take(t, l, "w")
	held := s.HoldReply(sqlRenew, 100)
	ctx, stop := l.StartRenewal(t.Context(), token)
	defer stop()
	must(t, held.Answered(t.Context())) // the database has extended the lease
	await(t, "the context ends", ctx.Done())
	cause := context.Cause(ctx)
	refused(t, "cause", cause, worklease.ErrLeaseWindowExhausted)
	if errors.Is(cause, worklease.ErrFenced) || errors.Is(cause, worklease.ErrLeaseExpired) {
		t.Errorf("cause: %v", cause)
	}
	held.Release()
	if deadline, ok := l.Deadline(token); ok {
		t.Errorf("trusted again until %v", deadline)
	}
	if again, stop := l.StartRenewal(t.Context(), token); again.Err() == nil {
		stop()
		t.Error("a lost lease is renewed again")
	}
}

// H3, S30: the context that has ended is the commonest one to release with.
func TestReleaseWithAnEndedContext(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := newLease(t, newBackend(t, pool), "holder")
	for _, opts := range [][]worklease.ReleaseOption{nil, {worklease.WithState([]byte("last"))}} {
		token := take(t, l, "w")
		must(t, l.Release(cancelled(t.Context()), token, opts...))
	}
	token := take(t, l, "w")
	if p := prior(t, l, token); p.Exit != worklease.ExitReleased || string(p.State) != "last" {
		t.Errorf("prior %+v", p)
	}
	ctx, stop := l.StartRenewal(t.Context(), token)
	stop()
	must(t, l.Release(ctx, token))
	take(t, l, "w")
}

// H3, S30: Release returns within its bound also when nothing comes back.
func TestReleaseIntoABlackHole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "holder")
	token := take(t, l, "w")
	s.BlackHole()
	began := time.Now()
	err := l.Release(cancelled(t.Context()), token)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("it took %v, the bound is 5 s", took)
	}
	refused(t, "Release", err, context.DeadlineExceeded)
	if errors.Is(err, worklease.ErrFenced) || errors.Is(err, worklease.ErrLeaseExpired) {
		t.Errorf("Release: %v", err)
	}
}
