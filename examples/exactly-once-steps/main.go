// Exactly-once-steps shows an import whose rows and position commit together, through
// crashes at the two worst moments: with rows written and not committed, and with rows
// committed and nobody told. Each worker is a process of its own; the table has no key
// that would hide a repetition.
//
//	DATABASE_URL=postgres://… go run ./examples/exactly-once-steps
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	schema = "worklease_example_steps"
	batch  = 10
	orders = 60
)

func main() {
	ctx := context.Background()
	if len(os.Args) == 4 {
		work(ctx, os.Args[1], os.Args[2], os.Args[3])
		return
	}
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
	check(err)
	check(migrations.Up(ctx, conn, migrations.WithSchema(schema))) // creates it
	_, err = conn.Exec(ctx, "CREATE TABLE "+schema+".orders (number int)")
	check(err)

	start("worker-1", "before the commit", "30")
	start("worker-2", "after the commit", "40")
	start("worker-3", "never", "0")

	var rows, different int
	check(conn.QueryRow(ctx, "SELECT count(*), count(DISTINCT number) FROM "+schema+".orders").Scan(&rows, &different))
	fmt.Printf("orders: %d, rows: %d, different: %d\n", orders, rows, different)
	_, err = conn.Exec(ctx, "DROP SCHEMA "+schema+" CASCADE")
	check(err)
}

// start runs this program as a worker that crashes at a batch, and waits for its end.
func start(name, crash, at string) {
	self, err := os.Executable()
	check(err)
	cmd := exec.Command(self, name, crash, at)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()
	var crashed *exec.ExitError
	if !errors.As(err, &crashed) {
		check(err)
	}
}

// work is the life of one worker.
func work(ctx context.Context, name, crash, at string) {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	backend, err := pgxbackend.New(pool, pgxbackend.WithSchema(schema))
	check(err)
	defer backend.Close()
	lease, err := worklease.New(backend, worklease.Config{TTL: time.Second, HolderID: name})
	check(err)
	i := importer{name: name, backend: backend, crash: crash}
	i.crashAt, err = strconv.Atoi(at)
	check(err)
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease, WorkFn: i.run,
		AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
	})
	check(err)
	check(runner.Run(ctx, "orders.csv"))
}

type importer struct {
	name    string
	backend *pgxbackend.Backend
	crash   string
	crashAt int
}

func (i importer) run(ctx context.Context, token worklease.Token, prior []byte, _ bool) ([]byte, error) {
	done, err := checkpoint.Decode[int](checkpoint.JSON(), prior)
	if err != nil {
		return nil, err
	}
	fmt.Printf("%s begins after order %d\n", i.name, done)
	for done < orders {
		err := i.backend.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return i.insert(ctx, tx, done)
		})
		if err != nil {
			return nil, err
		}
		done += batch
		i.mayCrash("after the commit", done)
	}
	fmt.Printf("%s has imported all\n", i.name)
	return nil, nil // the last step has saved the last position
}

// insert writes a batch and returns the position after it: both are committed, or neither.
func (i importer) insert(ctx context.Context, tx pgx.Tx, done int) (state []byte, err error) {
	_, err = tx.Exec(ctx, "INSERT INTO "+schema+".orders SELECT generate_series($1::int, $2::int)", done+1, done+batch)
	if err != nil {
		return nil, err
	}
	i.mayCrash("before the commit", done+batch)
	return checkpoint.Encode(checkpoint.JSON(), done+batch)
}

// mayCrash ends the process as a power failure would: nothing is closed, nobody is told.
func (i importer) mayCrash(moment string, at int) {
	if i.crash == moment && i.crashAt == at {
		fmt.Printf("%s has written orders %d to %d and crashes %s\n", i.name, at-batch+1, at, moment)
		os.Exit(1)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
