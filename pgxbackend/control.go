package pgxbackend

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/jackc/pgx/v5/pgxpool"
)

// maxControlConns is how many connections a Backend opens beside the application's
// pool and the listener, none of them before it is needed.
const maxControlConns = 2

// control is for renewals, releases and looks when the application's pool is busy: a
// small pool of its own, made of the application's configuration with its hooks, so
// that rotated passwords work.
type control struct {
	app *pgxpool.Pool

	mu     sync.Mutex
	pool   *pgxpool.Pool
	closed bool
}

func (c *control) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	pool, err := c.open()
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

func (c *control) open() (*pgxpool.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, worklease.ErrClosed
	}
	if c.pool == nil {
		cfg := c.app.Config()
		cfg.MaxConns = maxControlConns
		cfg.MinConns, cfg.MinIdleConns = 0, 0
		name(cfg, "control")
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		c.pool = pool
	}
	return c.pool, nil
}

// name appends the role of our connections to the application's own name, by which
// an administrator sees them.
func name(cfg *pgxpool.Config, role string) {
	params := cfg.ConnConfig.RuntimeParams
	params["application_name"] = strings.TrimSpace(params["application_name"] + " worklease " + role)
}

func (c *control) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.pool != nil {
		c.pool.Close()
	}
}

// borrowTime is how long the lane waits for the application's pool when that seems to
// have a connection to spare.
const borrowTime = 20 * time.Millisecond

// lane takes a connection for a statement that must not queue behind the
// application's work: one of the application's pool while that has one to spare, else
// one of our own. So releases run at full width, and a service whose pool is never
// exhausted has no connections but those.
func (c *control) lane(ctx context.Context) (*pgxpool.Conn, error) {
	if s := c.app.Stat(); s.AcquiredConns() < s.MaxConns() {
		soon, cancel := context.WithTimeout(ctx, borrowTime)
		conn, err := c.app.Acquire(soon)
		cancel()
		if err == nil || poolClosed(err) {
			return conn, err
		}
	}
	return c.acquire(ctx)
}
