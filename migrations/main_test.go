package migrations_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/migrations"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{"migrator": migrator})
	pgtest.Main(m)
}

// emptyDB makes a database for this test and connects as its owner, an ordinary role.
func emptyDB(t *testing.T) *pgx.Conn {
	t.Helper()
	return connect(t, pgtest.Database(t, pgtest.Empty()))
}

// superuser opens another connection to conn's database, with all rights.
func superuser(t *testing.T, conn *pgx.Conn) *pgx.Conn {
	t.Helper()
	return connect(t, pgtest.AdminURL(t, conn.Config().ConnString()))
}

// role makes a role without any right, which conn's user may SET.
func role(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	name := "worklease_" + strings.ToLower(rand.Text())
	admin := superuser(t, conn)
	exec(t, admin, `CREATE ROLE `+name)
	exec(t, admin, `GRANT `+name+` TO `+pgx.Identifier{conn.Config().User}.Sanitize())
	t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, admin.Config().ConnString())
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// connect opens another connection to the database of url.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
	defer cancel()
	if _, err := conn.Exec(ctx, sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// get returns the one value that sql reads.
func get[T any](t *testing.T, conn *pgx.Conn, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func up(t *testing.T, conn *pgx.Conn, opts ...migrations.Option) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fault.Patience)
	defer cancel()
	if err := migrations.Up(ctx, conn, opts...); err != nil {
		t.Fatal(err)
	}
}

func wantStatus(t *testing.T, conn *pgx.Conn, current int, opts ...migrations.Option) {
	t.Helper()
	got, err := migrations.Status(t.Context(), conn, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if want := (migrations.Info{Current: current, Latest: latest}); got != want {
		t.Errorf("Status is %+v, want %+v", got, want)
	}
}

// wantNoted checks what tern would take for the version, in the schema public.
func wantNoted(t *testing.T, conn *pgx.Conn, version int) {
	t.Helper()
	if got := get[int](t, conn, `SELECT version FROM public.worklease_schema_version`); got != version {
		t.Errorf("worklease_schema_version says %d, want %d", got, version)
	}
}

// fingerprint sums up what a migration could change, the note of its version aside.
// A rebuilt or replaced object changes it too.
func fingerprint(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return get[string](t, conn, `
		SELECT string_agg(line, E'\n' ORDER BY line) FROM (
			SELECT concat_ws(' ', c.oid, c.relfilenode, n.nspname, c.relname, c.reloptions, obj_description(c.oid, 'pg_class'))
			FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relname LIKE '%worklease%' AND c.relname <> 'worklease_schema_version'
			UNION ALL
			SELECT concat_ws(' ', attrelid, attnum, attname, atttypid, attcollation, attnotnull, pg_get_expr(d.adbin, d.adrelid))
			FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = attrelid AND d.adnum = attnum
			WHERE attrelid IN (SELECT oid FROM pg_class WHERE relname = 'worklease_leases')
		) AS lines (line)`)
}
