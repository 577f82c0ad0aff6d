package worker_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
	"github.com/jackc/pgx/v5/pgxpool"
)

// long is a TTL that nobody waits for: who has the work before was handed it.
const long = 10 * time.Minute

var errWork = errors.New("the work failed")

// What a waiter in another process is told, and that it has the work at once.
func TestHandover(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	owner, rival := newProcess(t, url, "owner", long), newProcess(t, url, "rival", long)
	for _, c := range []struct {
		name  string
		work  func(ctx context.Context, cancel context.CancelFunc) ([]byte, error)
		err   error // of Run
		exit  worklease.Exit
		next  error // of the waiter
		state string
	}{
		{
			name:  "nil",
			work:  func(context.Context, context.CancelFunc) ([]byte, error) { return nil, nil },
			exit:  worklease.ExitReleased,
			state: "old",
		}, {
			name:  "state",
			work:  func(context.Context, context.CancelFunc) ([]byte, error) { return []byte("new"), nil },
			exit:  worklease.ExitReleased,
			state: "new",
		}, {
			name:  "error and state",
			work:  func(context.Context, context.CancelFunc) ([]byte, error) { return []byte("new"), errWork },
			err:   errWork,
			exit:  worklease.ExitAbandoned,
			state: "new",
		}, {
			name: "retired",
			work: func(context.Context, context.CancelFunc) ([]byte, error) { return []byte("new"), worklease.Retire },
			next: worklease.ErrLeaseRetired,
		}, {
			name: "cancelled, handed over",
			work: func(ctx context.Context, cancel context.CancelFunc) ([]byte, error) {
				cancel()
				<-ctx.Done()
				return []byte("new"), nil
			},
			exit:  worklease.ExitReleased,
			state: "new",
		}, {
			name: "cancelled, ctx.Err()",
			work: func(ctx context.Context, cancel context.CancelFunc) ([]byte, error) {
				cancel()
				<-ctx.Done()
				return []byte("new"), ctx.Err()
			},
			err:   context.Canceled,
			exit:  worklease.ExitAbandoned,
			state: "new",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			rival.leave(t, c.name, "old")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var next <-chan successor
			r := newRunner(t, worker.RunnerConfig{Lease: owner.lease, WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, clean bool) ([]byte, error) {
				if string(prior) != "old" || !clean {
					t.Errorf("the work was told %q, %v", prior, clean)
				}
				next = rival.await(t, token.WorkID())
				return c.work(ctx, cancel)
			}})
			if err := r.Run(ctx, c.name); !errors.Is(err, c.err) {
				t.Errorf("Run: %v, want %v", err, c.err)
			}
			returned := time.Now()
			s := <-next
			t.Logf("the waiter had it after %v", s.at.Sub(returned))
			if !errors.Is(s.err, c.next) || c.next == nil && (s.prior.Exit != c.exit || string(s.prior.State) != c.state) {
				t.Errorf("the next owner is told %v, %q, %v; want %v, %q, %v", s.prior.Exit, s.prior.State, s.err, c.exit, c.state, c.next)
			}
		})
	}
}

// A panic leaves the row alone: the waiter gets the work when the lease runs out, not
// before, and is told of a crash.
func TestPanic(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	url := pgtest.Database(t)
	owner, rival := newProcess(t, url, "owner", ttl), newProcess(t, url, "rival", ttl)
	rival.leave(t, "work", "old")
	var next <-chan successor
	var expiry time.Time
	r := newRunner(t, worker.RunnerConfig{Lease: owner.lease, WorkFn: func(ctx context.Context, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		if err := owner.lease.Checkpoint(ctx, token, []byte("new")); err != nil {
			t.Error(err)
		}
		expiry, _ = owner.lease.Deadline(token)
		next = rival.await(t, token.WorkID())
		panic("on purpose")
	}})
	func() {
		defer func() {
			if p := recover(); p != "on purpose" {
				t.Errorf("recovered %v", p)
			}
		}()
		t.Errorf("Run returned %v", r.Run(t.Context(), "work"))
	}()
	s := <-next
	if s.err != nil || s.prior.Exit != worklease.ExitExpired || string(s.prior.State) != "new" || s.prior.Crashes != 1 {
		t.Errorf("the next owner is told %+v, %v", s.prior, s.err)
	}
	if s.at.Before(expiry) {
		t.Errorf("the waiter had it %v early", expiry.Sub(s.at))
	}
	if good, _, _ := owner.seen.renewals(); good > 0 {
		t.Errorf("renewed %d times", good)
	}
}

