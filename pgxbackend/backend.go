// Package pgxbackend keeps leases in PostgreSQL, through the pgx pool that the
// service already has.
//
// # Statements
//
// Every operation is one statement and one round trip, in the pool's own query exec
// mode. A refused acquire writes nothing. Names are qualified with the schema, so
// that no search_path matters; the default isolation, time zone, timeouts and
// synchronous_commit of the role do not matter either.
//
// # Schema
//
// Package migrations installs the table, or the SQL files in it through any
// migration tool. New does not touch the database; [Backend.Ping] tells whether
// everything is in place and which command mends what is not.
//
// # Transactions
//
// [Backend.Step] commits rows of the caller and a checkpoint together, or neither, and
// no owner that was replaced commits through it. [Backend.FenceTx] and
// [Backend.CheckpointTx] do the two halves of that in a transaction of the caller's,
// whose error handling, silence and unanswered commit are then the caller's too.
//
// # Waiting
//
// Who waits sleeps until a release notifies it or the lease runs out. All work IDs that
// are waited for are looked at together, in statements of up to 500: when they are first
// waited for, when their leases run out, and every 30 s for safety. A release notifies
// only where a look has left a mark that somebody waits. A notification is a hint; what
// is granted is decided by the row.
//
// Where notifications do not arrive, as through a transaction pooler, waiters poll, at
// [worklease.WithPollInterval]: the listener proves itself before it is relied on.
// [WithListenConnect] gives it a direct connection, [Backend.Stats] tells which it is.
//
// # Connections
//
// Beside the pool there are at most two connections for renewals, releases and looks,
// used while the pool has none to spare, so that no lease is lost to a busy pool; one
// that listens, while anybody waits and for a minute after; and short-lived ones, which
// prove the listener, send notices that were held up, or ask what became of the commit
// of a Step. They are made with the pool's configuration and hooks when they are first
// needed, and end in "worklease control", "worklease listen" and "worklease notify" in
// application_name.
//
// # Failures
//
// A lost connection, a restart, a failover to a standby or a time of read-only mode is
// waited out by those who wait, and by renewals for as long as the lease lasts. The
// database must have one primary.
package pgxbackend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/hold"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statementBound is the longest that a statement of ours runs or is believed.
const statementBound = 30 * time.Second

// maxRounds is how often a statement is sent while the row keeps changing under it.
// Each round but the last has lost to somebody else's success.
const maxRounds = 10

var inlineLimit = strconv.Itoa(worklease.MaxInlineState)

// Backend is a [worklease.Backend] on PostgreSQL, with all optional powers. Its methods
// are safe for concurrent use. To wrap it, embed a *Backend, so that the powers stay.
type Backend struct {
	pool    *pgxpool.Pool
	schema  string
	sql     statements
	closed  atomic.Bool
	holds   hold.Registry
	control control
	hub     *hub

	muteUntil atomic.Int64 // Unix time in nanoseconds; see free
}

var (
	_ worklease.Backend      = (*Backend)(nil)
	_ worklease.Forgetter    = (*Backend)(nil)
	_ worklease.Waker        = (*Backend)(nil)
	_ worklease.BatchRenewer = (*Backend)(nil)
)

// Option sets up a Backend. A nil option is ignored.
type Option func(*options)

type options struct {
	schema string
	listen func(ctx context.Context) (*pgx.Conn, error)
	deaf   bool
	log    *slog.Logger
	pace   pace
}

// WithSchema names the schema that the tables are in; the default is public. The
// name is quoted, so that it may be any that PostgreSQL accepts.
func WithSchema(name string) Option {
	return func(o *options) { o.schema = name }
}

// WithListenConnect makes the connection that listens for notifications, where the
// pool goes through a transaction pooler: LISTEN needs a direct one. The Backend
// closes what connect returns. nil: as if the option were not given.
func WithListenConnect(connect func(ctx context.Context) (*pgx.Conn, error)) Option {
	return func(o *options) { o.listen = connect }
}

// WithoutListen makes waiters poll, each at its [worklease.WithPollInterval], in batches.
func WithoutListen() Option {
	return func(o *options) { o.deaf = true }
}

// WithLogger sets where faults are reported that no caller is told of. The default,
// and nil, discard them.
func WithLogger(l *slog.Logger) Option {
	return func(o *options) { o.log = l }
}

