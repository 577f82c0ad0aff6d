package fault_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/aetomala/worklease/internal/fault"
)

const soon = 50 * time.Millisecond // for what must not happen

func TestProxyURL(t *testing.T) {
	t.Parallel()
	p := fault.NewProxy(t, "postgres://127.0.0.1:1/x")
	u, err := url.Parse(p.URL("postgres://u:p@127.0.0.1:5432/db?sslmode=disable"))
	if err != nil {
		t.Fatal(err)
	}
	addr := u.Host
	for _, test := range []struct{ in, want string }{
		{"postgres://u:p@127.0.0.1:5432/db?sslmode=disable", "postgres://u:p@" + addr + "/db?sslmode=disable"},
		{"postgresql://u:p%2F@db.example/db", "postgresql://u:p%2F@" + addr + "/db?sslmode=disable"},
		{"postgres:///db?host=/tmp&port=5433&application_name=a", "postgres://" + addr + "/db?application_name=a&sslmode=disable"},
	} {
		if diff := cmp.Diff(p.URL(test.in), test.want); diff != "" {
			t.Errorf("URL(%q) (-got +want):\n%s", test.in, diff)
		}
	}
	config, err := pgconn.ParseConfig(p.URL("host=/tmp port=5433 user=u password=p dbname=db"))
	if err != nil {
		t.Fatal(err)
	}
	if got := (&url.URL{Host: u.Host}).Hostname(); config.Host != got || config.TLSConfig != nil || config.User != "u" {
		t.Errorf("key=value: %+v", config)
	}
}

func TestProxyPasses(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	run(t, conn, `INSERT INTO notes VALUES ($1, $2)`, 1, "one")
	run(t, conn, `INSERT INTO notes VALUES ($1, $2)`, 2, "two")
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"notes"}, []string{"id", "note"},
		pgx.CopyFromRows([][]any{{3, "three"}})); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(notes(t, conn), notes(t, pool)); diff != "" {
		t.Errorf("through the proxy (-got +want):\n%s", diff)
	}
	want := []string{
		`INSERT INTO notes VALUES ($1, $2)`,
		`INSERT INTO notes VALUES ($1, $2)`,
		`copy "notes" ( "id", "note" ) from stdin binary;`,
		`SELECT id || ' ' || note FROM notes ORDER BY id`,
	}
	if diff := cmp.Diff(p.Only("worker").Statements(), []string(nil)); diff != "" {
		t.Errorf("statements before there was a set (-got +want):\n%s", diff)
	}
	if diff := cmp.Diff(p.Statements(), want); diff != "" {
		t.Errorf("statements (-got +want):\n%s", diff)
	}
	if p.Opened() != 1 {
		t.Errorf("Opened() = %d, want 1", p.Opened())
	}
}

func TestProxyPassesACancelRequest(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	blocker := fault.Block(t, url, `LOCK TABLE notes`)
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(context.Background(), `TABLE notes`)
		ended <- err
	}()
	if err := blocker.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if err := <-ended; !errors.As(err, &pg) || pg.Code != "57014" {
		t.Errorf("a cancelled query returned %v", err)
	}
	if n := count(t, pool, "worker"); n != 1 {
		t.Errorf("%d sessions, want 1", n)
	}
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.Delay(fault.ToServer, 40*time.Millisecond)
	p.Only("worker").Delay(fault.ToClient, 30*time.Millisecond)
	p.Only("other").Delay(fault.ToClient, time.Hour)
	sent := time.Now()
	run(t, conn, `SELECT`)
	if took := time.Since(sent); took < 70*time.Millisecond {
		t.Errorf("a round trip took %v", took)
	}
	p.Delay(fault.ToServer, time.Hour)
	p.Pass()
	run(t, conn, `SELECT`)
}

func TestProxyCuts(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	worker := connect(t, p.URL(url), "worker")
	other := connect(t, p.URL(url), "other")
	if n := p.Only("worker").Cut(); n != 1 {
		t.Errorf("Cut() = %d, want 1", n)
	}
	if err := worker.Ping(t.Context()); err == nil {
		t.Error("a connection that was cut answers")
	}
	awaitCount(t, pool, "worker", 0)
	run(t, other, `SELECT`)
	connect(t, p.URL(url), "worker")
}

