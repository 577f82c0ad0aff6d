package pgxbackend_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// E1: what the server refuses for reasons of its own is never taken for a verdict,
// and its cause can be had.
func TestServerErrorsAreNoVerdicts(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	exec(t, pool, `CREATE TABLE raising (code text)`)
	exec(t, pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE c text; BEGIN
		SELECT code INTO c FROM raising;
		IF c IS NOT NULL THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = c; END IF;
		RETURN NEW; END $$`)
	exec(t, pool, `CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON worklease_leases FOR EACH ROW EXECUTE FUNCTION fail()`)
	b := newBackend(t, pool)
	l := newLease(t, b, "holder")
	ctx := t.Context()
	for code, permanent := range map[string]bool{
		"40001": false, "40P01": false, "57014": false, "55P03": false, "25006": false,
		"57P01": false, "57P02": false, "57P03": false, "53300": false, "54000": false, "0A000": false,
		"42501": true, "22023": true, "23514": true, "XX000": false,
	} {
		token := take(t, l, code)
		c := token.Claim()
		exec(t, pool, `INSERT INTO raising VALUES ($1)`, code)
		for name, call := range map[string]func() error{
			"acquire": func() error {
				_, err := l.Acquire(ctx, "free at "+code)
				return err
			},
			"checkpoint": func() error { return l.Checkpoint(ctx, token, []byte("state")) },
			"renew":      func() error { return l.Renew(ctx, token) },
			"forget":     func() error { return newLease(t, b, "holder").Forget(ctx, token) },
			// A Lease would repeat it until its time is over.
			"release": func() error { return b.Release(ctx, c, worklease.Farewell{Exit: worklease.ExitReleased}) },
			"undo":    func() error { return b.Release(ctx, c, worklease.Farewell{}) },
		} {
			err := call()
			for _, verdict := range []error{worklease.ErrFenced, worklease.ErrLeaseExpired, worklease.ErrLeaseHeld, worklease.ErrLeaseRetired} {
				if errors.Is(err, verdict) {
					t.Errorf("%s at SQLSTATE %s: %v", name, code, err)
				}
			}
			var pg *pgconn.PgError
			if !errors.As(err, &pg) || pg.Code != code {
				t.Errorf("%s at SQLSTATE %s: the cause of %v is %v", name, code, err, pg)
			}
			var be *worklease.BackendError
			if !errors.As(err, &be) || be.Permanent != permanent || !be.NotApplied {
				t.Errorf("%s at SQLSTATE %s: %+v", name, code, be)
			}
			if name != "release" && name != "undo" && !strings.HasPrefix(err.Error(), "worklease: "+name+` "`) {
				t.Errorf("%s: text %q", name, err)
			}
		}
		exec(t, pool, `TRUNCATE raising`)
		must(t, l.Release(ctx, token))
	}
}

// E1, with the true causes of some of them.
func TestInterruptedStatementsAreNoVerdicts(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "owner" }))
	l := newLease(t, newBackend(t, pool), "holder")
	token := take(t, l, "w")
	owners := fault.Backends{App: "owner", Query: "-- worklease:%"}
	for code, interrupt := range map[string]func(context.Context, fault.DB, fault.Backends) (int, error){
		"57014": fault.Cancel, "57P01": fault.Terminate,
	} {
		blocker := lockRow(t, url, "w")
		done := backgroundErr(func() error { return l.Checkpoint(t.Context(), token, []byte("state")) })
		must(t, blocker.Await(t.Context()))
		_, err := interrupt(t.Context(), direct, owners)
		must(t, err)
		blocker.Release()
		if err := await(t, "Checkpoint returns", done).err; sqlState(err) != code || errors.Is(err, worklease.ErrFenced) {
			t.Errorf("Checkpoint: %v, want SQLSTATE %s", err, code)
		}
	}
	// It was not lost by all that.
	must(t, l.Checkpoint(t.Context(), token, []byte("state")))
}

// 40001 of a stricter default isolation is met by trying again, within the call.
func TestSerializationFailuresAreMet(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	strict := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	}))
	l := newLease(t, newBackend(t, strict), "holder")
	resumed := newLease(t, newBackend(t, direct), "holder")
	token := take(t, l, "w")
	for name, call := range map[string]func() error{
		"Renew":      func() error { return l.Renew(t.Context(), token) },
		"Checkpoint": func() error { return l.Checkpoint(t.Context(), token, []byte("state")) },
	} {
		// Behind a lock the row changes under the statement's snapshot.
		conn, err := pgx.Connect(t.Context(), url)
		must(t, err)
		tx, err := conn.Begin(t.Context())
		must(t, err)
		exec(t, tx, `UPDATE worklease_leases SET updated_at = clock_timestamp() WHERE work_id = 'w'`)
		done := backgroundErr(call)
		must(t, fault.AwaitBlocked(t.Context(), direct, fault.Backends{Query: "-- worklease: %"}))
		must(t, tx.Commit(t.Context()))
		must(t, conn.Close(t.Context()))
		if err := await(t, name+" returns", done).err; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, resumed.Renew(t.Context(), token))
}