// New returns a Backend on pool, which stays the caller's to close. It does not
// touch the database. Errors are about arguments and are [worklease.ErrInvalid].
func New(pool *pgxpool.Pool, opts ...Option) (*Backend, error) {
	o := options{schema: "public", pace: usualPace}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	var faults []error
	if pool == nil {
		faults = append(faults, fmt.Errorf("%w: pool is nil", worklease.ErrInvalid))
	}
	if err := checkSchema(o.schema); err != nil {
		faults = append(faults, err)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("worklease: new pgx backend: %w", errors.Join(faults...))
	}
	if o.log == nil {
		o.log = slog.New(slog.DiscardHandler)
	}
	b := &Backend{pool: pool, schema: o.schema, sql: newStatements(o.schema), control: control{app: pool}}
	b.hub = newHub(b, o)
	return b, nil
}

// maxIdentifierBytes is where PostgreSQL cuts a name off without an error.
const maxIdentifierBytes = 63

func checkSchema(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: schema is empty", worklease.ErrInvalid)
	case len(name) > maxIdentifierBytes:
		return fmt.Errorf("%w: schema has %d bytes, at most %d are allowed", worklease.ErrInvalid, len(name), maxIdentifierBytes)
	case !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("%w: schema is not valid UTF-8 without NUL", worklease.ErrInvalid)
	}
	return nil
}

// Close ends the Backend and waits for what it has running: calls that wait and every
// later one return [worklease.ErrClosed], and its own connections are closed. Leases
// that are held are left to their TTL. The pool is the caller's: close it after the
// Backend. Close may be called more than once.
func (b *Backend) Close() {
	b.closed.Store(true)
	b.hub.close()
	b.control.close()
}

// Holds is how a Lease and this Backend's transactions share what is known of a
// token. It is for package worklease; a Backend that wraps this one keeps it by
// embedding.
func (b *Backend) Holds() *hold.Registry { return &b.holds }

// Acquire implements [worklease.Backend].
func (b *Backend) Acquire(ctx context.Context, a worklease.Attempt) (worklease.Grant, error) {
	var verdict string
	var token, priorToken *int64
	var at, checkpointedAt *time.Time
	var remaining *time.Duration
	var priorExit *int16
	var holder *string
	var crashes *int32
	var omitted *bool
	var state []byte
	seen := b.hub.trying(a.WorkID)
	err := b.ask(ctx, &verdict, b.sql.acquire,
		[]any{a.WorkID, a.HolderID, a.TTL, a.Nonce, a.Reopen},
		&token, &at, &remaining, &priorExit, &holder, &priorToken, &crashes, &checkpointedAt, &omitted, &state)
	if err != nil {
		return worklease.Grant{}, err
	}
	switch verdict {
	case verdictDone, verdictOwn:
		b.hub.found(seen, value(token), value(remaining))
		return worklease.Grant{
			FencingToken: uint64(value(token)),
			ExpiresAt:    value(at),
			Remaining:    value(remaining),
			StateOmitted: value(omitted),
			Prior: worklease.Prior{
				State:          state,
				Exit:           worklease.Exit(value(priorExit)),
				HolderID:       value(holder),
				FencingToken:   uint64(value(priorToken)),
				CheckpointedAt: value(checkpointedAt).UTC(),
				Crashes:        int(value(crashes)),
			},
		}, nil
	case verdictRetired:
		return worklease.Grant{}, &worklease.RetiredError{
			WorkID: a.WorkID, HolderID: value(holder), FencingToken: uint64(value(token)), RetiredAt: value(at).UTC(),
		}
	case verdictHeld:
		b.hub.found(seen, value(token), value(remaining))
		return worklease.Grant{}, &worklease.HeldError{
			WorkID: a.WorkID, HolderID: value(holder), FencingToken: uint64(value(token)), Remaining: max(value(remaining), 0),
		}
	}
	return worklease.Grant{}, unexpected(verdict)
}

// Checkpoint implements [worklease.Backend].
func (b *Backend) Checkpoint(ctx context.Context, c worklease.Claim, s worklease.Save) (worklease.Extension, error) {
	var a saveAnswer
	err := b.ask(ctx, &a.verdict, b.sql.checkpoint, saveArgs(c, s), &a.remaining, &a.stored)
	if err != nil {
		return worklease.Extension{}, err
	}
	return a.extension()
}

