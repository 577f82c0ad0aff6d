package tenure_test

import (
	gocmp "cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
	"github.com/google/go-cmp/cmp"
)

// ending is one way in which a tenure ends, and what is left of it.
type ending struct {
	name  string
	lease worklease.Config
	old   string                     // what the predecessor has left; "old"
	setUp func(s *scene)             // before Run
	work  func(s *scene) tenure.Work // nil: it must not be called

	// What the next owner is told, and how long it has to wait after Run has ended.
	exit  worklease.Exit
	state string // "old"
	free  time.Duration

	errs     []error // what Run's error Is, and of all that one could ask for nothing else
	recorded worklease.Exit
	lost     bool          // Outcome.Lost
	lostAt   time.Duration // when OnLost was called; 0: never
	took     time.Duration // when Run ended
	cause    error         // of the work's context as the work returned; nil: it had not ended
	blind    bool          // the work does not look at its context, nor does the test
	panics   any
	events   string
}

// askable are the errors that a caller could ask for.
var askable = []error{
	worklease.ErrFenced, worklease.ErrLeaseHeld, worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted,
	worklease.ErrLeaseRetired, worklease.ErrStalled, worklease.ErrWindDown, worklease.ErrOutcomeUnknown,
	worklease.ErrClosed, worklease.ErrInvalid, worklease.Retire,
	context.Canceled, context.DeadlineExceeded, tenuretest.ErrWork, tenuretest.ErrBroken, tenuretest.ErrCaller,
}

// returns works for a second.
func returns(state string, err error) func(*scene) tenure.Work {
	return func(*scene) tenure.Work {
		return func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
			time.Sleep(time.Second)
			return bytes(state), err
		}
	}
}

// heeds works until its context ends, winds down for a while and returns; err is told
// the context.
func heeds(windDown time.Duration, state string, err func(context.Context) error) func(*scene) tenure.Work {
	return func(*scene) tenure.Work {
		return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
			<-ctx.Done()
			time.Sleep(windDown)
			return bytes(state), err(ctx)
		}
	}
}

func bytes(state string) []byte {
	if state == "" {
		return nil
	}
	return []byte(state)
}

func none(context.Context) error           { return nil }
func failure(context.Context) error        { return tenuretest.ErrWork }
func contextErr(ctx context.Context) error { return ctx.Err() }
func retire(context.Context) error         { return worklease.Retire }
func namesCause(ctx context.Context) error { return fmt.Errorf("batch 7: %w", context.Cause(ctx)) }

// cancelAt ends the caller's context.
func cancelAt(d time.Duration) func(*scene) {
	return func(s *scene) { time.AfterFunc(d, func() { s.cancel(tenuretest.ErrCaller) }) }
}

func stealAt(d time.Duration) func(*scene) {
	return func(s *scene) { time.AfterFunc(d, s.steal) }
}

func renewals(fault func(context.Context, func() error) error) func(*scene) {
	return func(s *scene) { s.backend.Renewing = fault }
}

func releases(fault func(context.Context, func() error) error) func(*scene) {
	return func(s *scene) { s.backend.Releasing = fault }
}

func stallAfter(d time.Duration) func(*scene) {
	return func(s *scene) {
		s.cfg.RenewalOptions = append(s.cfg.RenewalOptions, worklease.WithProgressDeadline(d))
	}
}

func panicOnLost(s *scene) {
	s.cfg.OnLost = func(ctx context.Context, token worklease.Token) {
		s.lost(ctx, token)
		panic("in OnLost")
	}
}

// standStill gives the lease a window of two seconds whose end no timer tells.
func standStill(s *scene) { s.cfg.Lease = stillLease{s.lease, 2 * time.Second} }

func returnsAfter(d time.Duration) func(*scene) tenure.Work {
	return func(*scene) tenure.Work {
		return func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
			time.Sleep(d)
			return []byte("new"), nil
		}
	}
}

func windDown(d time.Duration) func(*scene) {
	return func(s *scene) { s.cfg.WindDown = d }
}

func all(setUps ...func(*scene)) func(*scene) {
	return func(s *scene) {
		for _, setUp := range setUps {
			setUp(s)
		}
	}
}

const (
	released  = worklease.ExitReleased
	abandoned = worklease.ExitAbandoned
	retired   = worklease.ExitRetired
	expired   = worklease.ExitExpired
)

