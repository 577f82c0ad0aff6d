package pgxbackend

import (
	"errors"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/backoff"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SQLSTATEs that are spoken of by name.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	cachedPlanChanged    = "0A000" // "cached plan must not change result type"
	duplicatePrepared    = "42P05" // a transaction pooler mixed sessions up
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014"
	notifyQueueFull      = "54000"
	readOnlyTransaction  = "25006" // a standby, or a primary that was set read-only
)

// lostRace reports whether a statement failed only because somebody else was
// quicker, so that it is simply sent again.
func lostRace(err error) bool {
	switch state(err) {
	case serializationFailure, deadlockDetected, cachedPlanChanged:
		return true
	}
	return false
}

func state(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// permanentClasses are the SQLSTATE classes that no waiting mends: data, integrity,
// authorization, and names that do not exist or may not be used.
var permanentClasses = []string{"22", "23", "28", "3D", "3F", "42"}

// classify adds what the error of a statement says about its effect and its cure.
func classify(err error) error {
	b := &worklease.BackendError{Err: err, NotApplied: pgconn.SafeToRetry(err) || errors.Is(err, errBusy)}
	b.NotApplied = b.NotApplied || serverRefused(err)
	if code := state(err); len(code) == 5 && code != duplicatePrepared {
		b.Permanent = slices.Contains(permanentClasses, code[:2])
	}
	return b
}

// serverRefused reports whether the server rolled the statement back and said so.
// FATAL says less: the session may have ended while a commit waited for its standby.
func serverRefused(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.SeverityUnlocalized == "ERROR"
}

// outcomeBackoff paces the questions about a commit that went unanswered.
var outcomeBackoff = backoff.Policy{Initial: 20 * time.Millisecond, Max: time.Second, Jitter: 0.5}

// notSent classifies the failure to get a connection.
func notSent(err error) error {
	b := classify(err).(*worklease.BackendError)
	b.NotApplied = true
	if poolClosed(err) {
		b.Err = errors.Join(worklease.ErrClosed, err)
	}
	b.Permanent = b.Permanent || errors.Is(b.Err, worklease.ErrClosed)
	return b
}

// poolClosed goes by the text: the pool's error value is not exported by any package
// that we may import.
func poolClosed(err error) bool { return err.Error() == "closed pool" }

// noticeFailed reports whether a statement that frees a row may have failed only
// because it notifies: the lock for it was not to be had, or the queue is full.
func noticeFailed(err error) bool {
	switch state(err) {
	case lockNotAvailable, queryCanceled, notifyQueueFull:
		return true
	}
	return false
}

// giveBack returns a connection to its pool. One whose session can only read is closed
// instead: it may be to a server that is the primary no more, and a new one finds that.
func giveBack(conn *pgxpool.Conn, err *error) {
	if state(*err) == readOnlyTransaction {
		hangUp(conn.Conn())
	}
	conn.Release()
}
