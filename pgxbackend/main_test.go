package pgxbackend_test

import (
	"context"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	fault.RunRole(roles)
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// roles are what child processes of these tests play. Each file adds its own.
var roles = map[string]func(context.Context) error{}

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
	return newLeaseFor(t, b, holder, time.Minute)
}
