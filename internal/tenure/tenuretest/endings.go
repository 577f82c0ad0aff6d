package tenuretest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
)

// Work is a work function.
type Work func(s *Scene, ctx context.Context) error

// Ending is one way in which a tenure ends.
type Ending struct {
	Name  string
	Line  string         // of the tables in the package comments, unless the layer has its own
	Old   string         // what the predecessor left
	SetUp func(s *Scene) // before the layer runs
	Work  Work           // nil: it must not be called

	Exit   worklease.Exit // what the next owner is told
	Errs   []error        // what the tenure's error Is; nil: no error
	Panics any
	Exits  bool // it calls runtime.Goexit
}

// Run runs test in a bubble for each ending.
func Run(t *testing.T, endings []Ending, test func(s *Scene, e Ending)) {
	for _, e := range endings {
		t.Run(e.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, e)
				before := len(Goroutines())
				test(s, e)
				if left := Goroutines(); len(left) > before {
					t.Errorf("goroutines are left:\n%s", strings.Join(left, "\n\n"))
				}
				// A lease that nobody else has taken meanwhile tells how its owner left.
				if s.Stolen {
					return
				}
				if prior := s.NextOwner(); prior.Exit != e.Exit {
					t.Errorf("the row says %v, want %v", prior.Exit, e.Exit)
				}
			})
		})
	}
}

// Returns works for a second.
func Returns(err error) Work {
	return func(*Scene, context.Context) error {
		time.Sleep(time.Second)
		return err
	}
}

// Heeds works until its context ends, winds down for a while and returns.
func Heeds(windDown time.Duration, err error) Work {
	return func(_ *Scene, ctx context.Context) error {
		<-ctx.Done()
		time.Sleep(windDown)
		return err
	}
}

