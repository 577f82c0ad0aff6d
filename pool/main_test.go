package pool_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/pool"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{"pool": playPool})
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// logged is what the package logs.
var logged logBuffer

type logBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.all.Reset()
	return l.all.String()
}

const (
	envURL  = "POOL_TEST_URL"
	envName = "POOL_TEST_NAME"

	ledger     = fault.Ledger("ledger")
	processTTL = 2 * time.Second
)

// processIDs are the slots of each process.
var processIDs = names(64)

// soak says whether much is to be done.
func soak() bool { return os.Getenv("WORKLEASE_SOAK") == "1" }

// playPool is a process with a Pool, until it is told to stop. It tells how many
// goroutines it has when it is asked.
func playPool(ctx context.Context) error {
	s, err := newService(context.WithoutCancel(ctx), os.Getenv(envURL), os.Getenv(envName), nil)
	if err != nil {
		return err
	}
	defer s.close()
	p, err := s.newPool(processIDs)
	if err != nil {
		return err
	}
	go func() {
		for {
			if _, err := fault.Receive(ctx); err != nil {
				return
			}
			fault.Emit("goroutines", runtime.NumGoroutine())
		}
	}()
	fault.Emit("ready", nil)
	return p.Run(ctx)
}

// service is what a process has.
type service struct {
	pool    *pgxpool.Pool
	backend *pgxbackend.Backend
	lease   worklease.Lease
}

func newService(ctx context.Context, url, name string, tracer pgx.QueryTracer) (*service, error) {
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
	config.ConnConfig.Tracer = tracer
	s := &service{}
	if s.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if s.backend, err = pgxbackend.New(s.pool); err != nil {
		return nil, err
	}
	s.lease, err = worklease.New(s.backend, worklease.Config{TTL: processTTL, HolderID: name})
	return s, err
}

func (s *service) close() {
	s.backend.Close()
	s.pool.Close()
}

// newPool returns a Pool whose function writes to the ledger, at once and every second.
func (s *service) newPool(ids []string) (*pool.Pool, error) {
	return pool.New(s.lease, pool.Config{WorkIDs: ids, IdleInterval: 200 * time.Millisecond}, func(ctx context.Context, id string, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		for ctx.Err() == nil {
			pause := time.Second
			if err := s.write(ctx, token); err != nil {
				pause = 50 * time.Millisecond // and if the lease is lost, ctx ends
			}
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
		return nil, nil
	})
}

func (s *service) write(ctx context.Context, token worklease.Token) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.backend.FenceTx(ctx, tx, token); err != nil {
			return err
		}
		return ledger.Record(ctx, tx, token.WorkID(), token.FencingToken())
	})
}
