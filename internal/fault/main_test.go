package fault_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{
		"echo":  echo,
		"fail":  fail,
		"print": func(context.Context) error { fmt.Println("a word"); return nil },
		"nest":  nest,
		"dial":  dial,
	})
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

// echo answers each event with one, until the parent's end or SIGTERM.
func echo(ctx context.Context) error {
	fault.Emit("ready", nil)
	for {
		e, err := fault.Receive(ctx)
		if err != nil {
			fault.Emit("bye", err.Error())
			return nil
		}
		fault.Emit("echo", e)
	}
}

func fail(context.Context) error {
	fmt.Fprintln(os.Stderr, "on standard error")
	return fmt.Errorf("on purpose")
}

// nest has a child of its own that outlives its attention.
func nest(ctx context.Context) error {
	if _, err := fault.Start(fault.Command{Role: "dial"}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// dial holds a connection to its ancestor as long as it lives.
func dial(context.Context) error {
	conn, err := net.Dial("tcp", os.Getenv("FAULT_TEST_ADDR"))
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

// connect opens a connection whose application_name is app.
func connect(t *testing.T, url, app string) *pgx.Conn {
	t.Helper()
	conn, err := tryConnect(t, url, app)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func tryConnect(t *testing.T, url, app string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = app
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err == nil {
		t.Cleanup(func() { conn.Close(context.Background()) })
	}
	return conn, err
}

// hangUp closes the socket under a connection that pgx gave up: by itself pgx
// takes up to 15 s to say goodbye.
func hangUp(conn *pgx.Conn) {
	conn.PgConn().Conn().Close()
	<-conn.PgConn().CleanupDone()
}

// database returns a URL and a pool beside it, for looking on, with an empty
// table notes(id, text).
func database(t *testing.T) (string, *pgxpool.Pool) {
	t.Helper()
	url := pgtest.Database(t, pgtest.Empty())
	pool := pgtest.Open(t, url)
	run(t, pool, `CREATE TABLE notes (id int PRIMARY KEY, note text NOT NULL)`)
	return url, pool
}

func run(t *testing.T, db fault.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// notes returns what the table holds.
func notes(t *testing.T, db fault.DB) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT id || ' ' || note FROM notes ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}
