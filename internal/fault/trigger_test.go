package fault_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/aetomala/worklease/internal/fault"
)

const insert = `INSERT INTO notes VALUES ($1, $2)`

// Whatever way pgx sends a statement, the server runs it and the client never
// hears of it.
func TestSwallowReply(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			run(t, pool, `TRUNCATE notes`)
			p := fault.NewProxy(t, url)
			worker := connect(t, p.URL(url), "worker")
			run(t, worker, insert, mode, 1, "one")
			lost := p.SwallowReply(fault.Containing("INTO notes"), 1, fault.Reset)
			_, err := worker.Exec(t.Context(), insert, mode, 2, "two")
			if err == nil || pgconn.SafeToRetry(err) {
				t.Errorf("Exec = %v, want an unknown outcome", err)
			}
			answered(t, lost)
			// Spent: the next one passes.
			run(t, connect(t, p.URL(url), "worker"), insert, mode, 3, "three")
			if diff := cmp.Diff(notes(t, pool), []string{"1 one", "2 two", "3 three"}); diff != "" {
				t.Errorf("notes (-got +want):\n%s", diff)
			}
		})
	}
}

func TestSwallowReplyOfCommit(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	lost := p.Only("worker").SwallowReply(fault.Commit, 2, fault.Reset)
	for id := range 2 {
		tx := begin(t, connect(t, p.URL(url), "worker"))
		run(t, tx, insert, id, "worker")
		if err := tx.Commit(t.Context()); err == nil {
			t.Error("a commit without a reply succeeded")
		}
		answered(t, lost)
	}
	tx := begin(t, connect(t, p.URL(url), "other"))
	run(t, tx, insert, 7, "other")
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("another's commit: %v", err)
	}
	if diff := cmp.Diff(notes(t, pool), []string{"0 worker", "1 worker", "7 other"}); diff != "" {
		t.Errorf("notes (-got +want):\n%s", diff)
	}
}

func TestSwallowReplyOfABatch(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	lost := p.SwallowReply(fault.Containing("UPDATE notes"), 1, fault.Reset)
	batch := &pgx.Batch{}
	batch.Queue(insert, 1, "one")
	batch.Queue(`UPDATE notes SET note = $1`, "changed")
	batch.Queue(insert, 2, "two")
	if err := conn.SendBatch(t.Context(), batch).Close(); err == nil {
		t.Error("a batch without a reply succeeded")
	}
	answered(t, lost)
	if diff := cmp.Diff(notes(t, pool), []string{"1 changed", "2 two"}); diff != "" {
		t.Errorf("notes (-got +want):\n%s", diff)
	}
}

func TestSwallowReplyAndFallSilent(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	lost := p.SwallowReply(fault.Commit, 1, fault.Silence)
	tx := begin(t, conn)
	run(t, tx, insert, 1, "one")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- tx.Commit(ctx) }()
	answered(t, lost)
	if diff := cmp.Diff(notes(t, pool), []string{"1 one"}); diff != "" {
		t.Errorf("notes (-got +want):\n%s", diff)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Commit = %v", err)
	}
	hangUp(conn)
	if n := count(t, pool, "worker"); n != 1 {
		t.Errorf("%d sessions behind the silence, want 1", n)
	}
}

func TestAnsweredTellsARefusal(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	run(t, pool, insert, 1, "one")
	conn := connect(t, p.URL(url), "worker")
	lost := p.SwallowReply(fault.Containing("INTO notes"), 1, fault.Reset)
	if _, err := conn.Exec(t.Context(), insert, 1, "again"); err == nil {
		t.Error("no error")
	}
	var pg *pgconn.PgError
	if err := lost.Answered(t.Context()); !errors.As(err, &pg) || pg.Code != "23505" {
		t.Errorf("Answered = %v, want a unique violation", err)
	}
}

func TestHoldReply(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	held := p.HoldReply(fault.Containing("INTO notes"), 1)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), insert, 1, "one")
		ended <- err
	}()
	answered(t, held)
	if diff := cmp.Diff(notes(t, pool), []string{"1 one"}); diff != "" {
		t.Errorf("notes (-got +want):\n%s", diff)
	}
	select {
	case err := <-ended:
		t.Errorf("Exec ended before its reply: %v", err)
	default:
	}
	held.Release()
	if err := <-ended; err != nil {
		t.Errorf("Exec after Release: %v", err)
	}
	run(t, conn, insert, 2, "two")
}

