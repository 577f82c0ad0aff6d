// Demo imports source trees into PostgreSQL with several worker processes and does to them what
// production does: it kills them, freezes them and stops them, and proves at the end, from the
// table against the files, that every line is there exactly once.
//
//	go run ./internal/cmd/demo -h
//
// One work ID stands for one folder. A worker runs a worker.Runner for each, and saves a batch of
// rows and its position in one transaction, with pgxbackend.Step. With -naive the rows have a
// transaction of their own, and the verdict shows the doubled rows that come of it.
//
// The server is found as pgrun finds it. With DATABASE_URL the demo works in a schema of its own,
// which it removes at the end.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/aetomala/worklease/internal/fault"
)

// roles are what child processes of this program play.
var roles = map[string]func(context.Context) error{workerRole: playWorker}

// Exit codes beside 0.
const (
	exitOff         = 1 // the verdict, or no verdict
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	fault.RunRole(roles)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := command(ctx, os.Args[1:], os.Stdout)
	stop()
	os.Exit(code)
}

// command is the program: it returns the exit code.
func command(ctx context.Context, args []string, out *os.File) int {
	o, err := parse(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		return exitUsage
	}
	good, err := run(ctx, o, out)
	switch {
	case ctx.Err() != nil && err != nil && !errors.Is(err, errLeft):
		fmt.Fprintln(os.Stderr, "demo: interrupted, and everything removed")
		return exitInterrupted
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		return exitOff
	case !good:
		return exitOff
	}
	return 0
}

// options are what the flags set.
type options struct {
	workers  int
	kills    int
	batch    int
	seed     uint64
	dirs     []string
	duration time.Duration
	ttl      time.Duration
	naive    bool
	keep     bool
	database string // empty: a disposable server
}

const about = `Demo imports the Go standard library's net and encoding source trees, every line of
every file, with several worker processes that it kills, freezes and stops meanwhile.
At the end it compares the table with the files. Exit code 0: everything is as it must be.

With DATABASE_URL it works there, in a schema of its own that it removes at the end;
otherwise it starts a disposable PostgreSQL and removes that.

`

func parse(args []string, out io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("demo", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, about)
		f.PrintDefaults()
	}
	f.IntVar(&o.workers, "workers", 4, "worker `processes`, at least 2")
	f.IntVar(&o.kills, "kills", 5, "`number` of times that a worker is killed, every other time between its rows and its checkpoint")
	f.IntVar(&o.batch, "batch", 0, "`lines` in a step; 0: as many as the duration asks for")
	f.Uint64Var(&o.seed, "seed", 0, "a `number` that chooses who is killed when; 0: any")
	f.Func("dir", "a `tree` to import, may be given more than once (default: the two of the Go standard library)",
		func(dir string) error { o.dirs = append(o.dirs, dir); return nil })
	f.DurationVar(&o.duration, "duration", 25*time.Second, "how long the import is made to take, longer if the faults do")
	f.DurationVar(&o.ttl, "ttl", 1500*time.Millisecond, "`TTL` of the leases")
	f.BoolVar(&o.naive, "naive", false, "save the position in a transaction of its own, and see what comes of it")
	f.BoolVar(&o.keep, "keep", false, "leave the tables for looking at; a disposable server then runs until ^C")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if o.seed == 0 {
		o.seed = 1 + rand.Uint64N(999_999)
	}
	// As in pgrun: whoever sets PGBIN wants a server of that version.
	if os.Getenv("PGBIN") == "" {
		o.database = os.Getenv("DATABASE_URL")
	}
	return o, o.check(f.Args())
}

func (o options) check(rest []string) error {
	var faults []error
	if len(rest) > 0 {
		faults = append(faults, fmt.Errorf("unexpected %q; -h explains", strings.Join(rest, " ")))
	}
	if o.workers < 2 {
		faults = append(faults, errors.New("-workers: a successor needs at least 2"))
	}
	if o.kills < 0 || o.batch < 0 || o.duration < 0 {
		faults = append(faults, errors.New("-kills, -batch and -duration cannot be negative"))
	}
	if o.ttl < 100*time.Millisecond {
		faults = append(faults, errors.New("-ttl: at least 100ms"))
	}
	return errors.Join(faults...)
}

// standardLibrary returns the two trees that every machine with Go has.
func standardLibrary(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("go env GOROOT: %w; -dir imports other trees", err)
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src")
	dirs := []string{filepath.Join(src, "net"), filepath.Join(src, "encoding")}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("this Go has no sources of its standard library: %w; -dir imports other trees", err)
		}
	}
	return dirs, nil
}
