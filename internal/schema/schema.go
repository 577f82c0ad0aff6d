// Package schema tells which version of the lease table a database has.
//
// It stands apart from package migrations, which compiles a migration tool in,
// so that a backend can ask without it.
package schema

// Latest is the version this library installs: the number of its migrations.
const Latest = 1

// VersionSQL reads the installed version from the catalog, so that every way of
// installing counts. Its parameter is the schema's name, unquoted; it returns one
// integer, 0 for no table and for a v0.5 table. It needs no right on the schema.
//
// A table without a column of version 1 is a v0.5 table whatever its comment says.
// Comments get lost (pg_dump --no-comments): then the last thing a migration makes
// stands for it.
const VersionSQL = `
SELECT coalesce(max(greatest(
	substring(pg_catalog.obj_description(t.oid, 'pg_class') FROM '^worklease schema version ([0-9]{1,9})')::integer,
	(SELECT 1 FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
		WHERE i.indrelid = t.oid AND x.relname = 'worklease_leases_work_id_fencing_token_idx')
)), 0)
FROM pg_catalog.pg_class t
JOIN pg_catalog.pg_namespace n ON n.oid = t.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attname = 'prior_crashes' AND NOT a.attisdropped
WHERE n.nspname = $1::text AND t.relname = 'worklease_leases'`

// Options is what the options of package migrations set. It lies here for
// package ternmigrator, which has to name the schema in its hash.
type Options struct {
	Schema string
}
