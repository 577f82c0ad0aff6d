package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// startLimit bounds initdb and a server's start; half a second is usual.
const startLimit = time.Minute

// stopLimit bounds a stop; what still runs then is killed.
const stopLimit = 10 * time.Second

// Options of a server; the zero value is what tests want.
type Options struct {
	// BinDir is the folder of initdb and postgres; empty: FindBinDir.
	BinDir string
	// Settings are added to the server's, or replace them: {"max_prepared_transactions": "10"}.
	Settings map[string]string
}

// Server is a PostgreSQL cluster of its own. Its methods are safe for concurrent use.
type Server struct {
	binDir   string
	settings map[string]string
	account  *account
	folder   *folder
	copied   *folder // binaries the account can run; nil if those in binDir will do
	janitors []*janitor

	mu      sync.Mutex
	port    int
	process *process // nil while the server is down
	removed bool
}

// settings of every server: nothing here survives a power cut, and need not. It does survive Crash,
// which is why synchronous_commit stays on: off, the last commits would still lie in the server's
// own memory, and with fsync off it costs next to nothing. Autovacuum would make the timing of tests
// depend on when it wakes.
var settings = map[string]string{
	"listen_addresses": "127.0.0.1",
	"fsync":            "off",
	"full_page_writes": "off",
	"autovacuum":       "off",
	"max_connections":  "200",
	"shared_buffers":   "64MB",
	"timezone":         "UTC",
}

// Start creates a cluster, starts it and returns once it answers. It ends early, leaving nothing,
// when ctx does. The error Is ErrNoPostgres where there is nothing to start.
//
// First it sweeps away what processes that are no more left on this machine.
func Start(ctx context.Context, o Options) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if !supported {
		return nil, fmt.Errorf("cannot run PostgreSQL on %s: %w", runtime.GOOS, ErrNoPostgres)
	}
	if o.BinDir == "" {
		dir, err := FindBinDir(ctx)
		if err != nil {
			return nil, err
		}
		o.BinDir = dir
	}
	s := &Server{binDir: o.BinDir, settings: maps.Clone(settings), account: serverAccount()}
	maps.Copy(s.settings, o.Settings)
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := s.startOnFreePort(ctx); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// URL is where the superuser finds the database postgres.
func (s *Server) URL() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.urlLocked()
}

func (s *Server) urlLocked() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// Port stays the same over Crash, Shutdown and Restart.
func (s *Server) Port() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.port
}

// BinDir is the folder of the server's programs.
func (s *Server) BinDir() string { return s.binDir }

// DataDir is the folder of the cluster. It is gone after Stop.
func (s *Server) DataDir() string { return filepath.Join(s.folder.path, "data") }

// Log returns what the server has written so far.
func (s *Server) Log() string {
	log, _ := os.ReadFile(s.logPath())
	return strings.TrimSpace(string(log))
}

func (s *Server) logPath() string { return filepath.Join(s.folder.path, "log") }

// Crash ends the server at once, as a power cut would: no client is told, nothing is flushed. What
// was committed is there after Restart, for the operating system keeps what was written.
// It returns when the server is gone, and does nothing to one that is down.
func (s *Server) Crash() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked((*process).quit)
}

// Shutdown ends the server in order: open transactions are rolled back, clients told.
// It returns when the server is gone, and does nothing to one that is down.
func (s *Server) Shutdown() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endLocked((*process).interrupt)
}

// Restart starts the server again after Crash or Shutdown, and one that is up it shuts down first.
// Data and port are the same as before. It returns once the server answers.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return errors.New("pgserver: the server was stopped for good")
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	s.endLocked((*process).interrupt)
	return s.launchLocked(ctx)
}

// Stop ends the server and removes all of it. A second call does nothing.
func (s *Server) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return nil
	}
	s.removed = true
	s.endLocked((*process).quit)
	var errs []error
	for _, f := range []*folder{s.folder, s.copied} {
		if f != nil {
			errs = append(errs, f.remove())
		}
	}
	for _, j := range s.janitors {
		j.dismiss()
	}
	return errors.Join(errs...)
}