// A lease that somebody else took is lost at the next renewal: nothing is recorded,
// and the thief is left alone (S59).
func TestFenced(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	url := pgtest.Database(t)
	owner, rival := newProcess(t, url, "owner", ttl), newProcess(t, url, "rival", long)
	rival.leave(t, "work", "old")
	var thief successor
	r := newRunner(t, worker.RunnerConfig{Lease: owner.lease, WorkFn: func(ctx context.Context, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		thief = steal(t, rival, token.WorkID())
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), worklease.ErrFenced) {
			t.Errorf("the work's context ended with %v", context.Cause(ctx))
		}
		return []byte("zombie"), errWork
	}})
	if err := r.Run(t.Context(), "work"); !errors.Is(err, worklease.ErrFenced) || !errors.Is(err, errWork) {
		t.Errorf("Run: %v", err)
	}
	if err := rival.lease.Renew(t.Context(), thief.token); err != nil {
		t.Errorf("the thief lost its lease: %v", err)
	}
	state, _, err := rival.lease.ReadCheckpoint(t.Context(), thief.token)
	if string(state) != "old" || err != nil {
		t.Errorf("the row holds %q, %v", state, err)
	}
}

// steal sets the expiry back and takes the work.
func steal(t *testing.T, p process, workID string) successor {
	if _, err := p.pool.Exec(t.Context(), `UPDATE worklease_leases
		SET expires_at = clock_timestamp() - interval '1 second' WHERE work_id = $1`, workID); err != nil {
		t.Error(err)
	}
	s := <-p.await(t, workID)
	if s.err != nil || s.prior.Exit != worklease.ExitExpired {
		t.Errorf("the thief is told %+v, %v", s.prior, s.err)
	}
	return s
}

// P9: the prior comes with the grant, the last state goes with the farewell.
func TestTwoStatements(t *testing.T) {
	t.Parallel()
	var sent fault.Tracer
	p := newProcess(t, pgtest.Database(t), "owner", long, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.Tracer = &sent }))
	for _, state := range []string{"", "1", "2"} {
		r := newRunner(t, worker.RunnerConfig{Lease: p.lease, WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
			return []byte(state), nil
		}})
		sent.Reset()
		if err := r.Run(t.Context(), "work"); err != nil {
			t.Fatal(err)
		}
		if got := sent.Statements(); len(got) != 2 || sent.Count(fault.Containing("worklease: acquire")) != 1 ||
			sent.Count(fault.Containing("worklease: release")) != 1 {
			t.Errorf("a cycle sent %d statements: %q", len(got), got)
		}
	}
}

// A connection that breaks under any statement of a cycle costs nothing: the
// statement comes again, and knows its own effect.
func TestConnectionBreaks(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	rival := newProcess(t, pgtest.AdminURL(t, url), "rival", long)
	for _, c := range []struct {
		operation, name string
		arm             func(breakage)
	}{
		{"acquire", "terminated", terminate},
		{"acquire", "reply lost", loseReply},
		{"acquire", "request lost", loseRequest},
		{"renew", "terminated", terminate},
		{"renew", "reply lost", loseReply},
		{"renew", "request lost", loseRequest},
		{"renew", "silence", silence},
		{"release", "terminated", terminate},
		{"release", "reply lost", loseReply},
		{"release", "request lost", loseRequest},
	} {
		name := c.operation + " " + c.name
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := fault.NewProxy(t, url)
			breakage{
				t: t, url: url, proxy: proxy, rival: rival,
				owner:     newProcess(t, proxy.URL(url), name, 6*time.Second),
				operation: c.operation, name: name, arm: c.arm, broke: make(chan struct{}),
			}.test()
		})
	}
}

