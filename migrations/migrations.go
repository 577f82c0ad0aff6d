// Package migrations installs and upgrades worklease's table in PostgreSQL.
//
// [FS] holds numbered SQL files for tern. Whichever way they are installed - by
// [Up], by tern's command line tool, or rendered by [SQL] for psql, goose,
// golang-migrate or atlas - Up and [Status] recognise it, for the installed
// version is read from the database catalog. Every file may run twice: the
// second time changes nothing.
//
// # Other tools
//
// tern's command line tool runs the files as they are, from a checkout or a vendored
// copy of this folder:
//
//	tern migrate --migrations migrations --version-table public.worklease_schema_version
//
// Another schema must exist and is named in a tern.conf, given by --config, and in the
// version table; a name that needs quotes is written with them:
//
//	[data]
//	schema = jobs
//
// Inside a tern chain of your own, call Up on the connection that tern gives you (a
// second one would wait for tern's lock for ever), and outside of its transaction:
//
//	m.Migrations = append(m.Migrations, &migrate.Migration{
//		Sequence:      2,
//		Name:          "002_worklease",
//		UpFunc:        func(ctx context.Context, conn *pgx.Conn) error { return migrations.Up(ctx, conn) },
//		DisableFuncTx: true,
//	})
//
// For golang-migrate, the text of SQL("public", 0) is 1_worklease.up.sql. goose wants it
// between "-- +goose StatementBegin" and "-- +goose StatementEnd", as it contains a DO
// block. The way down of both is
//
//	DROP TABLE public.worklease_leases;
//	DROP SEQUENCE public.worklease_fencing_seq;
//
// goose can also call Up in a Go migration, by RunDB, with package stdlib's driver:
//
//	func(ctx context.Context, db *sql.DB) error {
//		c, err := db.Conn(ctx)
//		if err != nil {
//			return err
//		}
//		defer c.Close()
//		return c.Raw(func(driver any) error { return migrations.Up(ctx, driver.(*stdlib.Conn).Conn()) })
//	}
//
// # A v0.5 table
//
// A table of worklease v0.5 counts as version 0 and is adopted: rows, tokens and
// checkpoints stay, its index on updated_at is dropped, the sequence is raised to
// the highest token if it lies below and is never lowered. v0.5 processes may run
// meanwhile and afterwards. The adoption waits for an exclusive lock on the table,
// and v0.5 processes wait behind it: where a long transaction may hold the table,
// set lock_timeout on the connection, and repeat.
//
// # A newer schema
//
// Migrations only ever add what has a default, so an older library works on a
// newer schema: Up then does nothing and returns nil, and Status reports a Current
// above Latest. A deployment can be rolled back without touching the database.
//
// # A direct connection
//
// Migrators exclude each other by an advisory lock of their session. Through a
// transaction pooler (pgbouncer with pool_mode=transaction) such a lock excludes
// nobody and may be left behind on a server connection: connect directly.
//
// # Rights
//
// The migrating role needs CREATE on the schema, and on the database if the schema
// is to be created; to adopt or upgrade it must own the table and the sequence.
// The role of the running service needs only this:
//
//	GRANT USAGE ON SCHEMA public TO app;
//	GRANT USAGE ON SEQUENCE public.worklease_fencing_seq TO app;
//	GRANT SELECT, INSERT, UPDATE, DELETE ON public.worklease_leases TO app;
//
// The down migration drops the table and with it the grants.
package migrations

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/tern/v2/migrate"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/schema"
)

// FS holds the migrations in tern's form. Their only template is
// {{ .schema | default "public" }}: an identifier, quoted where it needs quotes.
//
//go:embed *.sql
var FS embed.FS

// Option tunes [Up] and [Status]. A nil Option is ignored.
type Option func(*schema.Options)

// WithSchema names the schema of the table, as it is, without quotes. Default: "public".
func WithSchema(name string) Option {
	return func(o *schema.Options) { o.Schema = name }
}

// Info tells how far a database is.
type Info struct {
	Current int // installed version; 0: none, or a v0.5 table to adopt
	Latest  int // this library's version; a greater Current is fine
}

