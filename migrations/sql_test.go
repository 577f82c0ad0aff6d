package migrations_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/migrations"
)

func TestSQLIsRendered(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"public", "My Schema", "a.b", `q"x`, "o'brien"} {
		sql, err := migrations.SQL(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"{{", "}}", "no value", "----"} {
			if strings.Contains(sql, bad) {
				t.Errorf("SQL for schema %q contains %q:\n%s", name, bad, sql)
			}
		}
		table := pgx.Identifier{name}.Sanitize() + ".worklease_leases"
		if !strings.Contains(sql, "CREATE TABLE IF NOT EXISTS "+table+" (") {
			t.Errorf("SQL for schema %q does not create %s:\n%s", name, table, sql)
		}
		if strings.Contains(sql, "DROP TABLE") {
			t.Errorf("SQL for schema %q contains the down migration", name)
		}
	}
}

func TestSQLAfterAVersion(t *testing.T) {
	t.Parallel()
	if sql, err := migrations.SQL("public", latest); sql != "" || err != nil {
		t.Errorf("SQL after the latest version: %q, %v", sql, err)
	}
	if _, err := migrations.SQL("public", -1); !errors.Is(err, worklease.ErrInvalid) {
		t.Errorf("SQL after version -1: %v", err)
	}
}

// All of it in any schema, in one go, as psql -1 and golang-migrate send it.
func TestSQLRunsInAnySchema(t *testing.T) {
	t.Parallel()
	conn := emptyDB(t)
	for _, name := range []string{"My Schema", "a.b", `q"x`, "o'brien", `back\slash`} {
		exec(t, conn, `CREATE SCHEMA `+pgx.Identifier{name}.Sanitize())
		sql, err := migrations.SQL(name, 0)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, conn, sql)
		wantStatus(t, conn, latest, migrations.WithSchema(name))
	}
}
