// Package examples runs the programs below it and checks what they print.
package examples

import (
	"context"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	moreParallel(6)
	goleak.VerifyTestMain(pgtest.Wrap(binaries{m}))
}

// moreParallel runs more tests at a time than there are processors, unless the command
// line says otherwise: the programs mostly wait.
func moreParallel(n int) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given && runtime.GOMAXPROCS(0) < n {
		_ = flag.Set("test.parallel", strconv.Itoa(n))
	}
}

// binaries is the folder with the built programs, for as long as the tests run.
type binaries struct{ m pgtest.Runner }

var built struct {
	once sync.Once
	dir  string
	err  error
}

func (b binaries) Run() int {
	defer func() { os.RemoveAll(built.dir) }()
	return b.m.Run()
}

// program returns the path of an example. In the longer form of the tests it is built as
// they are, with the race detector or without; to build eleven programs with it takes longer
// than all the rest.
func program(t *testing.T, name string) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "worklease-examples-"); built.err != nil {
			return
		}
		args := []string{"build", "-ldflags=-s -w", "-o", built.dir + string(filepath.Separator)}
		if info, ok := debug.ReadBuildInfo(); ok && os.Getenv("WORKLEASE_SOAK") != "" && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "./...")...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, name)
}

// stories are the lines that each program must print, in this order, or begin a line
// with. What it measures comes after that.
var stories = map[string]string{
	"acquire-and-wait": `
		alice has tenant-7, for an hour
		bob asks once: alice has it, for about 1h0m0s
		bob waits for a while: out of time: true
		bob waits until it is free
		alice releases it
		bob was woken, an hour early: alice released it and saved "page 17"
		carol waits, and bob crashes
		carol had to wait until bob's lease ran out: true`,
	"checkpoint-resume": `
		v1 begins after page 0 with 0 users; clean handoff: false
		v1 has saved page 1
		v1 has saved page 2
		v1 has saved page 3
		v1 is told to stop while it reads page 4
		v1 hands over after page 4
		v2 begins after page 4 with 405 users; clean handoff: true
		v2 has saved page 5
		v2 has saved page 6
		v2 has nothing left to read: 500 users
		v3 begins after page 6 with 500 users; clean handoff: true
		v3 has nothing left to read: 500 users`,
	"crash-recovery": `
		worker-1 is the first owner and begins with row 1
		worker-1 has saved row 100
		worker-1 has saved row 200
		worker-1 has saved row 300
		worker-1 crashes: row 301 is broken
		worker-2 goes on after row 300: worker-1 left as "expired", crashes in a row: 1
		worker-2 crashes: row 301 is broken
		worker-3 goes on after row 300: worker-2 left as "expired", crashes in a row: 2
		worker-3 sets row 301 aside, as nobody survives it
		worker-3 has saved row 400
		worker-3 has saved row 500
		worker-3 is done: 500 rows, one of them set aside`,
	"zombie-fencing": `
		first owns the work with token 1 and has written a draft
		first freezes: it neither works nor renews
		second owns the work with token 2; first left as "expired" and had saved "draft"
		second has written the final report
		first wakes up and goes on as if nothing had happened
		its own clock could have told it: may it trust its token? false
		its checkpoint is refused: true
		its renewal is refused: true
		its release is refused: true
		its write to the storage is refused: true
		the storage holds "final", the checkpoint is "final", and second still owns the work`,
	"renewal-lifecycle": `
		work for three TTLs: the lease was renewed meanwhile: true and is still ours: true
		the next owner is told: released, "page 17"
		work that fails: page 19 is missing
		the next owner is told: abandoned, "page 18"
		work that is cut off: its context ended within the TTL, as the window was exhausted: true
		the next owner is told: expired, "page 18"`,
	"retire": `
		host-1 runs migration-42
		it is done for good
		a second run is refused: migration-42 was retired by host-1 with token 1
		waiting for it is refused at once: true
		pool: no more of migration-42
		pool: runs migration-43
		pool: no more of migration-43
		the pool has nothing left to do
		reopened: the last owner retired it and left "1200 rows moved"`,
	"cluster-leader": `
		node-1 leads, with token 1
		node-1 is stopped and hands leadership over; its error: <nil>
		node-2 leads, with token 2
		node-2 is cut off and cannot renew
		node-2 has stopped leading: its lease is over by its own clock: true
		node-3 leads, with token 3
		the service is stopped`,
	"partition-processor": `
		host-1 is alone, and in the middle of all partitions
		host-2 starts, and host-1 is told to stop
		host-1 has handed over
		host-2 has retired every partition, and its pool has ended by itself
		host-1 has read 60 messages
		host-2 has read 60 messages
		messages: 120, read: 120, read more than once: 0`,
	"observability": `
		somebody else is refused: true
		the first owner hands over
		the second owner gives up
		the third owner crashes
		and comes back too late: true
		acquire: 5, from
		acquire failed: lease is held:
		checkpoint failed: fenced by a newer token: 1, from
		idle after abandoned: 1, from
		idle after expired: 1, from
		idle after released: 1, from
		release: 2, from
		renew:
		slack of renewal:`,
	"exactly-once-steps": `
		worker-1 begins after order 0
		worker-1 has written orders 21 to 30 and crashes before the commit
		worker-2 begins after order 20
		worker-2 has written orders 31 to 40 and crashes after the commit
		worker-3 begins after order 40
		worker-3 has imported all
		orders: 60, rows: 60, different: 60`,
}

func TestStories(t *testing.T) {
	t.Parallel()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path, env := program(t, name), os.Environ()
			if name == "exactly-once-steps" {
				env = append(env, "DATABASE_URL="+pgtest.Database(t))
			}
			ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, path)
			cmd.Env = env
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v", err)
			}
			if missing := firstMissing(string(out), story); missing != "" {
				t.Errorf("does not print, or not at its place:\n%s", missing)
			}
			if t.Failed() {
				t.Logf("it printed:\n%s", out)
			}
		})
	}
}

// firstMissing returns the first line of story that begins no line of text after the one
// before it did.
func firstMissing(text, story string) string {
	lines := strings.Split(text, "\n")
	for want := range strings.Lines(strings.TrimSpace(story)) {
		want = strings.TrimSpace(want)
		i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), want) })
		if i < 0 {
			return want
		}
		lines = lines[i+1:]
	}
	return ""
}

// What a reader can count on: each program is listed and checked, is short, and needs
// nothing that a user of this module does not have.
func TestFolders(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	folders, err := filepath.Glob("*/main.go")
	if err != nil || len(folders) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range folders {
		name := filepath.Dir(path)
		if !strings.Contains(string(list), fmt.Sprintf("| [%s](%s/main.go) |", name, name)) {
			t.Errorf("README.md does not list %s", name)
		}
		if _, checked := stories[name]; !checked && name != "pgx-service" {
			t.Errorf("no test runs %s", name)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n >= 150 {
			t.Errorf("%s has %d lines", path, n)
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if file.Doc == nil {
			t.Errorf("%s does not say what it shows", path)
		}
		for _, spec := range file.Imports {
			if imported, err := strconv.Unquote(spec.Path.Value); err != nil || !allowed(imported) {
				t.Errorf("%s imports %s, %v", path, spec.Path.Value, err)
			}
		}
	}
}

// allowed: the standard library, pgx, and what of this module a user may import.
func allowed(path string) bool {
	if strings.Contains(path, "/internal/") {
		return false
	}
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".") || strings.HasPrefix(path, "github.com/jackc/pgx/v5") || strings.HasPrefix(path, "github.com/aetomala/worklease")
}
