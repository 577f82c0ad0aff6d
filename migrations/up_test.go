package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/v05"
	"github.com/aetomala/worklease/migrations"
)

const (
	latest   = 1
	ternLock = int64(9628173550095224)
)

func TestUpInstallsInAnySchema(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	for _, name := range []string{"public", "My Schema", "a.b", `q"x`, "o'brien", "x$name", strings.Repeat("s", 63)} {
		inSchema := migrations.WithSchema(name)
		wantStatus(t, conn, 0, inSchema)
		up(t, conn, inSchema, nil)
		wantStatus(t, conn, latest, inSchema)
		up(t, conn, inSchema)

		table := pgx.Identifier{name, "worklease_leases"}.Sanitize()
		for want := int64(1); want <= 2; want++ {
			got := get[int64](t, conn, `INSERT INTO `+table+` (work_id, holder_id, expires_at) VALUES ($1::text, 'h', now()) RETURNING fencing_token`, fmt.Sprint(want))
			if got != want {
				t.Errorf("schema %q: token %d, want %d: the sequence is not its own", name, got, want)
			}
		}
		note := pgx.Identifier{name, "worklease_schema_version"}.Sanitize()
		if got := get[int](t, conn, `SELECT version FROM `+note); got != latest {
			t.Errorf("schema %q: tern's table says %d, want %d", name, got, latest)
		}
	}
}

func TestSchemaNamesThatCannotWork(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	for _, name := range []string{"", strings.Repeat("s", 64), "a\x00b", "a\xffb", "a$name$b", "$adopt$"} {
		if err := migrations.Up(t.Context(), conn, migrations.WithSchema(name)); !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("Up in schema %q: %v", name, err)
		}
		if _, err := migrations.Status(t.Context(), conn, migrations.WithSchema(name)); !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("Status of schema %q: %v", name, err)
		}
		if _, err := migrations.SQL(name, 0); !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("SQL for schema %q: %v", name, err)
		}
	}
}

// S49: what is up to date is not kept waiting by whoever holds the lock.
func TestUpToDateTakesNoLock(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	up(t, conn)
	other := connect(t, conn.Config().ConnString())
	exec(t, other, `SELECT pg_advisory_lock($1::bigint)`, ternLock)

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := migrations.Up(ctx, conn); err != nil {
		t.Errorf("Up while another session holds the lock: %v", err)
	}
}

// S49: a stuck lock is told with the process to look at, and the caller's context is kept.
func TestUpNamesTheHolderOfTheLock(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	other := connect(t, conn.Config().ConnString())
	exec(t, other, `SELECT pg_advisory_lock($1::bigint)`, ternLock)

	why := errors.New("deploy called off")
	for _, c := range []struct {
		name string
		ctx  func() (context.Context, context.CancelFunc)
		want error
	}{
		{"deadline", func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 200*time.Millisecond)
		}, context.DeadlineExceeded},
		{"cause", func() (context.Context, context.CancelFunc) {
			return context.WithTimeoutCause(t.Context(), 200*time.Millisecond, why)
		}, why},
	} {
		ctx, cancel := c.ctx()
		err := migrations.Up(ctx, conn)
		cancel()
		if !errors.Is(err, c.want) {
			t.Errorf("%s: Up returned %v, want one that Is %v", c.name, err, c.want)
		}
		if pid := fmt.Sprintf("held by server process %d:", other.PgConn().PID()); !strings.Contains(fmt.Sprint(err), pid) {
			t.Errorf("%s: Up returned %q, which does not say %q", c.name, err, pid)
		}
	}

	exec(t, other, `SELECT pg_advisory_unlock($1::bigint)`, ternLock)
	up(t, conn) // on the connection that waited in vain
	wantStatus(t, conn, latest)
	wantNoLock(t, other)
}

