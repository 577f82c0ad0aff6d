// Package pgtest gives every test a database of its own.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		t.Parallel()
//		pool := pgtest.Pool(t) // on a fresh database that has worklease's schema
//	}
//
// # Where the server comes from
//
// DATABASE_URL, when set, is used as it is; its user must be a superuser, for pgtestdb makes roles
// and databases. pgrun sets it, so that all packages share one server. Otherwise Main starts a
// disposable server for the package (see pgserver) and removes it after the tests, and also when it
// is told to stop by SIGINT, SIGTERM or SIGHUP. Where there is neither, the tests fail: a suite that
// skips what it cannot test is green for the wrong reason.
//
// # Exec modes
//
// WORKLEASE_EXEC_MODE (cache_statement, cache_describe, exec or simple_protocol) sets pgx's
// QueryExecMode for all pools made here, so that a whole suite can run in each.
//
// The package imports migrations through ternmigrator: tests of those two that use it belong into
// an external test package (migrations_test).
package pgtest
