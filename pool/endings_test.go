package pool_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
	"github.com/aetomala/worklease/pool"
	"github.com/google/go-cmp/cmp"
)

const (
	ttl     = tenuretest.TTL
	backoff = 45 * time.Second
)

// The events of a pool of one slot whose context is ended with the first tenure. The row
// and the error of each are in the table of endings.
var outcomes = map[string]string{
	"nil":    "0s acquired, 1s released",
	"error":  "0s acquired, 1s backoff 45s",
	"Retire": "0s acquired, 1s retired",
	"panic":  "0s acquired",
	"Goexit": "0s acquired",

	"fenced":                                 "0s acquired, 6s lost",
	"fenced, error":                          "0s acquired, 6s lost",
	"fenced, found by the farewell":          "0s acquired, 1s lost",
	"window exhausted":                       "0s acquired, 11s lost",
	"window exhausted, function stays (S10)": "0s acquired, 40s lost",
	"window exhausted, Retire":               "0s acquired, 10s lost",
	"stalled":                                "0s acquired, 4s lost",
	"stalled, returns too late":              "0s acquired, 13s lost",
	"panic after a loss":                     "0s acquired",
	"lost while the prior was read":          "0s lost",
	"lost before the function":               "0s acquired, 11s lost",

	"cancelled before":                  "",
	"cancelled while waiting":           "",
	"cancelled at the acquisition":      "",
	"cancelled while the prior is read": "",
	"cancelled before the function":     "0s acquired, 0s released abandoned",
	"cancelled, nil":                    "0s acquired, 2s released",
	"cancelled, ctx.Err()":              "0s acquired, 1s released abandoned",
	"cancelled, the cause":              "0s acquired, 1s released abandoned",
	"cancelled, error":                  "0s acquired, 1s backoff 0s",
	"cancelled, Retire":                 "0s acquired, 1s retired",
	"cancelled, kept for the wind-down": "0s acquired, 30s released",
	"cancelled during the farewell":     "0s acquired, 2s released",
	"wind-down exceeded":                "0s acquired, 7s lost",
	"wind-down exceeded, by default":    "0s acquired, 32s lost",

	"retired before":                                "0s retired",
	"prior fails":                                   "0s backoff 45s",
	"acquisition fails for good":                    "0s backoff 45s",
	"error that tells of other work's lease":        "0s acquired, 1s backoff 45s",
	"farewell fails":                                "0s acquired, 6s backoff 45s",
	"farewell fails, error":                         "0s acquired, 6s backoff 45s",
	"farewell fails, Retire":                        "0s acquired, 6s backoff 45s",
	"farewell hangs for longer than CleanupTimeout": "0s acquired, 3s backoff 45s",

	"PermanentError":              "0s acquired, 1s dead",
	"PermanentError, wrapped":     "0s acquired, 1s dead",
	"PermanentError that is none": "0s acquired, 1s backoff 45s",
	"PermanentError after a loss": "0s acquired, 10s dead",
	"PermanentError, cancelled":   "0s acquired, 1s dead",
	"permanent Retire":            "0s acquired, 1s retired",
	"farewell fails, cancelled":   "0s acquired, 6s backoff 0s",
}

// undecided is a PermanentError that is none.
type undecided struct{ error }

func (undecided) Permanent() bool { return false }
func (u undecided) Unwrap() error { return u.error }

// endings are those of every layer, and those that matter to pools.
var endings = slices.Concat(tenuretest.Endings, []tenuretest.Ending{
	{
		Name: "PermanentError", Work: tenuretest.Returns(pool.Permanent(tenuretest.ErrWork)),
		Exit: worklease.ExitAbandoned, Errs: []error{tenuretest.ErrWork},
	}, {
		Name: "PermanentError, wrapped", Work: tenuretest.Returns(errors.Join(errors.New("row 7"), pool.Permanent(tenuretest.ErrWork))),
		Exit: worklease.ExitAbandoned, Errs: []error{tenuretest.ErrWork},
	}, {
		Name: "PermanentError that is none", Work: tenuretest.Returns(undecided{pool.Permanent(tenuretest.ErrWork)}),
		Exit: worklease.ExitAbandoned, Errs: []error{tenuretest.ErrWork},
	}, {
		Name:  "PermanentError after a loss",
		SetUp: func(s *tenuretest.Scene) { s.Backend.Renewing = tenuretest.Broken },
		Work:  tenuretest.Heeds(0, pool.Permanent(tenuretest.ErrWork)),
		Exit:  worklease.ExitExpired, Errs: []error{tenuretest.ErrWork, worklease.ErrLeaseWindowExhausted},
	}, {
		Name: "PermanentError, cancelled", SetUp: tenuretest.CancelAt(time.Second),
		Work: tenuretest.Heeds(0, pool.Permanent(tenuretest.ErrWork)),
		Exit: worklease.ExitAbandoned, Errs: []error{tenuretest.ErrWork},
	}, {
		Name: "permanent Retire", Work: tenuretest.Returns(pool.Permanent(worklease.Retire)),
		Exit: worklease.ExitRetired,
	}, {
		Name: "farewell fails, cancelled", Work: tenuretest.CtxErr,
		SetUp: func(s *tenuretest.Scene) {
			s.Backend.Releasing = tenuretest.Broken
			tenuretest.CancelAt(time.Second)(s)
		},
		Exit: worklease.ExitExpired, Errs: []error{context.Canceled, tenuretest.ErrBroken},
	},
})