// big does not travel with a grant, so that Prior has to read it.
var big = strings.Repeat("x", worklease.MaxInlineState+1)

var endings = []ending{
	// The work returns (H2, H4, L1).
	{
		name: "nil", work: returns("", nil),
		exit: released, recorded: released, took: time.Second,
		events: "acquire, release released",
	}, {
		name: "state", work: returns("new", nil),
		exit: released, recorded: released, state: "new",
		events: "acquire, release released",
	}, {
		name: "error", work: returns("", tenuretest.ErrWork),
		exit: abandoned, recorded: abandoned, errs: []error{tenuretest.ErrWork},
		events: "acquire, release abandoned",
	}, {
		name: "error and state", work: returns("new", tenuretest.ErrWork),
		exit: abandoned, recorded: abandoned, state: "new", errs: []error{tenuretest.ErrWork},
		events: "acquire, release abandoned",
	}, {
		name: "Retire", work: returns("", worklease.Retire),
		exit: retired, recorded: retired,
		events: "acquire, release retired",
	}, {
		name: "wrapped Retire and state", work: returns("new", fmt.Errorf("all done: %w", worklease.Retire)),
		exit: retired, recorded: retired, state: "new",
		events: "acquire, release retired",
	}, {
		name: "renewed for three TTLs (S20, S28)",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
				time.Sleep(3*ttl + time.Second)
				return nil, ctx.Err()
			}
		},
		exit: released, recorded: released, took: 3*ttl + time.Second,
		events: "acquire, renew, release released",
	},

	{
		name: "a Prior that takes two TTLs, a step of five (S20)", old: big,
		setUp: func(s *scene) {
			s.backend.Reading = func(_ context.Context, do func() error) error {
				time.Sleep(2 * ttl)
				return do()
			}
		},
		work: returnsAfter(5*ttl + time.Second),
		exit: released, recorded: released, state: "new", took: 7*ttl + time.Second,
		events: "acquire, renew, release released",
	},

	// The caller's context ends (H3, H4, H7, L3).
	{
		name: "cancelled before Acquire", setUp: func(s *scene) { s.cancel(tenuretest.ErrCaller) },
		exit: released, errs: []error{context.Canceled, tenuretest.ErrCaller},
		events: "acquire: cancelled",
	}, {
		name: "cancelled while waiting",
		setUp: all(cancelAt(time.Second), func(s *scene) {
			s.thief = s.acquire()
			s.cfg.AcquireOptions = []worklease.AcquireOption{worklease.WithWaitForLease()}
		}),
		exit: released, took: time.Second, errs: []error{context.Canceled, tenuretest.ErrCaller},
		events: "acquire: cancelled",
	}, {
		name:  "cancelled between Acquire and Prior (S32)",
		setUp: func(s *scene) { s.events.acquired = func() { s.cancel(tenuretest.ErrCaller) } },
		exit:  abandoned, recorded: abandoned, errs: []error{context.Canceled, tenuretest.ErrCaller},
		events: "acquire, release abandoned",
	}, {
		name: "cancelled while Prior is read", old: big, state: big,
		setUp: all(cancelAt(time.Second), func(s *scene) { s.backend.Reading = tenuretest.Hang }),
		exit:  abandoned, recorded: abandoned, took: time.Second, errs: []error{context.Canceled, tenuretest.ErrCaller},
		events: "acquire, release abandoned",
	}, {
		name: "cancelled, ctx.Err() and state", setUp: cancelAt(time.Second), work: heeds(0, "new", contextErr),
		exit: abandoned, recorded: abandoned, state: "new", took: time.Second, errs: []error{context.Canceled}, cause: tenuretest.ErrCaller,
		events: "acquire, release abandoned",
	}, {
		name: "cancelled, handed over (S29)", setUp: cancelAt(time.Second), work: heeds(0, "new", none),
		exit: released, recorded: released, state: "new", took: time.Second, cause: tenuretest.ErrCaller,
		events: "acquire, release released",
	}, {
		name: "past the caller's deadline",
		setUp: func(s *scene) {
			ctx, cancel := context.WithTimeout(s.ctx, time.Second)
			s.ctx = ctx
			s.t.Cleanup(cancel)
		},
		work: heeds(0, "", contextErr),
		exit: abandoned, recorded: abandoned, took: time.Second, errs: []error{context.DeadlineExceeded}, cause: context.DeadlineExceeded,
		events: "acquire, release abandoned",
	}, {
		name: "cancelled during the farewell (S30)",
		setUp: func(s *scene) {
			s.backend.Releasing = func(ctx context.Context, do func() error) error {
				s.cancel(tenuretest.ErrCaller)
				time.Sleep(time.Second)
				return do()
			}
		},
		work: returns("new", nil),
		exit: released, recorded: released, state: "new", took: 2 * time.Second,
		events: "acquire, release released",
	}, {
		name: "wound down for as long as it was kept", setUp: all(cancelAt(time.Second), windDown(3*ttl)),
		work: heeds(3*ttl-time.Millisecond, "new", none),
		exit: released, recorded: released, state: "new", cause: tenuretest.ErrCaller,
		events: "acquire, renew, release released",
	}, {
		name: "wound down within the default", setUp: cancelAt(time.Second), work: heeds(28*time.Second, "new", none),
		exit: released, recorded: released, state: "new", cause: tenuretest.ErrCaller,
		events: "acquire, renew, release released",
	}, {
		name: "wound down beyond the default", setUp: cancelAt(time.Second), work: heeds(31*time.Second, "new", none),
		// Renewed last after 30 s.
		exit: expired, free: 8 * time.Second, took: 32 * time.Second, lost: true, lostAt: 31 * time.Second,
		errs: []error{worklease.ErrWindDown}, cause: tenuretest.ErrCaller,
		events: "acquire, renew",
	}, {
		name: "wound down too long, with an error", setUp: all(cancelAt(time.Second), windDown(15*time.Second)),
		work: heeds(16*time.Second, "new", failure),
		exit: expired, free: 8 * time.Second, lost: true, lostAt: 16 * time.Second,
		errs: []error{worklease.ErrWindDown, tenuretest.ErrWork}, cause: tenuretest.ErrCaller,
		events: "acquire, renew",
	}, {
		name: "wound down too long, beyond the TTL", setUp: all(cancelAt(time.Second), windDown(15*time.Second)),
		work: heeds(time.Minute, "new", retire),
		exit: expired, lost: true, lostAt: 16 * time.Second, took: 61 * time.Second,
		errs: []error{worklease.ErrWindDown}, cause: tenuretest.ErrCaller,
		events: "acquire, renew",
	}, {
		name:  "lost while winding down, and too long",
		setUp: all(cancelAt(time.Second), windDown(15*time.Second), renewals(tenuretest.Broken)),
		work:  heeds(time.Minute, "new", none),
		exit:  expired, lost: true, lostAt: ttl,
		errs: []error{worklease.ErrLeaseWindowExhausted, worklease.ErrWindDown}, cause: tenuretest.ErrCaller,
		events: "acquire, renew: broken",
	},

	// A crash (H4).
	{
		name: "panic",
		work: func(*scene) tenure.Work {
			return func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
				time.Sleep(time.Second)
				panic("on purpose")
			}
		},
		exit: expired, free: ttl - time.Second, panics: "on purpose",
		events: "acquire",
	}, {
		name: "Goexit, renewed before",
		work: func(*scene) tenure.Work {
			return func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
				time.Sleep(ttl + time.Second)
				runtime.Goexit()
				return nil, nil
			}
		},
		exit: expired, free: ttl - time.Second,
		events: "acquire, renew",
	}, {
		name: "panic after a loss", setUp: renewals(tenuretest.Broken), cause: worklease.ErrLeaseWindowExhausted,
		work: func(*scene) tenure.Work {
			return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
				<-ctx.Done()
				panic("on purpose")
			}
		},
		exit: expired, panics: "on purpose", lostAt: ttl,
		events: "acquire, renew: broken",
	}, {
		name:  "OnLost panics",
		setUp: all(renewals(tenuretest.Broken), panicOnLost),
		work:  heeds(0, "", none),
		exit:  expired, panics: "in OnLost", lostAt: ttl,
		cause: worklease.ErrLeaseWindowExhausted, events: "acquire, renew: broken",
	},

	{
		name:  "the observer panics at OnAcquire (S25)",
		setUp: func(s *scene) { s.events.acquired = func() { panic("in OnAcquire") } },
		exit:  expired, free: ttl, panics: "in OnAcquire", events: "acquire",
	}, {
		name:  "the observer panics at OnRelease (S25)",
		setUp: func(s *scene) { s.events.released = func() { panic("in OnRelease") } },
		work:  returns("new", nil),
		exit:  released, state: "new", panics: "in OnRelease", events: "acquire, release released",
	},

	// The lease is lost (L2, R5).
	{
		name: "OnLost takes its time",
		setUp: all(renewals(tenuretest.Broken), func(s *scene) {
			s.cfg.OnLost = func(ctx context.Context, token worklease.Token) {
				s.lost(ctx, token)
				time.Sleep(2 * time.Second)
			}
		}),
		work: heeds(0, "new", none),
		exit: expired, took: ttl + 2*time.Second, lost: true, lostAt: ttl,
		errs: []error{worklease.ErrLeaseWindowExhausted}, cause: worklease.ErrLeaseWindowExhausted,
		events: "acquire, renew: broken",
	}, {
		name: "fenced", setUp: stealAt(time.Second), work: heeds(0, "new", none),
		exit: expired, took: ttl / 2, lost: true, lostAt: ttl / 2,
		errs: []error{worklease.ErrFenced}, cause: worklease.ErrFenced,
		events: "acquire, renew: fenced, fenced at renew",
	}, {
		name: "fenced, ctx.Err()", setUp: stealAt(time.Second), work: heeds(0, "new", contextErr),
		exit: expired, lost: true, lostAt: ttl / 2,
		errs: []error{worklease.ErrFenced}, cause: worklease.ErrFenced,
		events: "acquire, renew: fenced, fenced at renew",
	}, {
		name: "fenced, another error", setUp: stealAt(time.Second), work: heeds(0, "new", failure),
		exit: expired, lost: true, lostAt: ttl / 2,
		errs: []error{worklease.ErrFenced, tenuretest.ErrWork}, cause: worklease.ErrFenced,
		events: "acquire, renew: fenced, fenced at renew",
	}, {
		name: "fenced, Retire", setUp: stealAt(time.Second), work: heeds(0, "new", retire),
		exit: expired, lost: true, lostAt: ttl / 2,
		errs: []error{worklease.ErrFenced}, cause: worklease.ErrFenced,
		events: "acquire, renew: fenced, fenced at renew",
	}, {
		name: "fenced, names the cause", setUp: stealAt(time.Second), work: heeds(0, "new", namesCause),
		exit: expired, lost: true, lostAt: ttl / 2,
		errs: []error{worklease.ErrFenced}, cause: worklease.ErrFenced,
		events: "acquire, renew: fenced, fenced at renew",
	}, {
		name: "fenced at its own checkpoint",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				s.steal()
				return nil, s.lease.Checkpoint(ctx, token, []byte("zombie"))
			}
		},
		exit: expired, lost: true, lostAt: -1,
		errs: []error{worklease.ErrFenced}, cause: worklease.ErrFenced,
		events: "acquire, checkpoint: fenced, fenced at checkpoint",
	}, {
		name: "fenced at the farewell (S59)",
		work: func(s *scene) tenure.Work {
			return func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
				s.steal()
				return []byte("zombie"), tenuretest.ErrWork
			}
		},
		exit: expired, lost: true,
		errs:   []error{worklease.ErrFenced, tenuretest.ErrWork},
		events: "acquire, release abandoned: fenced, fenced at release",
	}, {
		name: "renewals hang until the window ends", setUp: renewals(tenuretest.Hang), work: heeds(0, "new", none),
		exit: expired, took: ttl, lost: true, lostAt: ttl,
		errs: []error{worklease.ErrLeaseWindowExhausted}, cause: worklease.ErrLeaseWindowExhausted,
		events: "acquire, renew: late",
	}, {
		name: "renewals fail until the window ends", setUp: renewals(tenuretest.Broken), work: heeds(0, "new", failure),
		exit: expired, took: ttl, lost: true, lostAt: ttl,
		errs: []error{worklease.ErrLeaseWindowExhausted, tenuretest.ErrWork}, cause: worklease.ErrLeaseWindowExhausted,
		events: "acquire, renew: broken",
	}, {
		name:  "expired by the database",
		setUp: func(s *scene) { time.AfterFunc(time.Second, func() { s.backend.Clock.Jump(ttl) }) },
		work:  heeds(0, "new", none),
		exit:  expired, took: ttl / 2, lost: true, lostAt: ttl / 2,
		errs:  []error{worklease.ErrLeaseWindowExhausted, worklease.ErrLeaseExpired},
		cause: worklease.ErrLeaseExpired, events: "acquire, renew: expired",
	}, {
		name: "lost while Prior is read", old: big, state: big,
		setUp: all(renewals(tenuretest.Broken), func(s *scene) {
			s.backend.Reading = func(ctx context.Context, do func() error) error {
				<-ctx.Done()
				return do() // came through all the same
			}
		}),
		exit: expired, took: ttl, lost: true, lostAt: ttl, errs: []error{worklease.ErrLeaseWindowExhausted},
		events: "acquire, renew: broken",
	},

	{
		name:  "window over in a process that stood still, noticed",
		setUp: standStill, work: func(s *scene) tenure.Work {
			return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
				time.Sleep(3 * time.Second)
				if ctx.Err() == nil {
					s.t.Error("the work's context does not notice")
				}
				return []byte("new"), nil
			}
		},
		exit: expired, free: ttl - 3*time.Second, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrLeaseWindowExhausted}, cause: worklease.ErrLeaseWindowExhausted,
		events: "acquire",
	}, {
		name:  "window over in a process that stood still, awaited",
		setUp: standStill, work: func(s *scene) tenure.Work {
			return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
				time.Sleep(3 * time.Second)
				select {
				case <-ctx.Done():
				default:
					s.t.Error("the work's context does not notice")
				}
				return []byte("new"), nil
			}
		},
		exit: expired, free: ttl - 3*time.Second, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrLeaseWindowExhausted}, cause: worklease.ErrLeaseWindowExhausted,
		events: "acquire",
	}, {
		name:  "window over in a process that stood still, found by Run",
		setUp: standStill, work: returnsAfter(3 * time.Second), blind: true,
		exit: expired, free: ttl - 3*time.Second, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrLeaseWindowExhausted}, events: "acquire",
	}, {
		name:  "OnLost panics in a process that stood still",
		setUp: all(standStill, panicOnLost), work: returnsAfter(3 * time.Second), blind: true,
		exit: expired, free: ttl - 3*time.Second, lostAt: 3 * time.Second, panics: "in OnLost",
		events: "acquire",
	},

	// Stalled (H8).
	{
		name: "stalled in time", setUp: stallAfter(3 * time.Second), work: heeds(time.Second, "new", none),
		exit: abandoned, recorded: abandoned, state: "new", took: 4 * time.Second, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrStalled}, cause: worklease.ErrStalled,
		events: "acquire, release abandoned",
	}, {
		name: "stalled in time, with an error", setUp: stallAfter(3 * time.Second), work: heeds(time.Second, "", failure),
		exit: abandoned, recorded: abandoned, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrStalled, tenuretest.ErrWork}, cause: worklease.ErrStalled,
		events: "acquire, release abandoned",
	}, {
		name: "stalled in time, Retire", setUp: stallAfter(3 * time.Second), work: heeds(time.Second, "", retire),
		exit: abandoned, recorded: abandoned, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrStalled}, cause: worklease.ErrStalled,
		events: "acquire, release abandoned",
	}, {
		name: "stalled too late", setUp: stallAfter(3 * time.Second), work: heeds(ttl, "new", none),
		exit: expired, took: 13 * time.Second, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrStalled}, cause: worklease.ErrStalled,
		events: "acquire",
	}, {
		name: "stalled, and fenced at the farewell", setUp: stallAfter(3 * time.Second),
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, _ worklease.Token, _ worklease.Prior) ([]byte, error) {
				<-ctx.Done()
				s.steal()
				return []byte("zombie"), nil
			}
		},
		exit: expired, lost: true, lostAt: 3 * time.Second,
		errs: []error{worklease.ErrStalled, worklease.ErrFenced}, cause: worklease.ErrStalled,
		events: "acquire, release abandoned: fenced, fenced at release",
	},

	// The acquisition, the start and the farewell fail.
	{
		name:  "held",
		setUp: func(s *scene) { s.thief = s.acquire() },
		exit:  released, errs: []error{worklease.ErrLeaseHeld},
		events: "acquire: held",
	}, {
		name:  "retired before",
		setUp: func(s *scene) { s.must(s.rival.Release(s.ctx, s.acquire(), worklease.WithExit(retired))) },
		exit:  retired, errs: []error{worklease.ErrLeaseRetired},
		events: "acquire: retired",
	}, {
		name: "Prior fails (S32)", old: big, state: big,
		setUp: func(s *scene) { s.backend.Reading = tenuretest.Broken },
		exit:  abandoned, recorded: abandoned, errs: []error{tenuretest.ErrBroken},
		events: "acquire, release abandoned",
	}, {
		name: "Prior finds the fence", old: big, state: big,
		setUp: func(s *scene) {
			s.backend.Reading = func(_ context.Context, do func() error) error { s.steal(); return do() }
		},
		exit: expired, lost: true, lostAt: -1, errs: []error{worklease.ErrFenced},
		events: "acquire",
	}, {
		name: "farewell fails for a while",
		setUp: func(s *scene) {
			tries := 0
			s.backend.Releasing = func(_ context.Context, do func() error) error {
				if tries++; tries < 5 {
					return tenuretest.ErrBroken
				}
				return do()
			}
		},
		work: returns("new", tenuretest.ErrWork),
		exit: abandoned, recorded: abandoned, state: "new", errs: []error{tenuretest.ErrWork},
		events: "acquire, release abandoned",
	}, {
		name: "farewell's reply is lost",
		setUp: func(s *scene) {
			tries := 0
			s.backend.Releasing = func(_ context.Context, do func() error) error {
				err := do()
				if tries++; tries == 1 {
					return tenuretest.ErrBroken
				}
				return err
			}
		},
		work: returns("new", nil),
		exit: released, recorded: released, state: "new",
		events: "acquire, release released",
	}, {
		name: "farewell fails for good", setUp: releases(tenuretest.Broken), work: returns("new", tenuretest.ErrWork),
		exit: expired, free: ttl - 6*time.Second, took: 6 * time.Second, errs: []error{tenuretest.ErrWork, tenuretest.ErrBroken},
		events: "acquire, release abandoned: broken",
	}, {
		name:  "farewell hangs for longer than CleanupTimeout",
		setUp: all(releases(tenuretest.Hang), func(s *scene) { s.cfg.CleanupTimeout = 2 * time.Second }),
		work:  returns("new", nil),
		exit:  expired, free: ttl - 3*time.Second, took: 3 * time.Second, errs: []error{context.DeadlineExceeded},
		events: "acquire, release released: late",
	}, {
		name: "state too large", lease: worklease.Config{MaxCheckpointBytes: 4}, work: returns("larger", nil),
		exit: abandoned, recorded: abandoned, errs: []error{worklease.ErrInvalid},
		events: "acquire, release released: invalid, release abandoned",
	}, {
		name: "state too large, error", lease: worklease.Config{MaxCheckpointBytes: 4}, work: returns("larger", tenuretest.ErrWork),
		exit: abandoned, recorded: abandoned, errs: []error{worklease.ErrInvalid, tenuretest.ErrWork},
		events: "acquire, release abandoned: invalid, release abandoned",
	}, {
		name: "state too large, and the farewell fails for good", lease: worklease.Config{MaxCheckpointBytes: 4},
		setUp: releases(tenuretest.Broken), work: returns("larger", worklease.Retire),
		exit: expired, free: ttl - 6*time.Second, errs: []error{worklease.ErrInvalid, tenuretest.ErrBroken},
		events: "acquire, release retired: invalid, release abandoned: broken",
	},

	// The work gives its lease up itself.
	{
		name: "released by the work",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				err := s.lease.Release(ctx, token)
				<-ctx.Done()
				time.Sleep(time.Second)
				return nil, err
			}
		},
		exit: released, recorded: released, cause: context.Canceled,
		events: "acquire, release released",
	}, {
		name: "abandoned by the work, which then returns nil",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				return nil, s.lease.Release(ctx, token, worklease.WithExit(abandoned))
			}
		},
		exit: abandoned, lost: true, cause: context.Canceled, errs: []error{worklease.ErrLeaseExpired},
		events: "acquire, release abandoned, release released: expired",
	},

	// Throttled progress (S60): what was accepted is there, however it ends.
	{
		name: "ten fast checkpoints, then a panic",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				saveTen(ctx, s, token)
				panic("on purpose")
			}
		},
		exit: expired, state: "9", free: ttl, panics: "on purpose",
		events: "acquire, checkpoint",
	}, {
		name: "ten fast checkpoints, then an error",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				saveTen(ctx, s, token)
				return nil, tenuretest.ErrWork
			}
		},
		exit: abandoned, recorded: abandoned, state: "9", errs: []error{tenuretest.ErrWork},
		events: "acquire, checkpoint, release abandoned",
	}, {
		name: "ten fast checkpoints, then cancelled",
		work: func(s *scene) tenure.Work {
			return func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
				saveTen(ctx, s, token)
				s.cancel(tenuretest.ErrCaller)
				return nil, ctx.Err()
			}
		},
		exit: abandoned, recorded: abandoned, state: "9", errs: []error{context.Canceled}, cause: tenuretest.ErrCaller,
		events: "acquire, checkpoint, release abandoned",
	},
}