func TestProxyRefuses(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	p := fault.NewProxy(t, url)
	old := connect(t, p.URL(url), "worker")
	p.Refuse()
	if _, err := tryConnect(t, p.URL(url), "worker"); err == nil {
		t.Error("connected")
	}
	run(t, old, `SELECT`)
	p.Pass()
	p.Only("worker").Refuse()
	if _, err := tryConnect(t, p.URL(url), "worker"); err == nil {
		t.Error("connected under a refused name")
	}
	connect(t, p.URL(url), "other")
}

func TestProxyWithoutAServer(t *testing.T) {
	t.Parallel()
	p := fault.NewProxy(t, "postgres://127.0.0.1:1/x")
	if _, err := tryConnect(t, p.URL("postgres://u@127.0.0.1:1/x"), "worker"); err == nil {
		t.Error("connected to nothing")
	}
}

func TestProxyBlackHole(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.BlackHole()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := conn.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Ping through a black hole = %v", err)
	}
	config, err := pgx.ParseConfig(p.URL(url))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := pgx.ConnectConfig(ctx, config); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connect through a black hole = %v", err)
	}
	for p.Only("worker").Lost() == 0 {
		runtime.Gosched()
	}
	// The client closes; the server must not hear of it, even later.
	conn.PgConn().Conn().Close()
	p.Pass()
	connect(t, p.URL(url), "other")
	if n := count(t, pool, "worker"); n != 1 {
		t.Errorf("%d sessions behind the black hole, want 1", n)
	}
	p.Only("worker").Cut()
	awaitCount(t, pool, "worker", 0)
}

func TestProxyBlocksOneWay(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.Only("worker").BlackHole(fault.ToClient)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(ctx, `INSERT INTO notes VALUES (1, 'one way')`)
		ended <- err
	}()
	for len(notes(t, pool)) == 0 {
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Exec = %v", err)
	}
}

// The server has closed, and even the reset that answers the next request does
// not come through.
func TestProxyHidesTheServersEnd(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.Only("worker").BlackHole(fault.ToClient)
	if n, err := fault.Terminate(t.Context(), pool, fault.Backends{App: "worker"}); n != 1 || err != nil {
		t.Fatalf("Terminate = %d, %v", n, err)
	}
	for range 3 {
		if err := conn.PgConn().Conn().SetDeadline(time.Now().Add(soon)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.PgConn().Conn().Write([]byte("Q\x00\x00\x00\x05\x00")); err != nil {
			t.Errorf("write: %v", err)
		}
		if _, err := conn.PgConn().Conn().Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read: %v", err)
		}
	}
}

func TestProxyStallsRequests(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.Only("worker").Stall(fault.ToServer)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if _, err := conn.Exec(ctx, `INSERT INTO notes VALUES (1, 'late')`); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Exec = %v", err)
	}
	if got := notes(t, pool); len(got) != 0 {
		t.Errorf("what stalled has arrived: %q", got)
	}
	hangUp(conn) // With pgx's cancel request out of the way.
	p.Only("worker").Pass()
	awaitCount(t, pool, "worker", 0) // The goodbye comes after it.
	if diff := cmp.Diff(notes(t, pool), []string{"1 late"}); diff != "" {
		t.Errorf("notes (-got +want):\n%s", diff)
	}
}

// A deaf client: the server gets stuck sending.
func TestProxyStallsReplies(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	p.Stall(fault.ToClient)
	type result struct {
		tag pgconn.CommandTag
		err error
	}
	ended := make(chan result)
	go func() {
		tag, err := conn.Exec(context.Background(), `SELECT repeat('x', 1000000) FROM generate_series(1, 20)`)
		ended <- result{tag, err}
	}()
	for stuck := false; !stuck; {
		err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = 'worker' AND datname = current_database() AND wait_event = 'ClientWrite')`).Scan(&stuck)
		if err != nil {
			t.Fatal(err)
		}
	}
	p.Pass()
	if r := <-ended; r.err != nil || r.tag.RowsAffected() != 20 {
		t.Errorf("Exec = %v, %v", r.tag, r.err)
	}
}

func count(t *testing.T, db fault.DB, app string) int {
	t.Helper()
	n, err := fault.Count(t.Context(), db, fault.Backends{App: app})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func awaitCount(t *testing.T, db fault.DB, app string, n int) {
	t.Helper()
	if err := fault.AwaitCount(t.Context(), db, fault.Backends{App: app}, n); err != nil {
		t.Fatal(err)
	}
}
