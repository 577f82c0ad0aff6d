package pgxbackend_test

import (
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// newBackend returns a Backend on pool, closed with the test.
func newBackend(t testing.TB, pool *pgxpool.Pool, opts ...pgxbackend.Option) *pgxbackend.Backend {
	t.Helper()
	b, err := pgxbackend.New(pool, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// newLease returns a Lease that nothing lapses in.
func newLease(t testing.TB, b worklease.Backend, holder string) worklease.Lease {
	t.Helper()
	l, err := worklease.New(b, worklease.Config{TTL: time.Minute, HolderID: holder})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
