//go:build unix

package main

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// asPgrun makes the test program be pgrun.
const asPgrun = "PGRUN_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPgrun) != "" {
		main()
	}
	os.Exit(m.Run())
}

// pgrun prepares a run of pgrun that starts a server of its own, whatever these tests run with.
func pgrun(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asPgrun+"=1", "DATABASE_URL=")
	return cmd
}

func code(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func TestTheExitCodeIsPassedOn(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		database string // empty: pgrun starts a server
		args     []string
		want     int
	}{
		{"", []string{"sh", "-c", `test -n "$DATABASE_URL" && test -x "$PGBIN/postgres" && exit 7`}, 7},
		{"postgres://elsewhere/db", []string{"true"}, 0},
		{"postgres://elsewhere/db", []string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
		{"postgres://elsewhere/db", []string{"no-such-command-at-all"}, 127},
	} {
		cmd := pgrun(t, test.args...)
		cmd.Env = append(cmd.Env, "DATABASE_URL="+test.database)
		if test.database != "" {
			cmd.Env = append(cmd.Env, "PGBIN=")
		}
		if got := code(t, cmd); got != test.want {
			t.Errorf("%q: exit code %d, want %d", test.args, got, test.want)
		}
	}
}

func TestAGivenDatabaseIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	cmd := pgrun(t, "/bin/sh", "-c", `echo "$DATABASE_URL"`)
	cmd.Env = append(cmd.Env, "DATABASE_URL=postgres://elsewhere/db", "PGBIN=", "PATH=")
	out, err := cmd.Output()
	if got := strings.TrimSpace(string(out)); got != "postgres://elsewhere/db" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestWithoutPostgresThereIsOneMessage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {"/bin/sh", "-c", "echo it ran"}} {
		cmd := pgrun(t, args...)
		cmd.Env = append(cmd.Env, "PGBIN=/nowhere", "PATH=")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &out
		got := code(t, cmd)
		if got != 1 || strings.Count(out.String(), "no PostgreSQL found") != 1 || strings.Contains(out.String(), "it ran") {
			t.Errorf("exit code %d, and:\n%s", got, &out)
		}
		for _, choice := range []string{"DATABASE_URL=", "PGBIN=", "make deps"} {
			if !strings.Contains(out.String(), choice) {
				t.Errorf("%s is missing in:\n%s", choice, &out)
			}
		}
	}
}

func TestASignalLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		sig  syscall.Signal
		want int // the exit code; -1: killed itself
	}{
		{syscall.SIGINT, 130},
		{syscall.SIGTERM, 143},
		{syscall.SIGHUP, 129},
		{syscall.SIGKILL, -1},
	} {
		t.Run(test.sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd, folder := sleeping(t)
			if err := cmd.Process.Signal(test.sig); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != test.want {
				t.Errorf("exit code %d, want %d", got, test.want)
			}
			deadline := time.Now()
			if test.sig == syscall.SIGKILL {
				// The server's janitor works on after our end.
				deadline = deadline.Add(30 * time.Second)
			}
			for {
				_, err := os.Stat(folder)
				if errors.Is(err, os.ErrNotExist) {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("%s is still there", folder)
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}

// sleeping returns a pgrun whose command sleeps, and the folder of its server.
func sleeping(t *testing.T) (cmd *exec.Cmd, folder string) {
	t.Helper()
	cmd = pgrun(t, "sh", "-c", `echo "$DATABASE_URL"; exec sleep 60`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	url, _ := bufio.NewReader(out).ReadString('\n')
	conn, err := pgx.Connect(t.Context(), strings.TrimSpace(url))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var data string
	if err := conn.QueryRow(t.Context(), "show data_directory").Scan(&data); err != nil {
		t.Fatal(err)
	}
	return cmd, filepath.Dir(data)
}
