package pgxbackend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func init() {
	roles["zombie"] = zombie
	roles["importer"] = importer
}

// What a child process is told.
const (
	envURL  = "WORKLEASE_TEST_URL"
	envWay  = "WORKLEASE_TEST_WAY"
	envSeed = "WORKLEASE_TEST_SEED"
)

const (
	processLedger = fault.Ledger("ledger")
	processTTL    = 2 * time.Second
)

// processPool is a child's.
func processPool(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(os.Getenv(envURL))
	if err != nil {
		return nil, err
	}
	if config.ConnConfig.DefaultQueryExecMode, err = pgtest.ExecMode(); err != nil {
		return nil, err
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// zombie takes the work, writes a row in a transaction, says so, and goes on when it
// is told to: which is when it has been replaced.
func zombie(ctx context.Context) error {
	pool, err := processPool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := pgxbackend.New(pool)
	if err != nil {
		return err
	}
	lease, err := worklease.New(b, worklease.Config{TTL: processTTL, HolderID: "namesake"})
	if err != nil {
		return err
	}
	token, err := lease.Acquire(ctx, "work", worklease.WithWaitForLease()) // a machine may be too busy for the first
	if err != nil {
		return err
	}
	written := func(tx pgx.Tx) ([]byte, error) {
		if err := errors.Join(insert(ctx, tx, token, 1), processLedger.Record(ctx, tx, "work", token.FencingToken())); err != nil {
			return nil, err
		}
		fault.Emit("written", token.FencingToken())
		_, err := fault.Receive(ctx)
		return []byte("zombie"), err
	}
	switch os.Getenv(envWay) {
	case "Step":
		err = b.Step(ctx, token, func(_ context.Context, tx pgx.Tx) ([]byte, error) { return written(tx) })
	case "CheckpointTx":
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			state, err := written(tx)
			if err == nil {
				err = b.CheckpointTx(ctx, tx, token, state)
			}
			return err
		})
	case "FenceTx":
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := b.FenceTx(ctx, tx, token); err != nil {
				return err
			}
			_, err := written(tx)
			return err
		})
	}
	fault.Emit("ended", []string{fmt.Sprint(err), fmt.Sprint(errors.Is(err, worklease.ErrFenced))})
	return nil
}

// X1, S7: a process is stopped between its rows and its checkpoint, replaced by
// another of the same name, and goes on: each step is there once.
func TestZombieProcess(t *testing.T) {
	t.Parallel()
	for way, fenced := range map[string]string{
		"Step":         "false", // its connection was ended
		"CheckpointTx": "true",
		"FenceTx":      "false", // as that of Step, by the session's own bound
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t, pgtest.ForceDrop())
			direct := pgtest.Open(t, url)
			exec(t, direct, createSteps)
			must(t, processLedger.Create(t.Context(), direct))
			childURL := url
			if way == "FenceTx" {
				childURL += "&idle_in_transaction_session_timeout=700"
			}
			child := fault.Spawn(t, "zombie", envURL+"="+childURL, envWay+"="+way)
			_, err := child.Await(t.Context(), fault.Named("written"))
			must(t, err)
			must(t, child.Freeze())

			b := newBackend(t, direct)
			next := newLeaseFor(t, b, "namesake", time.Minute)
			token := take(t, next, "work", worklease.WithWaitForLease(), worklease.WithPollInterval(20*time.Millisecond))
			if p := prior(t, next, token); p.Exit != worklease.ExitExpired || p.State != nil {
				t.Errorf("the successor finds %+v", p)
			}
			must(t, b.Step(t.Context(), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				must(t, processLedger.Record(ctx, tx, "work", token.FencingToken()))
				return []byte("1"), insert(ctx, tx, token, 1)
			}))

			must(t, child.Thaw())
			must(t, child.Send("go", nil))
			ended, err := child.Await(t.Context(), fault.Named("ended"))
			must(t, err)
			var answer []string
			must(t, ended.Decode(&answer))
			if answer[0] == "<nil>" || answer[1] != fenced {
				t.Errorf("the zombie's transaction returned %s; fenced: %s, want %s", answer[0], answer[1], fenced)
			}
			got := query[string](t, direct, `SELECT string_agg(step || ' by ' || token, ', ' ORDER BY n) FROM steps`)
			if want := fmt.Sprintf("1 by %d", token.FencingToken()); got != want {
				t.Errorf("steps [%s] took effect, want [%s]", got, want)
			}
			if got := stored(t, direct, "work"); got != "1" {
				t.Errorf("the checkpoint is %q", got)
			}
			must(t, processLedger.Check(t.Context(), direct))
		})
	}
}

