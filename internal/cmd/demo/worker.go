package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/aetomala/worklease/worker"
)

const workerRole = "worker"

const (
	// pollInterval is for the time in which nothing wakes the waiters.
	pollInterval = 300 * time.Millisecond
	// lossPause is the floor of the loop that stands by again after a loss.
	lossPause = 50 * time.Millisecond
)

// importer is a worker process. It imports works until all are done or its context ends.
type importer struct {
	brief   brief
	orders  *orders
	pool    *pgxpool.Pool
	backend *pgxbackend.Backend
	lease   worklease.Lease
	works   map[string]assignment
}

func playWorker(ctx context.Context) error {
	e, err := fault.Receive(ctx)
	if err != nil {
		return err
	}
	im := &importer{orders: newOrders(), works: map[string]assignment{}}
	if err := e.Decode(&im.brief); err != nil {
		return err
	}
	go im.orders.heed(ctx)
	return im.run(ctx)
}

func (im *importer) run(ctx context.Context) error {
	var err error
	if im.pool, err = openPool(ctx, im.brief.Database, im.brief.Name); err != nil {
		return err
	}
	defer im.pool.Close()
	if im.backend, err = pgxbackend.New(im.pool, pgxbackend.WithSchema(im.brief.Schema)); err != nil {
		return err
	}
	defer im.backend.Close()
	im.lease, err = worklease.New(im.backend, worklease.Config{TTL: im.brief.TTL, HolderID: im.brief.Name})
	if err != nil {
		return err
	}
	runner, err := worker.NewRunner(worker.RunnerConfig{
		Lease:  im.lease,
		WorkFn: im.importWork,
		AcquireOptions: []worklease.AcquireOption{
			worklease.WithWaitForLease(), worklease.WithPollInterval(pollInterval),
		},
	})
	if err != nil {
		return err
	}
	im.standBy(ctx, runner)
	return nil
}

// standBy runs the worker's share, and then every work: whoever holds it, this worker waits.
func (im *importer) standBy(ctx context.Context, runner *worker.Runner) {
	var running sync.WaitGroup
	defer running.Wait()
	share := map[string]bool{}
	for _, id := range im.brief.Share {
		share[id] = true
	}
	for _, a := range im.brief.Works {
		im.works[a.Source.ID] = a
	}
	for id := range im.works {
		running.Go(func() {
			if !share[id] {
				select {
				case <-im.orders.standBy:
				case <-ctx.Done():
					return
				}
			}
			im.runToEnd(ctx, runner, id)
		})
	}
}

// runToEnd runs a work whenever it is free, until it is done for good.
func (im *importer) runToEnd(ctx context.Context, runner *worker.Runner, id string) {
	for {
		err := runner.Run(ctx, id)
		if ctx.Err() != nil {
			return
		}
		if err == nil || errors.Is(err, worklease.ErrLeaseRetired) {
			fault.Emit(eventRetired, id)
			return
		}
		select {
		case <-time.After(lossPause):
		case <-ctx.Done():
		}
	}
}

// importWork is the work function: from the last owner's position on, batch by batch.
func (im *importer) importWork(ctx context.Context, token worklease.Token, state []byte, _ bool) ([]byte, error) {
	defer func() {
		fault.Emit(eventLeaving, leaving{token.WorkID(), token.FencingToken(), time.Now()})
	}()
	a := im.works[token.WorkID()]
	lines, err := a.Source.read()
	if err != nil {
		return nil, err
	}
	at, err := position(state)
	if err != nil {
		return nil, err
	}
	if err := im.reportAcquired(ctx, token, at); err != nil {
		return nil, err
	}
	for at < len(lines) {
		next := min(at+a.Batch, len(lines))
		rest := im.orders.await(ctx, func(pace float64) bool { return a.allowed(pace) >= next })
		if rest == outside {
			im.rest(token, outside)
		}
		if ctx.Err() != nil {
			return im.stop(ctx, token, at)
		}
		b := batch{token.WorkID(), token.FencingToken(), at, lines[at:next]}
		if err := im.save(ctx, token, b, rest); err != nil {
			return nil, err
		}
		at = next
		fault.Emit(eventStepped, stepped{token.WorkID(), token.FencingToken(), at})
	}
	return nil, worklease.Retire
}

