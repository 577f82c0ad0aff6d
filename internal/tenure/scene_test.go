package tenure_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
)

// Every tenure here is of one work ID and, if all goes well, takes no time but the
// work's own.
const (
	workID = tenuretest.WorkID
	ttl    = tenuretest.TTL
)

// scene is a bubble with a backend that can be broken, the Lease under test on it,
// and a rival. A predecessor has left "old" and gone in good order.
type scene struct {
	t      *testing.T
	began  time.Time
	ctx    context.Context
	cancel context.CancelCauseFunc

	backend *tenuretest.Backend
	events  log
	lease   worklease.Lease
	rival   worklease.Lease
	cfg     tenure.Config

	mu       sync.Mutex
	lostAt   []time.Duration
	worked   bool
	follows  context.Context // ends with the work's, and does not look at the lease
	thief    worklease.Token // the rival's, if it came while the tenure lasted
	returned time.Duration
}

func newScene(t *testing.T, old string, lease worklease.Config) *scene {
	s := &scene{t: t, began: time.Now()}
	s.ctx, s.cancel = context.WithCancelCause(t.Context())
	s.backend = tenuretest.NewBackend()
	s.rival = s.newLease(s.backend.Backend, worklease.Config{HolderID: "rival"})
	token := s.acquire()
	s.must(s.rival.Release(t.Context(), token, worklease.WithState([]byte(old))))
	lease.HolderID, lease.Observer = "holder", &s.events
	s.lease = s.newLease(s.backend, lease)
	s.cfg = tenure.Config{
		Lease: s.lease,
		// Without jitter, so that the times are known.
		RenewalOptions: []worklease.RenewalOption{worklease.WithRenewalBackoff(time.Second, time.Second, 0)},
		OnLost:         s.lost,
	}
	return s
}

func (s *scene) newLease(b worklease.Backend, cfg worklease.Config) worklease.Lease {
	s.t.Helper()
	cfg.TTL = ttl
	l, err := worklease.New(b, cfg)
	s.must(err)
	return l
}

func (s *scene) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// acquire waits for the lease as the rival.
func (s *scene) acquire() worklease.Token {
	s.t.Helper()
	token, err := s.rival.Acquire(s.t.Context(), workID, worklease.WithReopen(),
		worklease.WithWaitForLease(), worklease.WithPollInterval(time.Second))
	s.must(err)
	return token
}

// steal lets the database find that the lease has run out, and the rival take it.
func (s *scene) steal() {
	s.backend.Clock.Jump(ttl)
	s.thief = s.acquire()
}

func (s *scene) at() time.Duration { return time.Since(s.began) }

// lost is OnLost.
func (s *scene) lost(ctx context.Context, token worklease.Token) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lostAt = append(s.lostAt, s.at())
	if ctx != s.ctx || token.WorkID() != workID {
		s.t.Errorf("OnLost got another context or token %v", token)
	}
	if s.follows != nil && s.follows.Err() == nil {
		s.t.Error("OnLost was called before the work's context had ended")
	}
}

// run runs a tenure in a goroutine of its own, for those that do not return.
func (s *scene) run(work tenure.Work) (o tenure.Outcome, panicked any, err error) {
	endless := time.AfterFunc(24*time.Hour, func() {
		s.t.Error("the tenure does not end")
		s.cancel(nil)
	})
	defer endless.Stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		o, err = tenure.Run(s.ctx, workID, s.cfg, func(ctx context.Context, token worklease.Token, prior worklease.Prior) ([]byte, error) {
			s.mu.Lock()
			s.worked = true
			var cancel context.CancelFunc
			s.follows, cancel = context.WithCancel(ctx)
			s.mu.Unlock()
			defer cancel()
			return work(ctx, token, prior)
		})
	}()
	<-done
	s.returned = s.at()
	return o, panicked, err
}

// log is an observer that writes down what happened, in order. What repeats itself
// is written once.
type log struct {
	mu    sync.Mutex
	lines []string

	acquired, released func()
}

func (l *log) add(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		what += ": " + kind(err)
	}
	if n := len(l.lines); n == 0 || l.lines[n-1] != what {
		l.lines = append(l.lines, what)
	}
}

func (l *log) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

// kind names an error in a word.
func kind(err error) string {
	for _, k := range []struct {
		is   error
		name string
	}{
		{worklease.ErrFenced, "fenced"}, {worklease.ErrLeaseExpired, "expired"}, {worklease.ErrLeaseHeld, "held"},
		{worklease.ErrLeaseRetired, "retired"}, {worklease.ErrInvalid, "invalid"}, {tenuretest.ErrBroken, "broken"},
		{context.Canceled, "cancelled"}, {context.DeadlineExceeded, "late"},
	} {
		if errors.Is(err, k.is) {
			return k.name
		}
	}
	return err.Error()
}

func (l *log) OnAcquire(_ context.Context, e worklease.AcquireEvent) {
	l.add("acquire", e.Err)
	if l.acquired != nil {
		l.acquired()
	}
}
func (l *log) OnCheckpoint(_ context.Context, e worklease.CheckpointEvent) {
	l.add("checkpoint", e.Err)
}
func (l *log) OnRenew(_ context.Context, e worklease.RenewEvent) { l.add("renew", e.Err) }
func (l *log) OnRelease(_ context.Context, e worklease.ReleaseEvent) {
	l.add("release "+e.Exit.String(), e.Err)
	if l.released != nil {
		l.released()
	}
}
func (l *log) OnReadCheckpoint(_ context.Context, e worklease.ReadCheckpointEvent) {
	l.add("read", e.Err)
}
func (l *log) OnFenced(_ context.Context, e worklease.FencedEvent) {
	l.add("fenced at "+e.Operation.String(), nil)
}

// stillLease is a Lease in a process that stands still and goes on: its window ends
// and no timer has fired yet. Whoever looks at the context ends it.
type stillLease struct {
	worklease.Lease
	window time.Duration
}

func (l stillLease) StartRenewal(ctx context.Context, _ worklease.Token, _ ...worklease.RenewalOption) (context.Context, func()) {
	inner, cancel := context.WithCancelCause(ctx)
	return stillContext{inner, cancel, time.Now().Add(l.window)}, func() { cancel(context.Canceled) }
}

type stillContext struct {
	context.Context
	cancel context.CancelCauseFunc
	end    time.Time
}

func (c stillContext) look() {
	if !time.Now().Before(c.end) {
		c.cancel(worklease.ErrLeaseWindowExhausted)
	}
}

func (c stillContext) Done() <-chan struct{} { c.look(); return c.Context.Done() }
func (c stillContext) Err() error            { c.look(); return c.Context.Err() }

// counted is a context that counts what waits for its end, which never comes.
type counted struct {
	context.Context
	done       chan struct{}
	registered atomic.Int64
}

func (c *counted) Done() <-chan struct{} { return c.done }

// AfterFunc is what package context asks for.
func (c *counted) AfterFunc(func()) (stop func() bool) {
	c.registered.Add(1)
	var once sync.Once
	return func() bool {
		once.Do(func() { c.registered.Add(-1) })
		return true
	}
}
