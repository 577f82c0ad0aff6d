package worker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{"owner of many": ownMany})
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// process stands for a service of its own: a pool with that application_name and a
// Lease on it.
type process struct {
	pool  *pgxpool.Pool
	lease worklease.Lease
	seen  *observer
}

func newProcess(t *testing.T, url, name string, ttl time.Duration, opts ...pgtest.Option) process {
	t.Helper()
	opts = append(opts, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = name }))
	p := process{pool: pgtest.Open(t, url, opts...), seen: &observer{changed: make(chan struct{})}}
	b, err := pgxbackend.New(p.pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	p.lease = newLease(t, b, worklease.Config{TTL: ttl, HolderID: name, Observer: p.seen})
	return p
}

func newLease(t testing.TB, b worklease.Backend, cfg worklease.Config) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newRunner(t testing.TB, cfg worker.RunnerConfig) *worker.Runner {
	t.Helper()
	r, err := worker.NewRunner(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// waiting waits for work, and looks often where nothing can wake it.
func waiting() []worklease.AcquireOption {
	return []worklease.AcquireOption{worklease.WithWaitForLease(), worklease.WithPollInterval(20 * time.Millisecond)}
}

// leave acquires workID and hands it over with a state.
func (p process) leave(t *testing.T, workID, state string) {
	t.Helper()
	token, err := p.lease.Acquire(t.Context(), workID)
	if err == nil {
		err = p.lease.Release(t.Context(), token, worklease.WithState([]byte(state)))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// successor is who gets the work next.
type successor struct {
	token worklease.Token
	prior worklease.Prior
	err   error
	at    time.Time
}

// await has the process wait for workID from now on. The time is when it had it.
func (p process) await(t *testing.T, workID string) <-chan successor {
	t.Helper()
	next := make(chan successor, 1)
	ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
	t.Cleanup(cancel)
	go func() {
		var s successor
		s.token, s.err = p.lease.Acquire(ctx, workID, waiting()...)
		s.at = time.Now()
		if s.err == nil {
			s.prior, s.err = p.lease.Prior(ctx, s.token)
		}
		next <- s
	}()
	return next
}

// observer counts renewals that came through and those that failed.
type observer struct {
	worklease.NopObserver

	mu           sync.Mutex
	good, failed int
	changed      chan struct{}
}

func (o *observer) OnRenew(_ context.Context, e worklease.RenewEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if e.Err == nil {
		o.good++
	} else {
		o.failed++
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *observer) renewals() (good, failed int, changed <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.good, o.failed, o.changed
}

// awaitRecovery returns when a renewal has failed and a later one has come through.
func (o *observer) awaitRecovery(ctx context.Context) error {
	for atFailure := -1; ; {
		good, failed, changed := o.renewals()
		switch {
		case atFailure >= 0 && good > atFailure:
			return nil
		case atFailure < 0 && failed > 0:
			atFailure = good
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
