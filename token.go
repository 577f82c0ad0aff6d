package worklease

import (
	"fmt"
	"log/slog"
	"math"
	"time"
)

// Token is one acquisition of a work ID: the right to save, renew and release
// until somebody else acquires it. It is a plain value: copy it, compare it with
// ==, use it as a map key. The zero Token names no acquisition.
//
// A Token carries an unexported nonce of its acquisition, so that a number that a
// restored or failed-over database hands out twice fences nobody wrongly. Two
// tokens are == only if that is the same too; [Token.Equal] compares what is
// public.
type Token struct {
	workID       string
	holderID     string
	nonce        string
	fencingToken uint64
	// The expiry since year 1, so that the zero Token has the zero time, and no
	// pointer to a location gets into a comparable value.
	expirySeconds int64
	expiryNanos   int64
}

// yearOne is the zero time in Unix seconds.
const yearOne = -62135596800

// NewToken returns a Token with the given values, for tests and to resume a hold
// whose token was written down: renew it first, and trust it from that reply on.
// Such a token has no nonce: it is matched by work ID, holder ID and number.
func NewToken(workID, holderID string, fencingToken uint64, expiresAt time.Time) Token {
	return newToken(Claim{WorkID: workID, HolderID: holderID, FencingToken: fencingToken}, expiresAt)
}

func newToken(c Claim, expiresAt time.Time) Token {
	return Token{
		workID:        c.WorkID,
		holderID:      c.HolderID,
		nonce:         c.Nonce,
		fencingToken:  c.FencingToken,
		expirySeconds: expiresAt.Unix() - yearOne,
		expiryNanos:   int64(expiresAt.Nanosecond()),
	}
}

// WorkID returns the work ID that was acquired.
func (t Token) WorkID() string { return t.workID }

// HolderID returns the holder's label. It identifies nobody: two processes may
// share it.
func (t Token) HolderID() string { return t.holderID }

// FencingToken returns the number that grows with every acquisition of the work
// ID. Hand it to systems that can refuse a smaller one.
func (t Token) FencingToken() uint64 { return t.fencingToken }

// ExpiresAt returns the expiry that was granted, in UTC and by the backend's
// clock. It informs and decides nothing: see [Lease.Deadline].
func (t Token) ExpiresAt() time.Time {
	return time.Unix(t.expirySeconds+yearOne, t.expiryNanos).UTC()
}

// Claim returns what a [Backend] matches a statement of this token by.
func (t Token) Claim() Claim {
	return Claim{WorkID: t.workID, HolderID: t.holderID, FencingToken: t.fencingToken, Nonce: t.nonce}
}

// Validate returns an error that Is ErrInvalid if no acquisition can have returned
// this token.
func (t Token) Validate() error {
	if t == (Token{}) {
		return invalid("token is zero")
	}
	if err := checkID("token's work ID", t.workID); err != nil {
		return err
	}
	if err := checkID("token's holder ID", t.holderID); err != nil {
		return err
	}
	if t.fencingToken == 0 || t.fencingToken > math.MaxInt64 {
		return invalid("fencing token %d is out of range", t.fencingToken)
	}
	return nil
}

// Equal reports whether the four public values are the same.
func (t Token) Equal(u Token) bool {
	t.nonce, u.nonce = "", ""
	return t == u
}

// String returns the public values.
func (t Token) String() string {
	return fmt.Sprintf("worklease.Token{workID=%q holderID=%q fencingToken=%d expiresAt=%s}",
		t.workID, t.holderID, t.fencingToken, t.ExpiresAt().Format(time.RFC3339))
}

// LogValue returns the public values as a group.
func (t Token) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("workID", t.workID),
		slog.String("holderID", t.holderID),
		slog.Uint64("fencingToken", t.fencingToken),
		slog.Time("expiresAt", t.ExpiresAt()),
	)
}
