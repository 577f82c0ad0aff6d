// Package tenuretest has the ways in which a tenure ends, for the tests of the layers
// above it: each layer says what it makes of them.
package tenuretest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// Every scene is of one work ID.
const (
	WorkID = "tenant-7"
	TTL    = 10 * time.Second
)

// What goes wrong.
var (
	ErrWork   = errors.New("the work failed")
	ErrBroken = errors.New("the connection broke")
	ErrCaller = errors.New("the caller's own reason")
)

// Scene is a bubble with a backend that can be broken, the Lease under test on it, and
// a rival. A predecessor has gone in good order.
type Scene struct {
	T      *testing.T
	Ctx    context.Context // the caller's
	Cancel context.CancelCauseFunc

	Backend      *Backend
	Lease, Rival worklease.Lease
	Stolen       bool // the rival has the lease

	// For the layer's own configuration.
	AcquireOptions []worklease.AcquireOption
	RenewalOptions []worklease.RenewalOption
	CleanupTimeout time.Duration
	WindDown       time.Duration

	began    time.Time
	acquired func() // at the end of Acquire
	told     func() // by Tell

	mu    sync.Mutex
	lines []string
}

func newScene(t *testing.T, e Ending) *Scene {
	s := &Scene{T: t, began: time.Now()}
	s.Ctx, s.Cancel = context.WithCancelCause(t.Context())
	s.Backend = NewBackend()
	s.Rival = s.newLease(s.Backend.Backend, "rival", nil)
	s.Must(s.Rival.Release(t.Context(), s.acquire(), worklease.WithState([]byte(e.Old))))
	s.Lease = s.newLease(s.Backend, "holder", hook{s})
	// Without jitter, so that the times are known.
	s.RenewalOptions = []worklease.RenewalOption{worklease.WithRenewalBackoff(time.Second, time.Second, 0)}
	if e.SetUp != nil {
		e.SetUp(s)
	}
	return s
}

func (s *Scene) newLease(b worklease.Backend, holder string, o worklease.LeaseObserver) worklease.Lease {
	l, err := worklease.New(b, worklease.Config{TTL: TTL, HolderID: holder, Observer: o})
	s.Must(err)
	return l
}

// Must fails the test with err.
func (s *Scene) Must(err error) {
	s.T.Helper()
	if err != nil {
		s.T.Error(err)
	}
}

// acquire waits for the lease as the rival.
func (s *Scene) acquire() worklease.Token {
	token, err := s.Rival.Acquire(s.T.Context(), WorkID, worklease.WithReopen(),
		worklease.WithWaitForLease(), worklease.WithPollInterval(time.Second))
	s.Must(err)
	return token
}

// steal lets the database find that the lease has run out, and the rival take it.
func (s *Scene) steal() {
	s.Backend.Clock.Jump(TTL)
	s.acquire()
	s.Stolen = true
}

// Tell writes down what a layer told its user, with the time.
func (s *Scene) Tell(what string) {
	s.mu.Lock()
	s.lines = append(s.lines, fmt.Sprintf("%v %s", time.Since(s.began), what))
	told := s.told
	s.told = nil
	s.mu.Unlock()
	if told != nil {
		told()
	}
}

// Told returns what was told, in order.
func (s *Scene) Told() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.lines, ", ")
}

// Alone runs f in a goroutine of its own, for those that do not return, and says how it
// ended.
func Alone(f func()) (panicked any, exited bool) {
	done := make(chan struct{})
	exited = true
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		f()
		exited = false
	}()
	<-done
	return panicked, exited && panicked == nil
}

// NextOwner waits for the lease and returns what its owner is told.
func (s *Scene) NextOwner() worklease.Prior {
	s.T.Helper()
	prior, err := s.Rival.Prior(s.T.Context(), s.acquire())
	s.Must(err)
	return prior
}