func TestUpLeavesTheSessionAsItWas(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, `SET search_path = 'a b', pg_catalog, public`)
	exec(t, conn, `SET statement_timeout = '59s'`)
	exec(t, conn, `SET default_transaction_isolation = 'serializable'`)
	exec(t, conn, `SET TIME ZONE 'Asia/Kolkata'`)
	const settings = `SELECT string_agg(name || '=' || current_setting(name), E'\n' ORDER BY name) FROM pg_settings WHERE source = 'session'`
	before := get[string](t, conn, settings)
	up(t, conn)
	if after := get[string](t, conn, settings); after != before {
		t.Errorf("session settings after Up:\n%s\nbefore:\n%s", after, before)
	}
	wantNoLock(t, conn)
}

// A migration that fails gives lock and settings back too.
func TestFailedUpLeavesTheConnectionUsable(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, v05.Table)
	exec(t, conn, `CREATE VIEW mine AS SELECT work_id FROM worklease_leases`)
	exec(t, conn, `SET statement_timeout = '59s'`)
	err := migrations.Up(t.Context(), conn)
	if !hasCode(err, "0A000") {
		t.Fatalf("Up returned %v, want PostgreSQL's refusal to alter a column under a view", err)
	}
	wantNoLock(t, conn)
	if got := get[string](t, conn, `SHOW statement_timeout`); got != "59s" {
		t.Errorf("statement_timeout is %s, want 59s", got)
	}
	wantStatus(t, conn, 0)

	exec(t, conn, `DROP VIEW mine`)
	up(t, conn)
	wantStatus(t, conn, latest)
}

func TestUpRefusesATransaction(t *testing.T) {
	t.Parallel()
	if err := migrations.Up(t.Context(), nil); !errors.Is(err, worklease.ErrInvalid) {
		t.Errorf("Up on no connection returned %v", err)
	}
	conn := emptyDB(t)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), conn); !errors.Is(err, worklease.ErrInvalid) || !strings.Contains(err.Error(), "DisableFuncTx") {
		t.Errorf("Up in a transaction returned %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the transaction is harmed: %v", err)
	}
}

func TestUpInAnEndedContext(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migrations.Up(ctx, conn); !errors.Is(err, context.Canceled) {
		t.Errorf("Up returned %v", err)
	}
	up(t, conn)
}

func TestUpInsideATernChain(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	m, err := migrate.NewMigrator(t.Context(), conn, "public.schema_version")
	if err != nil {
		t.Fatal(err)
	}
	m.AppendMigration("001_orders.sql", `CREATE TABLE orders (id bigint PRIMARY KEY)`, `DROP TABLE orders`)
	m.Migrations = append(m.Migrations, &migrate.Migration{
		Sequence:      2,
		Name:          "002_worklease",
		UpFunc:        func(ctx context.Context, conn *pgx.Conn) error { return migrations.Up(ctx, conn) },
		DisableFuncTx: true,
	})
	if err := m.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, conn, latest)
	wantNoted(t, conn, latest)
	if got := get[int](t, conn, `SELECT version FROM public.schema_version`); got != 2 {
		t.Errorf("the user's own version is %d, want 2", got)
	}
	wantNoLock(t, conn)
}