// importTTL is short, so that much is taken over in little time.
const importTTL = 700 * time.Millisecond

// imports are work IDs, with fewer than there are importers.
var imports = []string{"import-a", "import-b"}

// importer does one work after the other, a few steps at a time, until it is told to
// stop.
func importer(ctx context.Context) error {
	pool, err := processPool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	b, err := pgxbackend.New(pool)
	if err != nil {
		return err
	}
	lease, err := worklease.New(b, worklease.Config{TTL: importTTL, HolderID: "importer"})
	if err != nil {
		return err
	}
	seed, _ := strconv.ParseUint(os.Getenv(envSeed), 10, 64)
	random := rand.New(rand.NewPCG(seed, 0))
	runner, err := worker.NewRunner(worker.RunnerConfig{Lease: lease, WorkFn: func(ctx context.Context, token worklease.Token, prior []byte, _ bool) ([]byte, error) {
		done, _ := strconv.Atoi(string(prior))
		for range 1 + random.IntN(10) {
			err := b.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				if err := processLedger.Record(ctx, tx, token.WorkID(), token.FencingToken()); err != nil {
					return nil, err
				}
				// Between its rows and its checkpoint is where it is to be met.
				for range random.IntN(4) {
					if _, err := tx.Exec(ctx, `SELECT pg_sleep(0.005)`); err != nil {
						return nil, err
					}
				}
				return strconv.AppendInt(nil, int64(done+1), 10), insert(ctx, tx, token, done+1)
			})
			if err != nil {
				return nil, err
			}
			done++
		}
		return nil, nil
	}})
	if err != nil {
		return err
	}
	fault.Emit("ready", nil)
	for ctx.Err() == nil {
		// Whatever it returns: the database tells what took effect.
		runner.Run(ctx, imports[random.IntN(len(imports))])
		time.Sleep(time.Duration(random.IntN(10)) * time.Millisecond)
	}
	return nil
}

// X1, X3: processes are killed and stopped at random; each step took effect once, in
// order.
func TestStepsUnderChaos(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t, pgtest.ForceDrop())
	direct := pgtest.Open(t, url)
	exec(t, direct, createSteps)
	must(t, processLedger.Create(t.Context(), direct))
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	children := make([]*fault.Child, 3)
	spawn := func(i int) {
		t.Helper()
		children[i] = fault.Spawn(t, "importer", envURL+"="+url, envSeed+"="+strconv.FormatUint(random.Uint64(), 10))
	}
	total := func() int { return query[int](t, direct, `SELECT count(*) FROM steps`) }
	for i := range children {
		spawn(i)
	}
	for _, child := range children {
		_, err := child.Await(t.Context(), fault.Named("ready"))
		must(t, err)
	}
	kills, stops := 0, 0
	end := time.Now().Add(rounds(time.Second, 5*time.Second, time.Minute))
	for time.Now().Before(end) {
		time.Sleep(time.Duration(random.IntN(400)) * time.Millisecond)
		i := random.IntN(len(children))
		if kills <= stops {
			children[i].Kill()
			spawn(i)
			kills++
			continue
		}
		must(t, children[i].Freeze())
		time.Sleep(time.Duration(random.Int64N(int64(importTTL) * 2)))
		must(t, children[i].Thaw())
		stops++
	}
	// Whatever was left behind, somebody goes on.
	seen := total()
	eventually(t, "the work goes on", func() bool { return total() >= seen+20 })
	for _, child := range children {
		must(t, child.Terminate())
		must(t, child.Wait(t.Context()))
	}

	for _, workID := range imports {
		got := strings.Fields(query[string](t, direct, `SELECT coalesce(string_agg(step::text, ' ' ORDER BY n), '') FROM steps WHERE work_id = $1`, workID))
		want := make([]string, len(got))
		for i := range want {
			want[i] = strconv.Itoa(i + 1)
		}
		if diff := cmp.Diff(got, want); diff != "" {
			t.Errorf("steps of %s in the order in which they took effect (-got +want):\n%s", workID, diff)
		}
		if state := stored(t, direct, workID); state != strconv.Itoa(len(got)) {
			t.Errorf("the checkpoint of %s is %s after %d steps", workID, state, len(got))
		}
	}
	must(t, processLedger.Check(t.Context(), direct))
	t.Logf("%d steps by %d owners, %d kills, %d stops", total(), query[int](t, direct, `SELECT count(DISTINCT token) FROM steps`), kills, stops)
}
