package migrations_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/v05"
	"github.com/aetomala/worklease/migrations"
)

// migrator is a process of its own. It is told databases, connects to all of them,
// says so, and migrates one after the other as soon as it is told to.
func migrator(ctx context.Context) error {
	told, err := fault.Receive(ctx)
	if err != nil {
		return err
	}
	var urls []string
	if err := told.Decode(&urls); err != nil {
		return err
	}
	conns := make([]*pgx.Conn, len(urls))
	for i, url := range urls {
		if conns[i], err = pgx.Connect(ctx, url); err != nil {
			return err
		}
		defer conns[i].Close(ctx)
	}
	fault.Emit("ready", nil)
	if _, err := fault.Receive(ctx); err != nil {
		return err
	}
	for i, conn := range conns {
		if err := migrations.Up(ctx, conn, raceSchema(i)); err != nil {
			return fmt.Errorf("database %d: %w", i, err)
		}
		info, err := migrations.Status(ctx, conn, raceSchema(i))
		if err != nil || info.Current != info.Latest {
			return fmt.Errorf("database %d: %+v, %w", i, info, err)
		}
	}
	return nil
}

// raceSchema has every other database's schema created in the race too.
func raceSchema(i int) migrations.Option {
	return migrations.WithSchema([]string{"work lease", "public"}[i%2])
}

// startMigrators returns processes that wait at the line.
func startMigrators(t *testing.T, n int, urls []string) []*fault.Child {
	t.Helper()
	children := make([]*fault.Child, n)
	for i := range children {
		children[i] = fault.Spawn(t, "migrator")
		if err := children[i].Send("databases", urls); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range children {
		if _, err := c.Await(t.Context(), fault.Named("ready")); err != nil {
			t.Fatal(err)
		}
	}
	return children
}

func send(t *testing.T, c *fault.Child, event string) {
	t.Helper()
	if err := c.Send(event, nil); err != nil {
		t.Fatal(err)
	}
}

// S50: replicas that start together on an empty database all succeed.
// WORKLEASE_MIGRATION_RACES sets the number of databases.
func TestProcessesRaceOnEmptyDatabases(t *testing.T) {
	t.Parallel()
	races, err := strconv.Atoi(cmp.Or(os.Getenv("WORKLEASE_MIGRATION_RACES"), "3"))
	if err != nil {
		t.Fatal(err)
	}
	var conns []*pgx.Conn
	var urls []string
	for i := range races {
		conn := emptyDB(t)
		if i%3 == 0 { // the processes connect later, and then this is theirs
			exec(t, conn, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', current_database()); END $$`)
		}
		conns = append(conns, conn)
		urls = append(urls, conn.Config().ConnString())
	}
	children := startMigrators(t, 8, urls)
	for _, c := range children {
		send(t, c, "go")
	}
	for _, c := range children {
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for i, conn := range conns {
		wantStatus(t, conn, latest, raceSchema(i))
		wantNoLock(t, conn)
	}
}

// S49: one process is killed in the middle of its migration, and the others go on.
func TestProcessKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, `CREATE SCHEMA "work lease"; SET search_path = "work lease"`)
	exec(t, conn, v05.Table)
	children := startMigrators(t, 4, []string{conn.Config().ConnString()})

	// A reader of the table keeps the first process inside its transaction.
	reader := connect(t, conn.Config().ConnString())
	exec(t, reader, `BEGIN; LOCK TABLE "work lease".worklease_leases IN ACCESS SHARE MODE`)
	send(t, children[0], "go")
	await(t, conn, `SELECT count(*) = 1 FROM pg_locks WHERE relation = '"work lease".worklease_leases'::regclass AND NOT granted`)
	for _, c := range children[1:] {
		send(t, c, "go")
	}
	children[0].Kill()
	exec(t, reader, `COMMIT`)

	for _, c := range children[1:] {
		if err := c.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantStatus(t, conn, latest, raceSchema(0))
	wantNoLock(t, conn)
}

// await asks until the database says true. The database sets the pace.
func await(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
	defer cancel()
	for yes := false; !yes; {
		if err := conn.QueryRow(ctx, sql).Scan(&yes); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}
