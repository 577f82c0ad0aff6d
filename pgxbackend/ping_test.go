package pgxbackend_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/conformance"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/v05"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// documentedGrants are what the runtime role needs, no more.
var documentedGrants = []string{
	`USAGE ON SCHEMA public`,
	`SELECT, INSERT, UPDATE, DELETE ON public.worklease_leases`,
	`USAGE ON SEQUENCE public.worklease_fencing_seq`,
}

// newRole makes a login role with no right at all, and returns its URL.
func newRole(t *testing.T, database string, admin *pgxpool.Pool) (name, roleURL string) {
	t.Helper()
	name = "Wl app's " + rand.Text()[:8]
	quoted := pgx.Identifier{name}.Sanitize()
	exec(t, admin, `CREATE ROLE `+quoted+` LOGIN PASSWORD 'worklease'`)
	t.Cleanup(func() {
		for _, sql := range []string{`DROP OWNED BY ` + quoted, `DROP ROLE ` + quoted} {
			if _, err := admin.Exec(context.Background(), sql); err != nil {
				t.Error(err)
			}
		}
	})
	exec(t, admin, `REVOKE ALL ON SCHEMA public FROM PUBLIC`)
	u, err := url.Parse(database)
	must(t, err)
	u.User = url.UserPassword(name, "worklease")
	return name, u.String()
}

// S51, K13: a role with the documented grants and nothing else passes the suite.
func TestDocumentedGrantsSuffice(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin := pgtest.Open(t, pgtest.AdminURL(t, database))
	role, roleURL := newRole(t, database, admin)
	for _, g := range documentedGrants {
		exec(t, admin, `GRANT `+g+` TO `+pgx.Identifier{role}.Sanitize())
	}
	pool := pgtest.Open(t, roleURL)
	// It polls, for the suite ends leases in ways that nobody is notified of.
	b := newBackend(t, pool)
	must(t, b.Ping(t.Context()))
	conformance.Run(t, func(*testing.T) worklease.Backend { return b },
		conformance.EndLease(func(t *testing.T, _ worklease.Backend, workID string) { endLease(t, pool, workID) }))
}

// S51: each missing grant is named, in words that mend it.
func TestPingNamesEveryMissingGrant(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t)
	admin := pgtest.Open(t, pgtest.AdminURL(t, database))
	role, roleURL := newRole(t, database, admin)
	quoted := pgx.Identifier{role}.Sanitize()
	b := newBackend(t, pgtest.Open(t, roleURL))
	ping := func(missing ...string) error {
		t.Helper()
		err := b.Ping(t.Context())
		if (err == nil) != (len(missing) == 0) {
			t.Fatalf("Ping without %q: %v", missing, err)
		}
		for _, m := range missing {
			if !strings.Contains(err.Error(), m) {
				t.Errorf("Ping does not name %q: %v", m, err)
			}
		}
		return err
	}
	mend := func(err error) {
		t.Helper()
		_, commands, _ := strings.Cut(err.Error(), "\n")
		if n := strings.Count(commands, "GRANT"); n == 0 {
			t.Errorf("no command in %q", err)
		}
		exec(t, admin, commands)
		ping()
	}
	tableGrant := `GRANT SELECT, INSERT, UPDATE, DELETE ON "public"."worklease_leases" TO ` + quoted
	sequenceGrant := `GRANT USAGE ON SEQUENCE "public"."worklease_fencing_seq" TO ` + quoted
	schemaGrant := `GRANT USAGE ON SCHEMA "public" TO ` + quoted
	mend(ping(schemaGrant, tableGrant, sequenceGrant))
	for _, c := range []struct{ revoke, names string }{
		{`USAGE ON SCHEMA public`, schemaGrant},
		{`SELECT ON worklease_leases`, tableGrant},
		{`INSERT ON worklease_leases`, tableGrant},
		{`UPDATE ON worklease_leases`, tableGrant},
		{`DELETE ON worklease_leases`, tableGrant},
		{`USAGE ON SEQUENCE worklease_fencing_seq`, sequenceGrant},
	} {
		exec(t, admin, `REVOKE `+c.revoke+` FROM `+quoted)
		err := ping(c.names)
		if n := strings.Count(err.Error(), "GRANT"); n != 1 {
			t.Errorf("without %s, Ping names %d grants: %v", c.revoke, n, err)
		}
		if strings.Contains(c.revoke, "SELECT") || strings.Contains(c.revoke, "SEQUENCE") || strings.Contains(c.revoke, "SCHEMA") {
			// What Ping says would fail does.
			_, err := newLease(t, b, "holder").Acquire(t.Context(), rand.Text())
			if sqlState(err) != "42501" {
				t.Errorf("without %s, Acquire: %v", c.revoke, err)
			}
		}
		mend(err)
	}
}

