package pool_test

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/tenure/processtest"
	"github.com/aetomala/worklease/pool"
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

const processTTL = 2 * time.Second

// processIDs are the slots of each process.
var processIDs = names(64)

// playPool is a process with a Pool, until it is told to stop. It tells how many
// goroutines it has when it is asked.
func playPool(ctx context.Context) error {
	s, err := processtest.Mine(context.WithoutCancel(ctx), worklease.Config{TTL: processTTL, HolderID: processtest.Name()})
	if err != nil {
		return err
	}
	defer s.Close()
	p, err := newWriters(s, processIDs)
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

// newWriters returns a Pool whose function writes to the ledger, at once and every second.
func newWriters(s *processtest.Service, ids []string) (*pool.Pool, error) {
	return pool.New(s.Lease, pool.Config{WorkIDs: ids, IdleInterval: 200 * time.Millisecond}, func(ctx context.Context, id string, token worklease.Token, _ []byte, _ bool) ([]byte, error) {
		for ctx.Err() == nil {
			pause := time.Second
			if err := s.Write(ctx, token); err != nil {
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
