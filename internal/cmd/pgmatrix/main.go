// Pgmatrix runs a command on every PostgreSQL version below node_modules, and on the newest in
// every exec mode of pgx:
//
//	pgmatrix pgrun go test -short ./...
//
// The command finds the version's programs in PGBIN and the mode in WORKLEASE_EXEC_MODE. What it
// writes is shown when it fails. At the end there is a table, and the exit code is 1 when one run
// failed.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/aetomala/worklease/internal/pgserver"
)

// modes begins with pgx's default, in which every version is tried.
var modes = []string{"cache_statement", "cache_describe", "exec", "simple_protocol"}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	versions, err := pgserver.Packaged()
	if err == nil {
		slices.Reverse(versions) // oldest first
		err = run(ctx, os.Args[1:], versions, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "pgmatrix:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, command []string, versions []pgserver.Version, w io.Writer) error {
	if len(command) == 0 {
		return errors.New("usage: pgmatrix command [argument ...]")
	}
	newest := len(versions) - 1
	rows := make([]row, len(versions))
	failed := 0
	for i, v := range versions {
		rows[i].version = v.Major
		for j, mode := range modes {
			if i != newest && j > 0 {
				continue
			}
			c := try(ctx, command, v.BinDir, mode)
			if err := context.Cause(ctx); err != nil {
				return err
			}
			fmt.Fprintf(w, "PostgreSQL %d, %s: %s\n", v.Major, mode, c)
			if !c.ok {
				failed++
				fmt.Fprintf(w, "%s\n", c.output)
			}
			rows[i].cells[j] = c
		}
	}
	printTable(w, rows)
	if failed > 0 {
		return fmt.Errorf("%d runs failed", failed)
	}
	return nil
}

type row struct {
	version int
	cells   [4]cell // by mode
}

// A cell is one run; the zero value is one that was not made.
type cell struct {
	ok     bool
	took   time.Duration
	output []byte
}

func (c cell) String() string {
	switch {
	case c.took == 0:
		return "-"
	case c.ok:
		return fmt.Sprintf("ok %.1f s", c.took.Seconds())
	default:
		return fmt.Sprintf("FAIL %.1f s", c.took.Seconds())
	}
}

func try(ctx context.Context, command []string, binDir, mode string) cell {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "PGBIN="+binDir, "WORKLEASE_EXEC_MODE="+mode)
	// Not killed: pgrun has a server to remove.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(&out, err)
	}
	return cell{ok: err == nil, took: time.Since(begin), output: out.Bytes()}
}

func printTable(w io.Writer, rows []row) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprint(t, "\nPostgreSQL")
	for _, mode := range modes {
		fmt.Fprintf(t, "\t%s", mode)
	}
	fmt.Fprintln(t)
	for _, r := range rows {
		fmt.Fprint(t, r.version)
		for _, c := range r.cells {
			fmt.Fprintf(t, "\t%s", c)
		}
		fmt.Fprintln(t)
	}
	t.Flush()
}
