package pgxbackend

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/aetomala/worklease"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// control is for renewals, releases and looks when the application's pool is busy: two
// connections of its own, none of them opened before it is needed, made of the
// application's configuration with its hooks, so that rotated passwords work.
//
// One is for statements that wait for nobody: were they to queue behind releases that
// wait for rows, two locked rows could cost every lease.
type control struct {
	app *pgxpool.Pool

	mu             sync.Mutex
	brief, patient *pgxpool.Pool
	closed         bool
}

// quick is the lane of statements that wait for no lock.
func (c *control) quick(ctx context.Context) (*pgxpool.Conn, error) { return c.lane(ctx, &c.brief) }

// slow is the lane of statements that may have to wait for a row, or to notify.
func (c *control) slow(ctx context.Context) (*pgxpool.Conn, error) { return c.lane(ctx, &c.patient) }

// open returns one of the two, each a pool of one connection.
func (c *control) open(own **pgxpool.Pool) (*pgxpool.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, worklease.ErrClosed
	}
	if *own == nil {
		cfg := c.app.Config()
		cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
		name(cfg, "control")
		pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		*own = pool
	}
	return *own, nil
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
	for _, own := range []*pgxpool.Pool{c.brief, c.patient} {
		if own != nil {
			own.Close()
		}
	}
}

// borrowTime is how long the lane waits for the application's pool when that seems to
// have a connection to spare.
const borrowTime = 20 * time.Millisecond

// lane takes a connection for a statement that must not queue behind the
// application's work: one of the application's pool while that has one to spare, else
// our own. So releases run at full width, and a service whose pool is never exhausted
// has no connections but those.
func (c *control) lane(ctx context.Context, own **pgxpool.Pool) (*pgxpool.Conn, error) {
	if s := c.app.Stat(); s.AcquiredConns() < s.MaxConns() {
		soon, cancel := context.WithTimeout(ctx, borrowTime)
		conn, err := c.app.Acquire(soon)
		cancel()
		if err == nil || poolClosed(err) {
			return conn, err
		}
	}
	pool, err := c.open(own)
	if err != nil {
		return nil, err
	}
	return pool.Acquire(ctx)
}

// connectBeside opens a connection of the application's configuration with its hooks,
// outside of every pool: those may be exhausted, or their connections dead. The caller
// hangs up.
func (b *Backend) connectBeside(ctx context.Context, set func(*pgxpool.Config)) (*pgx.Conn, error) {
	cfg := b.pool.Config()
	set(cfg)
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil || cfg.AfterConnect == nil {
		return conn, err
	}
	if err := cfg.AfterConnect(ctx, conn); err != nil {
		hangUp(conn)
		return nil, err
	}
	return conn, nil
}