func (im *importer) reportAcquired(ctx context.Context, token worklease.Token, at int) error {
	prior, err := im.lease.Prior(ctx, token)
	if err != nil {
		return err
	}
	fault.Emit(eventAcquired, acquired{
		Work: token.WorkID(), Token: token.FencingToken(), Position: at,
		Exit: prior.Exit.String(), PriorHolder: prior.HolderID, PriorToken: prior.FencingToken, At: time.Now(),
	})
	return nil
}

// losses are what a context can be dead of, in words.
var losses = []struct {
	is  error
	why string
}{
	{worklease.ErrFenced, "fenced"},
	{worklease.ErrLeaseExpired, "expired"},
	{worklease.ErrLeaseWindowExhausted, "out of time"},
}

// stop ends the work because its context has ended: a loss is reported as one more write that did
// not take place, and on shutdown the work is handed over.
func (im *importer) stop(ctx context.Context, token worklease.Token, at int) ([]byte, error) {
	cause := context.Cause(ctx)
	for _, loss := range losses {
		if errors.Is(cause, loss.is) {
			fault.Emit(eventRefused, refused{token.WorkID(), token.FencingToken(), byContext, loss.why})
			return nil, cause
		}
	}
	return encodePosition(at), nil
}

// save imports a batch. Its context does not end with the lease's: a batch that has begun is
// finished on shutdown, and a zombie in the middle of one is the database's to refuse.
//
// What failed otherwise was not committed, and is tried once more: with a connection that is gone,
// that is how a zombie finds out.
func (im *importer) save(ctx context.Context, token worklease.Token, b batch, rest point) error {
	ctx = context.WithoutCancel(ctx)
	err := im.try(ctx, token, b, rest)
	why, final := refusal(err)
	if err == nil || final {
		return err
	}
	if why == "" && im.brief.Naive {
		return err // Whether the rows were committed is anybody's guess.
	}
	return im.try(ctx, token, b, "")
}

func (im *importer) try(ctx context.Context, token worklease.Token, b batch, rest point) error {
	save := im.step
	if im.brief.Naive {
		save = im.insertThenCheckpoint
	}
	err := save(ctx, token, b, rest)
	if why, _ := refusal(err); why != "" {
		fault.Emit(eventRefused, refused{token.WorkID(), token.FencingToken(), byDatabase, why})
	}
	return err
}

// step inserts the rows and saves the position in one transaction.
func (im *importer) step(ctx context.Context, token worklease.Token, b batch, rest point) error {
	return im.backend.Step(ctx, token, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if err := b.insert(ctx, tx, im.brief.Schema); err != nil {
			return nil, err
		}
		if rest == inside {
			im.rest(token, inside)
		}
		return encodePosition(b.position + len(b.lines)), nil
	})
}

// insertThenCheckpoint is what a step is there to replace: two transactions, and a gap.
func (im *importer) insertThenCheckpoint(ctx context.Context, token worklease.Token, b batch, rest point) error {
	if err := b.insert(ctx, im.pool, im.brief.Schema); err != nil {
		return err
	}
	if rest == inside {
		im.rest(token, inside)
	}
	return im.lease.Checkpoint(ctx, token, encodePosition(b.position+len(b.lines)))
}

// rest stands still until the parent says go. Meanwhile it may freeze or kill this process, and
// knows exactly where.
func (im *importer) rest(token worklease.Token, p point) {
	fault.Emit(eventResting, resting{token.WorkID(), token.FencingToken(), p})
	<-im.orders.goOn
}

// idleInTransaction is the SQLSTATE of a session that the server ended because its client had
// fallen silent inside a transaction.
const idleInTransaction = "25P03"

// refusal tells why the database refused a write, if it did. A final refusal is the fence's; the
// end of a session leaves the question open.
func refusal(err error) (why string, final bool) {
	var pg *pgconn.PgError
	switch {
	case errors.Is(err, worklease.ErrFenced):
		return "fenced", true
	case errors.Is(err, worklease.ErrLeaseExpired):
		return "expired", true
	case errors.Is(err, worklease.ErrOutcomeUnknown):
		return "", true
	case errors.As(err, &pg) && pg.Code == idleInTransaction:
		return idleInTransaction, false
	}
	return "", false
}

// position is the checkpoint: how many lines are in the table.
func position(state []byte) (int, error) {
	if state == nil {
		return 0, nil
	}
	at, err := strconv.Atoi(string(state))
	if err != nil {
		return 0, fmt.Errorf("checkpoint: %w", err)
	}
	return at, nil
}

func encodePosition(at int) []byte { return strconv.AppendInt(nil, int64(at), 10) }