// CtxErr returns the error of its context when that has ended.
func CtxErr(_ *Scene, ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// CancelAt ends the caller's context.
func CancelAt(d time.Duration) func(*Scene) {
	return func(s *Scene) { time.AfterFunc(d, func() { s.Cancel(ErrCaller) }) }
}

// StealAt has the rival take the lease.
func StealAt(d time.Duration) func(*Scene) {
	return func(s *Scene) { time.AfterFunc(d, s.steal) }
}

func stallAfter(d time.Duration) func(*Scene) {
	return func(s *Scene) {
		s.RenewalOptions = append(s.RenewalOptions, worklease.WithProgressDeadline(d))
	}
}

func renewals(f Fault) func(*Scene) { return func(s *Scene) { s.Backend.Renewing = f } }
func releases(f Fault) func(*Scene) { return func(s *Scene) { s.Backend.Releasing = f } }
func reads(f Fault) func(*Scene)    { return func(s *Scene) { s.Backend.Reading = f } }

// whenTold acts once, inside the first callback that the layer makes.
func whenTold(act func(s *Scene)) func(*Scene) {
	return func(s *Scene) { s.told = func() { act(s) } }
}

func all(setUps ...func(*Scene)) func(*Scene) {
	return func(s *Scene) {
		for _, setUp := range setUps {
			setUp(s)
		}
	}
}

// big does not travel with a grant, so that Prior has to read it.
var big = strings.Repeat("x", worklease.MaxInlineState+1)

// The lines of the tables in the package comments: what the function does.
const (
	returnsNil    = "returns nil"
	returnsRetire = "returns an error that Is worklease.Retire"
	returnsError  = "returns another error, ctx.Err() too"
	farewellFails = "returns, but the farewell fails"
	farewellLost  = "returns, and the farewell finds the lease lost"
	panics        = "panics or calls runtime.Goexit"
	lost          = "has lost the lease"
	lostPanics    = "has lost the lease and panics"
	stalls        = "is stalled and returns while the lease lasts"
	stallsLonger  = "is stalled and returns later"
	outlives      = "runs for more than WindDown after ctx has ended"
	notAcquired   = "is not called: nothing was acquired"
	endedBefore   = "is not called: ctx has ended"
	lostBefore    = "is not called: the lease is lost"
	priorFails    = "is not called: the prior cannot be read"
)

// Endings are the ways in which a tenure ends that all layers share.
var Endings = []Ending{
	{Name: "nil", Line: returnsNil, Work: Returns(nil), Exit: worklease.ExitReleased},
	{Name: "error", Line: returnsError, Work: Returns(ErrWork), Exit: worklease.ExitAbandoned, Errs: []error{ErrWork}},
	{Name: "Retire", Line: returnsRetire, Work: Returns(fmt.Errorf("all done: %w", worklease.Retire)), Exit: worklease.ExitRetired},
	{
		Name: "panic", Line: panics, Exit: worklease.ExitExpired, Panics: "on purpose",
		Work: func(*Scene, context.Context) error { time.Sleep(time.Second); panic("on purpose") },
	}, {
		Name: "Goexit", Line: panics, Exit: worklease.ExitExpired, Exits: true,
		Work: func(*Scene, context.Context) error { time.Sleep(time.Second); runtime.Goexit(); return nil },
	},

	// The lease is lost.
	{
		Name: "fenced", Line: lost, SetUp: StealAt(time.Second), Work: Heeds(time.Second, nil),
		Errs: []error{worklease.ErrFenced},
	}, {
		Name: "fenced, error", Line: lost, SetUp: StealAt(time.Second), Work: Heeds(time.Second, ErrWork),
		Errs: []error{worklease.ErrFenced, ErrWork},
	}, {
		Name: "fenced, found by the farewell", Line: farewellLost, SetUp: StealAt(time.Second / 2), Work: Returns(nil),
		Errs: []error{worklease.ErrFenced},
	}, {
		Name: "window exhausted", Line: lost, SetUp: renewals(Broken), Work: Heeds(time.Second, nil),
		Exit: worklease.ExitExpired, Errs: []error{worklease.ErrLeaseWindowExhausted},
	}, {
		Name: "window exhausted, function stays (S10)", Line: lost, SetUp: renewals(Hang), Work: Heeds(3*TTL, nil),
		Exit: worklease.ExitExpired, Errs: []error{worklease.ErrLeaseWindowExhausted},
	}, {
		Name: "window exhausted, Retire", Line: lost, SetUp: renewals(Broken), Work: Heeds(0, worklease.Retire),
		Exit: worklease.ExitExpired, Errs: []error{worklease.ErrLeaseWindowExhausted},
	}, {
		Name: "stalled", Line: stalls, SetUp: stallAfter(3 * time.Second), Work: Heeds(time.Second, nil),
		Exit: worklease.ExitAbandoned, Errs: []error{worklease.ErrStalled},
	}, {
		Name: "stalled, returns too late", Line: stallsLonger, SetUp: stallAfter(3 * time.Second), Work: Heeds(TTL, nil),
		Exit: worklease.ExitExpired, Errs: []error{worklease.ErrStalled},
	}, {
		Name: "panic after a loss", Line: lostPanics, SetUp: renewals(Broken), Exit: worklease.ExitExpired, Panics: "on purpose",
		Work: func(_ *Scene, ctx context.Context) error { <-ctx.Done(); panic("on purpose") },
	}, {
		Name: "lost while the prior was read", Line: lostBefore, Old: big,
		SetUp: func(s *Scene) {
			s.Backend.Reading = func(_ context.Context, do func() error) error { s.steal(); return do() }
		},
		Errs: []error{worklease.ErrFenced},
	}, {
		Name:  "lost before the function",
		Line:  lostBefore,
		SetUp: all(renewals(Broken), whenTold(func(*Scene) { time.Sleep(TTL + time.Second) })),
		Exit:  worklease.ExitExpired, Errs: []error{worklease.ErrLeaseWindowExhausted},
	},

	// The caller's context ends.
	{
		Name: "cancelled before", Line: notAcquired, SetUp: func(s *Scene) { s.Cancel(ErrCaller) },
		Exit: worklease.ExitReleased, Errs: []error{context.Canceled, ErrCaller},
	}, {
		Name: "cancelled while waiting", Line: notAcquired,
		SetUp: all(CancelAt(time.Second), func(s *Scene) {
			s.steal()
			s.AcquireOptions = []worklease.AcquireOption{worklease.WithWaitForLease()}
		}),
		Errs: []error{context.Canceled, ErrCaller},
	}, {
		Name: "cancelled at the acquisition", Line: endedBefore, SetUp: func(s *Scene) { s.acquired = func() { s.Cancel(ErrCaller) } },
		Exit: worklease.ExitAbandoned, Errs: []error{context.Canceled, ErrCaller},
	}, {
		Name: "cancelled while the prior is read", Line: endedBefore, Old: big, SetUp: all(CancelAt(time.Second), reads(Hang)),
		Exit: worklease.ExitAbandoned, Errs: []error{context.Canceled, ErrCaller},
	}, {
		Name: "cancelled before the function", Line: endedBefore, SetUp: whenTold(func(s *Scene) { s.Cancel(ErrCaller) }),
		Exit: worklease.ExitAbandoned, Errs: []error{context.Canceled, ErrCaller},
	}, {
		Name: "cancelled, nil", Line: returnsNil, SetUp: CancelAt(time.Second), Work: Heeds(time.Second, nil),
		Exit: worklease.ExitReleased,
	}, {
		Name: "cancelled, ctx.Err()", Line: returnsError, SetUp: CancelAt(time.Second), Work: CtxErr,
		Exit: worklease.ExitAbandoned, Errs: []error{context.Canceled},
	}, {
		Name: "cancelled, the cause", Line: returnsError, SetUp: CancelAt(time.Second), Exit: worklease.ExitAbandoned, Errs: []error{ErrCaller},
		Work: func(_ *Scene, ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
	}, {
		Name: "cancelled, error", Line: returnsError, SetUp: CancelAt(time.Second), Work: Heeds(0, ErrWork),
		Exit: worklease.ExitAbandoned, Errs: []error{ErrWork},
	}, {
		Name: "cancelled, Retire", Line: returnsRetire, SetUp: CancelAt(time.Second), Work: Heeds(0, worklease.Retire),
		Exit: worklease.ExitRetired,
	}, {
		Name: "cancelled, kept for the wind-down", Line: returnsNil, SetUp: CancelAt(time.Second), Work: Heeds(29*time.Second, nil),
		Exit: worklease.ExitReleased,
	}, {
		Name: "cancelled during the farewell", Line: returnsNil, Work: Returns(nil), Exit: worklease.ExitReleased,
		SetUp: func(s *Scene) {
			s.Backend.Releasing = func(_ context.Context, do func() error) error {
				s.Cancel(ErrCaller)
				time.Sleep(time.Second)
				return do()
			}
		},
	}, {
		Name:  "wind-down exceeded",
		Line:  outlives,
		SetUp: all(CancelAt(time.Second), func(s *Scene) { s.WindDown = 4 * time.Second }),
		Work:  Heeds(6*time.Second, nil),
		Exit:  worklease.ExitExpired, Errs: []error{worklease.ErrWindDown},
	}, {
		Name: "wind-down exceeded, by default", Line: outlives, SetUp: CancelAt(time.Second), Work: Heeds(31*time.Second, ErrWork),
		Exit: worklease.ExitExpired, Errs: []error{worklease.ErrWindDown, ErrWork},
	},

	// The start and the farewell fail.
	{
		Name: "acquisition fails for good", Line: notAcquired, Exit: worklease.ExitReleased, Errs: []error{worklease.ErrClosed},
		SetUp: func(s *Scene) {
			s.Backend.Acquiring = func(context.Context, func() error) error {
				return &worklease.BackendError{Err: worklease.ErrClosed, NotApplied: true}
			}
		},
	}, {
		Name: "error that tells of other work's lease", Line: returnsError, Work: Returns(errors.Join(&worklease.RetiredError{}, &worklease.HeldError{})),
		Exit: worklease.ExitAbandoned, Errs: []error{worklease.ErrLeaseRetired, worklease.ErrLeaseHeld},
	},
	{
		Name: "retired before", Line: notAcquired, Exit: worklease.ExitRetired, Errs: []error{worklease.ErrLeaseRetired},
		SetUp: func(s *Scene) {
			s.Must(s.Rival.Release(s.T.Context(), s.acquire(), worklease.WithExit(worklease.ExitRetired)))
		},
	}, {
		Name: "prior fails", Line: priorFails, Old: big, SetUp: reads(Broken),
		Exit: worklease.ExitAbandoned, Errs: []error{ErrBroken},
	}, {
		Name: "farewell fails", Line: farewellFails, SetUp: releases(Broken), Work: Returns(nil),
		Exit: worklease.ExitExpired, Errs: []error{ErrBroken},
	}, {
		Name: "farewell fails, error", Line: farewellFails, SetUp: releases(Broken), Work: Returns(ErrWork),
		Exit: worklease.ExitExpired, Errs: []error{ErrWork, ErrBroken},
	}, {
		Name: "farewell fails, Retire", Line: farewellFails, SetUp: releases(Broken), Work: Returns(worklease.Retire),
		Exit: worklease.ExitExpired, Errs: []error{ErrBroken},
	}, {
		Name:  "farewell hangs for longer than CleanupTimeout",
		Line:  farewellFails,
		SetUp: all(releases(Hang), func(s *Scene) { s.CleanupTimeout = 2 * time.Second }),
		Work:  Returns(nil),
		Exit:  worklease.ExitExpired, Errs: []error{context.DeadlineExceeded},
	},
}
