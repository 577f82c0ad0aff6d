package pgxbackend

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/backoff"
	"github.com/aetomala/worklease/internal/ctxerr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var listenBackoff = backoff.Policy{Initial: 100 * time.Millisecond, Max: 20 * time.Second, Jitter: 0.5}

// errDeaf: LISTEN succeeds and notifications do not arrive.
var errDeaf = errors.New("notifications do not arrive, as through a transaction pooler: waiters poll; " +
	"WithListenConnect with a direct connection mends it")

// channelOf returns the channel of an installation: one for all its work IDs, since
// the server wakes every listener of a database for every notification anyway. It is
// short whatever the schema is called.
func channelOf(schema string) string {
	sum := sha256.Sum256([]byte(schema))
	return "worklease_" + hex.EncodeToString(sum[:8])
}

// ears listens for the hub: one connection, outside of the application's pool, from
// the first watcher on until nobody has waited for a while. It never waits for
// anybody who waits, and sends no statement for them.
type ears struct {
	hub     *hub
	connect func(ctx context.Context) (*pgx.Conn, error) // nil: poll only
	channel string

	// Guarded by hub.mu.
	stop       context.CancelFunc // nil: not running
	linger     *time.Timer
	since      time.Time
	reason     string
	reconnects int
	said       bool // that nothing is heard
}

func newEars(h *hub, o options) ears {
	e := ears{hub: h, channel: channelOf(o.schema), connect: o.listen, reason: "nobody waits"}
	switch {
	case o.deaf:
		e.connect, e.reason = nil, "WithoutListen"
	case o.listen == nil:
		e.connect = h.backend.connectToListen
	}
	return e
}

// connectToListen makes a connection that is not the application's to be notified on.
func (b *Backend) connectToListen(ctx context.Context) (*pgx.Conn, error) {
	return b.connectBeside(ctx, func(cfg *pgxpool.Config) {
		name(cfg, "listen")
		// The application's own listening would keep ours from being heard.
		cfg.ConnConfig.OnNotification = nil
	})
}

// hangUpTime is how long a goodbye may take.
const hangUpTime = 5 * time.Second

// hangUp closes a connection for which no context is left.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), hangUpTime)
	defer cancel()
	conn.Close(ctx)
}

func (e *ears) startLocked() {
	if e.linger != nil {
		e.linger.Stop()
		e.linger = nil
	}
	if e.connect == nil || e.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(e.hub.ctx)
	e.stop = stop
	e.hub.wg.Go(func() { e.run(ctx) })
}

// emptyLocked is called when a work ID is watched by nobody any more.
func (e *ears) emptyLocked() {
	if e.stop == nil || len(e.hub.ids) > 0 {
		return
	}
	if e.linger != nil {
		e.linger.Stop()
	}
	e.linger = time.AfterFunc(e.hub.pace.linger, func() {
		e.hub.mu.Lock()
		defer e.hub.mu.Unlock()
		if len(e.hub.ids) == 0 {
			e.closeLocked()
		}
	})
}

func (e *ears) closeLocked() {
	if e.linger != nil {
		e.linger.Stop()
		e.linger = nil
	}
	if e.stop != nil {
		e.stop()
		e.stop = nil
		e.turnLocked(false, "nobody waits")
	}
}

// turnLocked notes whether notifications arrive.
func (e *ears) turnLocked(hears bool, reason string) {
	if hears != e.hub.hears || e.since.IsZero() {
		e.since = time.Now()
	}
	e.reason = reason
	e.hub.setHearsLocked(hears)
}

// run keeps a listening session going.
func (e *ears) run(ctx context.Context) {
	failures := 0
	for {
		proven, err := e.session(ctx)
		if ctx.Err() != nil {
			return
		}
		if failures++; proven {
			failures = 1 // what worked a moment ago is worth an early try
		}
		e.complain(ctx, err)
		pause := listenBackoff.Wait(failures)
		if errors.Is(err, errDeaf) {
			pause = e.hub.pace.deaf
		}
		_ = ctxerr.Sleep(ctx, pause)
	}
}

// complain says once per outage that nothing is heard.
func (e *ears) complain(ctx context.Context, err error) {
	if e.note(ctx, false, err.Error()) {
		e.hub.log.Warn("worklease: not hearing notifications, waiters poll", "error", err)
	}
}

func (e *ears) heard(ctx context.Context) {
	if e.note(ctx, true, "") {
		e.hub.log.Info("worklease: hearing notifications again")
	}
}

// note takes in whether notifications arrive, and returns whether that is to be said.
func (e *ears) note(ctx context.Context, hears bool, reason string) bool {
	e.hub.mu.Lock()
	defer e.hub.mu.Unlock()
	if ctx.Err() != nil {
		return false
	}
	if !hears {
		e.reconnects++
	}
	e.turnLocked(hears, reason)
	news := e.said == hears
	e.said = !hears
	return news
}

