package pgtest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

func query[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := pool.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestEveryTestHasItsOwnDatabase(t *testing.T) {
	t.Parallel()
	a, b := pgtest.Pool(t), pgtest.Pool(t)
	const name = "select current_database()"
	if query[string](t, a, name) == query[string](t, b, name) {
		t.Error("two pools share a database")
	}
	if query[int](t, a, "select count(*) from pg_class where relname = 'worklease_leases'") != 1 {
		t.Error("the database has no worklease table")
	}
	if query[string](t, a, "select current_setting('is_superuser')") != "off" {
		t.Error("an ordinary database has a superuser")
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty(), pgtest.Superuser())
	if n := query[int](t, pool, "select count(*) from pg_class where relname = 'worklease_leases'"); n != 0 {
		t.Error("an empty database has a worklease table")
	}
	if query[string](t, pool, "select current_setting('is_superuser')") != "on" {
		t.Error("the user is no superuser")
	}
}

func TestAdminURL(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	user, admin := pgtest.Open(t, url), pgtest.Open(t, pgtest.AdminURL(t, url))
	const name = "select current_database()"
	if got, want := query[string](t, admin, name), query[string](t, user, name); got != want {
		t.Errorf("admin is in %s, want %s", got, want)
	}
	if query[string](t, admin, "select current_setting('is_superuser')") != "on" {
		t.Error("the admin is no superuser")
	}
}

func TestExecMode(t *testing.T) {
	for name, want := range map[string]pgx.QueryExecMode{
		"":                pgx.QueryExecModeCacheStatement,
		"cache_statement": pgx.QueryExecModeCacheStatement,
		"cache_describe":  pgx.QueryExecModeCacheDescribe,
		"exec":            pgx.QueryExecModeExec,
		"simple_protocol": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Setenv("WORKLEASE_EXEC_MODE", name)
		if got, err := pgtest.ExecMode(); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", name, got, err, want)
		}
	}
	t.Setenv("WORKLEASE_EXEC_MODE", "simple_protocol")
	pool := pgtest.Pool(t, pgtest.Empty())
	if got := pool.Config().ConnConfig.DefaultQueryExecMode; got != pgx.QueryExecModeSimpleProtocol {
		t.Errorf("the pool's mode is %v", got)
	}
	t.Setenv("WORKLEASE_EXEC_MODE", "describe_exec")
	if _, err := pgtest.ExecMode(); err == nil {
		t.Error("describe_exec was accepted")
	}
}

func TestServerOfItsOwn(t *testing.T) {
	t.Parallel()
	s := pgtest.Server(t, pgserver.Options{Settings: map[string]string{"max_prepared_transactions": "7"}})
	pool := pgtest.Pool(t, pgtest.On(s))
	if got := query[string](t, pool, "show max_prepared_transactions"); got != "7" {
		t.Errorf("max_prepared_transactions is %s", got)
	}
	if _, err := pool.Exec(t.Context(), "create table kept as select 1 as n"); err != nil {
		t.Fatal(err)
	}
	s.Crash()
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	if query[int](t, pool, "select n from kept") != 1 {
		t.Error("the row is gone")
	}
}

func TestNoServerIsOneMessageAndAFailure(t *testing.T) {
	t.Parallel()
	out, code := again(t, "PGBIN=/nowhere", "DATABASE_URL=", "PATH=")
	if code != 1 || strings.Count(out, "no PostgreSQL found") != 1 {
		t.Errorf("exit code %d, and:\n%s", code, out)
	}
	for _, choice := range []string{"DATABASE_URL=", "PGBIN=", "make deps"} {
		if !strings.Contains(out, choice) {
			t.Errorf("%s is missing in:\n%s", choice, out)
		}
	}
}

func TestAnOrdinaryUserIsRefused(t *testing.T) {
	t.Parallel()
	out, code := again(t, "DATABASE_URL="+pgtest.Database(t))
	if code != 1 || !strings.Contains(out, "must be a superuser") {
		t.Errorf("exit code %d, and:\n%s", code, out)
	}
}

func TestADatabaseURLIsUsedAsItIs(t *testing.T) {
	t.Parallel()
	out, code := again(t, "DATABASE_URL="+pgtest.Database(t, pgtest.Superuser()), "PGBIN=/nowhere")
	if code != 0 {
		t.Errorf("exit code %d, and:\n%s", code, out)
	}
	out, code = again(t, "DATABASE_URL=host=localhost")
	if code != 1 || !strings.Contains(out, "must look like postgres://") {
		t.Errorf("exit code %d, and:\n%s", code, out)
	}
}

// again runs one small test of this package in another process.
func again(t *testing.T, env ...string) (output string, code int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self, "-test.run=^TestEmpty$")
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
