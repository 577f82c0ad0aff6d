package pgxbackend_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/conformance"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgserver"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// logGrants has the database write down every token in the order in which they
// become the row's: the trigger runs under the row's lock, which the next
// acquisition of the same work ID waits for until this one has committed.
func logGrants(t testing.TB, db fault.DB) {
	t.Helper()
	exec(t, db, `CREATE TABLE grants (n bigserial PRIMARY KEY, work_id text NOT NULL, token bigint NOT NULL)`)
	exec(t, db, `CREATE FUNCTION log_grant() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN INSERT INTO public.grants (work_id, token) VALUES (NEW.work_id, NEW.fencing_token); RETURN NULL; END $$`)
	exec(t, db, `CREATE TRIGGER log_grant AFTER INSERT OR UPDATE OF fencing_token ON worklease_leases
		FOR EACH ROW EXECUTE FUNCTION log_grant()`)
}

// checkGrants reports inversions, and returns how many grants there were.
func checkGrants(t testing.TB, db fault.DB) int {
	t.Helper()
	inversions := query[int](t, db, `SELECT count(*) FROM (
		SELECT token, lag(token) OVER (PARTITION BY work_id ORDER BY n) AS before FROM grants) g WHERE token <= before`)
	if inversions > 0 {
		t.Errorf("%d tokens are not above their predecessors in commit order", inversions)
	}
	if twice := query[int](t, db, `SELECT count(*) - count(DISTINCT token) FROM grants`); twice > 0 {
		t.Errorf("%d tokens were given out twice", twice)
	}
	return query[int](t, db, `SELECT count(*) FROM grants`)
}

// T1: an acquirer has drawn its token and stalls inside its insert, while others
// take the work, and leave it in any way.
func TestStalledInsertGetsTheGreatestToken(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 4 }))
	logGrants(t, pool)
	exec(t, pool, `CREATE FUNCTION stall() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF NEW.holder_id = 'staller' THEN PERFORM pg_advisory_xact_lock(hashtext(NEW.work_id)); END IF; RETURN NEW; END $$`)
	exec(t, pool, `CREATE TRIGGER stall BEFORE INSERT ON worklease_leases FOR EACH ROW EXECUTE FUNCTION stall()`)
	b := newBackend(t, pool)
	quick := newLease(t, b, "quick")
	leave := map[string]func(*testing.T, worklease.Token){
		"forgotten": func(t *testing.T, token worklease.Token) { must(t, quick.Forget(t.Context(), token)) },
		"released":  func(t *testing.T, token worklease.Token) { must(t, quick.Release(t.Context(), token)) },
		"given back": func(t *testing.T, token worklease.Token) {
			must(t, b.Release(t.Context(), token.Claim(), worklease.Farewell{}))
		},
		"lapsed": func(t *testing.T, token worklease.Token) { endLease(t, pool, token.WorkID()) },
		"kept":   func(*testing.T, worklease.Token) {},
	}
	for how, leave := range leave {
		for _, existing := range []bool{false, true} {
			workID := fmt.Sprintf("%s, row before: %v", how, existing)
			if existing {
				must(t, quick.Release(t.Context(), take(t, quick, workID)))
			}
			gate := fault.Block(t, url, `SELECT pg_advisory_xact_lock(hashtext($1))`, workID)
			staller := background(func() (worklease.Token, error) {
				return newLease(t, b, "staller").Acquire(t.Context(), workID)
			})
			must(t, gate.Await(t.Context()))
			token := take(t, quick, workID)
			leave(t, token)
			other := take(t, quick, "other than "+workID)
			gate.Release()
			got := await(t, "the stalled acquirer goes on", staller)
			if how == "kept" {
				refused(t, workID+": the stalled acquirer", got.err, worklease.ErrLeaseHeld)
				continue
			}
			if must(t, got.err); got.value.FencingToken() <= other.FencingToken() {
				t.Errorf("%s: the stalled acquirer got token %d after %d and, of another work ID, %d",
					workID, got.value.FencingToken(), token.FencingToken(), other.FencingToken())
			}
		}
	}
	checkGrants(t, pool)
}

