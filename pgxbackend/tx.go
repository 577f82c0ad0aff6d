package pgxbackend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/hold"
	"github.com/aetomala/worklease/internal/isnil"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// CheckpointTx saves state and extends the lease inside the caller's transaction, so
// that the caller's rows and the checkpoint become visible together or not at all.
// Make it the last statement: it locks the lease's row, and renewals wait for or
// skip a locked row. A nil state keeps what is stored and still counts.
//
// On an error roll back: [worklease.ErrFenced] once another token exists,
// [worklease.ErrLeaseExpired] once this one was released or forgotten,
// [*worklease.OvertakenError] when a newer checkpoint of the same token is there. A
// serialization failure stays one (SQLSTATE 40001 by errors.As): at REPEATABLE READ
// and above, one renewal since the snapshot is enough for it.
//
// It counts as progress for [worklease.WithProgressDeadline]. What the commit makes
// of it is the caller's to know: no event, and the window moves with the next renewal.
func (b *Backend) CheckpointTx(ctx context.Context, tx Querier, token worklease.Token, state []byte) error {
	err := b.checkTx(tx, token)
	if err == nil {
		s := b.newSave(token, state)
		if _, err = s.send(ctx, tx); err == nil {
			s.hold.Progressed()
		}
	}
	return fail("checkpoint in a transaction", token, err)
}

// FenceTx proves the token and holds off any successor until the transaction ends:
// an Acquire waits for it. Renewals, checkpoints and the release of this token pass
// meanwhile, so that it may be the first statement of a long transaction. A lapsed
// lease that nobody took passes too. How long a silent client may hold the transaction
// open is the caller's to bound (idle_in_transaction_session_timeout).
//
// On an error roll back: [worklease.ErrFenced] once another token exists,
// [worklease.ErrLeaseExpired] once this one was released or forgotten. A Release or
// Forget of this very token does not wait for the fence and does not undo it: the
// work is free, and its next owner begins when the transaction has ended.
func (b *Backend) FenceTx(ctx context.Context, tx Querier, token worklease.Token) error {
	err := b.checkTx(tx, token)
	if err == nil {
		err = b.fence(ctx, tx, token, false)
	}
	return fail("fence", token, err)
}

func (b *Backend) checkTx(tx Querier, token worklease.Token) error {
	if fault := txFault(tx); fault != "" {
		return fmt.Errorf("%w: %s", worklease.ErrInvalid, fault)
	}
	if b.closed.Load() {
		return worklease.ErrClosed
	}
	return token.Validate()
}

// txFault says why tx is no transaction, where that can be told. Outside of one a fence
// proves nothing, and a checkpoint is alone.
func txFault(tx Querier) string {
	const idle = "the connection is in no transaction"
	if isnil.Value(tx) {
		return "transaction is nil"
	}
	switch q := tx.(type) {
	case *pgxpool.Pool:
		return "a pool is no transaction"
	case *pgxpool.Conn:
		if q.Conn().PgConn().TxStatus() == 'I' {
			return idle
		}
	case *pgx.Conn:
		if q.PgConn().TxStatus() == 'I' {
			return idle
		}
	}
	return ""
}

func (b *Backend) fence(ctx context.Context, tx Querier, token worklease.Token, boundSilence bool) error {
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	defer cancel()
	var verdict string
	var silence *string
	err := converse(ctx, tx, never, &verdict, b.sql.fence, append(claimArgs(token.Claim()), boundSilence), &silence)
	if err != nil {
		return err
	}
	return verdictError(verdict, 0)
}

// never: an error in a transaction has ended it.
func never(error) bool { return false }

// save is one checkpoint in a transaction.
type save struct {
	backend *Backend
	token   worklease.Token
	state   []byte
	hold    hold.Hold
	number  int64
	by      string
	sent    time.Time
}

func (b *Backend) newSave(token worklease.Token, state []byte) *save {
	h := b.holds.Find(hold.Claim(token.Claim()))
	if h == nil {
		h = &passing{by: rand.Text()}
	}
	return &save{backend: b, token: token, state: state, hold: h}
}

// send sends the save on tx and returns the time left that it answers with.
func (s *save) send(ctx context.Context, tx Querier) (remaining time.Duration, err error) {
	if err := s.hold.Check(s.state); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, statementBound)
	defer cancel()
	if err := s.fill(ctx, tx); err != nil {
		return 0, err
	}
	if s.number, s.by, err = s.hold.Next(); err != nil {
		return 0, err
	}
	c := s.token.Claim()
	var a saveAnswer
	s.sent = time.Now()
	err = converse(ctx, tx, never, &a.verdict, s.backend.sql.checkpoint,
		saveArgs(c, worklease.Save{State: s.state, Number: s.number, Hold: s.by, TTL: defaultTTL}), &a.remaining, &a.stored)
	if err != nil {
		return 0, err
	}
	// A newer save of the same hold has overtaken this one. A plain Checkpoint may
	// call that a success; rows that belong to the older state may not be committed.
	if a.verdict == verdictSuperseded {
		return 0, &worklease.OvertakenError{Number: value(a.stored)}
	}
	e, err := a.extension()
	if a.verdict == verdictOvertaken {
		s.hold.Overtaken(value(a.stored))
	}
	return e.Remaining, err
}

