// Pgx-service is an HTTP service with a background job that must run once: it turns orders
// into invoices, numbered 1, 2, 3 without a gap. Any number of instances may run; one of
// them has the job. On SIGTERM that one finishes its step and hands over, and another goes
// on at once. The job, its lease and the handlers share one pool.
//
//	DATABASE_URL=postgres://… ADDR=localhost:8080 go run ./examples/pgx-service
//	curl -X PUT localhost:8080/orders/4711
//	curl localhost:8080/healthz
package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const schema = "example_service"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	check(pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return migrations.Up(ctx, conn.Conn(), migrations.WithSchema(schema))
	}))
	_, err = pool.Exec(ctx, tablesSQL)
	check(err)
	backend, err := pgxbackend.New(pool, pgxbackend.WithSchema(schema), pgxbackend.WithLogger(slog.Default()))
	check(err)
	defer backend.Close() // before the pool

	listener, err := net.Listen("tcp", os.Getenv("ADDR"))
	check(err)
	s := service{pool, backend}
	server := &http.Server{Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	go func() { slog.Info("no longer serving", "why", server.Serve(listener)) }()
	slog.Info("serving", "addr", listener.Addr().String())
	s.keepJob(ctx, listener.Addr().String()) // until the signal, and the handover
	grace, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	check(server.Shutdown(grace))
	slog.Info("stopped")
}

// tablesSQL makes the application's own tables. No key keeps an order from getting two
// invoices: nothing but the lease does. The lock is for instances that start together.
const tablesSQL = `SELECT pg_advisory_xact_lock(4711);
CREATE TABLE IF NOT EXISTS ` + schema + `.orders (id text PRIMARY KEY);
CREATE TABLE IF NOT EXISTS ` + schema + `.invoices (number int, order_id text, token bigint, at timestamptz DEFAULT clock_timestamp())`

// waitingSQL does not go by position: orders commit in another order than they begin.
const waitingSQL = `SELECT id FROM ` + schema + `.orders EXCEPT SELECT order_id FROM ` + schema + `.invoices LIMIT 20`

const invoiceSQL = `INSERT INTO ` + schema + `.invoices (number, order_id, token)
SELECT $1::int + n, id, $3::bigint FROM unnest($2::text[]) WITH ORDINALITY AS o (id, n)`

type service struct {
	pool    *pgxpool.Pool
	backend *pgxbackend.Backend
}

func (s service) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /orders/{id}", func(w http.ResponseWriter, r *http.Request) {
		// May be repeated: the client that got no answer does.
		_, err := s.pool.Exec(r.Context(), `INSERT INTO `+schema+`.orders VALUES ($1) ON CONFLICT DO NOTHING`, r.PathValue("id"))
		if err != nil {
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.backend.Ping(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		json.NewEncoder(w).Encode(s.backend.Stats())
	})
	return mux
}

// keepJob has the job whenever it can, until ctx ends.
func (s service) keepJob(ctx context.Context, name string) {
	lease, err := worklease.New(s.backend, worklease.Config{TTL: 30 * time.Second, HolderID: name})
	check(err)
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease: lease, WorkFn: s.invoice,
		AcquireOptions: []worklease.AcquireOption{worklease.WithWaitForLease()},
	})
	check(err)
	for ctx.Err() == nil {
		if err := runner.Run(ctx, "invoices"); err != nil && ctx.Err() == nil {
			slog.Error("the job failed", "err", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// invoice is the job. Its checkpoint is the last number.
func (s service) invoice(ctx context.Context, token worklease.Token, prior []byte, clean bool) ([]byte, error) {
	last, err := checkpoint.Decode[int](checkpoint.JSON(), prior)
	slog.Info("has the job", "after", last, "clean", clean, "token", token)
	for err == nil && ctx.Err() == nil {
		var ids []string
		rows, _ := s.pool.Query(ctx, waitingSQL)
		if ids, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil || len(ids) == 0 {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		// A step is short, and once begun it is finished. If the lease was lost, it is refused.
		err = s.backend.Step(context.WithoutCancel(ctx), token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			if _, err := tx.Exec(ctx, invoiceSQL, last, ids, token.FencingToken()); err != nil {
				return nil, err
			}
			return checkpoint.Encode(checkpoint.JSON(), last+len(ids))
		})
		last += len(ids)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		err = nil // told to stop while it looked: nothing was begun
	}
	return nil, err // each step has saved its state
}

func check(err error) {
	if err != nil {
		slog.Error("the service failed", "err", err)
		os.Exit(1)
	}
}
