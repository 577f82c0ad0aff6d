// Bench measures what worklease promises about speed, each promise (P1 to P14) beside its
// yardstick in one run:
//
//	go run ./bench -h
//
// Two ways to do a job take turns in short slices, A B A B…, so that what else the machine does
// hits both alike. A rate is the median of its slices, a ratio the median of the ratios of
// neighbouring slices. Rates of two machines, or of two runs, say little; ratios say more.
//
// "Raw" is the barest statement that could do the job, on the same pgx pool, on a table of the
// same columns, indexes and fillfactor, and as durable. Costs that a rate hides (statements,
// round trips, WAL, transaction IDs, notifications, allocations, goroutines) are counted in passes
// of their own and stand below the row.
//
// Rows about several processes start this program again, in a role.
//
// The server is the one of DATABASE_URL, in schemas that are removed again; without it a
// disposable one is started, with fsync on and its WAL on a disk: a server that loses commits
// makes writing look cheap. What is counted is counted for the whole server: leave it to the
// measurement.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aetomala/worklease/internal/fault"
)

// roles are what child processes of this program play.
var roles = map[string]func(context.Context) error{
	ownerRole:  playOwner,
	takerRole:  playTaker,
	memberRole: playMember,
}

func main() {
	fault.RunRole(roles)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is the program: it returns the exit code, 0 if every row could be measured.
func command(ctx context.Context, args []string, out, progress io.Writer) int {
	o, err := parse(args, progress)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = run(ctx, o, out, progress)
	}
	if err != nil {
		fmt.Fprintln(progress, "bench:", err)
		return 1
	}
	return 0
}

type options struct {
	rows     []row
	short    bool
	file     string
	database string // empty: a disposable server
}

func parse(args []string, out io.Writer) (options, error) {
	var o options
	var names string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&names, "rows", "", "`rows` to measure, as in P1,P6; all by default")
	f.BoolVar(&o.short, "short", false, "about a minute for all rows: enough to see that they can be measured")
	f.StringVar(&o.file, "o", "", "write the report to `FILE` as Markdown, its plots beside it")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("unexpected %q; -h explains", f.Args())
	}
	var err error
	o.rows, err = choose(names)
	o.database = os.Getenv("DATABASE_URL")
	return o, err
}

// choose returns the rows of that names, in the order of the table.
func choose(names string) ([]row, error) {
	if names == "" {
		return rows, nil
	}
	wanted := strings.FieldsFunc(strings.ToUpper(names), func(r rune) bool { return r == ',' || r == ' ' })
	var chosen []row
	for _, r := range rows {
		if i := slices.Index(wanted, r.name); i >= 0 {
			chosen = append(chosen, r)
			wanted = slices.Delete(wanted, i, i+1)
		}
	}
	if len(wanted) > 0 {
		return nil, fmt.Errorf("no rows %q", wanted)
	}
	return chosen, nil
}

// run measures the rows and prints the table, also of those that came before a failure.
func run(ctx context.Context, o options, out, progress io.Writer) (failure error) {
	if o.database == "" {
		server, err := startServer(ctx)
		if err != nil {
			return err
		}
		defer func() { failure = errors.Join(failure, server.stop()) }()
		o.database = server.URL()
	}
	h, err := host(ctx, o)
	if err != nil {
		return err
	}
	r := report{host: h}
	var faults []error
	for _, row := range o.rows {
		if ctx.Err() != nil {
			faults = append(faults, context.Cause(ctx))
			break
		}
		began := time.Now()
		fmt.Fprintf(progress, "%-4s %s ", row.name, row.what)
		measured, err := row.run(ctx, bench{url: o.database, short: o.short})
		r.add(measured)
		fmt.Fprintf(progress, "(%.0f s)\n", time.Since(began).Seconds())
		if err != nil {
			faults = append(faults, fmt.Errorf("%s could not be measured: %w", row.name, err))
		}
	}
	fmt.Fprintf(out, "\n%s", r.text())
	if o.file != "" {
		faults = append(faults, r.write(o.file))
	}
	return errors.Join(faults...)
}
