package fault_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/aetomala/worklease/internal/fault"
)

func TestBlock(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	run(t, pool, insert, 1, "one")
	for name, lock := range map[string]string{
		"row for update":        `SELECT FROM notes WHERE id = 1 FOR UPDATE`,
		"row for no key update": `SELECT FROM notes WHERE id = 1 FOR NO KEY UPDATE`,
		"table":                 `LOCK TABLE notes IN SHARE MODE`,
	} {
		t.Run(name, func(t *testing.T) {
			blocker := fault.Block(t, url, lock)
			worker := connect(t, url, "worker")
			ended := make(chan error)
			go func() {
				_, err := worker.Exec(context.Background(), `UPDATE notes SET note = 'two'`)
				ended <- err
			}()
			if err := blocker.Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, which := range []fault.Backends{{App: "worker"}, {Query: "UPDATE notes%"}} {
				if err := fault.AwaitBlocked(t.Context(), pool, which); err != nil {
					t.Error(err)
				}
			}
			blocker.Release()
			blocker.Release()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBlockKeyShare(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	run(t, pool, insert, 1, "one")
	blocker := fault.Block(t, url, `SELECT FROM notes WHERE id = $1 FOR KEY SHARE`, 1)
	run(t, pool, `UPDATE notes SET note = 'two'`)
	ended := make(chan error)
	go func() {
		_, err := pool.Exec(context.Background(), `UPDATE notes SET id = 2`)
		ended <- err
	}()
	if err := blocker.Await(t.Context()); err != nil {
		t.Error(err)
	}
	blocker.Release()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// failing stands in for a test that is expected to fail.
type failing struct {
	*testing.T
	failed bool
}

func (f *failing) Fatalf(string, ...any) { f.failed = true; panic(f) }

func TestBlockNothing(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	f := &failing{T: t}
	defer func() {
		if recover() != f || !f.failed {
			t.Error("a lock on no row was taken for one")
		}
	}()
	fault.Block(f, url, `SELECT FROM notes WHERE id = 1 FOR UPDATE`)
}

func TestAwaitBlockedEndsWithItsContext(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := fault.AwaitBlocked(ctx, pool, fault.Backends{App: "nobody"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AwaitBlocked = %v", err)
	}
}

func TestTerminate(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	one, two := connect(t, url, "worker"), connect(t, url, "worker")
	other := connect(t, url, "other")
	run(t, other, `SELECT 'other'`)
	n, err := fault.Terminate(t.Context(), pool, fault.Backends{App: "worker"})
	if n != 2 || err != nil {
		t.Errorf("Terminate = %d, %v, want 2", n, err)
	}
	for _, conn := range []*pgx.Conn{one, two} {
		var pg *pgconn.PgError
		if _, err := conn.Exec(t.Context(), `SELECT`); !errors.As(err, &pg) || pg.Code != "57P01" {
			t.Errorf("a terminated session answers %v", err)
		}
	}
	run(t, other, `SELECT 'other'`)
	if n, err := fault.Terminate(t.Context(), pool, fault.Backends{Query: `%'other'%`}); n != 1 || err != nil {
		t.Errorf("Terminate by statement = %d, %v, want 1", n, err)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	worker := connect(t, url, "worker")
	blocker := fault.Block(t, url, `LOCK TABLE notes`)
	ended := make(chan error)
	go func() {
		_, err := worker.Exec(context.Background(), `TABLE notes`)
		ended <- err
	}()
	if err := blocker.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n, err := fault.Cancel(t.Context(), pool, fault.Backends{App: "worker"}); n != 1 || err != nil {
		t.Errorf("Cancel = %d, %v, want 1", n, err)
	}
	var pg *pgconn.PgError
	if err := <-ended; !errors.As(err, &pg) || pg.Code != "57014" {
		t.Errorf("a cancelled statement returned %v", err)
	}
	run(t, worker, `SELECT`)
}

func TestTracer(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	var tracer fault.Tracer
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.Tracer = &tracer
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	tx := begin(t, conn)
	run(t, tx, insert, 1, "one")
	batch := &pgx.Batch{}
	batch.Queue(insert, 2, "two")
	batch.Queue(`SELECT`)
	if err := tx.SendBatch(t.Context(), batch).Close(); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tracer.Statements(), []string{"begin", insert, insert, `SELECT`, "commit"}); diff != "" {
		t.Errorf("statements (-got +want):\n%s", diff)
	}
	if n := tracer.Count(fault.Containing("INTO notes")); n != 2 {
		t.Errorf("Count = %d, want 2", n)
	}
	tracer.Reset()
	if got := tracer.Statements(); len(got) != 0 {
		t.Errorf("statements after Reset: %q", got)
	}
}

func TestLeast(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	conn := connect(t, url, "worker")
	run(t, conn, `CREATE SEQUENCE tokens`)
	run(t, conn, insert, 1, "one")
	for _, test := range []struct {
		sql       string
		xids, seq int64
		wal       bool
	}{
		{`SELECT`, 0, 0, false},
		{`TABLE notes`, 0, 0, false},
		{`UPDATE notes SET note = 'two'`, 1, 0, true},
		{`UPDATE notes SET note = 'two' WHERE false`, 0, 0, false},
		{`SELECT FROM notes FOR UPDATE`, 1, 0, true},
		{`SELECT nextval('tokens') FROM generate_series(1, 3)`, 0, 3, false},
	} {
		act := func() error {
			_, err := conn.Exec(t.Context(), test.sql)
			return err
		}
		// Other tests make whole databases meanwhile, so it may take some runs
		// to see one that nobody disturbed.
		unseen := fault.Cost{WAL: -1}
		c := unseen
		spent := func() bool { return c.XIDs == test.xids && c.Sequences == test.seq && c.WAL > 0 == test.wal }
		for start := time.Now(); c == unseen || !spent() && time.Since(start) < fault.Patience; {
			var err error
			if c, err = fault.Least(t.Context(), pool, 20, act, "tokens"); err != nil {
				t.Fatal(err)
			}
		}
		if !spent() {
			t.Errorf("%s: %+v, want %+v", test.sql, c, test)
		}
	}
}

func TestLeastReturnsErrors(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	why := errors.New("why")
	if _, err := fault.Least(t.Context(), pool, 2, func() error { return why }); err != why {
		t.Errorf("Least = %v", err)
	}
	var pg *pgconn.PgError
	if _, err := fault.ReadCost(t.Context(), pool, "missing"); !errors.As(err, &pg) || pg.Code != "42P01" {
		t.Errorf("ReadCost = %v", err)
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	const ledger = fault.Ledger("ledger")
	if err := ledger.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	record := func(db fault.DB, id string, token uint64) {
		t.Helper()
		if err := ledger.Record(t.Context(), db, id, token); err != nil {
			t.Fatal(err)
		}
	}
	check := func() error {
		t.Helper()
		return ledger.Check(t.Context(), pool)
	}

	record(pool, "a", 3)
	record(pool, "a", 3)
	record(pool, "a", 7)
	record(pool, "b", 5)
	zombie := begin(t, connect(t, url, "zombie"))
	record(zombie, "b", 5)
	record(pool, "b", 6)
	if err := check(); err != nil {
		t.Errorf("Check = %v with nothing out of order committed", err)
	}
	// It wrote first, it commits last.
	if err := zombie.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := `fault: ledger: ["b: token 5 committed after token 6 wrote"]`
	if err := check(); err == nil || err.Error() != want {
		t.Errorf("Check = %v, want %s", err, want)
	}
	record(pool, "a", 6)
	if err := check(); err == nil || err.Error() == want {
		t.Errorf("Check = %v, want a's token 6 too", err)
	}
}
