package pgxbackend_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
)

// What the checks of arguments let through, PostgreSQL takes and gives back unchanged.
func FuzzArguments(f *testing.F) {
	pool := pgtest.Pool(f)
	b := newBackend(f, pool, pgxbackend.WithoutListen())
	long := strings.Repeat("x", worklease.MaxIDBytes)
	f.Add("work", "holder", int64(time.Minute), []byte("state"))
	f.Add(long, long, int64(time.Hour), []byte{})
	f.Add("日本\U0010ffff", "'; DROP TABLE worklease_leases; --", int64(1<<63-1), []byte{0, 0xff})
	f.Add("%s $1 \\x00", "{a,\"b\",NULL}", int64(worklease.MinTTL+1), []byte(nil))
	f.Add(" \n", "\x01", int64(time.Hour+time.Nanosecond), []byte("\\x"))
	for _, no := range []string{"", "x\x00", "\xff", long + "x"} {
		f.Add(no, "holder", int64(time.Minute), []byte(nil))
		f.Add("work", no, int64(time.Minute), []byte(nil))
	}
	f.Add("work", "holder", int64(0), []byte(nil))
	f.Fuzz(func(t *testing.T, workID, holderID string, ttl int64, state []byte) {
		l, err := worklease.New(b, worklease.Config{TTL: time.Duration(ttl), HolderID: holderID})
		if errors.Is(err, worklease.ErrInvalid) {
			return
		}
		must(t, err)
		token, err := l.Acquire(t.Context(), workID)
		switch {
		case errors.Is(err, worklease.ErrInvalid), errors.Is(err, worklease.ErrLeaseHeld):
			return
		case errors.Is(err, worklease.ErrLeaseExpired) && time.Duration(ttl) < time.Minute:
			return // the machine is slow
		}
		must(t, err)
		defer func() {
			must(t, l.Forget(t.Context(), token))
			exec(t, pool, `DELETE FROM worklease_leases WHERE work_id = $1`, workID)
		}()
		holder := query[string](t, pool, `SELECT holder_id FROM worklease_leases WHERE work_id = $1`, workID)
		if holder != holderID {
			t.Errorf("holder %q became %q", holderID, holder)
		}
		must(t, l.Checkpoint(t.Context(), token, state))
		got, _, err := l.ReadCheckpoint(t.Context(), token)
		must(t, err)
		if !bytes.Equal(got, state) || (got == nil) != (state == nil) {
			t.Errorf("state %q became %q", state, got)
		}
		renewals, err := b.RenewBatch(t.Context(), []worklease.Claim{token.Claim()}, time.Duration(ttl))
		if must(t, err); renewals[0].Err != nil && time.Duration(ttl) >= time.Minute {
			t.Errorf("RenewBatch: %v", renewals[0].Err)
		}
		must(t, l.Release(t.Context(), token, worklease.WithState(state)))
	})
}

