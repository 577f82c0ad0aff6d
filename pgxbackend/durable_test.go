package pgxbackend_test

import (
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

// D3: what was acknowledged to a role that does not wait for its commits survives a
// crash. A row that the role writes by itself, last, shows that others do not.
func TestAcknowledgedSurvivesACrash(t *testing.T) {
	t.Parallel()
	// Nothing else but a commit that waits writes the log out.
	server := pgtest.Server(t, pgserver.Options{Settings: map[string]string{
		"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "bgwriter_delay": "10s",
	}})
	url := pgtest.Database(t, pgtest.On(server), pgtest.ForceDrop())
	lazy := pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	pool := pgtest.Open(t, url, lazy)
	exec(t, pool, `CREATE TABLE control (step text)`)
	l := newLease(t, newBackend(t, pool), "holder")
	b := newBackend(t, pool)
	var token worklease.Token
	lost := 0
	steps := rounds(3, 3, 6) // the others are in TestSynchronousCommitIsOnlyRaised too
	for i, step := range []struct {
		name string
		do   func() error
		is   string // of the row
	}{
		{"Acquire", func() (err error) {
			token, err = l.Acquire(t.Context(), "w")
			return err
		}, `fencing_token = $1`},
		{"Checkpoint", func() error { return l.Checkpoint(t.Context(), token, []byte("one")) },
			`fencing_token = $1 AND checkpoint = 'one'`},
		{"Release", func() error { return l.Release(t.Context(), token, worklease.WithState([]byte("two"))) },
			`exit_token = $1 AND exit = 2 AND checkpoint = 'two'`},
		{"Acquire again", func() (err error) {
			token, err = l.Acquire(t.Context(), "w")
			return err
		}, `fencing_token = $1 AND prior_exit = 2`},
		{"giving back", func() error { return b.Release(t.Context(), token.Claim(), worklease.Farewell{}) },
			`exit_token = $1 AND exit = 5`},
		{"Forget", func() error { return l.Forget(t.Context(), token) }, `exit_token = $1 AND checkpoint IS NULL`},
	} {
		if i == steps {
			break
		}
		must(t, step.do())
		exec(t, pool, `INSERT INTO control VALUES ($1)`, step.name)
		server.Crash()
		must(t, server.Restart(t.Context()))
		pool.Reset()
		if !query[bool](t, pool, `SELECT coalesce(bool_or(`+step.is+`), false) FROM worklease_leases WHERE work_id = 'w'`, int64(token.FencingToken())) {
			t.Errorf("an acknowledged %s did not survive", step.name)
		}
		if !query[bool](t, pool, `SELECT EXISTS (SELECT FROM control WHERE step = $1)`, step.name) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no crash lost anything: this server waits for every commit, and the test shows nothing")
	}
}

// D3: a statement raises what the role has too low, and lowers nothing.
func TestSynchronousCommitIsOnlyRaised(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	owner := pgtest.Open(t, url)
	exec(t, owner, `CREATE TABLE levels (n bigserial, level text)`)
	exec(t, owner, `CREATE FUNCTION log_level() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO levels (level) VALUES (current_setting('synchronous_commit')); RETURN NULL; END $$`)
	// At the commit: what is set then is what the commit waits for.
	exec(t, owner, `CREATE CONSTRAINT TRIGGER log_level AFTER INSERT OR UPDATE ON worklease_leases
		DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION log_level()`)
	for role, want := range map[string]string{
		"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply",
	} {
		pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
			c.MaxConns = 1
			c.ConnConfig.RuntimeParams["synchronous_commit"] = role
		}))
		b := newBackend(t, pool)
		l := newLease(t, b, "holder")
		for name, do := range map[string]func(worklease.Token) error{
			"Checkpoint":  func(token worklease.Token) error { return l.Checkpoint(t.Context(), token, []byte("state")) },
			"Release":     func(token worklease.Token) error { return l.Release(t.Context(), token) },
			"Forget":      func(token worklease.Token) error { return l.Forget(t.Context(), token) },
			"giving back": func(token worklease.Token) error { return b.Release(t.Context(), token.Claim(), worklease.Farewell{}) },
		} {
			exec(t, owner, `TRUNCATE levels`)
			must(t, do(take(t, l, role+name)))
			got := query[string](t, owner, `SELECT string_agg(level, ', ' ORDER BY n) FROM levels`)
			if got != want+", "+want {
				t.Errorf("synchronous_commit %s: Acquire and %s commit with %s, want %s", role, name, got, want)
			}
		}
		if got := query[string](t, pool, `SHOW synchronous_commit`); got != role {
			t.Errorf("the session was left with %s, was %s", got, role)
		}
		pool.Close()
	}
}
