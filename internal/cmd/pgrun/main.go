// Pgrun runs a command with a disposable PostgreSQL:
//
//	go run ./internal/cmd/pgrun go test ./...
//
// The command finds the server's address in DATABASE_URL and the folder of its programs in PGBIN.
// The server is removed at the end, whatever the end is, and the command's exit code passed on;
// pgserver tells where the server comes from and lies. When DATABASE_URL is set already, and PGBIN
// is not, the command runs with that one and nothing is started.
//
// SIGINT, SIGTERM and SIGHUP are passed on to the command. Without a command, pgrun prints the
// folder of the programs it would use, and fails where there are none.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/aetomala/worklease/internal/pgserver"
)

// patience is how long the command may take to end after a signal; then it is killed.
const patience = 10 * time.Second

// To Linux the parent of a child is the thread that started it, so main keeps the first thread,
// which lives as long as the process.
func init() { runtime.LockOSThread() }

func main() {
	signals := make(chan os.Signal, 8)
	for _, s := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		// Under nohup, a hangup must go on being ignored.
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	code, err := run(os.Args[1:], signals)
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgrun:", err)
	}
	os.Exit(code)
}

func run(args []string, signals <-chan os.Signal) (code int, err error) {
	if len(args) == 0 {
		dir, err := pgserver.FindBinDir(context.Background())
		if err != nil {
			return 1, err
		}
		fmt.Println(dir)
		return 0, nil
	}
	if os.Getenv("DATABASE_URL") != "" && os.Getenv("PGBIN") == "" {
		return runCommand(args, os.Environ(), signals)
	}
	server, sig, err := start(signals)
	if sig != nil {
		return exitCode(sig), err
	}
	if err != nil {
		return 1, err
	}
	defer func() {
		if e := server.Stop(); e != nil {
			code, err = max(code, 1), errors.Join(err, e)
		}
	}()
	// Of two entries with the same name the last one counts.
	env := append(os.Environ(), "DATABASE_URL="+server.URL(), "PGBIN="+server.BinDir())
	return runCommand(args, env, signals)
}

// start returns the signal that ended the start, if one did; nothing is left then.
func start(signals <-chan os.Signal) (*pgserver.Server, os.Signal, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	type outcome struct {
		server *pgserver.Server
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		s, err := pgserver.Start(ctx, pgserver.Options{})
		done <- outcome{s, err}
	}()
	select {
	case o := <-done:
		return o.server, nil, o.err
	case sig := <-signals:
		cancel()
		o := <-done
		if o.server != nil {
			return nil, sig, o.server.Stop()
		}
		return nil, sig, nil
	}
}

// runCommand passes signals on to the command and waits for its end in any case: the server must not
// go away below a command that is still tidying up.
func runCommand(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	group := !interactive(os.Stdin)
	prepare(cmd, group)
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	var overdue <-chan time.Time
	for {
		select {
		case sig := <-signals:
			send(cmd.Process, sig, group)
			if overdue == nil {
				overdue = time.After(patience)
			}
		case <-overdue:
			send(cmd.Process, os.Kill, group)
		case err := <-done:
			if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
				return 1, err
			}
			return stateCode(cmd.ProcessState), nil
		}
	}
}

// interactive reports whether the command may want to read from a terminal. Then it stays in our
// process group, for a group of its own would not be allowed to.
func interactive(stdin *os.File) bool {
	info, err := stdin.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && !os.SameFile(info, null)
}