// create makes the folders and the cluster.
func (s *Server) create(ctx context.Context) error {
	where := parents(s.account)
	sweep(append(where, onDisk(s.account)...))
	var err error
	if s.folder, err = s.newFolder(where); err != nil {
		return err
	}
	if err := s.account.owns(s.folder.path); err != nil {
		return err
	}
	// The npm packages lie where the repository lies, and that may be a home that is closed to others.
	if s.account != nil && !s.account.reaches(s.binDir) {
		if s.copied, err = s.newFolder(onDisk(s.account)); err != nil {
			return err
		}
		if s.binDir, err = s.account.copyBinaries(s.binDir, s.copied.path); err != nil {
			return err
		}
	}
	// No --no-instructions: it came with PostgreSQL 14.
	initdb := s.command("initdb", "-D", s.DataDir(), "-U", "postgres", "-A", "trust",
		"-E", "UTF8", "--locale=C", "--no-sync")
	if out, err := runWithin(ctx, initdb); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return nil
}

// newFolder gives a folder its janitor as soon as it is there.
func (s *Server) newFolder(parents []string) (*folder, error) {
	f, err := newFolderIn(parents)
	if err == nil {
		s.janitors = append(s.janitors, startJanitor(f.path))
	}
	return f, err
}

// startOnFreePort tries again when somebody else took the port between our look and the server's.
func (s *Server) startOnFreePort(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return err
		}
		s.port = port
		err = s.launchLocked(ctx)
		if err == nil || attempt == 5 || !strings.Contains(err.Error(), "could not bind") {
			return err
		}
	}
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// launchLocked starts the server and waits until it answers.
func (s *Server) launchLocked(ctx context.Context) error {
	args := []string{"-D", s.DataDir(),
		"-c", fmt.Sprintf("port=%d", s.port),
		"-c", "unix_socket_directories=" + s.folder.path,
	}
	for _, name := range slices.Sorted(maps.Keys(s.settings)) {
		args = append(args, "-c", name+"="+s.settings[name])
	}
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	before := s.Log()
	cmd := s.command("postgres", args...)
	cmd.Stdout, cmd.Stderr = log, log
	endWithParent(cmd.SysProcAttr, immediately)
	if s.process, err = startProcess(cmd); err != nil {
		return err
	}
	if err := s.awaitLocked(ctx); err != nil {
		s.endLocked((*process).quit)
		return fmt.Errorf("%w\n%s", err, strings.TrimPrefix(s.Log(), before))
	}
	return nil
}

// awaitLocked polls: the server tells nobody when it becomes ready.
func (s *Server) awaitLocked(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.askLocked(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.done:
			return fmt.Errorf("PostgreSQL ended: %s", s.process.cmd.ProcessState)
		case <-ctx.Done():
			return fmt.Errorf("waiting for PostgreSQL: %w (%w)", context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// askLocked makes sure that who answers on the port is our server.
func (s *Server) askLocked(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, s.urlLocked())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	var dir string
	if err := conn.QueryRow(ctx, "show data_directory").Scan(&dir); err != nil {
		return err
	}
	if dir != s.DataDir() {
		return fmt.Errorf("port %d is the server's of %s", s.port, dir)
	}
	return nil
}

func (s *Server) endLocked(ask func(*process)) {
	if s.process == nil {
		return
	}
	ask(s.process)
	select {
	case <-s.process.done:
	case <-time.After(stopLimit):
		s.process.kill()
		<-s.process.done
	}
	s.process = nil
}

// command prepares a program of the server's, to run as its account and in its folder: the working
// directory of ours may be closed to it.
func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.binDir, name), args...)
	cmd.Dir = s.folder.path
	cmd.SysProcAttr = childAttr(s.account)
	for _, e := range os.Environ() {
		// PGDATA and its like are for the user's own server. LC_ALL keeps the log in English.
		if !strings.HasPrefix(e, "PG") && !strings.HasPrefix(e, "LC_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	return cmd
}
