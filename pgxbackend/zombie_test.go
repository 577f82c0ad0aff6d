package pgxbackend_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgxpool"
)

func init() { roles["owner"] = own }

// Environment of the role.
const (
	databaseVariable = "WORKLEASE_TEST_DATABASE"
	ttlVariable      = "WORKLEASE_TEST_TTL"
)

// renewals tells of renewals that succeeded.
type renewals struct {
	worklease.NopObserver
	tell func()
}

func (r renewals) OnRenew(_ context.Context, e worklease.RenewEvent) {
	if e.Err == nil {
		r.tell()
	}
}

// own is a process that acquires "w", keeps it while it works, and when its context
// ends saves once more.
func own(ctx context.Context) error {
	ttl, err := time.ParseDuration(os.Getenv(ttlVariable))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv(databaseVariable))
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := pgxbackend.New(pool)
	if err != nil {
		return err
	}
	l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: "same holder", Observer: renewals{tell: func() { fault.Emit("renewed", nil) }}})
	if err != nil {
		return err
	}
	token, err := l.Acquire(ctx, "w")
	if err != nil {
		return err
	}
	renewCtx, stop := l.StartRenewal(ctx, token)
	defer stop()
	if err := l.Checkpoint(ctx, token, []byte("a1")); err != nil {
		return err
	}
	fault.Emit("working", token.FencingToken())

	// The work: each step looks at the context first. A step after the deadline would
	// be one that the process should not have trusted its lease for.
	overtime := 0
	for {
		began := time.Now()
		if renewCtx.Err() != nil {
			break
		}
		if deadline, ok := l.Deadline(token); ok && began.After(deadline) {
			overtime++
		}
		select {
		case <-renewCtx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	fault.Emit("lost", lost{
		Cause:    context.Cause(renewCtx).Error(),
		Window:   errors.Is(context.Cause(renewCtx), worklease.ErrLeaseWindowExhausted),
		Fenced:   errors.Is(context.Cause(renewCtx), worklease.ErrFenced),
		Overtime: overtime,
	})
	err = l.Checkpoint(ctx, token, []byte("a9"))
	fault.Emit("saved", map[string]any{"fenced": errors.Is(err, worklease.ErrFenced), "err": errorText(err)})
	return nil
}

type lost struct {
	Cause          string
	Window, Fenced bool
	Overtime       int
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// spawnOwner starts an owner and returns when it works.
func spawnOwner(t *testing.T, url string, ttl time.Duration) *fault.Child {
	t.Helper()
	c := fault.Spawn(t, "owner", databaseVariable+"="+url, ttlVariable+"="+ttl.String())
	awaitEvent(t, c, "working", nil)
	return c
}

func awaitEvent(t *testing.T, c *fault.Child, name string, into any) {
	t.Helper()
	e, err := c.Await(t.Context(), fault.Named(name))
	must(t, err)
	if into != nil {
		must(t, e.Decode(into))
	}
}

// S4, S23: an owner is stopped for longer than its lease, and another one takes
// over under the same name. When it goes on, its context is done at the first look,
// and its checkpoint is fenced.
func TestStoppedOwnerIsFenced(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	zombie := spawnOwner(t, url, ttl)
	must(t, zombie.Freeze())
	stopped := time.Now()
	l := newLease(t, newBackend(t, pool), "same holder")
	token := take(t, l, "w", worklease.WithWaitForLease())
	p := prior(t, l, token)
	if p.Exit != worklease.ExitExpired || string(p.State) != "a1" || p.Crashes != 1 {
		t.Errorf("prior %+v", p)
	}
	must(t, l.Checkpoint(t.Context(), token, []byte("b2")))
	time.Sleep(time.Until(stopped.Add(ttl * 3 / 2)))
	must(t, zombie.Thaw())
	var end lost
	awaitEvent(t, zombie, "lost", &end)
	if !end.Window && !end.Fenced || end.Overtime > 0 {
		t.Errorf("the stopped owner: %+v", end)
	}
	var saved struct {
		Fenced bool
		Err    string
	}
	awaitEvent(t, zombie, "saved", &saved)
	if !saved.Fenced {
		t.Errorf("the zombie's checkpoint: %q", saved.Err)
	}
	if got := stored(t, pool, "w"); got != "b2" {
		t.Errorf("the row has %q", got)
	}
	must(t, l.Renew(t.Context(), token))
	must(t, zombie.Wait(t.Context()))
}

// S23: an owner that is stopped for half of its TTL keeps its lease.
func TestBrieflyStoppedOwnerKeepsItsLease(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	owner := spawnOwner(t, url, ttl)
	awaitEvent(t, owner, "renewed", nil)
	must(t, owner.Freeze())
	time.Sleep(ttl / 2)
	must(t, owner.Thaw())
	awaitEvent(t, owner, "renewed", nil)
	if _, err := newLease(t, newBackend(t, pool), "other").Acquire(t.Context(), "w"); !errors.Is(err, worklease.ErrLeaseHeld) {
		t.Errorf("Acquire: %v", err)
	}
	for _, e := range owner.Events() {
		if e.Name == "lost" {
			t.Errorf("the owner lost its lease: %v", e)
		}
	}
	owner.Kill()
}

// S4: the zombie's checkpoint has left, and waits behind a lock while the lease
// lapses and another acquires. Both wait for the same row, and whichever comes
// first decides for both: never do both succeed.
func TestCheckpointAndTakeoverBehindALock(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url)
	b := newBackend(t, pool)
	l, other := newLease(t, b, "owner"), newLease(t, b, "other")
	outcomes := map[string]int{}
	for i := range rounds(2, 6, 100) {
		token := take(t, l, "w")
		must(t, l.Checkpoint(t.Context(), token, []byte("a1")))
		endLease(t, pool, "w")
		blocker := lockRow(t, url, "w")
		save := func() <-chan result[struct{}] {
			return backgroundErr(func() error { return l.Checkpoint(t.Context(), token, []byte("a9")) })
		}
		takeover := func() <-chan result[worklease.Token] {
			return background(func() (worklease.Token, error) { return other.Acquire(t.Context(), "w") })
		}
		var saved <-chan result[struct{}]
		var taken <-chan result[worklease.Token]
		if i%2 == 0 {
			saved = save()
			awaitWaiting(t, pool, 1)
			taken = takeover()
		} else {
			taken = takeover()
			awaitWaiting(t, pool, 1)
			saved = save()
		}
		awaitWaiting(t, pool, 2)
		blocker.Release()
		a, b := await(t, "Checkpoint returns", saved), await(t, "Acquire returns", taken)
		switch {
		case a.err == nil && errors.Is(b.err, worklease.ErrLeaseHeld):
			outcomes["saved"]++
			if got := stored(t, pool, "w"); got != "a9" {
				t.Errorf("an acknowledged checkpoint is not there: %q", got)
			}
			must(t, l.Release(t.Context(), token))
		case errors.Is(a.err, worklease.ErrFenced) && b.err == nil:
			outcomes["fenced"]++
			if p := prior(t, other, b.value); p.Exit != worklease.ExitExpired || string(p.State) != "a1" || stored(t, pool, "w") != "a1" {
				t.Errorf("prior %+v", p)
			}
			must(t, other.Release(t.Context(), b.value))
		default:
			t.Fatalf("Checkpoint: %v; Acquire: %v", a.err, b.err)
		}
	}
	t.Logf("outcomes: %v", outcomes)
}

// S4, once more: the checkpoint is still on its way to the server.
func TestCheckpointOnItsWayDuringATakeover(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	l := newLease(t, s.b, "same holder")
	token := take(t, l, "w")
	held := s.HoldRequest(sqlCheckpoint, 1)
	saved := backgroundErr(func() error { return l.Checkpoint(t.Context(), token, []byte("a9")) })
	must(t, held.Fired(t.Context()))
	endLease(t, s.direct, "w")
	next := newLease(t, newBackend(t, s.direct), "same holder")
	successor := take(t, next, "w")
	must(t, next.Checkpoint(t.Context(), successor, []byte("b2")))
	held.Release()
	refused(t, "the zombie's checkpoint", await(t, "Checkpoint returns", saved).err, worklease.ErrFenced)
	if got := stored(t, s.direct, "w"); got != "b2" {
		t.Errorf("the row has %q", got)
	}
}

// S5: a release after the takeover frees nothing.
func TestLateReleaseKeepsTheSuccessorsLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	l := newLease(t, b, "holder")
	for _, opts := range [][]worklease.ReleaseOption{
		nil,
		{worklease.WithState([]byte("late"))},
		{worklease.WithExit(worklease.ExitRetired)},
	} {
		token := take(t, l, "w")
		endLease(t, pool, "w")
		successor := take(t, l, "w")
		row := rowText(t, pool, "w")
		refused(t, "the late release", l.Release(t.Context(), token, opts...), worklease.ErrFenced)
		if got := rowText(t, pool, "w"); got != row {
			t.Errorf("the late release changed the row:\n%s\n%s", row, got)
		}
		_, err := l.Acquire(t.Context(), "w")
		refused(t, "a third", err, worklease.ErrLeaseHeld)
		must(t, l.Release(t.Context(), successor))
	}
}

// S8: a lapsed lease is not renewed back to life; to save is to live.
func TestLapsedLease(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	token := take(t, newLease(t, b, "holder"), "w")
	endLease(t, pool, "w")
	row := rowText(t, pool, "w")
	resumed := newLease(t, b, "holder")
	err := resumed.Renew(t.Context(), token)
	refused(t, "Renew", err, worklease.ErrLeaseExpired)
	if got := rowText(t, pool, "w"); got != row {
		t.Errorf("it changed the row:\n%s\n%s", row, got)
	}
	must(t, newLease(t, b, "holder").Checkpoint(t.Context(), token, []byte("slow but alive")))
	_, err = resumed.Acquire(t.Context(), "w")
	refused(t, "Acquire", err, worklease.ErrLeaseHeld)
	endLease(t, pool, "w")
	if _, _, err := resumed.ReadCheckpoint(t.Context(), token); err != nil {
		t.Errorf("ReadCheckpoint: %v", err)
	}
	must(t, resumed.Release(t.Context(), token))
}