// breakage is a statement of one owner that breaks. The work ID and the owner's
// application_name are the test's name.
type breakage struct {
	t               *testing.T
	url             string
	proxy           *fault.Proxy
	owner, rival    process
	operation, name string
	arm             func(breakage)
	broke           chan struct{}
}

func loseReply(b breakage)   { b.fires(b.proxy.SwallowReply(b.match(), 1, fault.Reset)) }
func loseRequest(b breakage) { b.fires(b.proxy.DropRequest(b.match(), 1, fault.Reset)) }
func silence(b breakage)     { b.fires(b.proxy.SwallowReply(b.match(), 1, fault.Silence)) }

func (b breakage) match() fault.Match { return fault.Containing("worklease: " + b.operation) }

func (b breakage) fires(trigger *fault.Trigger) {
	go func() {
		defer close(b.broke)
		if err := trigger.Fired(b.t.Context()); err != nil {
			b.t.Error(err)
		}
	}()
}

// terminate kills the owner's backends while a statement waits for the row, or, as no
// renewal has to wait for one, before the statement arrives.
func terminate(b breakage) {
	var release func()
	var arrived func(context.Context) error
	if b.operation == "renew" {
		trigger := b.proxy.HoldRequest(b.match(), 1)
		release, arrived = trigger.Release, trigger.Fired
	} else {
		blocker := fault.Block(b.t, b.url, `SELECT FROM worklease_leases WHERE work_id = $1 FOR UPDATE`, b.name)
		release, arrived = blocker.Release, blocker.Await
	}
	go func() {
		defer close(b.broke)
		defer release()
		if err := arrived(b.t.Context()); err != nil {
			b.t.Error(err)
			return
		}
		b.killOwner()
	}()
}