// TestEndings is the table of the package comment, cut at each point.
func TestEndings(t *testing.T) {
	tenuretest.Run(t, endings, func(s *tenuretest.Scene, e tenuretest.Ending) {
		want, ok := outcomes[e.Name]
		if !ok {
			s.T.Fatal("nobody says what a pool makes of it")
		}
		first := &first{Scene: s, ending: e}
		p := newPool(s.T, s.Lease, pool.Config{
			RenewalOptions: s.RenewalOptions, BackoffInterval: backoff,
			CleanupTimeout: s.CleanupTimeout, WindDown: s.WindDown, Observer: first,
		}, first.work, tenuretest.WorkID)
		first.pool = p
		var err error
		panicked, exited := tenuretest.Alone(func() { err = p.Run(s.Ctx) })
		if panicked != e.Panics || exited != e.Exits {
			s.T.Errorf("panicked with %v, exited %v; want %v, %v", panicked, exited, e.Panics, e.Exits)
		}
		if diff := cmp.Diff(s.Told(), want); diff != "" {
			s.T.Errorf("events (-got +want):\n%s", diff)
		}
		if first.dead {
			if !errors.Is(err, pool.ErrAllSlotsDead) {
				s.T.Errorf("Run: %v", err)
			}
			tenuretest.CheckError(s.T, err, e.Errs)
		} else if err != nil {
			s.T.Errorf("Run: %v", err)
		}
		if active := p.ActiveSlots(); len(active) > 0 {
			s.T.Errorf("active: %v", active)
		}
	})
}

func TestOutcomesAreOfEndings(t *testing.T) {
	t.Parallel()
	for name := range outcomes {
		if !slices.ContainsFunc(endings, func(e tenuretest.Ending) bool { return e.Name == name }) {
			t.Errorf("%q is no ending", name)
		}
	}
}

func newPool(t testing.TB, lease worklease.Lease, cfg pool.Config, fn pool.WorkFn, workIDs ...string) *pool.Pool {
	t.Helper()
	cfg.WorkIDs = workIDs
	p, err := pool.New(lease, cfg, fn)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// first sees the first tenure of a slot, and ends Run when it is over.
type first struct {
	*tenuretest.Scene
	pool.NopObserver
	ending tenuretest.Ending
	pool   *pool.Pool
	dead   bool
}

func (f *first) work(ctx context.Context, workID string, token worklease.Token, prior []byte, clean bool) ([]byte, error) {
	if active := f.pool.ActiveSlots(); !slices.Equal(active, []string{workID}) || workID != tenuretest.WorkID || token.WorkID() != workID {
		f.T.Errorf("active: %v, called for %q with %v", active, workID, token)
	}
	if string(prior) != f.ending.Old || !clean {
		f.T.Errorf("the function was told %q, %v", prior, clean)
	}
	if f.ending.Work == nil {
		f.T.Error("the function was called")
		return nil, nil
	}
	return nil, f.ending.Work(f.Scene, ctx)
}

func (f *first) tell(what, workID string) {
	if active := f.pool.ActiveSlots(); len(active) > 0 || workID != tenuretest.WorkID {
		f.T.Errorf("%s of %q: active are %v", what, workID, active)
	}
	f.Tell(what)
}

func (f *first) over(what, workID string, err error) {
	if what != "retired" && what != "released" && what != "released abandoned" {
		tenuretest.CheckError(f.T, err, f.ending.Errs)
	}
	f.tell(what, workID)
	f.Cancel(tenuretest.ErrCaller)
}

func (f *first) OnSlotAcquired(_ context.Context, e pool.SlotAcquiredEvent) {
	f.tell("acquired", e.WorkID)
}

func (f *first) OnSlotReleased(_ context.Context, e pool.SlotReleasedEvent) {
	what := "released"
	if e.Exit != worklease.ExitReleased {
		what += " " + e.Exit.String()
	}
	f.over(what, e.WorkID, nil)
}

func (f *first) OnSlotBackoff(_ context.Context, e pool.SlotBackoffEvent) {
	f.over(fmt.Sprintf("backoff %v", e.Duration), e.WorkID, e.Err)
}

func (f *first) OnSlotLost(_ context.Context, e pool.SlotLostEvent) {
	f.over("lost", e.WorkID, e.Err)
}

func (f *first) OnSlotDead(_ context.Context, e pool.SlotDeadEvent) {
	f.dead = true
	f.over("dead", e.WorkID, e.Err)
}

func (f *first) OnSlotRetired(_ context.Context, e pool.SlotRetiredEvent) {
	f.over("retired", e.WorkID, nil)
}
