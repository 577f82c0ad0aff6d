// Package worklease coordinates work that must change hands without being lost or
// done twice. A lease is a time-limited claim on a named unit of work. A fencing
// token grows with every acquisition, and whatever comes with an old one is
// refused. A checkpoint is progress, saved in the same statement that extends the
// lease. A successor is told what was saved and how the last owner left.
//
// Leases live in a [Backend]: package pgxbackend keeps them in PostgreSQL, package
// memory in one process. Packages worker, leader and pool run functions under a lease,
// and see to acquiring, renewing and leaving in the right order; most programs need no
// more than one of them.
//
// # States
//
// A work ID is absent (never acquired), held (the expiry is ahead), lapsed (the expiry
// has passed, nobody has taken it) or surrendered (its owner has released or forgotten
// it). This is what becomes of an operation:
//
//	                 held        lapsed              surrendered      absent, or a newer token's
//	Checkpoint       saves       saves, and revives  ErrLeaseExpired  ErrFenced
//	Renew            extends     ErrLeaseExpired     ErrLeaseExpired  ErrFenced
//	Release          surrenders  surrenders          its repeat: nil  ErrFenced
//	ReadCheckpoint   reads       reads               reads            ErrFenced
//	Forget           blanks      blanks              blanks           ErrFenced
//	Acquire, by all  *HeldError  granted             granted          absent: granted
//
// A Release that differs from the one before it is ErrLeaseExpired; its repeat is nil
// also after one successor. Retired work is granted only by [WithReopen], and is else a
// [*RetiredError].
//
// # Ordering
//
// Per work ID, tokens strictly increase in the order in which acquisitions commit,
// for ever: across Release, Forget and racing acquirers. Undisturbed, they rise
// across work IDs too.
//
// # Time
//
// Expiry is decided by the backend's clock alone. What this process may believe is
// counted on its own monotonic clock, from before each request left: when that
// time is over without a confirmed renewal, the context of [Lease.StartRenewal]
// ends, whatever a hung statement does. Wall clocks decide nothing.
//
// # Lost replies
//
// Checkpoint, Renew, Release and Forget may be repeated after an unknown outcome:
// they never fail by their own effect. A retried Acquire recognises its own
// success.
//
// # What is not fenced
//
// An effect outside the database is fenced only where the other system compares
// [Token.FencingToken]. Between two checkpoints, such work is done at least once.
//
// # What is assumed
//
// One database that is the truth. Where a failover or an old backup loses commits that
// were acknowledged, tokens may be handed out again and two owners may overlap for up to
// a TTL: the database tells them apart, another system may not.
package worklease

import (
	"context"
	"errors"
	"sync"
	"time"

	link "github.com/aetomala/worklease/internal/hold"
	"github.com/aetomala/worklease/internal/isnil"
)

// MinTTL is the shortest TTL of a lease.
const MinTTL = 10 * time.Millisecond

// MaxIDBytes is the greatest length of a work ID and of a holder ID, in bytes. IDs
// are valid UTF-8, have no NUL byte and are not empty.
const MaxIDBytes = 1024

// defaultMaxCheckpointBytes is what Config.MaxCheckpointBytes means when it is 0.
const defaultMaxCheckpointBytes = 16 << 20

// Lease acquires and keeps leases. Its methods are safe for concurrent use, and
// one Lease value serves any number of work IDs. Make it with [New].
//
// A method that fails returns an error that wraps the operation and the work ID;
// see the Err variables for what to branch on. Arguments are checked before
// anything is sent.
type Lease interface {
	// Acquire takes the lease on workID and returns its Token. Without
	// [WithWaitForLease] it asks once: a live lease, also one of the same holder, is
	// a [*HeldError], retired work a [*RetiredError]; a grant whose time was over
	// when it arrived is given back and reported as ErrLeaseExpired. With it the
	// call ends with a Token, with the error of ctx, or with an error that no
	// waiting can mend. When ctx ends while a statement is under way, what it may
	// have won is given back in the background, for a few seconds at most.
	Acquire(ctx context.Context, workID string, opts ...AcquireOption) (Token, error)

	// Prior returns what the last owner left, as it was at the acquisition and
	// stable for the whole lease. States of up to 64 KiB came with the grant: no
	// round trip. The returned State is the caller's.
	//
	// A token that this Lease did not acquire is read from the row; once its own
	// hold has saved, State is that newer checkpoint.
	Prior(ctx context.Context, token Token) (Prior, error)

	// Checkpoint stores state and extends the lease by its TTL, in one statement. It
	// keeps no reference to state. A nil state keeps what is stored and still
	// extends; an empty one is stored as empty. A lapsed lease that nobody took is
	// extended too. ErrFenced once another token exists, ErrLeaseExpired once this
	// token was released, ErrInvalid for a state above Config.MaxCheckpointBytes. An
	// older checkpoint of the same hold that arrives late never replaces a newer one
	// and returns nil. After any other error it may be called again.
	Checkpoint(ctx context.Context, token Token, state []byte) error

	// Renew extends a live lease by its TTL, as StartRenewal does over and over.
	// ErrLeaseExpired once it has ended, ErrFenced once another token exists,
	// ErrLeaseWindowExhausted where the answer came too late to be believed.
	Renew(ctx context.Context, token Token) error

	// Release ends the lease and makes the work available at once, also under a
	// context that has ended or ends meanwhile: it takes five seconds at most, or
	// what [WithReleaseTimeout] says, and repeats within that what failed for a while.
	// A lapsed lease that nobody took is released too. The repeat of a Release with
	// the same outcome is nil, any other on a released lease is ErrLeaseExpired;
	// ErrFenced once another token exists; with [WithState] an [*OvertakenError] where a
	// newer checkpoint of the same token is stored. This process stops trusting and
	// renewing the token when the call begins.
	Release(ctx context.Context, token Token, opts ...ReleaseOption) error

	// ReadCheckpoint reads the row: the state that is stored, nil if none, and
	// whether the previous owner left cleanly. The slice is the caller's. ErrFenced
	// once another token exists. For what the previous owner left Prior is cheaper, and
	// tells more.
	ReadCheckpoint(ctx context.Context, token Token) (state []byte, cleanHandoff bool, err error)

	// StartRenewal keeps the lease until stopRenewal is called, ctx ends or the
	// lease is lost. It returns at once. renewCtx descends from ctx and ends when
	// the token may no longer be trusted; [context.Cause] tells why: ErrFenced;
	// ErrLeaseWindowExhausted; that and ErrLeaseExpired when the database says so;
	// ErrStalled; the cause of ctx; context.Canceled after stopRenewal or Release;
	// ErrInvalid for a token that cannot be. A lease once lost stays lost for this
	// Lease value. One lease may be kept by several calls at once. A nil ctx panics.
	//
	// stopRenewal may be called more than once and from many goroutines; when it
	// returns, no further statement of this renewal follows: it waits for the one that
	// is under way, for some two seconds at most. Two rules: call it before Release, and give
	// Release the context that StartRenewal was given, not renewCtx.
	StartRenewal(ctx context.Context, token Token, opts ...RenewalOption) (renewCtx context.Context, stopRenewal func())

	// Deadline returns until when this process may trust token, with a monotonic
	// reading, and whether it may now: false for a token that was not acquired or
	// renewed here, or is lost, released or past its time. No round trip.
	Deadline(token Token) (time.Time, bool)

	// Forget blanks the row of token and frees the work: checkpoint, prior and exit
	// are gone, and the next owner finds no trace of an earlier one. Its token is
	// greater all the same. This process stops trusting the token when the call begins.
	// The repeat is nil. ErrFenced once another token exists,
	// [errors.ErrUnsupported] on a backend without [Forgetter].
	Forget(ctx context.Context, token Token) error
}