// Ping tells what is missing, and what mends it.
func TestPing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil string
		says  []string
		fatal bool // no command mends it that this test could run
	}{
		"in order":  {"", nil, false},
		"no table":  {`DROP TABLE worklease_leases`, []string{`schema "public" is at version 0`, "migrations.Up", "tern migrate"}, true},
		"no schema": {`ALTER SCHEMA public RENAME TO elsewhere`, []string{`schema "public" is at version 0`, "migrations.Up"}, true},
		"read-only": {
			`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END $$`,
			[]string{"read-only", "default_transaction_read_only"}, true,
		},
		"newer schema":   {`COMMENT ON TABLE worklease_leases IS 'worklease schema version 1000'`, nil, false},
		"lost comment":   {`COMMENT ON TABLE worklease_leases IS NULL`, nil, false},
		"no sequence":    {`DROP SEQUENCE worklease_fencing_seq CASCADE`, []string{"worklease_fencing_seq", "CREATE SEQUENCE", "setval"}, false},
		"v0.5's table":   {"DROP TABLE worklease_leases; DROP SEQUENCE worklease_fencing_seq;" + v05.Table, []string{"is at version 0", "migrations.Up"}, true},
		"something else": {`DROP TABLE worklease_leases; CREATE TABLE worklease_leases (id int)`, []string{"is at version 0"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := pgtest.Database(t)
			admin := pgtest.Open(t, pgtest.AdminURL(t, database), pgtest.Config(func(c *pgxpool.Config) {
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // several statements at once
			}))
			pool := pgtest.Open(t, database)
			exec(t, admin, c.spoil)
			b := newBackend(t, pool)
			err := b.Ping(t.Context())
			if c.says == nil {
				must(t, err)
				return
			}
			if err == nil {
				t.Fatal("Ping finds nothing wrong")
			}
			for _, s := range append(c.says, "worklease: ping: ") {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("Ping does not say %q: %v", s, err)
				}
			}
			if !c.fatal {
				_, commands, _ := strings.Cut(err.Error(), "\n")
				exec(t, pool, commands)
				must(t, b.Ping(t.Context()))
			}
		})
	}
}

// The tool installs into public unless a configuration file says otherwise: for another
// schema Ping does not name it.
func TestPingOfAnotherSchema(t *testing.T) {
	t.Parallel()
	b := newBackend(t, pgtest.Open(t, pgtest.Database(t)), pgxbackend.WithSchema(`jo"bs`))
	if err := b.Ping(t.Context()); err == nil || !strings.Contains(err.Error(), `migrations.WithSchema("jo\"bs")`) || strings.Contains(err.Error(), "tern") {
		t.Errorf("Ping: %v", err)
	}
}

// What Ping says to do about a sequence is right in a schema of any name, and
// tokens go on above the rows.
func TestPingMendsASequence(t *testing.T) {
	t.Parallel()
	database := pgtest.Database(t, pgtest.Empty())
	pool := pgtest.Open(t, database, pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	}))
	for _, name := range []string{"plain", "o'brien", `back\slash "quoted"`} {
		conn, err := pgx.Connect(t.Context(), database)
		must(t, err)
		must(t, migrations.Up(t.Context(), conn, migrations.WithSchema(name)))
		must(t, conn.Close(t.Context()))
		b := newBackend(t, pool, pgxbackend.WithSchema(name))
		l := newLease(t, b, "holder")
		for range 5 {
			must(t, l.Release(t.Context(), take(t, l, "w")))
		}
		last := take(t, l, "w").FencingToken()
		exec(t, pool, `DROP SEQUENCE `+pgx.Identifier{name, "worklease_fencing_seq"}.Sanitize()+` CASCADE`)
		err = b.Ping(t.Context())
		if err == nil {
			t.Fatal("Ping does not miss the sequence")
		}
		_, commands, _ := strings.Cut(err.Error(), "\n")
		exec(t, pool, commands)
		must(t, b.Ping(t.Context()))
		if token := take(t, l, "new"); token.FencingToken() <= last {
			t.Errorf("token %d after %d", token.FencingToken(), last)
		}
	}
}

func TestPingWithoutAServer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.Refuse()
	if err := s.b.Ping(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "worklease: ping: ") {
		t.Errorf("Ping: %v", err)
	}
	s.Pass()
	must(t, s.b.Ping(t.Context()))
	refused(t, "Ping", s.b.Ping(cancelled(t.Context())), context.Canceled)
	s.b.Close()
	refused(t, "Ping", s.b.Ping(t.Context()), worklease.ErrClosed)
}

// A read-only session is refused by the server, and by its name.
func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	}))
	_, err := newLease(t, newBackend(t, pool), "holder").Acquire(t.Context(), "w")
	if sqlState(err) != "25006" || errors.Is(err, worklease.ErrFenced) {
		t.Errorf("Acquire: %v", err)
	}
	if want := fmt.Sprintf("worklease: acquire %q: ", "w"); !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%q does not begin with %q", err, want)
	}
}
