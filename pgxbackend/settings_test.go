package pgxbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// cycle uses every operation once, through a whole life of a work ID.
func cycle(t *testing.T, b *pgxbackend.Backend, workID string) {
	t.Helper()
	must(t, b.Ping(t.Context()))
	l, err := worklease.New(b, worklease.Config{TTL: 90 * time.Minute, HolderID: `ho'l"d\er`})
	must(t, err)
	state := []byte("\x00\xff\\'\"$1")
	token := take(t, l, workID)
	if left := time.Until(token.ExpiresAt()); left < 80*time.Minute || left > 100*time.Minute {
		t.Errorf("a lease of 90 min expires in %v", left)
	}
	_, err = l.Acquire(t.Context(), workID)
	var held *worklease.HeldError
	if !errors.As(err, &held) || held.HolderID != `ho'l"d\er` || held.Remaining < 89*time.Minute || held.Remaining > 90*time.Minute {
		t.Errorf("Acquire of held work: %v", err)
	}
	must(t, l.Checkpoint(t.Context(), token, state))
	must(t, l.Renew(t.Context(), token))
	if got, clean, err := l.ReadCheckpoint(t.Context(), token); err != nil || !bytes.Equal(got, state) || clean {
		t.Errorf("ReadCheckpoint: %q, %v, %v", got, clean, err)
	}
	must(t, l.Release(t.Context(), token, worklease.WithState(append(state, '!')), worklease.WithExit(worklease.ExitRetired)))
	_, err = l.Acquire(t.Context(), workID)
	var retired *worklease.RetiredError
	if !errors.As(err, &retired) || time.Since(retired.RetiredAt).Abs() > 10*time.Minute {
		t.Errorf("Acquire of retired work: %v", err)
	}
	next := take(t, l, workID, worklease.WithReopen())
	if next.FencingToken() <= token.FencingToken() {
		t.Errorf("token %d after %d", next.FencingToken(), token.FencingToken())
	}
	p := prior(t, l, next)
	if !p.CleanHandoff() || !bytes.Equal(p.State, append(state, '!')) || time.Since(p.CheckpointedAt).Abs() > 10*time.Minute {
		t.Errorf("prior %+v", p)
	}
	refused(t, "Renew", l.Renew(t.Context(), token), worklease.ErrFenced)
	must(t, l.Forget(t.Context(), next))
	if p := prior(t, l, take(t, l, workID)); p.Exit != worklease.ExitNone || p.State != nil {
		t.Errorf("prior after Forget: %+v", p)
	}
}

// The settings that a session comes with do not matter.
func TestSessionSettingsDoNotMatter(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	for i, setting := range []string{
		"default_transaction_isolation=repeatable read",
		"default_transaction_isolation=serializable",
		"default_transaction_deferrable=on",
		"timezone=Pacific/Kiritimati",
		"timezone=America/St_Johns",
		"datestyle=SQL, DMY",
		"datestyle=German",
		"intervalstyle=sql_standard",
		"intervalstyle=iso_8601",
		"search_path=nowhere",
		"search_path=pg_catalog",
		"statement_timeout=10s",
		"lock_timeout=10s",
		"idle_in_transaction_session_timeout=100ms",
		"synchronous_commit=off",
		"bytea_output=escape",
		"extra_float_digits=-15",
		"escape_string_warning=on",
		"standard_conforming_strings=off",
		"row_security=off",
		"enable_seqscan=off",
		"plan_cache_mode=force_generic_plan",
		"plan_cache_mode=force_custom_plan",
		"xmlbinary=hex",
	} {
		pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
			name, value, _ := strings.Cut(setting, "=")
			c.MaxConns = 1
			c.ConnConfig.RuntimeParams[name] = value
			switch name {
			case "standard_conforming_strings", "datestyle", "intervalstyle", "bytea_output":
				// pgx refuses the first in its simple protocol, and reads the others there, and
				// wherever results come as text, in their standard form only.
				c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
			}
		}))
		t.Run(setting, func(t *testing.T) { cycle(t, newBackend(t, pool), fmt.Sprint("w", i)) })
		pool.Close()
	}
}

// A schema may have any name that PostgreSQL accepts.
func TestAnySchemaName(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, pgtest.Empty())
	pool := pgtest.Open(t, url)
	names := []string{
		"My Schema", "a.b", `q"x`, "o'brien", `back\slash`, strings.Repeat("n", 63), "$1", "{table}",
		strings.Repeat("ü", 31), "--x", "/*", ";", "select", `\'`, "1", " ", "%s", `"`, "pöl\u0301", "plain",
	}
	made := rounds(8, 14, len(names))
	for _, name := range names[:made] {
		t.Run(name, func(t *testing.T) {
			conn, err := pgx.Connect(t.Context(), url)
			must(t, err)
			defer conn.Close(context.Background())
			must(t, migrations.Up(t.Context(), conn, migrations.WithSchema(name)))
			b := newBackend(t, pool, pgxbackend.WithSchema(name))
			cycle(t, b, "w")
			rows := query[int](t, pool, `SELECT count(*) FROM `+pgx.Identifier{name, "worklease_leases"}.Sanitize())
			if rows != 1 {
				t.Errorf("%d rows in schema %q, want 1", rows, name)
			}
		})
	}
	// Each is apart from all others, and public was never touched.
	if n := query[int](t, pool, `SELECT count(*) FROM pg_tables WHERE tablename = 'worklease_leases'`); n != made {
		t.Errorf("%d tables, want %d", n, made)
	}
	if query[bool](t, pool, `SELECT to_regclass('public.worklease_leases') IS NOT NULL`) {
		t.Error("public has a table that nobody asked for")
	}
}

func TestSchemaNamesThatCannotBe(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, pgtest.Empty())
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("n", 64), "too long in bytes": strings.Repeat("ü", 32),
		"NUL": "a\x00b", "not UTF-8": "a\xffb",
	} {
		if _, err := pgxbackend.New(pool, pgxbackend.WithSchema(name)); !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err := pgxbackend.New(nil, pgxbackend.WithSchema(""), nil)
	if !errors.Is(err, worklease.ErrInvalid) || !strings.Contains(err.Error(), "pool is nil") || !strings.Contains(err.Error(), "schema is empty") {
		t.Errorf("two faults at once: %v", err)
	}
}