// A late statement: it reaches the server long after its client gave up and
// wrote something newer through another connection.
func TestHoldRequest(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	run(t, pool, insert, 1, "step 1")
	conn := connect(t, p.URL(url), "worker")
	const update = `UPDATE notes SET note = $1`
	run(t, conn, update, "step 1") // Prepared from here on.

	held := p.HoldRequest(fault.Containing("UPDATE notes"), 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(ctx, update, "step 2")
		ended <- err
	}()
	if err := held.Fired(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Exec = %v", err)
	}
	run(t, connect(t, p.URL(url), "worker"), update, "step 3")
	if diff := cmp.Diff(notes(t, pool), []string{"1 step 3"}); diff != "" {
		t.Errorf("before Release (-got +want):\n%s", diff)
	}
	held.Release()
	if err := held.Answered(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(notes(t, pool), []string{"1 step 2"}); diff != "" {
		t.Errorf("after Release (-got +want):\n%s", diff)
	}
}

func TestHoldRequestCut(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	held := p.HoldRequest(fault.Containing("INTO notes"), 1)
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(context.Background(), insert, 1, "one")
		ended <- err
	}()
	if err := held.Fired(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Cut()
	if err := <-ended; err == nil {
		t.Error("Exec on a connection that was cut succeeded")
	}
	if err := held.Answered(t.Context()); err == nil {
		t.Error("answered by a connection that was cut")
	}
	awaitCount(t, pool, "worker", 0)
	if got := notes(t, pool); len(got) != 0 {
		t.Errorf("notes = %q, want none", got)
	}
}

func TestDropRequest(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	for name, then := range map[string]fault.Then{"reset": fault.Reset, "silence": fault.Silence} {
		t.Run(name, func(t *testing.T) {
			p := fault.NewProxy(t, url)
			conn := connect(t, p.URL(url), "worker")
			dropped := p.DropRequest(fault.Commit, 1, then)
			tx := begin(t, conn)
			run(t, tx, insert, 1, "one")
			ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
			defer cancel()
			ended := make(chan error)
			go func() { ended <- tx.Commit(ctx) }()
			if err := dropped.Fired(t.Context()); err != nil {
				t.Fatal(err)
			}
			if then == fault.Silence {
				if n := count(t, pool, "worker"); n != 1 {
					t.Errorf("%d sessions behind the silence, want 1", n)
				}
				cancel()
			}
			if err := <-ended; err == nil {
				t.Error("a commit that was dropped succeeded")
			}
			if err := dropped.Answered(t.Context()); err == nil {
				t.Error("a commit that was dropped was answered")
			}
			p.Cut()
			awaitCount(t, pool, "worker", 0)
			if got := notes(t, pool); len(got) != 0 {
				t.Errorf("notes = %q, want none", got)
			}
		})
	}
}

func TestAnsweredWhenTheServerDies(t *testing.T) {
	t.Parallel()
	url, pool := database(t)
	p := fault.NewProxy(t, url)
	conn := connect(t, p.URL(url), "worker")
	blocker := fault.Block(t, url, `LOCK TABLE notes`)
	lost := p.SwallowReply(fault.Containing("INTO notes"), 1, fault.Reset)
	ended := make(chan error)
	go func() {
		_, err := conn.Exec(context.Background(), `INSERT INTO notes VALUES (1, 'one')`)
		ended <- err
	}()
	if err := blocker.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := fault.Terminate(t.Context(), pool, fault.Backends{App: "worker"}); err != nil {
		t.Fatal(err)
	}
	var pg *pgconn.PgError
	if err := lost.Answered(t.Context()); !errors.As(err, &pg) || pg.Code != "57P01" {
		t.Errorf("Answered = %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("Exec succeeded")
	}
}

func TestTriggerWaitsEndWithTheirContext(t *testing.T) {
	t.Parallel()
	p := fault.NewProxy(t, "postgres://127.0.0.1:1/x")
	trigger := p.HoldRequest(fault.Commit, 1)
	why := errors.New("why")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := trigger.Fired(ctx); !errors.Is(err, why) {
		t.Errorf("Fired = %v", err)
	}
	if err := trigger.Answered(ctx); !errors.Is(err, why) {
		t.Errorf("Answered = %v", err)
	}
}

func TestCommitMatch(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit": true, " COMMIT;\n": true, "commit prepared 'x'": false, "SELECT 'commit'": false, "": false,
	} {
		if got := fault.Commit(sql); got != want {
			t.Errorf("Commit(%q) = %v", sql, got)
		}
	}
}

func begin(t *testing.T, conn *pgx.Conn) pgx.Tx {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

func answered(t *testing.T, trigger *fault.Trigger) {
	t.Helper()
	if err := errors.Join(trigger.Fired(t.Context()), trigger.Answered(t.Context())); err != nil {
		t.Fatal(err)
	}
}