// killOwner returns when all sessions of the owner are gone.
func (b breakage) killOwner() {
	const kill = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE starts_with(application_name, $1)`
	ctx, cancel := context.WithTimeout(b.t.Context(), fault.Patience)
	defer cancel()
	for alive := 1; alive > 0; {
		if err := b.rival.pool.QueryRow(ctx, kill, b.name).Scan(&alive); err != nil {
			b.t.Error(err)
			return
		}
	}
}

func (b breakage) test() {
	t := b.t
	b.rival.leave(t, b.name, "old")
	if b.operation == "acquire" {
		b.arm(b)
	}
	r := newRunner(t, worker.RunnerConfig{
		Lease: b.owner.lease, AcquireOptions: waiting(),
		RenewalOptions: []worklease.RenewalOption{
			worklease.WithRenewalInterval(50 * time.Millisecond), worklease.WithRenewalBackoff(10*time.Millisecond, time.Second, 0),
		},
		WorkFn: func(ctx context.Context, _ worklease.Token, prior []byte, clean bool) ([]byte, error) {
			if string(prior) != "old" || !clean {
				t.Errorf("the work was told %q, %v", prior, clean)
			}
			switch b.operation {
			case "renew":
				b.arm(b)
				<-b.broke
				if err := b.owner.seen.awaitRecovery(ctx); err != nil {
					t.Errorf("no renewal came through any more: %v", err)
				}
			case "release":
				b.arm(b)
			}
			return []byte("new"), ctx.Err()
		},
	})
	if err := r.Run(t.Context(), b.name); err != nil {
		t.Errorf("Run: %v", err)
	}
	<-b.broke
	b.proxy.Cut() // a pool takes its time to close silent connections
	s := <-b.rival.await(t, b.name)
	if s.err != nil || s.prior.Exit != worklease.ExitReleased || string(s.prior.State) != "new" || s.prior.HolderID != b.name {
		t.Errorf("the next owner is told %+v, %v", s.prior, s.err)
	}
}

// An Acquire that asks once and hears nothing is an error, and what it may have won is
// given back without a trace.
func TestAcquireOnceReplyLost(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	proxy := fault.NewProxy(t, url)
	owner, rival := newProcess(t, proxy.URL(url), "owner", long), newProcess(t, url, "rival", long)
	rival.leave(t, "work", "old")
	proxy.SwallowReply(fault.Containing("worklease: acquire"), 1, fault.Reset)
	r := newRunner(t, worker.RunnerConfig{Lease: owner.lease, WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
		t.Error("the work was called")
		return nil, nil
	}})
	if err := r.Run(t.Context(), "work"); err == nil || errors.Is(err, worklease.ErrLeaseHeld) {
		t.Errorf("Run: %v", err)
	}
	s := <-rival.await(t, "work")
	if s.err != nil || s.prior.Exit != worklease.ExitReleased || s.prior.HolderID != "rival" || string(s.prior.State) != "old" {
		t.Errorf("the next owner is told %+v, %v", s.prior, s.err)
	}
}

// A database that falls silent keeps Run no longer than CleanupTimeout (S30), and the
// lease lapses.
func TestFarewellIntoABlackHole(t *testing.T) {
	t.Parallel()
	const ttl, cleanup = time.Second, 300 * time.Millisecond
	url := pgtest.Database(t)
	proxy := fault.NewProxy(t, url)
	owner, rival := newProcess(t, proxy.URL(url), "owner", ttl), newProcess(t, url, "rival", long)
	rival.leave(t, "work", "old")
	ctx, cancel := context.WithCancel(t.Context())
	var returned time.Time
	r := newRunner(t, worker.RunnerConfig{Lease: owner.lease, CleanupTimeout: cleanup, WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
		proxy.BlackHole()
		cancel()
		returned = time.Now()
		return []byte("new"), errWork
	}})
	err := r.Run(ctx, "work")
	if !errors.Is(err, errWork) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Run: %v", err)
	}
	// pgx takes a moment to give a connection up, and this machine may be busy.
	if took := time.Since(returned); took < cleanup || took > 10*cleanup {
		t.Errorf("Run took %v after the work, want about %v", took, cleanup)
	}
	proxy.Cut() // a pool takes its time to close silent connections
	s := <-rival.await(t, "work")
	if s.err != nil || s.prior.Exit != worklease.ExitExpired || string(s.prior.State) != "old" {
		t.Errorf("the next owner is told %+v, %v", s.prior, s.err)
	}
}

// S31: a process that gets SIGTERM hands over all it has before it exits.
func TestSIGTERMWithManyLeases(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	child := fault.Spawn(t, "owner of many", "WORKER_TEST_URL="+url)
	if _, err := child.Await(t.Context(), fault.Named("working")); err != nil {
		t.Fatal(err)
	}
	rival := newProcess(t, url, "rival", long)
	var waiters []<-chan successor
	for i := range many {
		waiters = append(waiters, rival.await(t, fmt.Sprint(i)))
	}
	terminated := time.Now()
	if err := child.Terminate(); err != nil {
		t.Fatal(err)
	}
	var last time.Duration
	for i, waiter := range waiters {
		s := <-waiter
		if s.err != nil || s.prior.Exit != worklease.ExitReleased || string(s.prior.State) != fmt.Sprint(i) {
			t.Fatalf("the next owner of %d is told %+v, %v", i, s.prior, s.err)
		}
		last = max(last, s.at.Sub(terminated))
	}
	t.Logf("the last of %d waiters had its work %v after SIGTERM; the TTL is %v", many, last, long)
	if err := child.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// many is how many leases a child process holds.
const many = 50

// ownMany works until SIGTERM.
func ownMany(ctx context.Context) error {
	pool, err := pgxpool.New(context.Background(), os.Getenv("WORKER_TEST_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := pgxbackend.New(pool)
	if err != nil {
		return err
	}
	defer b.Close()
	lease, err := worklease.New(b, worklease.Config{TTL: long, HolderID: "child"})
	if err != nil {
		return err
	}
	var working, runs sync.WaitGroup
	working.Add(many)
	r, err := worker.NewRunner(worker.RunnerConfig{Lease: lease, WorkFn: func(ctx context.Context, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		working.Done()
		<-ctx.Done()
		return []byte(token.WorkID()), nil
	}})
	if err != nil {
		return err
	}
	errs := make([]error, many)
	for i := range many {
		runs.Go(func() { errs[i] = r.Run(ctx, fmt.Sprint(i)) })
	}
	working.Wait()
	fault.Emit("working", nil)
	runs.Wait()
	return cmp.Or(errs...)
}
