package worklease

import (
	"context"
	"errors"
	"time"
)

// Backend stores leases. A [Lease] checks arguments, measures time and decides
// about waiting and retrying; a Backend does one attempt per call and answers
// with what the row says, in one atomic step per method. Package conformance
// holds the suite that every Backend must pass.
//
// All methods are safe for concurrent use. They return soon after their context
// ends, keep no slice they are given and return slices of their own. Expiry is
// inclusive: a lease whose expiry equals the backend's clock has ended. Errors are
// returned bare, as sentinels or types of this package where they are verdicts
// ([ErrFenced], [ErrLeaseExpired], [*HeldError], [*RetiredError],
// [*OvertakenError]) and otherwise with their cause, inside a [*BackendError]
// where the backend knows more than the error says. Anything that is no verdict is
// an unknown outcome, and the call may come again with the same values.
//
// A row, one per work ID, has to keep: the current token's holder, number, nonce, TTL and
// expiry; how that token gave the lease up, if it did; the checkpoint, with its time, its
// number and the hold that drew it; the crashes in a row; and what the current owner was
// told of the one before it, with that one's nonce and last number. The row stays when
// the lease has ended, for the next token must be greater. Package memory is the
// shortest example.
type Backend interface {
	// Acquire takes the work if it is free: no row, a lapsed lease, a surrendered
	// one, or a retired one with Reopen. The token it hands out is greater than
	// every earlier one of the work ID, for ever. Held work is refused with a
	// *HeldError, also to the same holder, and nothing is written; retired work
	// with a *RetiredError. A live grant with the attempt's own nonce is returned
	// again as it stands: the reply to an earlier send was lost. If that grant has
	// lapsed, the attempt gets a new one, with a new token and the Prior of the first:
	// nobody has worked in between, and no crash is counted.
	Acquire(ctx context.Context, a Attempt) (Grant, error)

	// Checkpoint saves and extends. A lapsed lease that nobody took is extended
	// too; one that this claim surrendered is ErrLeaseExpired, unless the save is one
	// that Save calls done. See Save for the order in which checkpoints count.
	Checkpoint(ctx context.Context, c Claim, s Save) (Extension, error)

	// Renew extends a lease that is live, by the TTL it was acquired with; ttl
	// serves where the row does not know one. A lapsed or surrendered lease is
	// ErrLeaseExpired.
	Renew(ctx context.Context, c Claim, ttl time.Duration) (Extension, error)

	// Release ends the lease as f says, also a lapsed one that nobody took. What the
	// row records already is done, and nil: the same exit and, if f has a state, those
	// bytes, whatever the number. That holds when one successor has come since, too; once
	// that one has saved, f's state is known by its number and hold. Anything else is
	// ErrLeaseExpired on a surrendered lease, and ErrFenced after a successor. See
	// Farewell for ExitNone.
	Release(ctx context.Context, c Claim, f Farewell) error

	// ReadCheckpoint returns what is stored under a claim that is still the row's,
	// live or not. Stored.State is left nil when withState is false.
	ReadCheckpoint(ctx context.Context, c Claim, withState bool) (Stored, error)
}

// Forgetter is the optional power of a [Backend] to blank a row: checkpoint, prior
// and exit go, the token stays, and the work is free for an owner who finds no
// trace of an earlier one. Its repeat is nil.
type Forgetter interface {
	// Forget blanks the row of c, held, lapsed or surrendered. ErrFenced if c is not the
	// row's any more.
	Forget(ctx context.Context, c Claim) error
}

// Waker is the optional power of a [Backend] to tell waiters when a try is worth it,
// instead of their polling.
type Waker interface {
	// Watch queues up for workID. nudge has one slot and is filled when it is this
	// watcher's turn and a try is worth it: at once if nobody is queued, later when
	// the work may have become free. Watchers of one work ID take turns in the order
	// in which they came; the turn lasts until the try that follows has a verdict.
	// Where nothing can wake the watcher it is nudged about every poll. A nudge is a
	// hint: there may be too many, never too few for long.
	//
	// stop leaves the queue and hands the turn on. It does not block and may be
	// called more than once.
	Watch(workID string, poll time.Duration) (nudge <-chan struct{}, stop func())
}

// BatchRenewer is the optional power of a [Backend] to renew many leases in one
// statement.
type BatchRenewer interface {
	// RenewBatch renews each claim as Renew would and returns a result for each, in
	// the order of the claims. It waits for no row that somebody else has locked:
	// such a lease is neither renewed nor lost, and its Err is no verdict. An error
	// of the whole call says nothing about any of them. It is called with at most
	// MaxRenewBatch claims.
	RenewBatch(ctx context.Context, claims []Claim, ttl time.Duration) ([]Renewal, error)
}

