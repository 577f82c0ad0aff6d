package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
	"github.com/aetomala/worklease/worker"
)

func nothing(context.Context, worklease.Token, []byte, bool) ([]byte, error) { return nil, nil }

func TestNewRunnerMisses(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), worklease.Config{TTL: time.Minute, HolderID: "w"})
	for _, c := range []struct {
		name          string
		cfg           worker.RunnerConfig
		lease, workFn bool
	}{
		{"all", worker.RunnerConfig{}, true, true},
		{"a Lease", worker.RunnerConfig{WorkFn: nothing}, true, false},
		{"a Lease, with a nil pointer", worker.RunnerConfig{Lease: (*wrapped)(nil), WorkFn: nothing}, true, false},
		{"a WorkFn", worker.RunnerConfig{Lease: lease}, false, true},
		{"nothing", worker.RunnerConfig{Lease: lease, WorkFn: nothing}, false, false},
	} {
		r, err := worker.NewRunner(c.cfg)
		missing := c.lease || c.workFn
		if errors.Is(err, worker.ErrLeaseRequired) != c.lease || errors.Is(err, worker.ErrWorkFnRequired) != c.workFn ||
			errors.Is(err, worklease.ErrInvalid) != missing || (r == nil) != missing {
			t.Errorf("missing %s: %v, %v", c.name, r, err)
		}
	}
}

type wrapped struct{ worklease.Lease }

// Each owner is told what the one before it has left, and how.
func TestOwnersInARow(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), worklease.Config{TTL: time.Minute, HolderID: "w"})
	errWork := errors.New("gave up")
	for i, c := range []struct {
		prior string // what it is told; "-": nil
		clean bool
		state []byte
		err   error
	}{
		{"-", false, []byte("1"), nil},
		{"1", true, nil, nil},
		{"1", true, []byte("2"), errWork},
		{"2", false, []byte{}, nil},
		{"", true, nil, nil},
	} {
		r := newRunner(t, worker.RunnerConfig{Lease: lease, WorkFn: func(_ context.Context, token worklease.Token, prior []byte, clean bool) ([]byte, error) {
			told := string(prior)
			if prior == nil {
				told = "-"
			}
			if told != c.prior || clean != c.clean || token.WorkID() != "import" {
				t.Errorf("owner %d of %q: %q, %v; want %q, %v", i, token.WorkID(), told, clean, c.prior, c.clean)
			}
			return c.state, c.err
		}})
		if err := r.Run(t.Context(), "import"); !errors.Is(err, c.err) {
			t.Errorf("owner %d: %v", i, err)
		}
	}
}

// What the caller does with its options later is nothing to the Runner.
func TestOptionsAreCopied(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), worklease.Config{TTL: time.Minute, HolderID: "w"})
	opts := []worklease.AcquireOption{worklease.WithReopen()}
	r := newRunner(t, worker.RunnerConfig{Lease: lease, AcquireOptions: opts, WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
		return nil, worklease.Retire
	}})
	opts[0] = nil
	for range 2 {
		if err := r.Run(t.Context(), "import"); err != nil {
			t.Errorf("Run of work that may be reopened: %v", err)
		}
	}
}

// What the acquisition says comes as Acquire says it.
func TestRefused(t *testing.T) {
	t.Parallel()
	lease := newLease(t, memory.New(), worklease.Config{TTL: time.Minute, HolderID: "w"})
	r := newRunner(t, worker.RunnerConfig{Lease: lease, WorkFn: func(context.Context, worklease.Token, []byte, bool) ([]byte, error) {
		return nil, worklease.Retire
	}})
	token, err := lease.Acquire(t.Context(), "import")
	if err != nil {
		t.Fatal(err)
	}
	var held *worklease.HeldError
	if err := r.Run(t.Context(), "import"); !errors.As(err, &held) || held.FencingToken != token.FencingToken() {
		t.Errorf("Run of held work: %v", err)
	}
	if err := lease.Release(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context(), "import"); err != nil {
		t.Errorf("Run that retires: %v", err)
	}
	if err := r.Run(t.Context(), "import"); !errors.As(err, new(*worklease.RetiredError)) {
		t.Errorf("Run of retired work: %v", err)
	}
	if err := r.Run(t.Context(), ""); !errors.Is(err, worklease.ErrInvalid) {
		t.Errorf("Run of no work: %v", err)
	}
	var none context.Context
	if err := r.Run(none, "import"); !errors.Is(err, worklease.ErrInvalid) {
		t.Errorf("Run without a context: %v", err)
	}
}