// CheckError compares an error with what the ending's Is, and of all that one could ask
// for nothing else.
func CheckError(t *testing.T, err error, want []error) {
	t.Helper()
	if err == nil && want != nil {
		t.Errorf("no error, want %v", want)
	}
	for _, is := range askable {
		if errors.Is(err, is) != slices.Contains(want, is) {
			t.Errorf("error is %v: %v; the whole: %v", is, errors.Is(err, is), err)
		}
	}
}

var askable = []error{
	worklease.ErrFenced, worklease.ErrLeaseHeld, worklease.ErrLeaseExpired, worklease.ErrLeaseWindowExhausted,
	worklease.ErrLeaseRetired, worklease.ErrStalled, worklease.ErrWindDown, worklease.ErrOutcomeUnknown,
	worklease.ErrClosed, worklease.ErrInvalid, worklease.Retire,
	context.Canceled, context.DeadlineExceeded, ErrWork, ErrBroken, ErrCaller,
}

// Goroutines returns the stacks of those in a bubble. There is one bubble at a time.
func Goroutines() []string {
	synctest.Wait()
	stacks := make([]byte, 1<<20)
	all := strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n")
	return slices.DeleteFunc(all, func(stack string) bool {
		head, _, _ := strings.Cut(stack, "\n")
		return !strings.Contains(head, "synctest bubble")
	})
}

type hook struct{ *Scene }

func (h hook) OnAcquire(context.Context, worklease.AcquireEvent) {
	if h.acquired != nil {
		h.acquired()
	}
}
func (hook) OnCheckpoint(context.Context, worklease.CheckpointEvent)         {}
func (hook) OnRenew(context.Context, worklease.RenewEvent)                   {}
func (hook) OnRelease(context.Context, worklease.ReleaseEvent)               {}
func (hook) OnReadCheckpoint(context.Context, worklease.ReadCheckpointEvent) {}
func (hook) OnFenced(context.Context, worklease.FencedEvent)                 {}

// Clock is the bubble's, and can be set forward.
type Clock struct{ ahead atomic.Int64 }

// Now implements [memory.Clock].
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Jump sets the clock forward.
func (c *Clock) Jump(d time.Duration) { c.ahead.Add(int64(d)) }

// Fault stands before a statement, which is do.
type Fault func(ctx context.Context, do func() error) error

// Hang never answers.
func Hang(ctx context.Context, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// Broken fails at once.
func Broken(context.Context, func() error) error { return ErrBroken }

// Backend is memory with faults in front, and without its optional powers. A fault that
// is nil is none.
type Backend struct {
	worklease.Backend // memory, with them
	Clock             *Clock

	Acquiring, Renewing, Releasing, Reading Fault
}

// NewBackend returns a Backend without faults.
func NewBackend() *Backend {
	clock := new(Clock)
	return &Backend{Backend: memory.New(memory.WithClock(clock)), Clock: clock}
}

// Acquire implements [worklease.Backend].
func (b *Backend) Acquire(ctx context.Context, a worklease.Attempt) (g worklease.Grant, err error) {
	err = through(ctx, b.Acquiring, func() error {
		g, err = b.Backend.Acquire(ctx, a)
		return err
	})
	return g, err
}

// Renew implements [worklease.Backend].
func (b *Backend) Renew(ctx context.Context, c worklease.Claim, ttl time.Duration) (e worklease.Extension, err error) {
	err = through(ctx, b.Renewing, func() error {
		e, err = b.Backend.Renew(ctx, c, ttl)
		return err
	})
	return e, err
}

// Release implements [worklease.Backend].
func (b *Backend) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	return through(ctx, b.Releasing, func() error { return b.Backend.Release(ctx, c, f) })
}

// ReadCheckpoint implements [worklease.Backend].
func (b *Backend) ReadCheckpoint(ctx context.Context, c worklease.Claim, withState bool) (s worklease.Stored, err error) {
	err = through(ctx, b.Reading, func() error {
		s, err = b.Backend.ReadCheckpoint(ctx, c, withState)
		return err
	})
	return s, err
}

func through(ctx context.Context, fault Fault, do func() error) error {
	if fault == nil {
		return do()
	}
	return fault(ctx, do)
}
