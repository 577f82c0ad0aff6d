package pgxbackend_test

import (
	"errors"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/v05"
	"github.com/jackc/pgx/v5"
)

// older is a process of v0.5: its statements, on our table.
type older struct {
	t      *testing.T
	db     fault.DB
	holder string
}

// acquire returns the token, or 0 for held.
func (v older) acquire(workID string, ttl time.Duration) int64 {
	v.t.Helper()
	var token int64
	var expires time.Time
	err := v.db.QueryRow(v.t.Context(), v05.Acquire, workID, v.holder, ttl).Scan(&token, &expires)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0
	}
	must(v.t, err)
	return token
}

func (v older) mustAcquire(workID string) int64 {
	v.t.Helper()
	token := v.acquire(workID, time.Minute)
	if token == 0 {
		v.t.Fatalf("v0.5 finds %q held", workID)
	}
	return token
}

func (v older) changed(sql string, args ...any) bool {
	v.t.Helper()
	tag, err := v.db.Exec(v.t.Context(), sql, args...)
	must(v.t, err)
	return tag.RowsAffected() == 1
}

func (v older) checkpoint(workID string, token int64, state string) bool {
	v.t.Helper()
	return v.changed(v05.Checkpoint, workID, v.holder, token, []byte(state), time.Minute)
}

func (v older) renew(workID string, token int64) bool {
	v.t.Helper()
	return v.changed(v05.Renew, workID, v.holder, token, time.Minute)
}

func (v older) release(workID string, token int64) bool {
	v.t.Helper()
	return v.changed(v05.Release, workID, v.holder, token)
}

func (v older) read(workID string) (state string, clean bool) {
	v.t.Helper()
	var raw []byte
	var token int64
	must(v.t, v.db.QueryRow(v.t.Context(), v05.Read, workID).Scan(&token, &raw, &clean))
	return string(raw), clean
}

// heldByV05 reports that we do not see v0.5's lease.
func heldByV05(t *testing.T, l worklease.Lease, workID string, token int64) {
	t.Helper()
	_, err := l.Acquire(t.Context(), workID)
	var held *worklease.HeldError
	if !errors.As(err, &held) || held.HolderID != "old" || held.FencingToken != uint64(token) || held.Remaining <= 0 {
		t.Fatalf("Acquire of what v0.5 holds: %v", err)
	}
}

