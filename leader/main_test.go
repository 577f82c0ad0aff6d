package leader_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/leader"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{"candidate": candidate})
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

const (
	envURL  = "LEADER_TEST_URL"
	envName = "LEADER_TEST_NAME"

	ledger     = fault.Ledger("ledger")
	processTTL = time.Second
)

// soak says whether much is to be done.
func soak() bool { return os.Getenv("WORKLEASE_SOAK") == "1" }

// candidate is a process that leads whenever it can, until it is told to stop. It writes
// to the ledger while it leads.
func candidate(ctx context.Context) error {
	s, err := newService(context.WithoutCancel(ctx), os.Getenv(envURL), os.Getenv(envName))
	if err != nil {
		return err
	}
	defer s.close()
	fault.Emit("ready", nil)
	s.runForOffice(ctx, fault.Emit)
	return nil
}

// service is what a process has. All of them have the same name (S7), but for what their
// connections are called.
type service struct {
	pool    *pgxpool.Pool
	backend *pgxbackend.Backend
	lease   worklease.Lease
}

func newService(ctx context.Context, url, application string, change ...func(*pgxpool.Config)) (*service, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode, err = pgtest.ExecMode(); err != nil {
		return nil, err
	}
	config.ConnConfig.RuntimeParams["application_name"] = application
	// A leader that is stopped in a transaction holds off the next one until that ends.
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "500"
	for _, c := range change {
		c(config)
	}
	s := &service{}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if s.backend, err = pgxbackend.New(s.pool); err != nil {
		return nil, err
	}
	s.lease, err = worklease.New(s.backend, worklease.Config{TTL: processTTL, HolderID: "namesake"})
	return s, err
}

func (s *service) close() {
	s.backend.Close()
	s.pool.Close()
}

// runForOffice has one term after the other and tells of each.
func (s *service) runForOffice(ctx context.Context, emit func(event string, data any)) {
	var token worklease.Token
	tell := func(event string) func(context.Context, worklease.Token) {
		return func(_ context.Context, t worklease.Token) {
			if event == "elected" {
				token = t
			}
			emit(event, t.FencingToken())
		}
	}
	for ctx.Err() == nil {
		leader.Elect(ctx, s.lease, "office", leader.Config{
			AcquireOptions: []worklease.AcquireOption{
				worklease.WithWaitForLease(), worklease.WithPollInterval(50 * time.Millisecond),
			},
			BackoffInterval: 50 * time.Millisecond,
			OnElected:       tell("elected"), OnLost: tell("lost"), OnRelinquished: tell("relinquished"),
		}, func(ctx context.Context) error {
			for ctx.Err() == nil {
				// What fails was not written, and a loss ends ctx.
				s.write(ctx, token)
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
}

func (s *service) write(ctx context.Context, token worklease.Token) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.backend.FenceTx(ctx, tx, token); err != nil {
			return err
		}
		return ledger.Record(ctx, tx, token.WorkID(), token.FencingToken())
	})
}