// T1: one winner a round, whoever asks from wherever under whatever name.
func TestManyPoolsOneWinner(t *testing.T) {
	t.Parallel()
	const pools, goroutines = 8, 64
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	logGrants(t, direct)
	leases := make([]worklease.Lease, pools)
	for i := range leases {
		pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 4 }))
		leases[i] = newLease(t, newBackend(t, pool), "same holder")
	}
	last := take(t, leases[0], "w").FencingToken()
	n := rounds(3, 6, 60)
	for round := range n {
		endLease(t, direct, "w")
		var won atomic.Uint64
		var wg sync.WaitGroup
		for i := range goroutines {
			wg.Go(func() {
				token, err := leases[i%pools].Acquire(t.Context(), "w")
				switch {
				case err == nil:
					if !won.CompareAndSwap(0, token.FencingToken()) {
						t.Errorf("round %d has a second winner", round)
					}
				case !errors.Is(err, worklease.ErrLeaseHeld):
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		wg.Wait()
		if won.Load() <= last {
			t.Fatalf("round %d was won by token %d, after %d", round, won.Load(), last)
		}
		last = won.Load()
	}
	if grants := checkGrants(t, direct); grants != n+1 {
		t.Errorf("%d grants in the log, want %d", grants, n+1)
	}
}

// T1: acquirers race for a while, and owners leave in every way.
func TestRacingAcquirersNeverInvert(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.MaxConns = 16 }))
	logGrants(t, pool)
	b := newBackend(t, pool)
	ctx, cancel := context.WithTimeout(t.Context(), rounds(500*time.Millisecond, 1500*time.Millisecond, 10*time.Second))
	defer cancel()
	var wg sync.WaitGroup
	var granted atomic.Int64
	enough := func() bool { return ctx.Err() != nil && granted.Load() > 100 }
	for range 16 {
		wg.Go(func() {
			for !enough() {
				a := attempt(fmt.Sprint("w", rand.IntN(2)), "holder")
				a.TTL = 3 * time.Millisecond
				g, err := b.Acquire(t.Context(), a)
				if err != nil {
					if !errors.Is(err, worklease.ErrLeaseHeld) {
						t.Error(err)
						return
					}
					continue
				}
				granted.Add(1)
				c := worklease.Claim{WorkID: a.WorkID, HolderID: a.HolderID, FencingToken: g.FencingToken, Nonce: a.Nonce}
				switch rand.IntN(4) {
				case 0:
					err = b.Release(t.Context(), c, worklease.Farewell{Exit: worklease.ExitReleased})
				case 1:
					err = b.Release(t.Context(), c, worklease.Farewell{}) // gives back
				case 2:
					err = b.Forget(t.Context(), c)
				}
				if err != nil && !errors.Is(err, worklease.ErrFenced) {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%d grants", checkGrants(t, pool))
}

// T1, S1: the row's token counts, whatever becomes of the sequence.
func TestTokensRiseWhateverTheSequenceDoes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := newLease(t, newBackend(t, pool), "holder")
	last := uint64(0)
	next := func(when string) {
		t.Helper()
		token := take(t, l, "w")
		if token.FencingToken() <= last {
			t.Errorf("%s: token %d after %d", when, token.FencingToken(), last)
		}
		last = token.FencingToken()
		must(t, l.Release(t.Context(), token))
	}
	for range 50 {
		next("undisturbed")
	}
	exec(t, pool, `ALTER SEQUENCE worklease_fencing_seq RESTART WITH 1`)
	next("sequence restarted")
	next("sequence restarted, once more")
	exec(t, pool, `SELECT nextval('worklease_fencing_seq') FROM generate_series(1, 1000)`)
	next("a thousand values dropped")
	if last < 1000 {
		t.Errorf("token %d does not follow the sequence", last)
	}
	exec(t, pool, `DROP SEQUENCE worklease_fencing_seq CASCADE`)
	exec(t, pool, `CREATE SEQUENCE worklease_fencing_seq`)
	next("sequence made anew")
	zombie := take(t, l, "w")
	exec(t, pool, `ALTER SEQUENCE worklease_fencing_seq RESTART WITH 1`)
	must(t, l.Forget(t.Context(), zombie))
	last = zombie.FencingToken()
	next("forgotten, sequence restarted")
}

// T1, S1, S3: a dump is restored into a cluster whose sequence, and whose
// transaction counter, are behind.
func TestTokensRiseInARestoredDump(t *testing.T) {
	t.Parallel()
	from := pgtest.Database(t)
	old := pgtest.Open(t, from)
	before := newLeaseFor(t, newBackend(t, old), "holder", time.Hour)
	for range 20 {
		must(t, before.Release(t.Context(), take(t, before, "released")))
	}
	held := take(t, before, "held")
	must(t, before.Checkpoint(t.Context(), held, []byte("so far")))
	lapsed := take(t, before, "lapsed")
	endLease(t, old, "lapsed")

	for how, restore := range map[string]func(t *testing.T) string{
		"by COPY":    func(t *testing.T) string { return restoreByCopy(t, old) },
		"by pg_dump": func(t *testing.T) string { return restoreByDump(t, from) },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			to := restore(t)
			pool := pgtest.Open(t, to)
			exec(t, pool, `ALTER SEQUENCE worklease_fencing_seq RESTART WITH 1`)
			// It polls, for the suite ends leases in ways that nobody is notified of.
			b := newBackend(t, pool)
			must(t, b.Ping(t.Context()))
			l := newLeaseFor(t, b, "holder", time.Hour)
			// A hold that was carried over goes on.
			must(t, l.Renew(t.Context(), held))
			if state, _, err := l.ReadCheckpoint(t.Context(), held); err != nil || string(state) != "so far" {
				t.Errorf("the checkpoint is %q, %v after the restore", state, err)
			}
			if token := take(t, l, "lapsed"); token.FencingToken() <= lapsed.FencingToken() {
				t.Errorf("token %d after %d", token.FencingToken(), lapsed.FencingToken())
			}
			refused(t, "checkpoint of a zombie", l.Checkpoint(t.Context(), lapsed, nil), worklease.ErrFenced)
			last := query[int64](t, old, `SELECT fencing_token FROM worklease_leases WHERE work_id = 'released'`)
			if token := take(t, l, "released"); token.FencingToken() <= uint64(last) {
				t.Errorf("token %d after %d", token.FencingToken(), last)
			}
			if how != "by COPY" {
				return // once is enough
			}
			conformance.Run(t, func(*testing.T) worklease.Backend { return b },
				conformance.EndLease(func(t *testing.T, _ worklease.Backend, workID string) { endLease(t, pool, workID) }))
		})
	}
}

// restoreByCopy carries the rows into a fresh installation.
func restoreByCopy(t *testing.T, old *pgxpool.Pool) string {
	t.Helper()
	to := pgtest.Database(t)
	var data bytes.Buffer
	must(t, copyTable(t.Context(), old, func(c *pgx.Conn) error {
		_, err := c.PgConn().CopyTo(t.Context(), &data, `COPY worklease_leases TO STDOUT`)
		return err
	}))
	must(t, copyTable(t.Context(), pgtest.Open(t, to), func(c *pgx.Conn) error {
		_, err := c.PgConn().CopyFrom(t.Context(), &data, `COPY worklease_leases FROM STDIN`)
		return err
	}))
	return to
}

func copyTable(ctx context.Context, pool *pgxpool.Pool, do func(*pgx.Conn) error) error {
	return pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return do(c.Conn()) })
}

