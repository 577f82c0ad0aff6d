package worklease

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Branch on these with [errors.Is]; every returned error wraps the operation and
// the work ID around them and keeps the cause.
var (
	// ErrFenced: another acquisition has taken the work over, or the row is gone.
	// This token is of no more use.
	ErrFenced = errors.New("fenced by a newer token")

	// ErrLeaseHeld: somebody else's lease is live. The error is a [*HeldError].
	ErrLeaseHeld = errors.New("lease is held")

	// ErrLeaseExpired: the lease has ended, by time or because this very token gave
	// it up, and nobody has taken the work over yet.
	ErrLeaseExpired = errors.New("lease has expired")

	// ErrLeaseWindowExhausted: the time for which this process could trust its lease
	// ran out before a renewal was confirmed. What the database says is unknown,
	// unless the error also is ErrLeaseExpired.
	ErrLeaseWindowExhausted = errors.New("lease window exhausted before a renewal succeeded")

	// ErrLeaseRetired: the work is done for good. The error is a [*RetiredError].
	ErrLeaseRetired = errors.New("work is retired")

	// ErrStalled: no checkpoint came for as long as [WithProgressDeadline] allows. It
	// is the cause of the context of [Lease.StartRenewal], and no method returns it.
	ErrStalled = errors.New("no progress within the deadline")

	// ErrWindDown: the work function outlived the time its lease was kept for it
	// after the caller's context had ended.
	ErrWindDown = errors.New("work outlived its wind-down")

	// ErrOutcomeUnknown: a commit may or may not have happened, and the bound for
	// finding out passed. The checkpoint tells the next owner.
	ErrOutcomeUnknown = errors.New("outcome of the commit is unknown")

	// ErrClosed: the backend, or the connection pool under it, was closed.
	ErrClosed = errors.New("backend is closed")

	// ErrInvalid is wrapped by every error about an argument or a configuration.
	// Nothing was sent.
	ErrInvalid = errors.New("invalid")
)

// Retire is no failure but an instruction, like [io/fs.SkipDir]: a work function
// that returns it, or an error wrapping it, has its work ID retired.
//
//lint:ignore ST1012 it is no error, and reads as what it does
var Retire = errors.New("retire this work")

// HeldError says who holds the work and for how long yet. It Is [ErrLeaseHeld].
type HeldError struct {
	WorkID       string
	HolderID     string
	FencingToken uint64
	Remaining    time.Duration // by the backend's clock, when it was asked
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("lease is held by %q with token %d for another %v", e.HolderID, e.FencingToken, e.Remaining)
}

// Is reports whether target is [ErrLeaseHeld].
func (e *HeldError) Is(target error) bool { return target == ErrLeaseHeld }

// RetiredError says who declared the work done and when. It Is [ErrLeaseRetired].
type RetiredError struct {
	WorkID       string
	HolderID     string
	FencingToken uint64
	RetiredAt    time.Time // by the backend's clock
}

func (e *RetiredError) Error() string {
	return fmt.Sprintf("work is retired since %s by %q with token %d", e.RetiredAt.Format(time.RFC3339), e.HolderID, e.FencingToken)
}

// Is reports whether target is [ErrLeaseRetired].
func (e *RetiredError) Is(target error) bool { return target == ErrLeaseRetired }

// invalid reports one fault of an argument or a configuration.
func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// maxQuotedID keeps an over-long work ID from filling the log it is refused in.
const maxQuotedID = 80

// fail wraps err with what was being done to which work. It is the one place
// where errors get their context.
func fail(operation, workID string, err error) error {
	if err == nil {
		return nil
	}
	id := strconv.Quote(workID)
	if len(workID) > maxQuotedID {
		id = strconv.Quote(workID[:maxQuotedID]) + "…"
	}
	return fmt.Errorf("worklease: %s %s: %w", operation, id, err)
}