// Whoever installed it: Up succeeds, notes the version and changes nothing.
func TestInstalledByOthers(t *testing.T) {
	t.Parallel()
	rendered := func(t *testing.T, conn *pgx.Conn) {
		sql, err := migrations.SQL("public", 0)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, conn, sql)
	}
	for name, install := range map[string]func(*testing.T, *pgx.Conn){
		"rendered SQL": rendered,
		"tern without data and with its default version table": func(t *testing.T, conn *pgx.Conn) {
			if err := ternMigrator(t, conn, "public.schema_version").Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"tern with our version table": func(t *testing.T, conn *pgx.Conn) {
			if err := ternMigrator(t, conn, "public.worklease_schema_version").Migrate(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"a dump without comments": func(t *testing.T, conn *pgx.Conn) {
			rendered(t, conn)
			exec(t, conn, `COMMENT ON TABLE worklease_leases IS NULL`)
		},
		"a comment of the user's": func(t *testing.T, conn *pgx.Conn) {
			rendered(t, conn)
			exec(t, conn, `COMMENT ON TABLE worklease_leases IS 'ask the platform team'`)
		},
		"a note that lags behind": func(t *testing.T, conn *pgx.Conn) {
			up(t, conn)
			exec(t, conn, `UPDATE worklease_schema_version SET version = 0`)
		},
		"a note without a row": func(t *testing.T, conn *pgx.Conn) {
			up(t, conn)
			exec(t, conn, `DELETE FROM worklease_schema_version`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := emptyDB(t)
			install(t, conn)
			before := fingerprint(t, conn)
			wantStatus(t, conn, latest)
			up(t, conn)
			wantStatus(t, conn, latest)
			wantNoted(t, conn, latest)
			if after := fingerprint(t, conn); after != before {
				t.Errorf("Up changed\n%s\nto\n%s", before, after)
			}
		})
	}
}

// The catalog decides, not the note: a table that is gone is installed again.
func TestUpAfterTheTableWasDropped(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	up(t, conn)
	exec(t, conn, `DROP TABLE worklease_leases`)
	wantStatus(t, conn, 0)
	up(t, conn)
	wantStatus(t, conn, latest)
	wantNoted(t, conn, latest)
}

// psql goes on after an error unless told otherwise, up to the COMMENT.
func TestACommentAloneIsNoVersion(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, v05.Table)
	exec(t, conn, `COMMENT ON TABLE worklease_leases IS 'worklease schema version 1'`)
	wantStatus(t, conn, 0)
	up(t, conn)
	wantStatus(t, conn, latest)
}

func TestNewerSchemaIsAccepted(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	up(t, conn)
	exec(t, conn, `ALTER TABLE worklease_leases ADD COLUMN shard integer NOT NULL DEFAULT 0`)
	wantStatus(t, conn, latest)
	exec(t, conn, `COMMENT ON TABLE worklease_leases IS 'worklease schema version 99'`)
	exec(t, conn, `UPDATE worklease_schema_version SET version = 99`)
	before := fingerprint(t, conn)

	up(t, conn)
	wantStatus(t, conn, 99)
	wantNoted(t, conn, 99)
	if after := fingerprint(t, conn); after != before {
		t.Errorf("Up changed\n%s\nto\n%s", before, after)
	}
	if sql, err := migrations.SQL("public", 99); sql != "" || err != nil {
		t.Errorf("SQL after version 99: %q, %v", sql, err)
	}
}

func TestMigrationsMayRunTwice(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	sql, err := migrations.SQL("public", 0)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, sql)
	exec(t, conn, `INSERT INTO worklease_leases (work_id, holder_id, expires_at) VALUES ('a', 'h', now())`)
	exec(t, conn, `SELECT setval('worklease_fencing_seq', 500)`)
	exec(t, conn, `CREATE VIEW mine AS SELECT work_id, holder_id FROM worklease_leases`) // refuses an ALTER of the columns' types
	before := fingerprint(t, conn)
	exec(t, conn, sql)
	if after := fingerprint(t, conn); after != before {
		t.Errorf("the second run changed\n%s\nto\n%s", before, after)
	}
	if got := get[int64](t, conn, `SELECT nextval('worklease_fencing_seq')`); got != 501 {
		t.Errorf("next token %d, want 501", got)
	}
}

func TestDownAndUpAgain(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	up(t, conn)
	m := ternMigrator(t, conn, "public.worklease_schema_version")
	if err := m.MigrateTo(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, conn, 0)
	if left := get[int](t, conn, `SELECT count(*) FROM pg_class WHERE relname LIKE '%worklease%' AND relname <> 'worklease_schema_version'`); left != 0 {
		t.Errorf("%d objects left after the down migration", left)
	}
	up(t, conn)
	wantStatus(t, conn, latest)
}

// S51: what the documentation grants is enough for the running service, and Up at
// its start is no fault there.
func TestDocumentedRights(t *testing.T) {
	t.Parallel()
	conn := superuser(t, emptyDB(t))
	app := role(t, conn)
	exec(t, conn, `REVOKE ALL ON SCHEMA public FROM public`)
	sql, err := migrations.SQL("public", 0)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, conn, sql)
	for _, grant := range grants(t) {
		exec(t, conn, strings.ReplaceAll(grant, "TO app", "TO "+app))
	}

	service := connect(t, conn.Config().ConnString())
	exec(t, service, `SET ROLE `+app)
	wantStatus(t, service, latest)
	up(t, service) // may not note the version
	up(t, conn)
	up(t, service) // may not read the note
	for _, stmt := range v05Statements {
		exec(t, service, stmt.sql, stmt.args...)
	}
	exec(t, service, `DELETE FROM worklease_leases`)
	if _, err := service.Exec(t.Context(), `SELECT nextval('worklease_fencing_seq')`); err != nil {
		t.Errorf("draw a token: %v", err)
	}
	if _, err := service.Exec(t.Context(), `DROP TABLE worklease_leases`); !hasCode(err, "42501") {
		t.Errorf("the service's role may drop the table: %v", err)
	}
}