var plainName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// A schema's name is refused, or it is quoted so that every statement names a table in
// it and nothing else. Its channel needs no quotes and is no other schema's.
func FuzzSchemaNames(f *testing.F) {
	pool := pgtest.Pool(f, pgtest.Empty())
	for _, name := range []string{"", "public", `"`, `a"b`, `x"; DROP SCHEMA public; --`, "a.b", "Ä b", "$user", "\x00", "\xff", "%s%d",
		"'", "-- ", "\n", strings.Repeat("x", 63), strings.Repeat("x", 64), strings.Repeat("é", 31) + "e"} {
		f.Add(name, name)
		f.Add(name, name+" ")
	}
	f.Fuzz(func(t *testing.T, name, second string) {
		b, err := pgxbackend.New(pool, pgxbackend.WithSchema(name), pgxbackend.WithoutListen())
		possible := name != "" && len(name) <= 63 && utf8.ValidString(name) && !strings.Contains(name, "\x00")
		if possible != (err == nil) || err != nil && !errors.Is(err, worklease.ErrInvalid) {
			t.Fatalf("New with the schema %q: %v", name, err)
		}
		if err != nil {
			return
		}
		defer b.Close()
		if !plainName.MatchString(b.Channel()) {
			t.Errorf("the channel of %q is %q", name, b.Channel())
		}
		if other, err := pgxbackend.New(pool, pgxbackend.WithSchema(second)); err == nil {
			defer other.Close()
			if (b.Channel() == other.Channel()) != (name == second) {
				t.Errorf("the channels of %q and %q are %q and %q", name, second, b.Channel(), other.Channel())
			}
		}
		claim := worklease.Claim{WorkID: "w", HolderID: "h", FencingToken: 1}
		_, acquire := b.Acquire(t.Context(), attempt("w", "h"))
		_, save := b.Checkpoint(t.Context(), claim, worklease.Save{TTL: time.Minute})
		_, renew := b.Renew(t.Context(), claim, time.Minute)
		_, batch := b.RenewBatch(t.Context(), []worklease.Claim{claim}, time.Minute)
		_, read := b.ReadCheckpoint(t.Context(), claim, true)
		for what, err := range map[string]error{
			"Acquire": acquire, "Checkpoint": save, "Renew": renew, "RenewBatch": batch, "ReadCheckpoint": read,
			"Release": b.Release(t.Context(), claim, worklease.Farewell{Exit: worklease.ExitReleased}),
			"Forget":  b.Forget(t.Context(), claim),
		} {
			if sqlState(err) != "42P01" || !strings.Contains(err.Error(), fmt.Sprintf(`"%s.worklease_`, name)) {
				t.Errorf("%s in the schema %q: %v, want that its table does not exist", what, name, err)
			}
		}
	})
}

// Anybody may notify on the channel. What is no work ID of those who wait is ignored.
func FuzzNotifications(f *testing.F) {
	url := pgtest.Database(f)
	direct := pgtest.Open(f, url)
	b := newBackend(f, pgtest.Open(f, url), patiently)
	owner := newLeaseFor(f, newBackend(f, direct), "owner", time.Hour)
	long := strings.Repeat("x", worklease.MaxIDBytes)
	for _, payload := range []string{"", "other", "w", "w\n", "no such work", "{}", "日本", long, long + "x", strings.Repeat("y", 7999)} {
		f.Add(payload)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		if len(payload) >= 8000 || !utf8.ValidString(payload) || strings.Contains(payload, "\x00") {
			return // PostgreSQL refuses it
		}
		// Notifications arrive in order.
		arrived := func() {
			nudge, stop := b.Watch("other", time.Hour)
			defer stop()
			await(t, "the first turn", nudge)
			hears(t, b)
			exec(t, direct, `SELECT pg_notify($1, 'other')`, b.Channel())
			await(t, "the turn of another", nudge)
		}
		id := rand.Text()
		token := take(t, owner, id)
		nudge, stop := b.Watch(id, time.Hour)
		defer stop()
		try := func() { // which ends a turn
			if _, err := b.Acquire(t.Context(), attempt(id, "waiter")); !errors.Is(err, worklease.ErrLeaseHeld) {
				t.Errorf("Acquire: %v", err)
			}
		}
		await(t, "the first turn", nudge)
		try()
		exec(t, direct, `SELECT pg_notify($1, $2)`, b.Channel(), payload)
		arrived()
		select {
		case <-nudge:
			t.Errorf("%q woke who waits for %q", payload, id)
			try()
		default:
		}
		exec(t, direct, `SELECT pg_notify($1, $2)`, b.Channel(), id)
		await(t, "the turn that a notice gives", nudge)
		try()
		must(t, owner.Release(t.Context(), token))
		await(t, "the turn that a release gives", nudge)
		if s := b.Stats(); s.Reconnects != 0 || s.Watched != 1 {
			t.Errorf("%+v", s)
		}
	})
}
