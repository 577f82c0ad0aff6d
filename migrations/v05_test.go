package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease/internal/v05"
	"github.com/aetomala/worklease/migrations"
)

var v05Statements = []struct {
	sql  string
	args []any
}{
	{v05.Acquire, []any{"w", "h", time.Minute}},
	{v05.Checkpoint, []any{"w", "h", 1, []byte("state"), time.Minute}},
	{v05.Renew, []any{"w", "h", 1, time.Minute}},
	{v05.Read, []any{"w"}},
	{v05.Release, []any{"w", "h", 1}},
}

// v05Row is what v0.5 knows of a row.
type v05Row struct {
	WorkID, HolderID      string
	FencingToken          int64
	ExpiresAt             time.Time
	Checkpoint            []byte
	CleanHandoff          bool
	AcquiredAt, UpdatedAt time.Time
}

func v05Rows(t *testing.T, conn *pgx.Conn) []v05Row {
	t.Helper()
	rows, _ := conn.Query(t.Context(), `
		SELECT work_id, holder_id, fencing_token, expires_at, checkpoint, clean_handoff, acquired_at, updated_at
		FROM worklease_leases ORDER BY work_id COLLATE "C"`,
		pgx.QueryExecModeExec) // a prepared SELECT of work_id does not survive the change of its collation
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[v05Row])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Each way to install adopts the rows of v0.5 as they are.
func TestAdoptKeepsEveryLease(t *testing.T) {
	t.Parallel()
	for name, install := range map[string]func(*testing.T, *pgx.Conn){
		"Up": func(t *testing.T, conn *pgx.Conn) { up(t, conn) },
		"tern": func(t *testing.T, conn *pgx.Conn) {
			if err := ternMigrator(t, conn, "public.worklease_schema_version").Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"rendered SQL": func(t *testing.T, conn *pgx.Conn) {
			sql, err := migrations.SQL("public", 0)
			if err != nil {
				t.Fatal(err)
			}
			exec(t, conn, sql)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := emptyDB(t)
			exec(t, conn, v05.Table)
			exec(t, conn, `
				INSERT INTO worklease_leases (work_id, holder_id, expires_at, checkpoint, clean_handoff) VALUES
				('held', 'a', now() + interval '1 hour', NULL, false),
				('checkpointed', 'b', now() + interval '1 hour', '\x00ff', false),
				('released', 'c', now() - interval '1 ms', '\x01', true),
				('lapsed', 'd', now() - interval '1 day', '', false),
				('Ünicode', 'e', now() + interval '1 hour', NULL, false)`)
			exec(t, conn, `SELECT setval('worklease_fencing_seq', 1000)`)
			before := v05Rows(t, conn)
			wantStatus(t, conn, 0)

			install(t, conn)
			wantStatus(t, conn, latest)
			if diff := cmp.Diff(v05Rows(t, conn), before); diff != "" {
				t.Errorf("rows after the adoption (-) and before (+):\n%s", diff)
			}
			if n := get[int](t, conn, `SELECT count(*) FROM pg_class WHERE relname = 'idx_worklease_leases_updated_at'`); n != 0 {
				t.Error("v0.5's index is still there")
			}
			if got := get[int64](t, conn, `SELECT nextval('worklease_fencing_seq')`); got != 1001 {
				t.Errorf("next token %d, want 1001", got)
			}
			if got := get[string](t, conn, `
				SELECT c.collname FROM pg_attribute a JOIN pg_collation c ON c.oid = a.attcollation
				WHERE a.attrelid = 'worklease_leases'::regclass AND a.attname = 'work_id'`); got != "C" {
				t.Errorf("work_id has the collation %s, want C", got)
			}
		})
	}
}

