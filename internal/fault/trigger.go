package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Match chooses a statement by its text. It must not call the proxy.
type Match func(sql string) bool

// Containing matches the statements in whose text s occurs.
func Containing(s string) Match {
	return func(sql string) bool { return strings.Contains(sql, s) }
}

// Commit matches a COMMIT that is a statement of its own.
func Commit(sql string) bool {
	return strings.EqualFold(strings.Trim(sql, " \t\n;"), "commit")
}

// Then is what becomes of a connection whose request or reply was taken away.
type Then int

const (
	Reset   Then = iota // both sides see their connection reset
	Silence             // the sockets stay open and nothing passes any more
)

// Trigger waits for statements that match and meddles with them. It acts on
// whole requests: with a statement go the others of its batch, and the reply
// ends when the server is ready for the next request, after the commit of an
// implicit transaction. Each trigger takes the first matches, in any
// connection it covers, as many as it was made for.
type Trigger struct {
	match Match
	act   act
	then  Then

	left int // firings; guarded by the proxy's mutex

	fired    chan struct{}
	answered chan error
	release  func()
	released <-chan struct{}
}

type act int

const (
	swallowReply act = iota
	holdReply
	holdRequest
	dropRequest
)

// SwallowReply lets the server run the first n statements that match and hides
// its answer from the client. When the answer was complete, the connection is
// reset or silent.
func (s *Lines) SwallowReply(match Match, n int, then Then) *Trigger {
	return s.arm(match, n, swallowReply, then)
}

// HoldReply lets the server run the first n statements that match and keeps its
// answers until Release.
func (s *Lines) HoldReply(match Match, n int) *Trigger {
	return s.arm(match, n, holdReply, Reset)
}

// HoldRequest keeps the first n statements that match from the server until
// Release. They arrive then even if the client has long left: the proxy keeps
// back the cancel request with which pgx ends a statement whose context is over.
func (s *Lines) HoldRequest(match Match, n int) *Trigger {
	return s.arm(match, n, holdRequest, Reset)
}

// DropRequest makes the first n statements that match never reach the server.
// The connection is reset or silent.
func (s *Lines) DropRequest(match Match, n int, then Then) *Trigger {
	return s.arm(match, n, dropRequest, then)
}

func (s *Lines) arm(match Match, n int, act act, then Then) *Trigger {
	released := make(chan struct{})
	t := &Trigger{
		match:    match,
		act:      act,
		then:     then,
		left:     n,
		fired:    make(chan struct{}, n),
		answered: make(chan error, n),
		release:  sync.OnceFunc(func() { close(released) }),
		released: released,
	}
	s.proxy.mu.Lock()
	defer s.proxy.mu.Unlock()
	s.triggers = append(s.triggers, t)
	return t
}

// Fired waits until a statement has matched, once for each.
func (t *Trigger) Fired(ctx context.Context) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	select {
	case <-t.fired:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("fault: wait for a statement: %w", context.Cause(ctx))
	}
}

// Answered waits until the server has answered a statement that matched, once
// for each, and the connection has been dealt with. The error is a
// *pgconn.PgError when the server refused the statement, and another one when
// it was dropped or the connection ended before the answer.
func (t *Trigger) Answered(ctx context.Context) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	select {
	case err := <-t.answered:
		return err
	case <-ctx.Done():
		return fmt.Errorf("fault: wait for the server's answer: %w", context.Cause(ctx))
	}
}

// Release lets go of what is held and holds nothing more.
func (t *Trigger) Release() { t.release() }

var (
	errDropped    = errors.New("fault: the request was dropped")
	errUnanswered = errors.New("fault: the connection ended before the server's answer")
)

// shot is one firing of a trigger, on one request.
type shot struct {
	*Trigger
	link   *link
	finish sync.Once

	// Of the answer so far.
	refused error
	held    []byte
}

// request deals with the request before it reaches the server. An error means
// that it does not get there.
func (s *shot) request() error {
	if s.act == dropRequest {
		s.part()
		s.finished(errDropped)
	}
	s.fired <- struct{}{}
	if s.act == holdRequest {
		select {
		case <-s.released:
		case <-s.link.gone:
		}
	}
	return s.link.gate(ToServer, time.Time{})
}

// answer takes one message of the server's answer and returns what may go on
// to the client now.
func (s *shot) answer(f frame) frame {
	if err := refusal(f); err != nil {
		s.refused = err
	}
	whole := f.kind() == readyForQuery
	switch s.act {
	case swallowReply:
		if whole {
			s.part()
			s.finished(s.refused)
		}
		return nil
	case holdReply:
		s.held = append(s.held, f...)
		if !whole {
			return nil
		}
		s.finished(s.refused)
		select {
		case <-s.released:
		case <-s.link.gone:
		}
		return s.held
	default:
		if whole {
			s.finished(s.refused)
		}
		return f
	}
}

// abandon tells that no answer will come.
func (s *shot) abandon() { s.finished(cmp.Or(s.refused, errUnanswered)) }

func (s *shot) finished(err error) {
	s.finish.Do(func() { s.answered <- err })
}

func (s *shot) part() {
	if s.then == Silence {
		s.link.silence()
	} else {
		s.link.cut()
	}
}

// refusal returns the server's error, if the message is one.
func refusal(f frame) error {
	var m pgproto3.ErrorResponse
	if f.kind() != 'E' || m.Decode(f.body()) != nil {
		return nil
	}
	return pgconn.ErrorResponseToPgError(&m)
}
