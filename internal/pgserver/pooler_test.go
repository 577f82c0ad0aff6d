package pgserver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func needPooler(t *testing.T) {
	t.Helper()
	if _, err := findPooler(); err != nil {
		t.Skip(err)
	}
}

// In transaction mode two clients have one connection to the server in turn.
func TestPoolerSharesConnections(t *testing.T) {
	t.Parallel()
	needPooler(t)
	s := start(t, Options{})
	p, err := StartPooler(t.Context(), s.URL(), 1)
	if err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceValue(p.Stop)
	defer stop()
	var pids []int
	for range 2 {
		conn, err := pgx.Connect(t.Context(), p.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		var pid int
		if err := conn.QueryRow(t.Context(), "select pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	if pids[0] != pids[1] {
		t.Errorf("two clients have two connections to the server: %v", pids)
	}
	path, pid := p.folder.path, p.process.cmd.Process.Pid
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !gone(path) || alive(pid) {
		t.Errorf("%s is gone: %t; process %d is alive: %t", path, gone(path), pid, alive(pid))
	}
}

func TestAKilledProcessLeavesNoPooler(t *testing.T) {
	t.Parallel()
	needPooler(t)
	path := abandon(t, "with a pooler")
	until(t, "the janitor removes "+path, func() bool { return gone(path) })
}

func TestAPoolerThatDoesNotStartLeavesNothing(t *testing.T) {
	t.Parallel()
	needPooler(t)
	why := errors.New("enough")
	// How soon the pooler says what is wrong is up to the machine.
	for d := 200 * time.Millisecond; ; d *= 2 {
		ctx, cancel := context.WithTimeoutCause(t.Context(), d, why)
		p, err := StartPooler(ctx, "postgres://nobody@127.0.0.1:1/nothing", 1)
		cancel()
		switch {
		case !errors.Is(err, why):
			t.Fatalf("got %v, %v; want %v", p, err, why)
		case strings.Contains(err.Error(), "127.0.0.1:1"):
			return
		case d > 10*time.Second:
			t.Fatalf("got %v; want the pooler's log", err)
		}
	}
}
