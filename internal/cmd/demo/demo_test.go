package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease/internal/pgtest"
)

// small is a run that takes as long as its faults do.
func small(t *testing.T, change func(*options)) (output string, good bool, database string) {
	t.Helper()
	files := map[string]string{"binary.dat": "\x00\x01\xff\n\xfe"}
	for i := range 7 {
		files[fmt.Sprintf("folder%d/file.txt", i)] = strings.Repeat(fmt.Sprintf("the lines of file %d\n", i), 60+i)
	}
	database = pgtest.Database(t, pgtest.Empty())
	o := options{
		workers: 3, kills: 1, seed: 1, dirs: []string{write(t, files)},
		duration: time.Second, ttl: time.Second, database: database,
	}
	change(&o)
	path := filepath.Join(t.TempDir(), "output")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	good, err = run(t.Context(), o, out)
	text, _ := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return string(text), good, database
}

func TestEveryLineOnce(t *testing.T) {
	t.Parallel()
	out, good, database := small(t, func(*options) {})
	if !good {
		t.Fatalf("the verdict:\n%s", out)
	}
	for _, want := range []string{`SIGKILL +1`, `doubled +0`, `clean handovers +[1-9]`, `by the database:`, `exactly once`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
	if got := schemas(t, database); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

func TestNaiveDoublesAndKeep(t *testing.T) {
	t.Parallel()
	out, good, database := small(t, func(o *options) { o.naive, o.keep = true, true })
	if !good || !strings.Contains(out, "as expected") || regexp.MustCompile(`doubled +0`).MatchString(out) {
		t.Errorf("the verdict:\n%s", out)
	}
	if got := schemas(t, database); len(got) != 1 || !strings.Contains(out, got[0]) {
		t.Errorf("kept %q, and said:\n%s", got, out)
	}
}

// In the middle of a run everything is removed as well.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("two runs are enough")
	}
	database := pgtest.Database(t, pgtest.Empty())
	ctx, interrupt := context.WithCancel(t.Context())
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	go func() {
		defer in.Close()
		o := options{
			workers: 2, dirs: []string{write(t, map[string]string{"a": strings.Repeat("line\n", 100)})},
			duration: time.Hour, ttl: time.Second, database: database,
		}
		if _, err := run(ctx, o, in); err == nil {
			t.Error("the run was whole")
		}
	}()
	text := make([]byte, 1<<12)
	for seen := ""; ; {
		n, err := out.Read(text)
		if err != nil {
			break
		}
		if seen += string(text[:n]); strings.Contains(seen, "2 workers own") {
			interrupt()
		}
	}
	interrupt()
	if got := schemas(t, database); len(got) != 0 {
		t.Errorf("left behind: %q", got)
	}
}

// schemas returns the demo's schemas in a database.
func schemas(t *testing.T, database string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'worklease\_demo%'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-workers 1", "-kills -1", "-ttl 1ms", "rest", "-unknown"} {
		if got := command(t.Context(), strings.Fields(args), devNull(t)); got != exitUsage {
			t.Errorf("%s: exit code %d", args, got)
		}
	}
	if got := command(t.Context(), []string{"-h"}, devNull(t)); got != 0 {
		t.Errorf("-h: exit code %d", got)
	}
	for _, dir := range []string{t.TempDir(), "/no/such/tree"} {
		if got := command(t.Context(), []string{"-dir", dir}, devNull(t)); got != exitOff {
			t.Errorf("-dir %s: exit code %d", dir, got)
		}
	}
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