// Status reads the installed version from the catalog. It takes no lock and needs
// no right on the schema.
func Status(ctx context.Context, conn *pgx.Conn, opts ...Option) (Info, error) {
	name, err := schemaName(opts)
	if err == nil && conn == nil {
		err = errNoConn
	}
	if err != nil {
		return Info{}, fmt.Errorf("worklease: schema status: %w", err)
	}
	current, err := installed(ctx, conn, name)
	if err != nil {
		return Info{}, fmt.Errorf("worklease: schema status: %w", err)
	}
	return Info{Current: current, Latest: schema.Latest}, nil
}

// Up brings the database to this library's version and notes it in the table
// worklease_schema_version, where tern's command line tool finds it. It creates
// the schema if that is missing. An up-to-date database costs three reads and no
// lock; where Up may not write the note, an up-to-date database is still fine.
//
// Any number of processes may call Up at once. They wait for each other by tern's
// advisory lock; when ctx ends meanwhile, the error names the server process that
// holds it, and the connection stays usable. A ctx that ends later, during the
// migration, closes the connection; nothing is half done.
//
// conn must be a direct connection, outside a transaction. Its session settings
// are kept, except custom ones (with a dot in the name). Inside a tern chain of
// your own, call Up in an UpFunc with DisableFuncTx, on the connection it is given.
func Up(ctx context.Context, conn *pgx.Conn, opts ...Option) error {
	name, err := schemaName(opts)
	switch {
	case err != nil:
	case conn == nil:
		err = errNoConn
	case conn.PgConn().TxStatus() != 'I':
		err = errInTx
	}
	if err == nil {
		err = up(ctx, conn, name)
	}
	if err != nil {
		return fmt.Errorf("worklease: migrate: %w", err)
	}
	return nil
}

var errNoConn = fmt.Errorf("%w: connection is nil", worklease.ErrInvalid)

var errInTx = fmt.Errorf("%w: the connection is in a transaction, which the migration would commit; in a tern UpFunc, set DisableFuncTx", worklease.ErrInvalid)

// SQL renders the migrations after version after, in order: 0 renders all, and
// the text is empty when there is none. The schema is named as it is, without
// quotes, and is not created. Run the text as one transaction: psql -1 -v ON_ERROR_STOP=1.
func SQL(schemaName string, after int) (string, error) {
	sql, err := render(schemaName, after)
	if err != nil {
		return "", fmt.Errorf("worklease: render migrations: %w", err)
	}
	return sql, nil
}

func render(name string, after int) (string, error) {
	if err := checkSchema(name); err != nil {
		return "", err
	}
	if after < 0 {
		return "", fmt.Errorf("%w: version %d is negative", worklease.ErrInvalid, after)
	}
	// Without a connection a Migrator only loads.
	m, err := migrate.NewMigrator(context.Background(), nil, versionTable(name))
	if err != nil {
		return "", err
	}
	if err := load(m, name); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, step := range m.Migrations[min(after, len(m.Migrations)):] {
		b.WriteString(step.UpSQL)
		b.WriteString("\n\n")
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}

func up(ctx context.Context, conn *pgx.Conn, name string) error {
	done, err := upToDate(ctx, conn, name)
	if done || err != nil {
		return err
	}
	if err := lock(ctx, conn); err != nil {
		return err
	}
	defer unlock(ctx, conn)

	current, err := installed(ctx, conn, name)
	if err != nil || current > schema.Latest {
		return err
	}
	err = bring(ctx, conn, name, current)
	if current == schema.Latest && mayNotWrite(err) {
		return nil // only the note was missing
	}
	return err
}

// upToDate tells whether there is nothing to install and nothing to note.
func upToDate(ctx context.Context, conn *pgx.Conn, name string) (bool, error) {
	current, err := installed(ctx, conn, name)
	if err != nil || current < schema.Latest {
		return false, err
	}
	if current > schema.Latest {
		return true, nil
	}
	var readable bool
	err = conn.QueryRow(ctx, notedSQL, name).Scan(&readable)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil || !readable {
		return err == nil, err // a note that is not ours to read is not ours to write
	}
	var noted int
	err = conn.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM `+versionTable(name)).Scan(&noted)
	return err == nil && noted >= current, err
}

// notedSQL tells whether tern's version table exists (a row) and may be read.
const notedSQL = `
SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(t.oid, 'SELECT')
FROM pg_catalog.pg_class t
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
WHERE n.nspname = $1::text AND t.relname = 'worklease_schema_version'`

// bring installs what is missing above current. The caller holds the lock.
func bring(ctx context.Context, conn *pgx.Conn, name string, current int) error {
	if err := createSchema(ctx, conn, name); err != nil {
		return err
	}
	m, err := migrate.NewMigrator(ctx, conn, versionTable(name))
	if err != nil {
		return err
	}
	if err := load(m, name); err != nil {
		return err
	}
	// The catalog knows better than the note what is there.
	note := `UPDATE ` + versionTable(name) + ` SET version = $1::integer WHERE version <> $1::integer`
	if _, err := conn.Exec(ctx, note, current); err != nil {
		return err
	}
	if current == schema.Latest {
		return nil
	}
	restore, err := saveSettings(ctx, conn)
	if err != nil {
		return err
	}
	// A serializable migration could make live v0.5 statements fail.
	if _, err = conn.Exec(ctx, `SET default_transaction_isolation = 'read committed'`); err == nil {
		err = m.Migrate(ctx)
	}
	return errors.Join(err, restore())
}

func createSchema(ctx context.Context, conn *pgx.Conn, name string) error {
	// IF NOT EXISTS would demand the right to create it also when it exists.
	var exists bool
	err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = $1::text)`, name).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, `CREATE SCHEMA `+quote(name))
	return err
}

