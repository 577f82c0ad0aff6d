// Package ternmigrator prepares the template databases of pgtestdb with tern
// migrations: those of a folder, worklease's own, or both.
//
//	migrator := ternmigrator.Chain(
//		ternmigrator.New(os.DirFS("migrations")),
//		ternmigrator.Default(),
//	)
//	cfg := pgtestdb.Custom(t, pgtestdb.Config{DriverName: "pgx", …}, migrator)
package ternmigrator

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/tern/v2/migrate"
	"github.com/peterldowns/pgtestdb"

	"github.com/aetomala/worklease/internal/schema"
	"github.com/aetomala/worklease/migrations"
)

// Option tunes [New]. A nil Option is ignored.
type Option func(*folder)

// WithVersionTable names tern's version table, qualified and quoted as in SQL.
// Default: "public.schema_version", as in tern's command line tool.
func WithVersionTable(name string) Option {
	return func(f *folder) { f.table = name }
}

// WithData gives the values for the templates in the folder's files, as the [data]
// section of tern.conf does.
func WithData(data map[string]any) Option {
	return func(f *folder) { f.data = maps.Clone(data) }
}

// New returns a migrator for a tern folder: the files lie at the top of fsys.
func New(fsys fs.FS, opts ...Option) pgtestdb.Migrator {
	f := &folder{fsys: fsys, table: "public.schema_version"}
	for _, opt := range opts {
		if opt != nil {
			opt(f)
		}
	}
	return f
}

// Default returns the migrator for worklease's own table, by [migrations.Up].
func Default(opts ...migrations.Option) pgtestdb.Migrator {
	return own(opts)
}

// Chain returns a migrator that runs the given ones in order. A nil one is ignored.
func Chain(migrators ...pgtestdb.Migrator) pgtestdb.Migrator {
	return chain(slices.DeleteFunc(slices.Clone(migrators), func(m pgtestdb.Migrator) bool { return m == nil }))
}

type folder struct {
	fsys  fs.FS
	table string
	data  map[string]any
}

// Hash covers the files, the data and the name of the version table.
func (f *folder) Hash() (string, error) {
	sum := sha256.New()
	add(sum, f.table)
	for _, key := range slices.Sorted(maps.Keys(f.data)) {
		add(sum, fmt.Sprintf("%s=%v", key, f.data[key]))
	}
	if err := addFiles(sum, f.fsys); err != nil {
		return "", err
	}
	return hexSum(sum), nil
}

// Migrate runs the folder's migrations on a connection of its own, for tern wants pgx.
func (f *folder) Migrate(ctx context.Context, _ *sql.DB, cfg pgtestdb.Config) error {
	return withConn(ctx, cfg, func(conn *pgx.Conn) error {
		m, err := migrate.NewMigrator(ctx, conn, f.table)
		if err != nil {
			return err
		}
		maps.Copy(m.Data, f.data)
		if err := m.LoadMigrations(f.fsys); err != nil {
			return err
		}
		return m.Migrate(ctx)
	})
}

type own []migrations.Option

// Hash covers the migrations and the name of the schema.
func (o own) Hash() (string, error) {
	set := schema.Options{Schema: "public"}
	for _, opt := range o {
		if opt != nil {
			opt(&set)
		}
	}
	sum := sha256.New()
	add(sum, set.Schema)
	if err := addFiles(sum, migrations.FS); err != nil {
		return "", err
	}
	return hexSum(sum), nil
}

func (o own) Migrate(ctx context.Context, _ *sql.DB, cfg pgtestdb.Config) error {
	return withConn(ctx, cfg, func(conn *pgx.Conn) error {
		return migrations.Up(ctx, conn, o...)
	})
}

type chain []pgtestdb.Migrator

// Hash covers the hashes of all and their order.
func (c chain) Hash() (string, error) {
	sum := sha256.New()
	for _, m := range c {
		h, err := m.Hash()
		if err != nil {
			return "", err
		}
		add(sum, h)
	}
	return hexSum(sum), nil
}

func (c chain) Migrate(ctx context.Context, db *sql.DB, cfg pgtestdb.Config) error {
	for _, m := range c {
		if err := m.Migrate(ctx, db, cfg); err != nil {
			return err
		}
	}
	return nil
}

func withConn(ctx context.Context, cfg pgtestdb.Config, fn func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, cfg.URL())
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return fn(conn)
}

func addFiles(sum hash.Hash, fsys fs.FS) error {
	return fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := fs.ReadFile(fsys, path)
		if err != nil {
			return err
		}
		add(sum, path)
		add(sum, string(body))
		return nil
	})
}

// add writes s with its length before it, so that no two lists of strings look alike.
func add(sum hash.Hash, s string) {
	fmt.Fprintf(sum, "%d:%s", len(s), s)
}

func hexSum(sum hash.Hash) string { return hex.EncodeToString(sum.Sum(nil)) }