func saveTen(ctx context.Context, s *scene, token worklease.Token) {
	for i := range 10 {
		s.must(s.lease.Checkpoint(ctx, token, fmt.Append(nil, i)))
	}
}

// TestEndings is the whole lifecycle, cut at each point: what the row says, what Run
// returns, what was observed, and that nothing is left running.
func TestEndings(t *testing.T) {
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) { synctest.Test(t, e.test) })
	}
}

func (e ending) test(t *testing.T) {
	s := newScene(t, gocmp.Or(e.old, "old"), e.lease)
	if e.setUp != nil {
		e.setUp(s)
	}
	work := func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
		t.Error("the work was called")
		return nil, nil
	}
	if e.work != nil {
		work = e.work(s)
	}
	before := len(tenuretest.Goroutines())
	var cause error
	o, panicked, err := s.run(func(ctx context.Context, token worklease.Token, prior worklease.Prior) ([]byte, error) {
		if string(prior.State) != gocmp.Or(e.old, "old") || !prior.CleanHandoff() || prior.HolderID != "rival" {
			t.Errorf("the work was told %+v", prior)
		}
		defer func() {
			if !e.blind && ctx.Err() != nil {
				cause = context.Cause(ctx)
			}
		}()
		return work(ctx, token, prior)
	})
	if left := tenuretest.Goroutines(); len(left) > before {
		t.Errorf("goroutines are left:\n%s", strings.Join(left, "\n\n"))
	}

	e.checkError(t, err)
	if panicked != e.panics {
		t.Errorf("panicked with %v, want %v", panicked, e.panics)
	}
	if s.worked != (e.work != nil) {
		t.Errorf("the work was called: %v", s.worked)
	}
	if !errors.Is(cause, e.cause) {
		t.Errorf("the work's context ended with %v, want %v", cause, e.cause)
	}
	if o.Exit != e.recorded || o.Lost != e.lost {
		t.Errorf("outcome %v, lost %v; want %v, %v", o.Exit, o.Lost, e.recorded, e.lost)
	}
	if e.took != 0 && s.returned != e.took {
		t.Errorf("Run ended after %v, want %v", s.returned, e.took)
	}
	e.checkOnLost(t, s.lostAt)
	if diff := cmp.Diff(strings.Join(s.events.all(), ", "), e.events); diff != "" {
		t.Errorf("events (-got +want):\n%s", diff)
	}
	e.checkNextOwner(t, s)
}