func TestStatusNeedsNoRight(t *testing.T) {
	t.Parallel()
	conn := superuser(t, emptyDB(t))
	up(t, conn)
	exec(t, conn, `REVOKE ALL ON SCHEMA public FROM public`)
	exec(t, conn, `SET ROLE `+role(t, conn))
	wantStatus(t, conn, latest)
}

// A role that may create tables in a schema, but no schemas.
func TestUpWithoutCreateOnTheDatabase(t *testing.T) {
	t.Parallel()
	conn := superuser(t, emptyDB(t))
	owner := role(t, conn)
	inSchema := migrations.WithSchema("lease")
	exec(t, conn, `SET ROLE `+owner)
	if err := migrations.Up(t.Context(), conn, inSchema); !hasCode(err, "42501") {
		t.Errorf("Up without the schema and without the right to create it: %v", err)
	}
	exec(t, conn, `RESET ROLE`)
	exec(t, conn, `CREATE SCHEMA lease AUTHORIZATION `+owner)
	exec(t, conn, `SET ROLE `+owner)
	up(t, conn, inSchema)
	wantStatus(t, conn, latest, inSchema)
	if got := get[string](t, conn, `SELECT current_user`); got != owner {
		t.Errorf("the role is now %s", got)
	}
}

// What the session is used to must not matter, nor what stands in the user's schema.
func TestUpInAnAwkwardSession(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	exec(t, conn, `CREATE TABLE public.schema_version (version integer); INSERT INTO public.schema_version VALUES (42)`)
	for i, set := range []string{
		`SET search_path = ''`,
		`SET default_transaction_isolation = 'serializable'`,
		`SET standard_conforming_strings = off`,
		`SET lock_timeout = '10s'`,
		`SET timezone = 'Asia/Kathmandu'`,
	} {
		exec(t, conn, set)
		inSchema := migrations.WithSchema(fmt.Sprintf(`awkward \ '"%d`, i))
		up(t, conn, inSchema)
		wantStatus(t, conn, latest, inSchema)
	}
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		cfg := conn.Config().Copy()
		cfg.DefaultQueryExecMode = mode
		other, err := pgx.ConnectConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close(context.Background()) })
		inSchema := migrations.WithSchema(mode.String())
		up(t, other, inSchema)
		up(t, other, inSchema)
		wantStatus(t, other, latest, inSchema)
	}
	if got := get[int](t, conn, `SELECT version FROM public.schema_version`); got != 42 {
		t.Errorf("the application's schema_version is now %d", got)
	}
}

func ternMigrator(t *testing.T, conn *pgx.Conn, versionTable string) *migrate.Migrator {
	t.Helper()
	m, err := migrate.NewMigrator(t.Context(), conn, versionTable)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.LoadMigrations(migrations.FS); err != nil {
		t.Fatal(err)
	}
	return m
}

// wantNoLock checks that nobody in conn's database holds tern's lock, conn included.
func wantNoLock(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	if n := get[int](t, conn, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
		t.Errorf("%d advisory locks are held", n)
	}
}

func hasCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

// grants reads the GRANT lines of the package comment.
func grants(t *testing.T) (lines []string) {
	t.Helper()
	source, err := os.ReadFile("migrations.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(source)) {
		if grant, ok := strings.CutPrefix(strings.TrimSpace(line), "//\tGRANT "); ok {
			lines = append(lines, "GRANT "+grant)
		}
	}
	if len(lines) == 0 {
		t.Fatal("the package comment has no GRANT")
	}
	return lines
}
