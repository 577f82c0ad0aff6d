// Package hold is how a Lease and the transactions of its backend share what is
// known of a token: which number the next checkpoint has, and what a committed
// step means for the observer, for progress and for the window. A token itself
// carries no pointer; its claim is the key.
package hold

import (
	"context"
	"math"
	"sync"
	"time"
)

// Claim is what a statement is fenced by; the fields are those of worklease.Claim.
type Claim struct {
	WorkID       string
	HolderID     string
	FencingToken uint64
	Nonce        string
}

// Hold is a Lease's side of one token.
type Hold interface {
	// Check reports a state that the Lease does not accept.
	Check(state []byte) error
	// Missing reports what must be read from the row before the first save: the
	// stored number, the predecessor's state that the save will overwrite.
	Missing() (number, state bool)
	// Fill takes what was read.
	Fill(number int64, state []byte)
	// Next draws the number of a save and names the hold that drew it.
	Next() (number int64, by string, err error)
	// Overtaken continues above the number that another hold stored.
	Overtaken(stored int64)
	// Progressed counts a save whose transaction is not ours to follow.
	Progressed()
	// Stepped counts a step that has ended.
	Stepped(ctx context.Context, s Step)
}

// Step is the outcome of one transaction of ours. Sent is when its save was sent,
// Remaining the time left that it answered with; both are zero if none was.
type Step struct {
	Sent      time.Time
	Remaining time.Duration
	Size      int
	Took      time.Duration
	Err       error
}

// A resumed hold numbers its checkpoints far above those of the hold before it, whose
// late statements may still be on their way.
const epoch = 1 << 32

// Beyond returns the number above which a hold continues that did not draw the stored
// one. At the very end there is no further epoch: it is the stored one itself.
func Beyond(stored int64) int64 {
	if stored > math.MaxInt64-2*epoch {
		return stored
	}
	return (stored/epoch + 1) * epoch
}

// Registry finds the Hold of a claim. The zero value is ready; it is safe for
// concurrent use.
type Registry struct {
	mu    sync.Mutex
	holds map[Claim]Hold
}

// Add makes h the Hold of c.
func (r *Registry) Add(c Claim, h Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds == nil {
		r.holds = make(map[Claim]Hold)
	}
	r.holds[c] = h
}

// Remove forgets h, unless another Hold has taken its place.
func (r *Registry) Remove(c Claim, h Hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds[c] == h {
		delete(r.holds, c)
	}
}

// Find returns the Hold of c, or nil.
func (r *Registry) Find(c Claim) Hold {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds[c]
}
