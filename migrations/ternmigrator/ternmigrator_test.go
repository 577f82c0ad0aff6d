package ternmigrator_test

import (
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"
	"github.com/peterldowns/pgtestdb"

	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/migrations/ternmigrator"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func folder(sql string) fstest.MapFS {
	return fstest.MapFS{"001_orders.sql": {Data: []byte(sql)}}
}

const orders = `CREATE TABLE {{ .schema }}.orders (id bigint PRIMARY KEY, note text DEFAULT '{{ .note }}');
---- create above / drop below ----
DROP TABLE {{ .schema }}.orders;`

func TestHashTellsMigratorsApart(t *testing.T) {
	t.Parallel()
	a, b := ternmigrator.New(folder(orders)), ternmigrator.New(folder(orders+" "))
	ours := ternmigrator.Default()
	data := func(note string) pgtestdb.Migrator {
		return ternmigrator.New(folder(orders), ternmigrator.WithData(map[string]any{"note": note}))
	}
	seen := map[string]string{}
	for name, m := range map[string]pgtestdb.Migrator{
		"folder":            a,
		"other content":     b,
		"other file name":   ternmigrator.New(fstest.MapFS{"001_order.sql": {Data: []byte(orders)}}),
		"shared template":   ternmigrator.New(fstest.MapFS{"001_orders.sql": {Data: []byte(orders)}, "lib/x.sql": {Data: []byte("--")}}),
		"version table":     ternmigrator.New(folder(orders), ternmigrator.WithVersionTable("public.v")),
		"data":              data("x"),
		"other data":        data("y"),
		"ours":              ours,
		"ours elsewhere":    ternmigrator.Default(migrations.WithSchema("jobs")),
		"chain":             ternmigrator.Chain(a, ours),
		"chain other order": ternmigrator.Chain(ours, a),
		"chain of one":      ternmigrator.Chain(a),
		"chain of chains":   ternmigrator.Chain(ternmigrator.Chain(a), ours),
	} {
		hash := hashOf(t, m)
		if twin, ok := seen[hash]; ok {
			t.Errorf("%s and %s have the same hash", name, twin)
		}
		seen[hash] = name
	}
}

func TestHashIsStable(t *testing.T) {
	t.Parallel()
	data := map[string]any{"note": "x", "schema": "public", "a": 1, "b": true}
	build := func() pgtestdb.Migrator {
		return ternmigrator.Chain(ternmigrator.New(folder(orders), ternmigrator.WithData(data), nil), ternmigrator.Default(nil))
	}
	if a, b := hashOf(t, build()), hashOf(t, ternmigrator.Chain(nil, build())); a == b || b != hashOf(t, ternmigrator.Chain(build(), nil)) {
		t.Errorf("a chain with a nil migrator: %s, %s", a, b)
	}
	if a, b := hashOf(t, build()), hashOf(t, build()); a != b {
		t.Errorf("two hashes of the same: %s, %s", a, b)
	}
	ours, public := ternmigrator.Default(), ternmigrator.Default(migrations.WithSchema("public"))
	if a, b := hashOf(t, ours), hashOf(t, public); a != b {
		t.Error("the default schema by its name has another hash")
	}
}

func TestChainMakesBoth(t *testing.T) {
	t.Parallel()
	theirs := ternmigrator.New(folder(orders), ternmigrator.WithData(map[string]any{"schema": "public", "note": "hello"}))
	for name, m := range map[string]pgtestdb.Migrator{
		"theirs first": ternmigrator.Chain(theirs, ternmigrator.Default(migrations.WithSchema("jobs"))),
		"ours first":   ternmigrator.Chain(ternmigrator.Default(migrations.WithSchema("jobs")), theirs),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := pgx.Connect(t.Context(), pgtest.Database(t, pgtest.Migrator(m)))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			var note string
			if err := conn.QueryRow(t.Context(), `INSERT INTO orders VALUES (1) RETURNING note`).Scan(&note); err != nil || note != "hello" {
				t.Errorf("their table: %q, %v", note, err)
			}
			info, err := migrations.Status(t.Context(), conn, migrations.WithSchema("jobs"))
			if err != nil || info.Current == 0 || info.Current != info.Latest {
				t.Errorf("our table: %+v, %v", info, err)
			}
			var version int
			if err := conn.QueryRow(t.Context(), `SELECT version FROM public.schema_version`).Scan(&version); err != nil || version != 1 {
				t.Errorf("their version: %d, %v", version, err)
			}
		})
	}
}

func hashOf(t *testing.T, m pgtestdb.Migrator) string {
	t.Helper()
	hash, err := m.Hash()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}