// saveSettings remembers what the session has set, for tern resets all of it after
// each migration. What restore returns concerns the settings only.
func saveSettings(ctx context.Context, conn *pgx.Conn) (restore func() error, err error) {
	var names, values []string
	err = conn.QueryRow(ctx, settingsSQL).Scan(&names, &values)
	if err != nil {
		return nil, err
	}
	return func() error {
		if conn.IsClosed() {
			return nil
		}
		ctx, cancel := outlive(ctx)
		defer cancel()
		_, err := conn.Exec(ctx, restoreSQL, names, values)
		return err
	}, nil
}

const settingsSQL = `
SELECT coalesce(array_agg(name), '{}'), coalesce(array_agg(pg_catalog.current_setting(name)), '{}')
FROM pg_catalog.pg_settings
WHERE source = 'session' OR name = 'default_transaction_isolation'`

const restoreSQL = `
SELECT pg_catalog.set_config(s.name, s.value, false)
FROM unnest($1::text[], $2::text[]) AS s (name, value)
WHERE pg_catalog.current_setting(s.name) IS DISTINCT FROM s.value`

func installed(ctx context.Context, conn *pgx.Conn, name string) (version int, err error) {
	err = conn.QueryRow(ctx, schema.VersionSQL, name).Scan(&version)
	return version, err
}

func load(m *migrate.Migrator, name string) error {
	m.Data["schema"] = quote(name)
	return m.LoadMigrations(FS)
}

// mayNotWrite tells whether err is the server's refusal to let this session write.
func mayNotWrite(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "42501", "25006": // insufficient privilege, read-only transaction
		return true
	}
	return false
}

func versionTable(name string) string {
	return pgx.Identifier{name, "worklease_schema_version"}.Sanitize()
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

func schemaName(opts []Option) (string, error) {
	o := schema.Options{Schema: "public"}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	return o.Schema, checkSchema(o.Schema)
}

// maxName is PostgreSQL's NAMEDATALEN - 1. A longer name would be cut off there
// and never be found again.
const maxName = 63

func checkSchema(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: schema is empty", worklease.ErrInvalid)
	case len(name) > maxName:
		return fmt.Errorf("%w: schema has %d bytes, at most %d are allowed", worklease.ErrInvalid, len(name), maxName)
	case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: schema is not valid UTF-8 without NUL", worklease.ErrInvalid)
	case strings.Contains(name, "$name$") || strings.Contains(name, "$adopt$"):
		return fmt.Errorf("%w: schema %q contains a dollar quote of the migrations", worklease.ErrInvalid, name)
	}
	return nil
}
