package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease/internal/pgserver"
)

// Runner is what *testing.M is, and goleak's TestingM.
type Runner interface{ Run() int }

// Main runs a package's tests with a server and exits: the whole of a TestMain.
func Main(m Runner) { os.Exit(Wrap(m).Run()) }

// Wrap is Main for those who have a wrapper of their own. The server is gone when the returned Run
// ends, so that a check for leaked goroutines sees none of it:
//
//	goleak.VerifyTestMain(pgtest.Wrap(m))
func Wrap(m Runner) Runner { return wrapped{m} }

type wrapped struct{ m Runner }

func (w wrapped) Run() int {
	code, err := w.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

func (w wrapped) run() (code int, err error) {
	if url := os.Getenv("DATABASE_URL"); url != "" {
		s, err := given(url)
		if err != nil {
			return 1, err
		}
		shared.Store(s)
		return w.m.Run(), nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	own, err := pgserver.Start(ctx, pgserver.Options{})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, own.Stop()) }()
	shared.Store(&server{url: own.URL(), own: own})
	// Processes that the tests start share the server.
	if err := os.Setenv("DATABASE_URL", own.URL()); err != nil {
		return 1, err
	}
	ended := make(chan struct{})
	watcher := make(chan struct{})
	go func() {
		defer close(watcher)
		select {
		case <-ended:
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "pgtest: interrupted")
			_ = own.Stop()
			os.Exit(130)
		}
	}()
	defer func() { close(ended); <-watcher }()
	return w.m.Run(), nil
}

// A server is one that databases can be made on.
type server struct {
	url  string // of a superuser
	own  *pgserver.Server
	role string // suffix of the test roles' names; see Database
}

// shared is the server of Main.
var shared atomic.Pointer[server]

// given checks a DATABASE_URL before any test runs, for pgtestdb's own messages about a missing
// privilege come late and from deep inside.
func given(url string) (*server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := pgtestdbConfig(url); err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL is set, but: %w", err)
	}
	defer conn.Close(ctx)
	var super, user string
	const ask = "select current_setting('is_superuser'), current_user"
	if err := conn.QueryRow(ctx, ask).Scan(&super, &user); err != nil {
		return nil, fmt.Errorf("DATABASE_URL is set, but: %w", err)
	}
	if super != "on" {
		return nil, fmt.Errorf("the user of DATABASE_URL must be a superuser, for the tests make roles and databases; %q is none", user)
	}
	return &server{url: url}, nil
}