func TestAdoptRaisesTheSequence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		tokens []int64
		setval int64 // 0: never used
		want   int64
	}{
		{"never used, no rows", nil, 0, 1},
		{"never used, a row with its first value", []int64{1}, 0, 2},
		{"never used, rows ahead", []int64{7, 3}, 0, 8},
		{"rows ahead", []int64{500, 2}, 3, 501},
		{"rows level", []int64{3}, 3, 4},
		{"rows behind", []int64{3}, 900, 901},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			conn := emptyDB(t)
			exec(t, conn, v05.Table)
			for _, token := range c.tokens {
				exec(t, conn, `INSERT INTO worklease_leases (work_id, holder_id, fencing_token, expires_at) VALUES ($1::text, 'h', $2::bigint, now())`, fmt.Sprint(token), token)
			}
			if c.setval > 0 {
				exec(t, conn, `SELECT setval('worklease_fencing_seq', $1::bigint)`, c.setval)
			}
			up(t, conn)
			if got := get[int64](t, conn, `SELECT nextval('worklease_fencing_seq')`); got != c.want {
				t.Errorf("next token %d, want %d", got, c.want)
			}
		})
	}
}

// v0.5 processes run before, during and after the adoption, and notice nothing but
// a wait.
func TestAdoptBesideRunningV05(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, v05.Table)

	const workers = 4
	stop := make(chan struct{})
	rounds := make(chan int) // a round nobody counts holds nobody up
	var wg sync.WaitGroup
	finish := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer finish()
	for i := range workers {
		worker := connect(t, conn.Config().ConnString())
		wg.Go(func() {
			if err := runV05(t.Context(), worker, i, stop, rounds); err != nil {
				t.Errorf("v0.5 process %d: %v", i, err)
			}
		})
	}
	// A phase is three rounds of each worker.
	phase := func(name string) {
		seen := map[int]int{}
		deadline := time.After(30 * time.Second)
		for done := 0; done < workers; {
			select {
			case i := <-rounds:
				if seen[i]++; seen[i] == 3 {
					done++
				}
			case <-deadline:
				t.Fatalf("v0.5 processes stand still %s the adoption: rounds %v", name, seen)
			}
		}
	}
	phase("before")
	up(t, conn)
	phase("after")
	finish()
	wantStatus(t, conn, latest)
}

// runV05 works on a work ID of its own and on one that all share. A lost race for
// the shared one is no failure.
func runV05(ctx context.Context, conn *pgx.Conn, worker int, stop <-chan struct{}, rounds chan<- int) error {
	holder := fmt.Sprintf("v0.5-%d", worker)
	own := fmt.Sprintf("own-%d", worker)
	last := map[string]int64{}
	for round := 0; ; round++ {
		select {
		case <-stop:
			return nil
		default:
		}
		for _, workID := range []string{own, "shared"} {
			var token int64
			var expires time.Time
			err := conn.QueryRow(ctx, v05.Acquire, workID, holder, time.Minute).Scan(&token, &expires)
			if errors.Is(err, pgx.ErrNoRows) && workID == "shared" {
				continue
			}
			if err != nil {
				return fmt.Errorf("acquire %s: %w", workID, err)
			}
			if token <= last[workID] {
				return fmt.Errorf("%s: token %d after %d", workID, token, last[workID])
			}
			last[workID] = token
			state := []byte(fmt.Sprint(round))
			for _, stmt := range []struct {
				name, sql string
				args      []any
			}{
				{"checkpoint", v05.Checkpoint, []any{workID, holder, token, state, time.Minute}},
				{"renew", v05.Renew, []any{workID, holder, token, time.Minute}},
			} {
				tag, err := conn.Exec(ctx, stmt.sql, stmt.args...)
				if err != nil || tag.RowsAffected() != 1 {
					return fmt.Errorf("%s %s: %s, %w", stmt.name, workID, tag, err)
				}
			}
			var readToken int64
			var read []byte
			var clean bool
			if err := conn.QueryRow(ctx, v05.Read, workID).Scan(&readToken, &read, &clean); err != nil {
				return fmt.Errorf("read %s: %w", workID, err)
			}
			if readToken != token || string(read) != string(state) || clean {
				return fmt.Errorf("%s: read token %d, %q, %t; want %d, %q, false", workID, readToken, read, clean, token, state)
			}
			tag, err := conn.Exec(ctx, v05.Release, workID, holder, token)
			if err != nil || tag.RowsAffected() != 1 {
				return fmt.Errorf("release %s: %s, %w", workID, tag, err)
			}
		}
		select {
		case rounds <- worker:
		default:
		}
	}
}
