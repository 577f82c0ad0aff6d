package memory

import (
	"bytes"
	"time"

	"github.com/aetomala/worklease"
)

// row is what is known of one work ID: its current owner, or the last one, and
// what that owner was told of the one before. It is guarded by Backend.mu.
type row struct {
	holder  string
	token   uint64
	nonce   string
	ttl     time.Duration
	expires time.Time

	// How this token gave the lease up. Surrendered with ExitNone is undone: nobody
	// used the acquisition. The next acquisition clears both.
	surrendered bool
	exit        worklease.Exit
	exitedAt    time.Time // when an exit was last declared

	checkpoint     []byte // never changed in place
	checkpointedAt time.Time
	number         int64  // of the last save under this token; 0: none
	hold           string // that drew number
	crashes        int    // owners in a row that lapsed since the checkpoint last changed

	prior prior
}

// prior is what an owner is told of the one before it, and what that one's repeated
// release is recognised by.
type prior struct {
	exit    worklease.Exit
	holder  string
	token   uint64
	nonce   string
	number  int64
	hold    string
	crashes int
}

// live reports whether the lease is held. An expiry equal to now has passed.
func (r *row) live(now time.Time) bool { return !r.surrendered && r.expires.After(now) }

func (r *row) undone() bool { return r.surrendered && r.exit == worklease.ExitNone }

// retired reports whether the work is done for good, also under an acquisition that
// was undone.
func (r *row) retired() bool {
	if r.undone() {
		return r.prior.exit == worklease.ExitRetired
	}
	return r.surrendered && r.exit == worklease.ExitRetired
}

// claimedBy reports whether c is the claim of the row's token. A claim without a
// nonce is a resumed one.
func (r *row) claimedBy(c worklease.Claim) bool {
	return r.token == c.FencingToken && r.holder == c.HolderID && (c.Nonce == "" || r.nonce == c.Nonce)
}

func (r *row) remaining(now time.Time) time.Duration { return max(r.expires.Sub(now), 0) }

// records reports whether f is the farewell that surrendered the row.
func (r *row) records(f worklease.Farewell) bool {
	return r.exit == f.Exit && (f.State == nil || r.holds(f.State))
}

// recordsOneOwnerBack reports whether f is the farewell of the owner before this
// one, made with c.
func (r *row) recordsOneOwnerBack(c worklease.Claim, f worklease.Farewell) bool {
	p := r.prior
	if p.token != c.FencingToken || p.holder != c.HolderID || c.Nonce != "" && p.nonce != c.Nonce || p.exit != f.Exit {
		return false
	}
	return f.State == nil ||
		p.number == f.Number && p.hold == f.Hold ||
		r.number == 0 && r.holds(f.State)
}

func (r *row) holds(state []byte) bool {
	return r.checkpoint != nil && bytes.Equal(r.checkpoint, state)
}

// take makes the attempt's sender the owner.
func (r *row) take(a worklease.Attempt, token uint64, now time.Time) {
	// An acquisition that nobody used leaves no trace: the next owner is told what it
	// would have been. So it is with the sender's own, whose reply got lost.
	unused := r.token == 0 || r.undone() || a.Nonce != "" && r.nonce == a.Nonce && !r.surrendered
	if !unused {
		exit := worklease.ExitExpired
		if r.surrendered {
			exit = r.exit
			r.crashes = 0
		} else {
			r.crashes++
		}
		r.prior = prior{
			exit: exit, holder: r.holder, token: r.token, nonce: r.nonce,
			number: r.number, hold: r.hold, crashes: r.crashes,
		}
	}
	r.holder, r.nonce, r.token = a.HolderID, a.Nonce, token
	r.ttl, r.expires = a.TTL, now.Add(a.TTL)
	r.surrendered, r.exit = false, worklease.ExitNone
	r.number, r.hold = 0, ""
}

// extend moves the expiry to a TTL from now, also when it was further ahead: the
// clock was set back then.
func (r *row) extend(now time.Time) worklease.Extension {
	r.expires = now.Add(r.ttl)
	return worklease.Extension{Remaining: r.ttl}
}

// save stores state. A nil one counts, and leaves what is stored.
func (r *row) save(state []byte, number int64, hold string, now time.Time) {
	r.number, r.hold = number, hold
	if state != nil {
		r.checkpoint = bytes.Clone(state)
		r.checkpointedAt = now
		r.crashes = 0
	}
}

func (r *row) surrender(exit worklease.Exit, now time.Time) {
	r.surrendered, r.exit = true, exit
	if r.expires.After(now) {
		r.expires = now
	}
}

// blank removes every trace of owners but the token.
func (r *row) blank() {
	r.checkpoint, r.checkpointedAt = nil, time.Time{}
	r.number, r.hold, r.crashes = 0, "", 0
	r.exitedAt = time.Time{}
	r.prior = prior{}
}

func (r *row) grant(now time.Time) worklease.Grant {
	g := worklease.Grant{
		FencingToken: r.token, ExpiresAt: r.expires, Remaining: r.remaining(now), Prior: r.told(),
		StateOmitted: len(r.checkpoint) > worklease.MaxInlineState,
	}
	if !g.StateOmitted {
		g.Prior.State = bytes.Clone(r.checkpoint)
	}
	return g
}

func (r *row) stored(withState bool) worklease.Stored {
	s := worklease.Stored{Number: r.number, Hold: r.hold, Prior: r.told()}
	if withState {
		s.State = bytes.Clone(r.checkpoint)
	}
	return s
}

// told is what the owner learns of the one before it, but for the state.
func (r *row) told() worklease.Prior {
	return worklease.Prior{
		Exit: r.prior.exit, HolderID: r.prior.holder, FencingToken: r.prior.token,
		CheckpointedAt: r.checkpointedAt, Crashes: r.prior.crashes,
	}
}

func (r *row) held(workID string, now time.Time) error {
	return &worklease.HeldError{
		WorkID: workID, HolderID: r.holder, FencingToken: r.token, Remaining: r.remaining(now),
	}
}

// retiredBy says who retired the work, also when an acquisition since was undone.
func (r *row) retiredBy(workID string) error {
	e := &worklease.RetiredError{WorkID: workID, HolderID: r.holder, FencingToken: r.token, RetiredAt: r.exitedAt}
	if r.undone() {
		e.HolderID, e.FencingToken = r.prior.holder, r.prior.token
	}
	return e
}
