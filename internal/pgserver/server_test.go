package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// abandonRole makes the test program start a server, print its folder and be killed, together with
// its janitors if the role's value says so, or with a pooler, whose folder it then prints.
const abandonRole = "PGSERVER_TEST_ABANDON"

func TestMain(m *testing.M) {
	if how := os.Getenv(abandonRole); how != "" {
		s, err := Start(context.Background(), Options{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if how == "janitors too" {
			for _, j := range s.janitors {
				_ = j.cmd.Process.Kill()
			}
		}
		path := s.folder.path
		if how == "with a pooler" {
			p, err := StartPooler(context.Background(), s.URL(), 1)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			path = p.folder.path
		}
		fmt.Println(path)
		self, _ := os.FindProcess(os.Getpid())
		_ = self.Kill()
		select {}
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask returns the one value that a query reads on a fresh connection.
func ask(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var v string
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return errors.Is(err, os.ErrNotExist)
}

// until polls for what another process does at its own pace.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatal("it did not come to pass: " + what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	s := start(t, Options{Settings: map[string]string{"max_connections": "17"}})
	if got := ask(t, s, "show max_connections"); got != "17" {
		t.Errorf("max_connections is %s, want 17", got)
	}
	pid := s.process.cmd.Process.Pid
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if !gone(s.folder.path) {
		t.Errorf("%s is still there", s.folder.path)
	}
	if alive(pid) {
		t.Errorf("process %d is still there", pid)
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("a server that is gone for good was restarted")
	}
}

func TestWhatWasCommittedSurvivesACrash(t *testing.T) {
	t.Parallel()
	s := start(t, Options{})
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create table kept as select 'yes' as it"); err != nil {
		t.Fatal(err)
	}
	for _, end := range []func(){s.Crash, s.Shutdown, func() {}} {
		port := s.Port()
		end()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Port() != port {
			t.Errorf("port %d became %d", port, s.Port())
		}
		if got := ask(t, s, "select it from kept"); got != "yes" {
			t.Errorf("kept is %q", got)
		}
	}
}

func TestABadSettingShowsTheServersLog(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Settings: map[string]string{"no_such_setting": "1"}})
	if err == nil || !strings.Contains(err.Error(), "unrecognized configuration parameter") {
		t.Errorf("got %v", err)
	}
}

func TestACancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	why := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, why)
	defer cancel()
	s, err := Start(ctx, Options{})
	if !errors.Is(err, why) {
		t.Errorf("got %v, %v; want %v", s, err, why)
	}
}

// abandon starts a server in another process, which is killed, and returns the server's folder.
func abandon(t *testing.T, how string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), abandonRole+"="+how)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = cmd.Wait()
	if line == "" {
		t.Fatal("the other process started no server")
	}
	return strings.TrimSpace(line)
}

func TestAKilledProcessLeavesNothing(t *testing.T) {
	t.Parallel()
	path := abandon(t, "alone")
	until(t, "the janitor removes "+path, func() bool { return gone(path) })
}

func TestTheNextStartSweeps(t *testing.T) {
	t.Parallel()
	if !kernelEndsChildren {
		t.Skip("here the janitor ends the server, and it is killed in this test")
	}
	path := abandon(t, "janitors too")
	until(t, "the kernel ends the server in "+path, func() bool { return !postmasterLives(path) })
	sweep([]string{filepath.Dir(path)})
	if !gone(path) {
		t.Errorf("%s is still there", path)
	}
}

// Starters and sweepers of many processes meet in one folder.
func TestASweepSparesTheLiving(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	stop := make(chan struct{})
	swept := make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-stop:
				return
			default:
				sweep([]string{parent})
			}
		}
	}()
	for range 300 {
		f, err := newFolder(parent)
		if err != nil {
			t.Fatal(err)
		}
		if gone(f.path) {
			t.Fatal("a folder was swept away below its owner")
		}
		if err := f.remove(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-swept
	if left, _ := os.ReadDir(parent); len(left) != 0 {
		t.Errorf("%d folders are left", len(left))
	}
}

func TestASweepSparesALivingServer(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	path := filepath.Join(parent, prefix+"1")
	if err := os.MkdirAll(filepath.Join(path, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	pidFile := filepath.Join(path, "data", "postmaster.pid")
	if err := os.WriteFile(pidFile, fmt.Appendln(nil, os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	sweep([]string{parent})
	if gone(path) {
		t.Error("the folder of a living server was swept away")
	}
}

func TestBinariesThatOthersCannotReachAreCopied(t *testing.T) {
	t.Parallel()
	a := serverAccount()
	if a == nil {
		t.Skip("only root starts the server as somebody else")
	}
	home := filepath.Join(t.TempDir(), "home")
	for _, part := range []string{"bin", "lib", "share"} {
		if err := os.MkdirAll(filepath.Join(home, part), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(home, "bin")
	if err := os.WriteFile(filepath.Join(bin, "postgres"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("libx.so.1", filepath.Join(home, "lib", "libx.so")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if a.reaches(bin) {
		t.Fatal("a closed folder counts as reachable")
	}
	to, err := newFolderIn(onDisk(a))
	if err != nil {
		t.Fatal(err)
	}
	defer to.remove()
	got, err := a.copyBinaries(bin, to.path)
	if err != nil {
		t.Fatal(err)
	}
	if !a.reaches(got) {
		t.Errorf("%s cannot be reached either", got)
	}
	if link, _ := os.Readlink(filepath.Join(to.path, "lib", "libx.so")); link != "libx.so.1" {
		t.Errorf("the link became %q", link)
	}
}

func TestFindBinDir(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PGBIN", dir)
	if _, err := FindBinDir(t.Context()); !errors.Is(err, ErrNoPostgres) {
		t.Errorf("with an empty folder: %v", err)
	}
	for _, name := range []string{"initdb", "postgres"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := FindBinDir(t.Context()); got != dir || err != nil {
		t.Errorf("got %s, %v; want %s", got, err, dir)
	}
}

func TestNewestFirst(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, v := range []string{"9", "10", "18"} {
		if err := os.MkdirAll(filepath.Join(root, "postgresql", v, "bin"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, dir := range newestFirst(filepath.Join(root, "postgresql", "*", "bin")) {
		got = append(got, filepath.Base(filepath.Dir(dir)))
	}
	if want := "18 10 9"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
