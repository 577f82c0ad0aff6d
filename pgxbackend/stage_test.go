package pgxbackend_test

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rounds picks how much of a random or repeated test is done: with -short, by
// default, and under WORKLEASE_SOAK=1.
func rounds[N int | time.Duration](short, usual, soak N) N {
	switch {
	case os.Getenv("WORKLEASE_SOAK") == "1":
		return soak
	case testing.Short():
		return short
	}
	return usual
}

// The statements, as a proxy and a tracer know them.
var (
	sqlAcquire    = fault.Containing("-- worklease: acquire")
	sqlCheckpoint = fault.Containing("-- worklease: checkpoint")
	sqlRenew      = fault.Containing("-- worklease: renew")
	sqlRelease    = fault.Containing("-- worklease: release")
	sqlForget     = fault.Containing("-- worklease: forget")
	sqlUndo       = fault.Containing("-- worklease: undo")
)

// stage is a Backend behind a proxy, with a way around it for looking on.
type stage struct {
	*fault.Proxy
	url    string        // around the proxy
	direct *pgxpool.Pool // around the proxy
	pool   *pgxpool.Pool // through it
	b      *pgxbackend.Backend
}

func newStage(t testing.TB, opts ...pgtest.Option) *stage {
	t.Helper()
	url := pgtest.Database(t, opts...)
	s := &stage{url: url, Proxy: fault.NewProxy(t, url), direct: pgtest.Open(t, url)}
	s.pool = pgtest.Open(t, s.URL(url), opts...)
	s.b = newBackend(t, s.pool)
	// Before the pool closes, which would take its time to say goodbye on dead lines.
	t.Cleanup(s.Close)
	return s
}

// warmUp opens all connections of the pool.
func (s *stage) warmUp(t testing.TB) {
	t.Helper()
	for range s.pool.Config().MaxConns {
		c, err := s.pool.Acquire(t.Context())
		must(t, err)
		defer c.Release()
	}
}

func newLeaseFor(t testing.TB, b worklease.Backend, holder string, ttl time.Duration) worklease.Lease {
	t.Helper()
	return newObserved(t, b, holder, ttl, nil)
}

func newObserved(t testing.TB, b worklease.Backend, holder string, ttl time.Duration, o worklease.LeaseObserver) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: holder, Observer: o})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// take acquires, or fails the test.
func take(t testing.TB, l worklease.Lease, workID string, opts ...worklease.AcquireOption) worklease.Token {
	t.Helper()
	token, err := l.Acquire(t.Context(), workID, opts...)
	must(t, err)
	return token
}

func prior(t testing.TB, l worklease.Lease, token worklease.Token) worklease.Prior {
	t.Helper()
	p, err := l.Prior(t.Context(), token)
	must(t, err)
	return p
}

// refused reports an err that is not the wanted one.
func refused(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got the error %v, want %v", what, err, want)
	}
}

// sqlState returns the SQLSTATE in err's chain, or "".
func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// attempt is one try of a call of its own.
func attempt(workID, holder string) worklease.Attempt {
	return worklease.Attempt{WorkID: workID, HolderID: holder, TTL: time.Minute, Nonce: rand.Text()}
}

// grant acquires without a Lease, or fails the test.
func grant(t testing.TB, b worklease.Backend, a worklease.Attempt) (worklease.Claim, worklease.Grant) {
	t.Helper()
	g, err := b.Acquire(t.Context(), a)
	must(t, err)
	return worklease.Claim{WorkID: a.WorkID, HolderID: a.HolderID, FencingToken: g.FencingToken, Nonce: a.Nonce}, g
}

func exec(t testing.TB, db fault.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t testing.TB, db fault.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// stored returns the state in the row, whoever holds it.
func stored(t testing.TB, db fault.DB, workID string) string {
	t.Helper()
	return query[string](t, db, `SELECT coalesce(convert_from(checkpoint, 'UTF8'), '<null>') FROM worklease_leases WHERE work_id = $1`, workID)
}

// lockRow is a blocker on a lease's row.
func lockRow(t testing.TB, url, workID string) *fault.Blocker {
	t.Helper()
	return fault.Block(t, url, `SELECT FROM worklease_leases WHERE work_id = $1 FOR UPDATE`, workID)
}

// eventually waits until something is so that nobody tells of.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(fault.Patience); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", fault.Patience, what)
		}
	}
}

// result is what a call in the background came to.
type result[T any] struct {
	value T
	err   error
}

// background starts a call and returns where its result arrives.
func background[T any](call func() (T, error)) <-chan result[T] {
	done := make(chan result[T], 1)
	go func() {
		v, err := call()
		done <- result[T]{v, err}
	}()
	return done
}

func backgroundErr(call func() error) <-chan result[struct{}] {
	return background(func() (struct{}, error) { return struct{}{}, call() })
}

// await returns what arrives, or fails the test.
func await[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(fault.Patience):
		t.Fatalf("not within %v: %s", fault.Patience, what)
		panic("unreachable")
	}
}

func cancelled(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
