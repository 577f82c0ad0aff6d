package pgxbackend_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
)

// everyFenced reports a statement under token that is not fenced, or that changed
// the row.
func everyFenced(t *testing.T, db fault.DB, l worklease.Lease, token worklease.Token, why string) {
	t.Helper()
	before := rowText(t, db, token.WorkID())
	for name, call := range everyCall(t, l, token) {
		refused(t, fmt.Sprintf("%s of %v by %s", name, token, why), call(), worklease.ErrFenced)
	}
	if after := rowText(t, db, token.WorkID()); after != before {
		t.Errorf("%s changed the row:\n%s\n%s", why, before, after)
	}
}

func everyCall(t *testing.T, l worklease.Lease, token worklease.Token) map[string]func() error {
	ctx := t.Context()
	return map[string]func() error{
		"Checkpoint":         func() error { return l.Checkpoint(ctx, token, []byte("intruder")) },
		"Renew":              func() error { return l.Renew(ctx, token) },
		"Release":            func() error { return l.Release(ctx, token) },
		"Release with state": func() error { return l.Release(ctx, token, worklease.WithState([]byte("intruder"))) },
		"ReadCheckpoint": func() error {
			_, _, err := l.ReadCheckpoint(ctx, token)
			return err
		},
		"Forget": func() error { return l.Forget(ctx, token) },
	}
}

func rowText(t *testing.T, db fault.DB, workID string) string {
	t.Helper()
	return query[string](t, db, `SELECT l::text FROM worklease_leases l WHERE work_id = $1`, workID)
}

// T2, S6: the second hold of the same Lease is not touched by the first.
func TestSameLeaseTwice(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := newLease(t, newBackend(t, pool), "holder")
	first := take(t, l, "w")
	endLease(t, pool, "w")
	second := take(t, l, "w")
	must(t, l.Checkpoint(t.Context(), second, []byte("second")))
	everyFenced(t, pool, l, first, "the first hold")
	must(t, l.Renew(t.Context(), second))
	must(t, l.Release(t.Context(), second))
}

// alike has next to each other what somebody might take for the same.
var alike = []string{"w-11", "w-1", "W-1", "w-1 ", " w-1", "w-1\n", "w_1", "w%", "e\u0301", "é", "É", "ss", "ß", `w\-1`, "w'1", `"w"`}

// T2, S6: a name is not matched by a prefix, in another case, in another normal
// form, with other spaces.
func TestAlikeNamesAreDifferent(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	other := newLease(t, b, "somebody else")
	for i, holder := range alike {
		l := newLease(t, b, holder)
		// Each is a work ID of its own: all are granted.
		token := take(t, l, holder)
		if token.HolderID() != holder || token.WorkID() != holder {
			t.Errorf("token %v for holder and work ID %q", token, holder)
		}
		for _, next := range []int{1, len(alike) - 1} {
			name := alike[(i+next)%len(alike)]
			forged := worklease.NewToken(holder, name, token.FencingToken(), time.Time{})
			everyFenced(t, pool, other, forged, fmt.Sprintf("a holder called %q, not %q", name, holder))
		}
		must(t, l.Renew(t.Context(), token))
	}
	for _, workID := range alike {
		_, err := other.Acquire(t.Context(), workID)
		var held *worklease.HeldError
		if !errors.As(err, &held) || held.HolderID != workID || held.WorkID != workID {
			t.Errorf("Acquire of %q: %v", workID, err)
		}
	}
}

// S13: an equal name is no reason to be let in.
func TestEqualHolderIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	one, two := newLease(t, newBackend(t, pool), "host"), newLease(t, newBackend(t, pool), "host")
	token := take(t, one, "w")
	for _, l := range []worklease.Lease{one, two} {
		_, err := l.Acquire(t.Context(), "w")
		var held *worklease.HeldError
		if !errors.As(err, &held) || held.HolderID != "host" || held.FencingToken != token.FencingToken() ||
			held.Remaining <= 0 || held.Remaining > time.Minute {
			t.Errorf("Acquire of live work by the same holder ID: %v", err)
		}
	}
}

// T2: after an unsynchronised failover another acquisition may have the same
// number, and the same holder's name.
func TestEqualNumberIsNotEnough(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	l := newLease(t, b, "holder")
	token := take(t, l, "w")
	exec(t, pool, `UPDATE worklease_leases SET nonce = 'of the other timeline'`)
	everyFenced(t, pool, l, token, "the holder on the lost timeline")
	refused(t, "giving back", b.Release(t.Context(), token.Claim(), worklease.Farewell{}), worklease.ErrFenced)
	refused(t, "giving back, number unknown", b.Release(t.Context(), worklease.Claim{
		WorkID: "w", HolderID: "holder", Nonce: token.Claim().Nonce,
	}, worklease.Farewell{}), worklease.ErrFenced)

	// One successor on, too: its prior is not this acquisition.
	must(t, b.Release(t.Context(), worklease.Claim{
		WorkID: "w", HolderID: "holder", FencingToken: token.FencingToken(), Nonce: "of the other timeline",
	}, worklease.Farewell{Exit: worklease.ExitReleased}))
	take(t, l, "w")
	everyFenced(t, pool, newLease(t, b, "holder"), token, "the holder on the lost timeline, one successor on")
}