// saveArgs are the parameters of checkpointSQL.
func saveArgs(c worklease.Claim, s worklease.Save) []any {
	return append(claimArgs(c), s.State, s.Number, s.Hold, s.TTL)
}

// saveAnswer is the row that checkpointSQL returns.
type saveAnswer struct {
	verdict   string
	remaining *time.Duration
	stored    *int64
}

func (a saveAnswer) extension() (worklease.Extension, error) {
	switch a.verdict {
	case verdictDone:
		return worklease.Extension{Remaining: max(value(a.remaining), 0)}, nil
	case verdictSuperseded:
		return worklease.Extension{}, nil
	}
	return worklease.Extension{}, verdictError(a.verdict, value(a.stored))
}

// Renew implements [worklease.Backend]. It does not queue for the application's pool.
func (b *Backend) Renew(ctx context.Context, c worklease.Claim, ttl time.Duration) (worklease.Extension, error) {
	var verdict string
	var remaining *time.Duration
	err := b.askOn(ctx, b.control.slow, &verdict, b.sql.renew, append(claimArgs(c), ttl), &remaining)
	if err != nil {
		return worklease.Extension{}, err
	}
	if verdict != verdictDone {
		return worklease.Extension{}, verdictError(verdict, 0)
	}
	return worklease.Extension{Remaining: value(remaining)}, nil
}

// Release implements [worklease.Backend]. It does not queue for the application's
// pool.
func (b *Backend) Release(ctx context.Context, c worklease.Claim, f worklease.Farewell) error {
	if f.Exit == worklease.ExitNone {
		return b.free(ctx, b.sql.undo, claimArgs(c))
	}
	var stored *int64
	return b.free(ctx, b.sql.release, append(claimArgs(c), int16(f.Exit), f.State, f.Number, f.Hold), &stored)
}

// Forget implements [worklease.Forgetter]. An open transaction behind a fence does
// not hold it up: the row is blanked, and whoever takes the work next waits for that
// transaction.
func (b *Backend) Forget(ctx context.Context, c worklease.Claim) error {
	return b.free(ctx, b.sql.forget, claimArgs(c))
}

// noticeBound is how long a statement that frees a row may run while it also
// notifies. The server's lock for notifications may be held up by a commit anywhere
// in the cluster.
const noticeBound = time.Second

// free sends a statement that frees a row and notifies, and again without the notice
// if that may be what failed: the work must be free in any case. The notice then
// follows in a statement of its own, whose failure costs nobody but those who wait,
// and them no more than a look.
func (b *Backend) free(ctx context.Context, sql string, args []any, stored ...any) error {
	if time.Now().UnixNano() > b.muteUntil.Load() {
		err := b.freeOnce(ctx, noticeTime(ctx), b.hub.ears.channel, sql, args, stored...)
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) && !noticeFailed(err) {
			return err
		}
		// Each statement that is broken off costs its connection for a while.
		b.muteUntil.Store(time.Now().Add(muteTime).UnixNano())
	}
	err := b.freeOnce(ctx, statementBound, "", sql, args, stored...)
	if err == nil {
		b.hub.noticeLater(args[0].(string))
	}
	return err
}

// muteTime is for how long, after a notice has failed, rows are freed without one.
const muteTime = 10 * time.Second

func (b *Backend) freeOnce(ctx context.Context, bound time.Duration, channel, sql string, args []any, stored ...any) (err error) {
	ctx, cancel, conn, err := b.connect(ctx, b.control.slow)
	if err != nil {
		return err
	}
	defer cancel()
	defer giveBack(conn, &err)
	ctx, cancelNotice := context.WithTimeout(ctx, bound)
	defer cancelNotice()
	var verdict string
	if err := converse(ctx, conn, lostRace, &verdict, sql, append(args, channel), stored...); err != nil {
		return err
	}
	var number int64
	if len(stored) > 0 {
		number = value(*stored[0].(**int64))
	}
	return verdictError(verdict, number)
}

// noticeTime leaves half of the time for a second try.
func noticeTime(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(noticeBound, time.Until(deadline)/2)
	}
	return noticeBound
}

// ReadCheckpoint implements [worklease.Backend].
func (b *Backend) ReadCheckpoint(ctx context.Context, c worklease.Claim, withState bool) (worklease.Stored, error) {
	ctx, cancel, conn, err := b.connect(ctx, b.pool.Acquire)
	if err != nil {
		return worklease.Stored{}, err
	}
	defer cancel()
	defer conn.Release()
	return b.readOn(ctx, conn, lostRace, c, withState)
}