// session listens until something fails: LISTEN, prove that notifications arrive,
// and only then look at everything that is watched.
func (e *ears) session(ctx context.Context) (proven bool, err error) {
	connectCtx, cancel := context.WithTimeout(ctx, 2*e.hub.pace.ask)
	conn, err := e.connect(connectCtx)
	cancel()
	if err == nil && conn == nil {
		err = errors.New("there is no connection")
	}
	if err != nil {
		return false, fmt.Errorf("connect to listen: %w", err)
	}
	defer hangUp(conn)
	if err := e.subscribe(ctx, conn); err != nil {
		return false, fmt.Errorf("listen: %w", err)
	}
	if err := e.prove(ctx, conn); err != nil {
		if errors.Is(err, errDeaf) {
			e.unsubscribe(ctx, conn)
		}
		return false, err
	}
	e.heard(ctx)
	return true, e.receive(ctx, conn)
}

func (e *ears) receive(ctx context.Context, conn *pgx.Conn) error {
	for {
		n, err := waitForNotification(ctx, conn, e.hub.pace.quiet)
		switch {
		case err != nil:
			return err
		case n != nil:
			e.hub.notified(n.Payload)
		default:
			if err := e.ask(ctx, conn); err != nil {
				return err
			}
		}
	}
}

func (e *ears) subscribe(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, e.hub.pace.ask)
	defer cancel()
	_, err := conn.Exec(ctx, "LISTEN "+pgx.Identifier{e.channel}.Sanitize())
	return err
}

// unsubscribe takes back a subscription that a pooler may have left with a connection
// of its own, whose next user would be sent our notifications. It mostly meets the same.
func (e *ears) unsubscribe(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(ctx, e.hub.pace.ask)
	defer cancel()
	_, _ = conn.Exec(ctx, "UNLISTEN "+pgx.Identifier{e.channel}.Sanitize())
}

// prove sends a notification through another connection and waits until it is heard.
// Its payload is too long to be a work ID.
func (e *ears) prove(ctx context.Context, conn *pgx.Conn) error {
	probe := rand.Text() + strings.Repeat(".", worklease.MaxIDBytes)
	if err := e.hub.backend.notify(ctx, probeSQL, e.channel, probe); err != nil {
		return fmt.Errorf("probe: %w", err)
	}
	deadline := time.Now().Add(e.hub.pace.ask)
	for {
		n, err := waitForNotification(ctx, conn, time.Until(deadline))
		switch {
		case err != nil:
			return err
		case n == nil:
			return errDeaf
		case n.Payload == probe:
			return nil
		}
	}
}

// notify sends notifications in a statement of its own, on a connection of its own:
// where notices stall, nothing else may stall behind them.
func (b *Backend) notify(ctx context.Context, sql string, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, b.hub.pace.ask)
	defer cancel()
	conn, err := b.connectBeside(ctx, func(cfg *pgxpool.Config) { name(cfg, "notify") })
	if err != nil {
		return err
	}
	defer hangUp(conn)
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

// noticeLater sends the notice that could not go out with the statement that freed a
// row. All of them share one statement at a time: where notices stall, they must not
// take connections from the application as well.
func (h *hub) noticeLater(id string) {
	h.notified(id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.late = append(h.late, id)
	if !h.noticing {
		h.noticing = true
		h.wg.Go(h.sendNotices)
	}
}

func (h *hub) sendNotices() {
	for {
		h.mu.Lock()
		ids := h.late
		h.late = nil
		h.noticing = len(ids) > 0
		h.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		if err := h.backend.notify(h.ctx, h.backend.sql.notice, h.ears.channel, ids); err != nil {
			h.log.Warn("worklease: work was freed without a notice; who waits looks for it", "count", len(ids), "error", err)
		}
	}
}

// waitForNotification returns nil without an error when d has passed.
func waitForNotification(ctx context.Context, conn *pgx.Conn, d time.Duration) (*pgconn.Notification, error) {
	quiet, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	n, err := conn.WaitForNotification(quiet)
	if err != nil && ctx.Err() == nil && quiet.Err() != nil && !conn.IsClosed() {
		return nil, nil
	}
	return n, err
}

// ask proves that the connection is alive and still subscribed.
func (e *ears) ask(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, e.hub.pace.ask)
	defer cancel()
	var subscribed bool
	if err := conn.QueryRow(ctx, heartbeatSQL, e.channel).Scan(&subscribed); err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	if !subscribed {
		return errors.New("the subscription was lost")
	}
	return nil
}

// Stats is what a Backend can tell about its waiting.
type Stats struct {
	Listening  bool      // notifications arrive, and waiters sleep until one comes
	Since      time.Time // when Listening became what it is; zero if nobody has waited yet
	Reason     string    // why not Listening; empty while it is
	Reconnects int       // how often a listening session ended or failed
	Watched    int       // work IDs that are waited for
	Waiters    int       // calls that wait
	Looks      int64     // statements that looked at watched work IDs
}

// Stats returns how the Backend waits at this moment.
func (b *Backend) Stats() Stats {
	h := b.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	s := Stats{
		Listening: h.hears, Since: h.ears.since, Reason: h.ears.reason, Reconnects: h.ears.reconnects,
		Watched: len(h.ids), Looks: h.looks,
	}
	for _, w := range h.ids {
		s.Waiters += len(w.waiters)
	}
	return s
}
