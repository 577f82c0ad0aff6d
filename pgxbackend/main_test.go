package pgxbackend_test

import (
	"context"
	"flag"
	"strconv"
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
	moreParallel(4)
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// moreParallel runs more tests at a time than there are processors, unless the command
// line says otherwise: they wait, for the server and for time to pass, more than they
// compute.
func moreParallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if now, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); !given && err == nil && now < n {
		_ = flag.Set("test.parallel", strconv.Itoa(n))
	}
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
