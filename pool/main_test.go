package pool_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"

	"github.com/aetomala/worklease/internal/pgtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// logged is what the package logs.
var logged log

type log struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *log) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.all.Reset()
	return l.all.String()
}