// MaxRenewBatch is the largest number of leases that are renewed in one call.
const MaxRenewBatch = 500

// Renewal is what RenewBatch says of one lease.
type Renewal struct {
	Extension
	Err error // nil: extended; a verdict; or no verdict, and it is asked for again
}

// MaxInlineState is the size in bytes up to which a prior state travels with the
// grant; a larger one is read when it is asked for.
const MaxInlineState = 64 << 10

// Claim is what a fenced statement must match: work ID, holder ID, number, and the
// nonce unless it is empty, as it is in a token from [NewToken].
type Claim struct {
	WorkID       string
	HolderID     string
	FencingToken uint64
	Nonce        string // of the acquisition; empty: any
}

// Attempt is one try to acquire. Nonce names the call it belongs to: every send of
// that call carries the same.
type Attempt struct {
	WorkID   string
	HolderID string        // to be told to others; it identifies nobody
	TTL      time.Duration // to be kept with the row, for Renew and Checkpoint
	Nonce    string        // empty: recognised by nobody
	Reopen   bool          // take retired work, too
}

// Grant is a won Attempt.
type Grant struct {
	FencingToken uint64
	ExpiresAt    time.Time     // by the backend's clock
	Remaining    time.Duration // until then, measured by that same clock
	Prior        Prior
	StateOmitted bool // Prior.State is larger than MaxInlineState and was left out, as it must be
}

// Save is one checkpoint. Number grows within one Hold. A save is stored if its
// number is above the stored one. If it is not, the save is done, and the answer nil,
// when the stored number was drawn by the same Hold: this very save is there, which is
// answered with the time left, or a newer one of it, which has superseded this one. That
// is so on a surrendered lease, too. When another Hold of the same token saved, the
// answer is an [*OvertakenError]. A nil State keeps what is stored and counts all the
// same.
type Save struct {
	State  []byte
	Number int64         // above 0
	Hold   string        // names who draws the numbers: one hold of one token
	TTL    time.Duration // where the row does not know one
}

// Farewell is how an owner leaves: ExitReleased, ExitAbandoned or ExitRetired,
// with a last checkpoint unless State is nil, numbered as in [Save]. A state whose
// number is not above the stored one is an [*OvertakenError], whoever stored that.
//
// ExitNone undoes an acquisition that nobody will use, and the next owner is told what
// this one was told. The claim is matched by its nonce, which must not be empty, and by its
// number unless that is zero, for who never heard of the grant. Its repeat is nil.
// Afterwards the claim is a surrendered one.
type Farewell struct {
	Exit   Exit
	State  []byte
	Number int64
	Hold   string
}

// Extension is how long the lease has been extended. Remaining is zero when nothing was:
// a checkpoint that was superseded.
type Extension struct {
	Remaining time.Duration // measured by the backend's clock
}

// Stored is what a row holds for its current claim. Prior is as it was granted,
// without its State.
type Stored struct {
	State  []byte
	Number int64  // of the last checkpoint under this token; 0: none yet
	Hold   string // that drew Number
	Prior  Prior
}

// OvertakenError reports that a checkpoint of the same token is stored whose number
// is not below this one's: another hold has saved, or, for a last state or in a
// transaction, this one.
type OvertakenError struct {
	Number int64 // the stored one
}

func (e *OvertakenError) Error() string {
	return "overtaken by another checkpoint of the same token"
}

// BackendError tells a Lease what it could not know about a failure that is no
// verdict. It adds nothing to the text.
type BackendError struct {
	Err error
	// NotApplied: the statement provably changed nothing, so there is nothing to
	// undo.
	NotApplied bool
	// Permanent: no waiting mends it: a missing table, a missing right.
	Permanent bool
}

func (e *BackendError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *BackendError) Unwrap() error { return e.Err }

// isVerdict reports whether err is the row's answer, not the lack of one.
func isVerdict(err error) bool {
	return errors.Is(err, ErrFenced) || errors.Is(err, ErrLeaseExpired) ||
		errors.Is(err, ErrLeaseHeld) || errors.Is(err, ErrLeaseRetired)
}

// notApplied reports whether the failed call provably changed nothing.
func notApplied(err error) bool {
	var b *BackendError
	return isVerdict(err) || errors.Is(err, ErrInvalid) || errors.As(err, &b) && b.NotApplied
}

// isPermanent reports whether no waiting can mend err.
func isPermanent(err error) bool {
	var b *BackendError
	return errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed) || errors.Is(err, ErrLeaseRetired) ||
		errors.Is(err, errors.ErrUnsupported) || errors.As(err, &b) && b.Permanent
}