// Processes of v0.5 go on beside ours for a while: neither takes what the other
// holds, and each takes what the other left.
func TestBesideV05(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	l, old := newLease(t, b, "new"), older{t, pool, "old"}
	for how, leave := range map[string]func(worklease.Token){
		"released": func(token worklease.Token) {
			must(t, l.Release(t.Context(), token, worklease.WithState([]byte("ours"))))
		},
		"abandoned": func(token worklease.Token) {
			must(t, l.Release(t.Context(), token, worklease.WithState([]byte("ours")), worklease.WithExit(worklease.ExitAbandoned)))
		},
		"retired": func(token worklease.Token) {
			must(t, l.Release(t.Context(), token, worklease.WithState([]byte("ours")), worklease.WithExit(worklease.ExitRetired)))
		},
		"lapsed":     func(token worklease.Token) { endLease(t, pool, token.WorkID()) },
		"given back": func(token worklease.Token) { must(t, b.Release(t.Context(), token.Claim(), worklease.Farewell{})) },
		"forgotten":  func(token worklease.Token) { must(t, l.Forget(t.Context(), token)) },
	} {
		w := how
		ours := take(t, l, w)
		must(t, l.Checkpoint(t.Context(), ours, []byte("ours")))
		if old.acquire(w, time.Minute) != 0 {
			t.Fatalf("%s: v0.5 took what we hold", how)
		}
		if old.renew(w, int64(ours.FencingToken())) || old.release(w, int64(ours.FencingToken())) {
			t.Fatalf("%s: v0.5 changed what we hold", how)
		}
		leave(ours)
		token := old.mustAcquire(w)
		if uint64(token) <= ours.FencingToken() {
			t.Errorf("%s: v0.5 got token %d after %d", how, token, ours.FencingToken())
		}
		if state, clean := old.read(w); how != "forgotten" && state != "ours" || clean != (how == "released" || how == "retired") {
			t.Errorf("%s: v0.5 reads %q, clean %v", how, state, clean)
		}
		// Our exit stands in the row, and means nothing: it is not this token's.
		heldByV05(t, l, w, token)
		everyFenced(t, pool, newLease(t, b, "new"), ours, "us, after v0.5 took over")
		refused(t, "giving back", b.Release(t.Context(), ours.Claim(), worklease.Farewell{}), worklease.ErrFenced)
		if !old.renew(w, token) || !old.checkpoint(w, token, "theirs") {
			t.Fatalf("%s: v0.5 cannot go on", how)
		}
		heldByV05(t, l, w, token)

		// v0.5 knows no exits that count for us.
		if how == "lapsed" {
			endLease(t, pool, w)
		} else if !old.release(w, token) {
			t.Fatalf("%s: v0.5 cannot release", how)
		}
		next := take(t, l, w)
		p := prior(t, l, next)
		if p.Exit != worklease.ExitExpired || p.HolderID != "old" || p.FencingToken != uint64(token) || string(p.State) != "theirs" {
			t.Errorf("%s: prior %+v", how, p)
		}
		if next.FencingToken() <= uint64(token) {
			t.Errorf("%s: token %d after %d", how, next.FencingToken(), token)
		}
		if old.checkpoint(w, token, "late") || old.renew(w, token) || old.release(w, token) {
			t.Errorf("%s: a zombie of v0.5 got through", how)
		}
		must(t, l.Renew(t.Context(), next))
	}
}

// W7 beside v0.5: it leaves our nonce in a row that it takes over. A call of ours
// that had won it before, unheard, must not take v0.5's lease for its own.
func TestV05LeaseIsNotRecognisedAsOurs(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	old := older{t, pool, "old"}
	a := attempt("w", "new")
	_, first := grant(t, b, a) // and the reply is lost
	endLease(t, pool, "w")
	token := old.mustAcquire("w")
	again, err := b.Acquire(t.Context(), a)
	var held *worklease.HeldError
	if !errors.As(err, &held) || held.HolderID != "old" || held.FencingToken != uint64(token) {
		t.Errorf("the repeated attempt, after v0.5 took over: %+v, %v", again, err)
	}
	refused(t, "giving back", b.Release(t.Context(), worklease.Claim{WorkID: "w", HolderID: "new", Nonce: a.Nonce}, worklease.Farewell{}), worklease.ErrFenced)
	if !old.renew("w", token) {
		t.Error("v0.5 lost its lease")
	}
	// Nor is v0.5's tenure without a trace.
	endLease(t, pool, "w")
	_, g := grant(t, b, a)
	if p := g.Prior; p.Exit != worklease.ExitExpired || p.HolderID != "old" || p.FencingToken != uint64(token) {
		t.Errorf("prior %+v, want that of v0.5 with token %d, after our %d", p, token, first.FencingToken)
	}
}

// Rows of v0.5 have no nonce, and an attempt without one is not theirs.
func TestAttemptWithoutNonceIsNobodys(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	a := attempt("w", "old")
	a.Nonce = ""
	for _, workID := range []string{"v0.5's", "ours"} {
		a.WorkID = workID
		if workID == "ours" {
			grant(t, b, a)
		} else {
			older{t, pool, "old"}.mustAcquire(workID)
		}
		if _, err := b.Acquire(t.Context(), a); !errors.Is(err, worklease.ErrLeaseHeld) {
			t.Errorf("Acquire of %s without a nonce: %v", workID, err)
		}
	}
}
