package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
)

// ears hears every notification of a place: on the library's own channel and on the
// yardstick's.
type ears struct {
	place *place
	conn  *pgx.Conn
}

func eavesdrop(ctx context.Context, p *place) (*ears, error) {
	listen, err := libraryListens(ctx, p)
	if err != nil {
		return nil, err
	}
	conn, err := pgx.Connect(ctx, p.URL)
	if err != nil {
		return nil, err
	}
	e := &ears{place: p, conn: conn}
	for _, sql := range []string{listen, p.sql(`LISTEN {channel}`)} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			e.close()
			return nil, err
		}
	}
	return e, nil
}

// libraryListens returns the statement by which the library listens: a waiter makes it send
// one. That waiter's backend is closed again.
func libraryListens(ctx context.Context, p *place) (string, error) {
	r, err := p.counter(ctx, 2)
	if err != nil {
		return "", err
	}
	defer r.close()
	_, stop := r.backend.Watch("nothing", time.Second)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, fault.Patience)
	defer cancel()
	for ctx.Err() == nil {
		if r.backend.Stats().Listening {
			for _, sql := range r.tracer.Statements() {
				if strings.HasPrefix(sql, "LISTEN ") {
					return sql, nil
				}
			}
		}
		pause(ctx, time.Millisecond)
	}
	return "", errors.New("the library does not listen")
}

// count returns how many notifications have come since the last count. One of its own, sent
// after them, comes after them.
func (e *ears) count(ctx context.Context) (int, error) {
	end := rand.Text()
	if _, err := e.place.admin.Exec(ctx, e.place.sql(`SELECT pg_notify('{channel}', $1)`), end); err != nil {
		return 0, err
	}
	for n := 0; ; n++ {
		heard, err := e.conn.WaitForNotification(ctx)
		if err != nil || heard.Payload == end {
			return n, err
		}
	}
}

func (e *ears) close() { _ = e.conn.Close(context.Background()) }

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// noise returns bytes that no compression makes less.
func noise(n int) []byte {
	state := make([]byte, n)
	rand.Read(state)
	return state
}

// single hides the optional powers of a backend: its leases are renewed one by one.
type single struct{ worklease.Backend }