// defaultTTL extends a row that v0.5 wrote and that knows no TTL of its own.
const defaultTTL = 30 * time.Second

// fill reads in the transaction what the hold must know before its first save.
func (s *save) fill(ctx context.Context, tx Querier) error {
	number, state := s.hold.Missing()
	if !number && !state {
		return nil
	}
	stored, err := s.backend.readOn(ctx, tx, never, s.token.Claim(), state)
	if err != nil {
		return err
	}
	s.hold.Fill(stored.Number, stored.State)
	return nil
}

// passing is the Hold of a token that no Lease of this process holds. Its one save
// is numbered far above what is stored: late statements of another hold of the
// token stay below.
type passing struct {
	number int64
	known  bool
	by     string
}

func (p *passing) Check([]byte) error                  { return nil }
func (p *passing) Missing() (number, state bool)       { return !p.known, false }
func (p *passing) Overtaken(int64)                     {}
func (p *passing) Progressed()                         {}
func (p *passing) Stepped(context.Context, hold.Step)  {}
func (p *passing) Next() (n int64, by string, e error) { return p.number, p.by, nil }

func (p *passing) Fill(stored int64, _ []byte) {
	p.known = true
	p.number = hold.Beyond(stored) + 1
}

// StepOption tunes one [Backend.Step]. A nil option is ignored.
type StepOption func(*stepOptions)

type stepOptions struct {
	tx      pgx.TxOptions
	commit  time.Duration
	outcome time.Duration
}

// WithTxOptions sets how the transaction begins. An empty isolation level is READ
// COMMITTED, whatever the role's default: above it, one renewal during the step makes
// its checkpoint fail with SQLSTATE 40001.
func WithTxOptions(o pgx.TxOptions) StepOption {
	return func(s *stepOptions) { s.tx = o }
}

// WithOutcomeTimeout bounds how long Step tries to find out about a commit that went
// unanswered; d ≤ 0: 10 s.
func WithOutcomeTimeout(d time.Duration) StepOption {
	return func(s *stepOptions) { s.outcome = d }
}

const defaultOutcomeTimeout = 10 * time.Second

// commitBound is how long a commit may take, also when the caller's context ends
// meanwhile: to break it off would only make its outcome unknown.
const commitBound = 10 * time.Second

// Step runs fn once in a transaction and saves the state that fn returns in the
// same: what fn wrote through tx and the checkpoint commit together, exactly once,
// or not at all. A nil state keeps what is stored and still counts.
//
// The transaction is READ COMMITTED unless [WithTxOptions] says otherwise and is
// fenced from its first statement on: no successor can begin before it ends. fn must
// use tx and the context it is given, and leave the commit to Step. If fn returns an
// error, panics or calls runtime.Goexit, the transaction is rolled back.
//
// A client that falls silent between two statements is cut off by the server, and
// the transaction rolled back, after the time that the lease had left when the step
// began, or half its TTL if that was less; sooner if the session's own
// idle_in_transaction_session_timeout is shorter. So fn must not leave the
// transaction idle for longer than that, however well the lease is renewed.
//
// A client that falls silent inside a statement is not cut off: in a COPY that it
// does not go on feeding, or a large result that it does not go on reading, the
// server waits for as long as the connection lasts, and so does a successor. Insert
// with a statement, such as INSERT … SELECT FROM unnest, rather than with COPY.
//
// A committed Step counts as a Checkpoint: for the observer, for
// [worklease.WithProgressDeadline], and it moves the window.
//
// Once the commit is sent ctx has no say any more. When its reply is lost, or does
// not come for 10 s, Step finds out what became of it, one successor on as well, on
// a connection of its own beside the pool; it returns nil if the commit took place.
// What is not found out within [WithOutcomeTimeout] is [worklease.ErrOutcomeUnknown].
//
// Other errors say that nothing was committed: [worklease.ErrFenced] once another
// token exists, [worklease.ErrLeaseExpired] once this one was released or forgotten,
// [*worklease.OvertakenError] when a newer checkpoint of the same token is there, and
// what fn or the database returned.
func (b *Backend) Step(ctx context.Context, token worklease.Token, fn func(ctx context.Context, tx pgx.Tx) (state []byte, err error), opts ...StepOption) error {
	o := stepOptions{commit: commitBound}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	if o.tx.IsoLevel == "" {
		o.tx.IsoLevel = pgx.ReadCommitted
	}
	if o.outcome <= 0 {
		o.outcome = defaultOutcomeTimeout
	}
	s := &step{save: b.newSave(token, nil), options: o, fn: fn, began: time.Now()}
	err := fail("step", token, s.run(ctx))
	if !s.own {
		s.hold.Stepped(ctx, hold.Step{
			Sent: s.sent, Remaining: s.remaining, Size: len(s.state), Took: time.Since(s.lastCall()), Err: err,
		})
	}
	return err
}

