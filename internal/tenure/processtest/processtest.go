// Package processtest has what the processes of the layers' tests are made of.
package processtest

import (
	"context"
	"os"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Ledger is where owners write, fenced.
const Ledger = fault.Ledger("ledger")

// Soak says whether much is to be done.
func Soak() bool { return os.Getenv("WORKLEASE_SOAK") == "1" }

// Must fails the test with err.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What a child process is told by its environment.
const (
	envURL  = "WORKLEASE_PROCESS_URL"
	envName = "WORKLEASE_PROCESS_NAME"
)

// Spawn starts a process in a role, whose [Mine] connects to url under name, and waits
// until it is ready.
func Spawn(t *testing.T, role, url, name string) *fault.Child {
	t.Helper()
	child := fault.Spawn(t, role, envURL+"="+url, envName+"="+name)
	_, err := child.Await(t.Context(), fault.Named("ready"))
	Must(t, err)
	return child
}

// Service is what a process has.
type Service struct {
	Pool    *pgxpool.Pool
	Backend *pgxbackend.Backend
	Lease   worklease.Lease
}

// Mine is the Service of a process that was spawned.
func Mine(ctx context.Context, cfg worklease.Config) (*Service, error) {
	return New(ctx, os.Getenv(envURL), os.Getenv(envName), cfg)
}

// Name is the name of a process that was spawned.
func Name() string { return os.Getenv(envName) }

// New returns a Service whose connections bear a name.
func New(ctx context.Context, url, name string, cfg worklease.Config, change ...func(*pgxpool.Config)) (*Service, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode, err = pgtest.ExecMode(); err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = name
	// An owner that is stopped in a transaction holds off the next one until that ends.
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "500"
	for _, c := range change {
		c(config)
	}
	s := &Service{}
	if s.Pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if s.Backend, err = pgxbackend.New(s.Pool); err != nil {
		return nil, err
	}
	s.Lease, err = worklease.New(s.Backend, cfg)
	return s, err
}

// Traced makes a Service's statements known to a tracer.
func Traced(tracer pgx.QueryTracer) func(*pgxpool.Config) {
	return func(c *pgxpool.Config) { c.ConnConfig.Tracer = tracer }
}

// Close ends the Backend and the pool.
func (s *Service) Close() {
	s.Backend.Close()
	s.Pool.Close()
}

// Write writes to the ledger behind a fence.
func (s *Service) Write(ctx context.Context, token worklease.Token) error {
	return pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		if err := s.Backend.FenceTx(ctx, tx, token); err != nil {
			return err
		}
		return Ledger.Record(ctx, tx, token.WorkID(), token.FencingToken())
	})
}
