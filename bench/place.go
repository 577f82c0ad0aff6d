package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/migrations"
	"github.com/aetomala/worklease/pgxbackend"
)

// long is a TTL that nothing outlasts.
const long = time.Hour

type bench struct {
	url   string
	short bool
}

// scale chooses between the two forms.
func (b bench) scale(short, long int) int {
	if b.short {
		return short
	}
	return long
}

// place is a schema with our table, its raw twin and v0.5's table. Exported fields are what
// another process needs to know.
type place struct {
	bench
	Schema string
	URL    string
	admin  *pgxpool.Pool // to prepare, and to look on
}

func (b bench) open(ctx context.Context) (*place, error) {
	p := &place{bench: b, URL: b.url, Schema: "worklease_bench_" + strings.ToLower(rand.Text()[:8])}
	conn, err := pgx.Connect(ctx, b.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if err := migrations.Up(ctx, conn, migrations.WithSchema(p.Schema)); err != nil {
		return nil, err
	}
	if p.admin, err = p.connect(ctx, 2); err != nil {
		return nil, err
	}
	if err := p.exec(ctx, createTwinsSQL); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *place) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), fault.Patience)
	defer cancel()
	err := p.exec(ctx, `DROP SCHEMA `+pgx.Identifier{p.Schema}.Sanitize()+` CASCADE`)
	p.admin.Close()
	return err
}

// sql fills in the names of tables.
func (p *place) sql(text string) string {
	name := func(s string) string { return pgx.Identifier{p.Schema, s}.Sanitize() }
	return strings.NewReplacer(
		"{table}", name("worklease_leases"), "{sequence}", name("worklease_fencing_seq"),
		"{raw}", name("raw_leases"), "{v05}", name("v05_leases"), "{v05sequence}", name("v05_seq"),
		"{channel}", p.Schema,
	).Replace(text)
}

// exec runs statements without parameters.
func (p *place) exec(ctx context.Context, sql string) error {
	_, err := p.admin.Exec(ctx, p.sql(sql), pgx.QueryExecModeSimpleProtocol)
	return err
}

// fill makes rows, so that plans are made for a table of a usual size.
func (p *place) fill(ctx context.Context, n int) error {
	return errors.Join(p.exec(ctx, fmt.Sprintf(fillSQL, n)), p.vacuum(ctx), p.exec(ctx, `ANALYZE {table}`), p.exec(ctx, `ANALYZE {raw}`))
}

// usual is how many rows a table has where nothing else is said.
const usual = 10_000

// vacuum makes both tables as good as new before a slice.
func (p *place) vacuum(ctx context.Context) error {
	for _, table := range []string{"{table}", "{raw}"} {
		if err := p.exec(ctx, `VACUUM `+table); err != nil {
			return err
		}
	}
	return nil
}

func (p *place) connect(ctx context.Context, conns int, set ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(conns)
	for _, f := range set {
		f(config)
	}
	return pgxpool.NewWithConfig(ctx, config)
}

// rig is a service as the library sees it: a pool and a Backend.
type rig struct {
	pool    *pgxpool.Pool
	backend *pgxbackend.Backend
	tracer  *fault.Tracer // nil in a rig for rates
	trips   *atomic.Int64
}

// rig is for rates: nobody listens in.
func (p *place) rig(ctx context.Context, conns int) (*rig, error) { return p.newRig(ctx, conns, nil) }

// counter is a rig that writes down statements and counts round trips.
func (p *place) counter(ctx context.Context, conns int) (*rig, error) {
	tracer, trips := new(fault.Tracer), new(atomic.Int64)
	r, err := p.newRig(ctx, conns, func(c *pgxpool.Config) {
		c.ConnConfig.Tracer = tracer
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &countedConn{Conn: conn, trips: trips}, err
		}
	})
	if err != nil {
		return nil, err
	}
	r.tracer, r.trips = tracer, trips
	return r, nil
}

func (p *place) newRig(ctx context.Context, conns int, set func(*pgxpool.Config)) (*rig, error) {
	var sets []func(*pgxpool.Config)
	if set != nil {
		sets = append(sets, set)
	}
	pool, err := p.connect(ctx, conns, sets...)
	if err != nil {
		return nil, err
	}
	backend, err := pgxbackend.New(pool, pgxbackend.WithSchema(p.Schema))
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &rig{pool: pool, backend: backend}, nil
}

func (r *rig) close() {
	r.backend.Close()
	r.pool.Close()
}

func (r *rig) lease(ttl time.Duration) worklease.Lease { return newLease(r.backend, ttl) }

// newLease panics on what New refuses: all of it is written here.
func newLease(b worklease.Backend, ttl time.Duration) worklease.Lease {
	l, err := worklease.New(b, worklease.Config{TTL: ttl, HolderID: "bench"})
	if err != nil {
		panic(err)
	}
	return l
}

// count runs act, and returns how many statements and round trips it took.
func (r *rig) count(act func() error) (statements, trips int, err error) {
	before := r.trips.Load()
	r.tracer.Reset()
	err = act()
	return len(r.tracer.Statements()), int(r.trips.Load() - before), err
}

// countedConn counts how often it is read after it was written to.
type countedConn struct {
	net.Conn
	trips *atomic.Int64
	asked atomic.Bool
}

func (c *countedConn) Write(b []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(b)
}

func (c *countedConn) Read(b []byte) (int, error) {
	if c.asked.Swap(false) {
		c.trips.Add(1)
	}
	return c.Conn.Read(b)
}

func workIDs(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("w%06d", i+1)
	}
	return ids
}

// take acquires all of the work IDs.
func take(ctx context.Context, l worklease.Lease, clients int, ids []string) ([]worklease.Token, error) {
	tokens := make([]worklease.Token, len(ids))
	err := share(clients, len(ids), func(i int) (err error) {
		tokens[i], err = l.Acquire(ctx, ids[i])
		return err
	})
	return tokens, err
}
