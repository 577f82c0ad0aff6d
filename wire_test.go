package worklease_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// bubble runs f in a bubble of its own, where hours cost nothing and where a
// goroutine that never ends fails the test.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

// Operations on a wire.
const (
	opAcquire    = "acquire"
	opCheckpoint = "checkpoint"
	opRenew      = "renew"
	opRelease    = "release"
	opRead       = "read"
	opForget     = "forget"
)

// fault decides what becomes of the n-th call, from 1, of an operation: do carries
// it out. An error that fault returns is what the caller gets.
type fault func(ctx context.Context, op string, n int, do func() error) error

// wire is a Backend with a line in between that may fail.
type wire struct {
	backend worklease.Backend

	mu    sync.Mutex
	fault fault
	sent  map[string]int
	nonce string // of the last attempt to acquire
}

func newWire(f fault) *wire {
	return &wire{backend: memory.New(), fault: f, sent: make(map[string]int)}
}

// fails changes what becomes of calls from now on.
func (w *wire) fails(f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fault = f
}

// count is how many calls were sent.
func (w *wire) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sent[op]
}

func (w *wire) total() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, k := range w.sent {
		n += k
	}
	return n
}

func (w *wire) pass(ctx context.Context, op string, do func() error) error {
	w.mu.Lock()
	w.sent[op]++
	n, f := w.sent[op], w.fault
	w.mu.Unlock()
	if f == nil {
		return do()
	}
	return f(ctx, op, n, do)
}

func (w *wire) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	w.mu.Lock()
	w.nonce = a.Nonce
	w.mu.Unlock()
	var g worklease.Grant
	err := w.pass(ctx, opAcquire, func() (err error) { g, err = w.backend.Acquire(ctx, a); return err })
	if err != nil {
		return worklease.Grant{}, err
	}
	return g, nil
}

func (w *wire) Checkpoint(ctx context.Context, c worklease.Claim, s worklease.Save) (worklease.Extension, error) {
	var e worklease.Extension
	err := w.pass(ctx, opCheckpoint, func() (err error) { e, err = w.backend.Checkpoint(ctx, c, s); return err })
	if err != nil {
		return worklease.Extension{}, err
	}
	return e, nil
}

func (w *wire) Renew(ctx context.Context, c worklease.Claim, ttl time.Duration) (worklease.Extension, error) {
	var e worklease.Extension
	err := w.pass(ctx, opRenew, func() (err error) { e, err = w.backend.Renew(ctx, c, ttl); return err })
	if err != nil {
		return worklease.Extension{}, err
	}
	return e, nil
}

func (w *wire) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	return w.pass(ctx, opRelease, func() error { return w.backend.Release(ctx, c, f) })
}

func (w *wire) ReadCheckpoint(ctx context.Context, c worklease.Claim, withState bool) (worklease.Stored, error) {
	var s worklease.Stored
	err := w.pass(ctx, opRead, func() (err error) { s, err = w.backend.ReadCheckpoint(ctx, c, withState); return err })
	if err != nil {
		return worklease.Stored{}, err
	}
	return s, nil
}

func (w *wire) Forget(ctx context.Context, c worklease.Claim) error {
	return w.pass(ctx, opForget, func() error { return w.backend.(worklease.Forgetter).Forget(ctx, c) })
}

// only has f decide about one operation; the others pass.
func only(op string, f fault) fault {
	return func(ctx context.Context, got string, n int, do func() error) error {
		if got != op {
			return do()
		}
		return f(ctx, got, n, do)
	}
}

// first has f decide about the first k calls.
func first(k int, f fault) fault {
	return func(ctx context.Context, op string, n int, do func() error) error {
		if n > k {
			return do()
		}
		return f(ctx, op, n, do)
	}
}

// hang swallows a call until its context ends.
func hang(ctx context.Context, _ string, _ int, _ func() error) error {
	<-ctx.Done()
	return ctx.Err()
}

// loseReply carries a call out and swallows the answer.
func loseReply(ctx context.Context, _ string, _ int, do func() error) error {
	_ = do()
	<-ctx.Done()
	return ctx.Err()
}

// errLine is no verdict, and says nothing of what was done.
var errLine = errors.New("connection reset by peer")

// refuse fails a call before anything is done, without saying so.
func refuse(context.Context, string, int, func() error) error { return errLine }

// resetAfter carries a call out and then fails.
func resetAfter(_ context.Context, _ string, _ int, do func() error) error {
	_ = do()
	return errLine
}

// delay carries a call out at once and delivers the answer after d.
func delay(d time.Duration) fault {
	return func(_ context.Context, _ string, _ int, do func() error) error {
		err := do()
		time.Sleep(d)
		return err
	}
}

const ttl = 30 * time.Second

func newLease(t *testing.T, b worklease.Backend, holder string) worklease.Lease {
	t.Helper()
	return configured(t, b, worklease.Config{TTL: ttl, HolderID: holder})
}

func configured(t *testing.T, b worklease.Backend, cfg worklease.Config) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, cfg)
	must(t, err)
	return l
}

func acquire(t *testing.T, l worklease.Lease, workID string, opts ...worklease.AcquireOption) worklease.Token {
	t.Helper()
	token, err := l.Acquire(t.Context(), workID, opts...)
	must(t, err)
	return token
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantIs reports an err that is not every one of targets.
func wantIs(t *testing.T, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("got the error %q, want one that is %q", err, target)
		}
	}
}

func wantIsNot(t *testing.T, err, target error) {
	t.Helper()
	if errors.Is(err, target) {
		t.Errorf("got the error %q, want one that is not %q", err, target)
	}
}

// wantLive reports a context that has ended.
func wantLive(t *testing.T, ctx context.Context) {
	t.Helper()
	if ctx.Err() != nil {
		t.Fatalf("the lease was lost: %v", context.Cause(ctx))
	}
}

// wantState compares what is stored.
func wantState(t *testing.T, l worklease.Lease, token worklease.Token, want string) {
	t.Helper()
	got, _, err := l.ReadCheckpoint(t.Context(), token)
	must(t, err)
	if string(got) != want {
		t.Errorf("the checkpoint is %q, want %q", got, want)
	}
}

// resumed is token as another process writes it down and reads it back.
func resumed(token worklease.Token) worklease.Token {
	return worklease.NewToken(token.WorkID(), token.HolderID(), token.FencingToken(), token.ExpiresAt())
}