func (b *Backend) readOn(ctx context.Context, q Querier, again func(error) bool, c worklease.Claim, withState bool) (worklease.Stored, error) {
	var verdict string
	var number, priorToken *int64
	var by, holder *string
	var state []byte
	var priorExit *int16
	var crashes *int32
	var checkpointedAt *time.Time
	err := converse(ctx, q, again, &verdict, b.sql.read, append(claimArgs(c), withState),
		&number, &by, &state, &priorExit, &holder, &priorToken, &crashes, &checkpointedAt)
	if err != nil {
		return worklease.Stored{}, err
	}
	if verdict != verdictDone {
		return worklease.Stored{}, verdictError(verdict, 0)
	}
	return worklease.Stored{
		State:  state,
		Number: value(number),
		Hold:   value(by),
		Prior: worklease.Prior{
			Exit:           worklease.Exit(value(priorExit)),
			HolderID:       value(holder),
			FencingToken:   uint64(value(priorToken)),
			CheckpointedAt: value(checkpointedAt).UTC(),
			Crashes:        int(value(crashes)),
		},
	}, nil
}

// claimArgs are the parameters $1 to $4 of a fenced statement.
func claimArgs(c worklease.Claim) []any {
	return append(make([]any, 0, 8), c.WorkID, c.HolderID, int64(c.FencingToken), c.Nonce)
}

// verdictError turns a verdict into the error it stands for.
func verdictError(verdict string, stored int64) error {
	switch verdict {
	case verdictDone:
		return nil
	case verdictFenced:
		return worklease.ErrFenced
	case verdictExpired, verdictSurrendered:
		return worklease.ErrLeaseExpired
	case verdictOvertaken:
		return &worklease.OvertakenError{Number: stored}
	}
	return unexpected(verdict)
}

func unexpected(verdict string) error { return fmt.Errorf("unexpected verdict %q", verdict) }

// ask sends one statement on a connection of the application's pool.
func (b *Backend) ask(ctx context.Context, verdict *string, sql string, args []any, dest ...any) error {
	return b.askOn(ctx, b.pool.Acquire, verdict, sql, args, dest...)
}

// askOn sends one statement and reads its one row, the verdict first. It sends it
// again while the row is being changed under it: no row, the verdict "again", or
// what a stricter isolation than READ COMMITTED makes of the same.
func (b *Backend) askOn(ctx context.Context, lane lane, verdict *string, sql string, args []any, dest ...any) (err error) {
	ctx, cancel, conn, err := b.connect(ctx, lane)
	if err != nil {
		return err
	}
	defer cancel()
	defer giveBack(conn, &err)
	return converse(ctx, conn, lostRace, verdict, sql, args, dest...)
}

// lane is where a statement gets its connection.
type lane func(ctx context.Context) (*pgxpool.Conn, error)

// connect takes a connection for one statement, which runs no longer than
// statementBound. The caller calls cancel and releases the connection.
func (b *Backend) connect(ctx context.Context, lane lane) (context.Context, context.CancelFunc, *pgxpool.Conn, error) {
	if b.closed.Load() {
		return nil, nil, nil, notSent(worklease.ErrClosed)
	}
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	conn, err := lane(ctx)
	if err != nil {
		cancel()
		return nil, nil, nil, notSent(err)
	}
	return ctx, cancel, conn, nil
}

// Querier is what a statement needs of a connection or a transaction: [pgx.Tx],
// [pgxpool.Tx], [pgx.Conn] and others have it.
type Querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// errBusy: the row changed under every attempt.
var errBusy = errors.New("the row kept changing, try again")

// converse sends a statement until its verdict is none of "again" and its error is
// none that again says may be met by sending it again.
func converse(ctx context.Context, q Querier, again func(error) bool, verdict *string, sql string, args []any, dest ...any) error {
	dest = append([]any{verdict}, dest...)
	var err error
	for range maxRounds {
		err = q.QueryRow(ctx, sql, args...).Scan(dest...)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			err = nil
		case err != nil && !again(err):
			return classify(err)
		case err == nil && *verdict != verdictAgain:
			return nil
		}
	}
	if err == nil {
		err = errBusy
	}
	return classify(err)
}

func value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
