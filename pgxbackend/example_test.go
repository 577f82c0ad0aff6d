package pgxbackend_test

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A service makes one Backend on its pool, and closes it before that.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	backend, err := pgxbackend.New(pool, pgxbackend.WithSchema("jobs"), pgxbackend.WithLogger(slog.Default()))
	if err != nil {
		panic(err)
	}
	defer backend.Close()
	if err := backend.Ping(ctx); err != nil { // in a readiness check, too
		slog.Error("leases are not ready", "error", err)
	}
	lease, err := worklease.New(backend, worklease.Config{TTL: 30 * time.Second, HolderID: "host-1"})
	if err != nil {
		panic(err)
	}
	_ = lease // for worker.NewRunner, leader.Elect or pool.New
}

// An order and the position after it become visible together, or neither does.
func ExampleBackend_Step() {
	importOrder := func(ctx context.Context, backend *pgxbackend.Backend, token worklease.Token, order string, next int) error {
		return backend.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, `INSERT INTO orders (body) VALUES ($1)`, order)
			return strconv.AppendInt(nil, int64(next), 10), err
		})
	}
	_ = importOrder
}

// A long transaction of the caller's own: the fence first, the checkpoint last.
func ExampleBackend_FenceTx() {
	rebuild := func(ctx context.Context, pool *pgxpool.Pool, backend *pgxbackend.Backend, token worklease.Token, state []byte) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := backend.FenceTx(ctx, tx, token); err != nil {
				return err // somebody else owns the work: nothing was written
			}
			if _, err := tx.Exec(ctx, `INSERT INTO totals SELECT customer, sum(amount) FROM orders GROUP BY customer`); err != nil {
				return err
			}
			return backend.CheckpointTx(ctx, tx, token, state)
		})
	}
	_ = rebuild
}

// Where the pool goes through a transaction pooler, the listener gets a connection of
// its own to the server.
func ExampleWithListenConnect() {
	connect := func(pool *pgxpool.Pool) (*pgxbackend.Backend, error) {
		return pgxbackend.New(pool, pgxbackend.WithListenConnect(func(ctx context.Context) (*pgx.Conn, error) {
			return pgx.Connect(ctx, os.Getenv("DIRECT_URL"))
		}))
	}
	_ = connect
}