// restoreByDump uses pg_dump and psql where the server came with them, which not
// every package of PostgreSQL does.
func restoreByDump(t *testing.T, from string) string {
	t.Helper()
	bin, err := pgserver.FindBinDir(t.Context())
	if err != nil {
		t.Skip("no programs of PostgreSQL on this machine, the server is elsewhere; see the restore by COPY:", err)
	}
	dump, psql := filepath.Join(bin, "pg_dump"), filepath.Join(bin, "psql")
	for _, program := range []string{dump, psql} {
		if _, err := os.Stat(program); err != nil {
			t.Skip("this PostgreSQL came without it; see the restore by COPY:", err)
		}
	}
	to := pgtest.Database(t, pgtest.Empty())
	out, err := osexec.CommandContext(t.Context(), dump, "--no-owner", from).Output()
	if err != nil {
		t.Fatalf("pg_dump: %v", err)
	}
	cmd := osexec.CommandContext(t.Context(), psql, "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", to)
	cmd.Stdin = bytes.NewReader(out)
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("psql: %v\n%s", err, said)
	}
	return to
}

// S2: neither release nor forgetting lets tokens of a work ID go back.
func TestForgettingNeverLowersTheFence(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	logGrants(t, pool)
	l := newLease(t, newBackend(t, pool), "holder")
	var zombies []worklease.Token
	for i := range 8 {
		token := take(t, l, "w")
		must(t, l.Checkpoint(t.Context(), token, []byte("state")))
		if i%2 == 1 {
			must(t, l.Release(t.Context(), token))
			token = take(t, l, "w")
		}
		must(t, l.Forget(t.Context(), token))
		for _, z := range zombies {
			refused(t, "checkpoint of a zombie", l.Checkpoint(t.Context(), z, []byte("late")), worklease.ErrFenced)
			refused(t, "release of a zombie", l.Release(t.Context(), z), worklease.ErrFenced)
		}
		zombies = append(zombies, token)
		if i%3 == 2 {
			// The next owner finds no trace of all that.
			fresh := take(t, l, "w")
			if p := prior(t, l, fresh); p.State != nil || p.Exit != worklease.ExitNone || p.FencingToken != 0 || p.Crashes != 0 {
				t.Errorf("prior after a Forget: %+v", p)
			}
			zombies = append(zombies, fresh)
			endLease(t, pool, "w")
		}
	}
	checkGrants(t, pool)
}