// Every setting of RunnerConfig reaches the tenure.
func TestSettings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 10 * time.Second
		b := memory.New()
		lease := newLease(t, b, worklease.Config{TTL: ttl, HolderID: "w"})
		other := newLease(t, b, worklease.Config{TTL: time.Second, HolderID: "other"})
		if _, err := other.Acquire(t.Context(), "waited for"); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		run := func(cfg worker.RunnerConfig, workID string) error {
			cfg.Lease = lease
			began = time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return newRunner(t, cfg).Run(ctx, workID)
		}
		untilDone := func(ctx context.Context, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
			<-ctx.Done()
			return nil, nil
		}

		if err := run(worker.RunnerConfig{WorkFn: nothing, AcquireOptions: []worklease.AcquireOption{nil, worklease.WithWaitForLease()}}, "waited for"); err != nil {
			t.Errorf("AcquireOptions: %v", err)
		}
		stall := []worklease.RenewalOption{nil, worklease.WithProgressDeadline(3 * time.Second)}
		if err := run(worker.RunnerConfig{WorkFn: untilDone, RenewalOptions: stall}, "stalled"); !errors.Is(err, worklease.ErrStalled) || time.Since(began) != 3*time.Second {
			t.Errorf("RenewalOptions: %v after %v", err, time.Since(began))
		}
		outlive := func(ctx context.Context, _ worklease.Token, _ []byte, _ bool) ([]byte, error) {
			<-ctx.Done()
			time.Sleep(2 * time.Second)
			return nil, nil
		}
		if err := run(worker.RunnerConfig{WorkFn: outlive, WindDown: time.Second}, "outlived"); !errors.Is(err, worklease.ErrWindDown) {
			t.Errorf("WindDown: %v", err)
		}
		lease = newLease(t, mute{b}, worklease.Config{TTL: ttl, HolderID: "w"})
		if err := run(worker.RunnerConfig{WorkFn: nothing, CleanupTimeout: 2 * time.Second}, "mute"); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("CleanupTimeout: %v after %v", err, time.Since(began))
		}
	})
}

// mute never answers a release.
type mute struct{ *memory.Backend }

func (mute) Release(ctx context.Context, _ worklease.Claim, _ worklease.Farewell) error {
	<-ctx.Done()
	return ctx.Err()
}

// One Runner serves many work IDs at once, and renews each (S28).
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, ttl = 50, 10 * time.Second
		seen := &observer{changed: make(chan struct{})}
		lease := newLease(t, memory.New(), worklease.Config{TTL: ttl, HolderID: "w", Observer: seen})
		r := newRunner(t, worker.RunnerConfig{Lease: lease, WorkFn: func(ctx context.Context, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
			time.Sleep(3*ttl + time.Second)
			return []byte(token.WorkID()), ctx.Err()
		}})
		var runs sync.WaitGroup
		for i := range n {
			runs.Go(func() {
				if err := r.Run(t.Context(), fmt.Sprint(i)); err != nil {
					t.Errorf("Run of %d: %v", i, err)
				}
			})
		}
		runs.Wait()
		synctest.Wait()
		// Every half TTL.
		if good, failed, _ := seen.renewals(); good != 6*n || failed != 0 {
			t.Errorf("%d renewals, %d failed; want %d and 0", good, failed, 6*n)
		}
		for i := range n {
			token, err := lease.Acquire(t.Context(), fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			if prior, err := lease.Prior(t.Context(), token); err != nil || !prior.CleanHandoff() || string(prior.State) != fmt.Sprint(i) {
				t.Errorf("prior of %d: %+v, %v", i, prior, err)
			}
		}
	})
}
