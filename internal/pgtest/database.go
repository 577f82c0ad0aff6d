package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver that pgtestdb opens
	"github.com/peterldowns/pgtestdb"

	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/migrations/ternmigrator"
)

// Option tunes Database and Pool.
type Option func(*options)

type options struct {
	migrator  pgtestdb.Migrator
	superuser bool
	force     bool
	on        *pgserver.Server
	pool      []func(*pgxpool.Config)
}

// Migrator sets what makes the schema; without it, worklease's own migrations do.
func Migrator(m pgtestdb.Migrator) Option { return func(o *options) { o.migrator = m } }

// Empty leaves the database without any schema.
func Empty() Option { return Migrator(pgtestdb.NoopMigrator{}) }

// Superuser makes the database's user and owner a superuser. Without it, it is an ordinary role
// that owns the database; see also AdminURL.
func Superuser() Option { return func(o *options) { o.superuser = true } }

// ForceDrop ends connections that are still there when the test's database is dropped. Without it,
// a connection left open fails the test.
func ForceDrop() Option { return func(o *options) { o.force = true } }

// On makes the database on a server of the test's own.
func On(s *pgserver.Server) Option { return func(o *options) { o.on = s } }

// Config changes the settings of the pool that Pool and Open make.
func Config(f func(*pgxpool.Config)) Option {
	return func(o *options) { o.pool = append(o.pool, f) }
}

func collect(opts []Option) options {
	o := options{migrator: ternmigrator.Default()}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// Database makes a database for this test and returns its URL. It is dropped at the test's end, but
// stays on the server when the test failed.
func Database(t testing.TB, opts ...Option) string {
	t.Helper()
	o := collect(opts)
	s := shared.Load()
	if o.on != nil {
		s = serverOf(o.on)
	}
	if s == nil {
		t.Fatal("no server: the package needs func TestMain(m *testing.M) { pgtest.Main(m) }")
	}
	config, err := pgtestdbConfig(s.url)
	if err != nil {
		t.Fatal(err)
	}
	role := pgtestdb.Role{Username: "worklease_test" + s.role, Password: "worklease", Capabilities: "NOSUPERUSER NOCREATEDB NOCREATEROLE"}
	if o.superuser {
		role.Username, role.Capabilities = "worklease_super"+s.role, "SUPERUSER"
	}
	config.TestRole = &role
	config.ForceTerminateConnections = o.force
	made := pgtestdb.Custom(t, config, o.migrator)
	admin := config
	admin.Database = made.Database
	adminURLs.Store(made.Database, admin.URL())
	t.Cleanup(func() { adminURLs.Delete(made.Database) })
	return made.URL()
}

// adminURLs maps names of databases to their superuser's URLs.
var adminURLs sync.Map

// AdminURL returns the URL by which the server's superuser finds the database of a URL that
// Database returned: to terminate others' connections, to alter roles, to create extensions.
func AdminURL(t testing.TB, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	admin, ok := adminURLs.Load(strings.TrimPrefix(u.Path, "/"))
	if !ok {
		t.Fatalf("%s is no database of pgtest.Database", u.Redacted())
	}
	return admin.(string)
}

// Pool makes a database for this test and returns a pool on it, which is closed at the test's end.
func Pool(t testing.TB, opts ...Option) *pgxpool.Pool {
	t.Helper()
	return Open(t, Database(t, opts...), opts...)
}

// Open returns one more pool, on a URL that Database or AdminURL returned. It is closed at the
// test's end. Of the options only Config matters.
func Open(t testing.TB, database string, opts ...Option) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(database)
	if err != nil {
		t.Fatal(err)
	}
	if config.ConnConfig.DefaultQueryExecMode, err = ExecMode(); err != nil {
		t.Fatal(err)
	}
	for _, change := range collect(opts).pool {
		change(config)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// ExecMode is the one WORKLEASE_EXEC_MODE names, or pgx's default. describe_exec is not among the
// names: behind a pooler pgx itself cannot use it safely.
func ExecMode() (pgx.QueryExecMode, error) {
	switch name := os.Getenv("WORKLEASE_EXEC_MODE"); name {
	case "", "cache_statement":
		return pgx.QueryExecModeCacheStatement, nil
	case "cache_describe":
		return pgx.QueryExecModeCacheDescribe, nil
	case "exec":
		return pgx.QueryExecModeExec, nil
	case "simple_protocol":
		return pgx.QueryExecModeSimpleProtocol, nil
	default:
		return 0, fmt.Errorf("WORKLEASE_EXEC_MODE=%s: want cache_statement, cache_describe, exec or simple_protocol", name)
	}
}

// Server starts a server for this test alone, to crash it or to give it settings of its own, and
// removes it at the test's end.
func Server(t testing.TB, o pgserver.Options) *pgserver.Server {
	t.Helper()
	s, err := pgserver.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Pooler starts a PgBouncer in transaction mode before a database whose URL Database or AdminURL
// returned, with so many connections to it, and returns its URL through it. It is removed at the
// test's end. Where there is no PgBouncer the test is skipped.
func Pooler(t testing.TB, database string, connections int) string {
	t.Helper()
	p, err := pgserver.StartPooler(t.Context(), database, connections)
	if errors.Is(err, pgserver.ErrNoPooler) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(p.Log())
		}
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p.URL()
}

var (
	ownServers sync.Map // *pgserver.Server → *server
	ownCount   atomic.Int64
)

// serverOf gives roles on other servers other names: pgtestdb remembers for the whole process which
// roles and templates it has made, and has no idea that there may be two servers.
func serverOf(own *pgserver.Server) *server {
	s, ok := ownServers.Load(own)
	if !ok {
		s, _ = ownServers.LoadOrStore(own, &server{
			url:  own.URL(),
			role: fmt.Sprintf("_%d", ownCount.Add(1)),
		})
	}
	return s.(*server)
}

// pgtestdbConfig takes a URL apart as pgtestdb wants it. pgtestdb puts the parts together again
// without escaping them, so they stay escaped here.
func pgtestdbConfig(database string) (pgtestdb.Config, error) {
	u, err := url.Parse(database)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// Not %w: the message of url.Parse shows the password.
		return pgtestdb.Config{}, errors.New("DATABASE_URL must look like postgres://user:password@host:port/database?option=value")
	}
	// What the URL leaves out comes from the environment, as everywhere with pgx.
	parsed, err := pgx.ParseConfig(database)
	if err != nil {
		return pgtestdb.Config{}, err
	}
	escape := func(s string) string { return url.User(s).String() }
	config := pgtestdb.Config{
		DriverName: "pgx",
		Port:       u.Port(),
		User:       escape(parsed.User),
		Password:   escape(parsed.Password),
		Database:   cmp.Or(parsed.Database, parsed.User),
	}
	query := u.Query()
	switch host := u.Hostname(); {
	case strings.HasPrefix(host, "/"): // a socket's folder
		query.Set("host", host)
	case strings.Contains(host, ":"):
		config.Host = "[" + host + "]"
	default:
		config.Host = host
	}
	// An option wins over the URL's front part, so these would undo the database of the test.
	for _, name := range []string{"user", "password", "dbname", "database"} {
		query.Del(name)
	}
	config.Options = query.Encode()
	return config, nil
}