// Config is what a [Lease] is made of. It is checked by [New], which reports all
// its faults together.
type Config struct {
	// TTL is how long a lease lasts without renewal. Required, at least MinTTL.
	TTL time.Duration

	// HolderID names this holder to others. Required. It is a label, never an
	// identity: two processes may share it and stay safe.
	HolderID string

	// Observer is told of every operation; nil: nobody.
	Observer LeaseObserver

	// MaxCheckpointBytes is the largest state that is accepted. 0: 16 MiB; negative:
	// no limit.
	MaxCheckpointBytes int
}

// New returns a Lease on b, or an error that Is ErrInvalid.
func New(b Backend, cfg Config) (Lease, error) {
	if err := cfg.check(b); err != nil {
		return nil, err
	}
	if cfg.MaxCheckpointBytes == 0 {
		cfg.MaxCheckpointBytes = defaultMaxCheckpointBytes
	}
	l := &lease{backend: b, cfg: cfg, holds: make(map[Claim]*hold)}
	l.observer = observed(cfg.Observer)
	l.keeper.wake = make(chan struct{}, 1)
	if b, ok := b.(linked); ok {
		l.registry = b.Holds()
	}
	l.batches, _ = b.(BatchRenewer)
	return l, nil
}

func (cfg Config) check(b Backend) error {
	var faults []error
	if isnil.Value(b) {
		faults = append(faults, invalid("backend is nil"))
	}
	if cfg.TTL < MinTTL {
		faults = append(faults, invalid("Config.TTL is %v, the shortest is %v", cfg.TTL, MinTTL))
	}
	if err := checkID("Config.HolderID", cfg.HolderID); err != nil {
		faults = append(faults, err)
	}
	if len(faults) == 0 {
		return nil
	}
	return failNew(errors.Join(faults...))
}

// Exit is how an owner left.
type Exit uint8

// The exits. ExitExpired is what nobody declares: the lease lapsed, as after a
// crash.
const (
	ExitNone      Exit = iota // nobody had been there
	ExitExpired               // lapsed
	ExitReleased              // handed over
	ExitAbandoned             // gave up
	ExitRetired               // declared the work done for good
)

var exitNames = [...]string{"none", "expired", "released", "abandoned", "retired"}

// String returns none, expired, released, abandoned or retired.
func (e Exit) String() string { return enumName("Exit", exitNames[:], int(e)) }

// Prior is what the last owner left. It is the zero value for the first one.
type Prior struct {
	State          []byte    // the last checkpoint, nil if none was ever written
	Exit           Exit      // how the immediately previous owner left
	HolderID       string    // its label
	FencingToken   uint64    // its token
	CheckpointedAt time.Time // by the backend's clock; zero if never
	Crashes        int       // owners in a row that ended in ExitExpired since the checkpoint last changed
}

// CleanHandoff reports whether the previous owner left on purpose with its work in
// order: it released or retired it.
func (p Prior) CleanHandoff() bool { return p.Exit == ExitReleased || p.Exit == ExitRetired }

// lease is the one implementation of Lease.
type lease struct {
	backend  Backend
	cfg      Config
	observer *observer
	registry *link.Registry // shared with the backend's transactions; nil: it has none
	batches  BatchRenewer   // nil: renewals go one by one

	mu     sync.Mutex // guards what follows and the fields of hold and renewal that say so
	holds  map[Claim]*hold
	sweep  int // the number of holds at which to look for dead ones
	keeper keeper
}