// step is one call of Step.
type step struct {
	*save
	options   stepOptions
	fn        func(ctx context.Context, tx pgx.Tx) ([]byte, error)
	began     time.Time
	remaining time.Duration
	own       bool // the error is fn's, and no checkpoint was tried
}

// lastCall is when the save was sent, or the step began.
func (s *step) lastCall() time.Time {
	if s.sent.IsZero() {
		return s.began
	}
	return s.sent
}

func (s *step) run(ctx context.Context) error {
	if s.fn == nil {
		return fmt.Errorf("%w: function is nil", worklease.ErrInvalid)
	}
	if s.backend.closed.Load() {
		return worklease.ErrClosed
	}
	if err := s.token.Validate(); err != nil {
		return err
	}
	unanswered, err := s.transact(ctx)
	if unanswered == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.outcome)
	defer cancel()
	return s.findOut(ctx, unanswered)
}

// transact runs the transaction. unanswered is the error of a commit that may or may
// not have happened.
func (s *step) transact(ctx context.Context) (unanswered, err error) {
	conn, err := s.backend.pool.Acquire(ctx)
	if err != nil {
		return nil, notSent(err)
	}
	defer giveBack(conn, &err)
	tx, err := conn.BeginTx(ctx, s.options.tx)
	if err != nil {
		return nil, classify(err)
	}
	defer rollback(ctx, tx) // also when fn panics; after the commit it does nothing
	if err := s.backend.fence(ctx, tx, s.token, true); err != nil {
		return nil, err
	}
	s.state, err = s.fn(ctx, stepTx{tx})
	if err != nil {
		s.own = true
		return nil, err
	}
	if conn.Conn().PgConn().TxStatus() == 'I' {
		return nil, errStepCommits
	}
	if s.remaining, err = s.send(ctx, tx); err != nil {
		return nil, err
	}
	return s.commit(ctx, tx)
}

// rollback ends a transaction that is not to be committed, for a while also after
// the caller's context.
func rollback(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	tx.Rollback(ctx)
}

func (s *step) commit(ctx context.Context, tx pgx.Tx) (unanswered, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.commit)
	defer cancel()
	err = tx.Commit(ctx)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, pgx.ErrTxCommitRollback), pgconn.SafeToRetry(err), serverRefused(err) && !relayed(err):
		return nil, classify(err)
	}
	return err, nil
}

// relayed reports whether the error tells of a lost connection: a proxy that has
// lost the server behind it says so in the server's words.
func relayed(err error) bool { return strings.HasPrefix(state(err), "08") }

// findOut asks the row what became of the commit that failed with err.
func (s *step) findOut(ctx context.Context, err error) error {
	for failures := 1; ; failures++ {
		verdict, askErr := s.askOutcome(ctx)
		if askErr == nil {
			return outcomeError(verdict, err)
		}
		if permanent(askErr) || !pause(ctx, outcomeBackoff.Wait(failures)) {
			return fmt.Errorf("%w: %w; asking: %w", worklease.ErrOutcomeUnknown, err, askErr)
		}
	}
}

func permanent(err error) bool {
	var b *worklease.BackendError
	return errors.As(err, &b) && b.Permanent
}

// pause waits for d and reports whether ctx has lasted that long.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// questionBound is how long one question may take. The commit that it waits for may take
// longer; but so does a connection that nobody answers on, and then another is better.
const questionBound = 3 * time.Second

func (s *step) askOutcome(ctx context.Context) (verdict string, err error) {
	ctx, cancel := context.WithTimeout(ctx, questionBound)
	defer cancel()
	conn, err := s.backend.connectBeside(ctx, func(*pgxpool.Config) {})
	if err != nil {
		return "", classify(err)
	}
	defer conn.Close(ctx)
	err = converse(ctx, conn, lostRace, &verdict, s.backend.sql.outcome, append(claimArgs(s.token.Claim()), s.number, s.by))
	return verdict, err
}

// outcomeError is what Step returns for a commit that failed with err, once the row
// has answered.
func outcomeError(verdict string, err error) error {
	switch verdict {
	case verdictDone:
		return nil
	case verdictUndone:
		return fmt.Errorf("not committed: %w", err)
	case verdictFenced:
		return fmt.Errorf("%w, not committed: %w", worklease.ErrFenced, err)
	}
	return fmt.Errorf("%w: %w", worklease.ErrOutcomeUnknown, err)
}

// errStepCommits is what fn gets for ending the transaction itself, and Step returns
// if it did so behind tx's back.
var errStepCommits = errors.New("worklease: the transaction of a step is ended by Step")

// stepTx is the transaction that fn is given.
type stepTx struct{ pgx.Tx }

func (stepTx) Commit(context.Context) error   { return errStepCommits }
func (stepTx) Rollback(context.Context) error { return errStepCommits }

// fail wraps err with what was being done to which work.
func fail(operation string, token worklease.Token, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worklease: %s %q: %w", operation, token.WorkID(), err)
}