func (e ending) checkError(t *testing.T, err error) {
	t.Helper()
	if err == nil && e.errs != nil {
		t.Fatalf("no error, want %v", e.errs)
	}
	for _, is := range askable {
		if errors.Is(err, is) != slices.Contains(e.errs, is) {
			t.Errorf("error is %v: %v; the whole: %v", is, errors.Is(err, is), err)
		}
	}
	if err != nil && !strings.Contains(err.Error(), workID) {
		t.Errorf("no work ID in %v", err)
	}
}

// checkOnLost: once or never, and at the moment of the loss. -1 stands for whenever.
func (e ending) checkOnLost(t *testing.T, got []time.Duration) {
	t.Helper()
	want := []time.Duration{e.lostAt}
	switch {
	case e.lostAt == 0:
		want = nil
	case e.lostAt < 0 && len(got) == 1:
		return
	}
	if !slices.Equal(got, want) {
		t.Errorf("OnLost was called after %v, want %v", got, want)
	}
}

// checkNextOwner reads the row through who comes next.
func (e ending) checkNextOwner(t *testing.T, s *scene) {
	t.Helper()
	token, ended := s.thief, time.Now()
	if token == (worklease.Token{}) {
		token = s.acquire()
		// A waiter asks again a few milliseconds after an expiry.
		if waited := time.Since(ended); waited < e.free || waited > e.free+10*time.Millisecond {
			t.Errorf("free %v after the end, want %v", waited, e.free)
		}
	} else if err := s.rival.Renew(t.Context(), token); err != nil {
		t.Errorf("the lease of who had it meanwhile was touched: %v", err)
	}
	prior, err := s.rival.Prior(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	state, _, err := s.rival.ReadCheckpoint(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	want := gocmp.Or(e.state, "old")
	if prior.Exit != e.exit || string(prior.State) != want || string(state) != want {
		t.Errorf("the next owner is told %v and %.20q, reads %.20q; want %v and %.20q", prior.Exit, prior.State, state, e.exit, want)
	}
}

type key struct{}

// The contexts of work and farewell have the caller's values; the work's has its
// deadline too, and ends with the tenure.
func TestContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "old", worklease.Config{})
		deadline := time.Now().Add(time.Hour)
		ctx, cancel := context.WithDeadline(context.WithValue(s.ctx, key{}, "value"), deadline)
		defer cancel()
		s.ctx = ctx
		s.backend.Releasing = func(ctx context.Context, do func() error) error {
			if d, ok := ctx.Deadline(); ctx.Value(key{}) != "value" || !ok || time.Until(d) > 5*time.Second {
				t.Errorf("the farewell's context has value %v, deadline %v", ctx.Value(key{}), d)
			}
			return do()
		}
		var kept, child context.Context
		_, _, err := s.run(func(ctx context.Context, token worklease.Token, _ worklease.Prior) ([]byte, error) {
			if d, _ := ctx.Deadline(); ctx.Value(key{}) != "value" || !d.Equal(deadline) {
				t.Errorf("the work's context has value %v, deadline %v", ctx.Value(key{}), d)
			}
			if got, held := s.lease.Deadline(token); !held || time.Until(got) != ttl {
				t.Errorf("the lease may be trusted until %v, %v", got, held)
			}
			kept = ctx
			var cancel context.CancelFunc
			child, cancel = context.WithCancel(ctx)
			t.Cleanup(cancel)
			return nil, ctx.Err()
		})
		s.must(err)
		// The child first: to look at the work's own context may end it.
		for _, ctx := range []context.Context{child, kept} {
			select {
			case <-ctx.Done():
			default:
				t.Error("a context of the work lives on")
			}
			if context.Cause(ctx) != context.Canceled {
				t.Errorf("a context of the work ended with %v", context.Cause(ctx))
			}
		}
	})
}

// Nothing stays registered with the caller's context, which may live for ever.
func TestLeavesCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, "old", worklease.Config{})
		caller := &counted{Context: s.ctx, done: make(chan struct{})}
		s.ctx = caller
		_, _, err := s.run(func(context.Context, worklease.Token, worklease.Prior) ([]byte, error) {
			if caller.registered.Load() == 0 {
				t.Error("nothing follows the caller's context")
			}
			return nil, nil
		})
		s.must(err)
		if n := caller.registered.Load(); n != 0 {
			t.Errorf("%d functions still follow the caller's context", n)
		}
	})
}

// One that loses its lease while its work returns is told of it once, whoever finds
// out first.
func TestLostWhileReturning(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			s := newScene(t, "old", worklease.Config{})
			s.backend.Renewing = tenuretest.Broken
			o, _, err := s.run(returnsAfter(ttl)(s))
			synctest.Wait()
			lost := errors.Is(err, worklease.ErrLeaseWindowExhausted)
			if o.Lost != lost || (len(s.lostAt) == 1) != lost || (o.Exit == released) == lost {
				t.Errorf("outcome %+v, error %v, OnLost after %v", o, err, s.lostAt)
			}
		})
	}
}
