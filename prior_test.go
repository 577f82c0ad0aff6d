package worklease_test

import (
	"bytes"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// H1. A prior state of any size stays what it was at the acquisition, and costs a
// round trip only if it is large.
func TestPriorOfAnySize(t *testing.T) {
	for _, size := range []int{0, 1, worklease.MaxInlineState, worklease.MaxInlineState + 1, 1 << 20} {
		state := bytes.Repeat([]byte("x"), size)
		left := func(t *testing.T) (*wire, worklease.Lease, worklease.Token) {
			w := newWire(nil)
			first := newLease(t, w, "a")
			must(t, first.Release(t.Context(), acquire(t, first, "work"), worklease.WithState(state)))
			l := newLease(t, w, "b")
			return w, l, acquire(t, l, "work")
		}
		same := func(t *testing.T, l worklease.Lease, token worklease.Token) {
			t.Helper()
			p, err := l.Prior(t.Context(), token)
			must(t, err)
			if p.State == nil || !bytes.Equal(p.State, state) {
				t.Errorf("got %d bytes, want %d", len(p.State), size)
			}
			clear(p.State) // the caller's to spoil
		}
		t.Run("asked at once", func(t *testing.T) {
			t.Parallel()
			w, l, token := left(t)
			for range 3 {
				same(t, l, token)
			}
			want := 0
			if size > worklease.MaxInlineState {
				want = 1
			}
			if n := w.count(opRead); n != want {
				t.Errorf("%d reads for a prior of %d bytes, want %d", n, size, want)
			}
			must(t, l.Checkpoint(t.Context(), token, []byte("own")))
			same(t, l, token)
		})
		t.Run("asked after an own checkpoint", func(t *testing.T) {
			t.Parallel()
			_, l, token := left(t)
			must(t, l.Checkpoint(t.Context(), token, []byte("own")))
			same(t, l, token)
			must(t, l.Checkpoint(t.Context(), token, []byte("own, newer")))
			same(t, l, token)
			wantState(t, l, token, "own, newer")
		})
	}
}

// A checkpoint whose predecessor's state cannot be read first is not sent.
func TestPriorIsReadBeforeItIsOverwritten(t *testing.T) {
	t.Parallel()
	w := newWire(nil)
	first := newLease(t, w, "a")
	state := make([]byte, worklease.MaxInlineState+1)
	must(t, first.Release(t.Context(), acquire(t, first, "work"), worklease.WithState(state)))
	l := newLease(t, w, "b")
	token := acquire(t, l, "work")
	w.fails(only(opRead, refuse))
	wantIs(t, l.Checkpoint(t.Context(), token, []byte("own")), errLine)
	w.fails(nil)
	if n := w.count(opCheckpoint); n != 0 {
		t.Errorf("%d checkpoints were sent", n)
	}
	must(t, l.Checkpoint(t.Context(), token, []byte("own")))
	p, err := l.Prior(t.Context(), token)
	must(t, err)
	if len(p.State) != len(state) {
		t.Errorf("the prior has %d bytes, want %d", len(p.State), len(state))
	}
}

func TestPriorOfAResumedToken(t *testing.T) {
	t.Parallel()
	b := memory.New()
	first := newLease(t, b, "a")
	must(t, first.Release(t.Context(), acquire(t, first, "work"), worklease.WithState([]byte("a's"))))
	token := resumed(acquire(t, newLease(t, b, "b"), "work"))
	l := newLease(t, b, "b")
	for range 2 {
		p, err := l.Prior(t.Context(), token)
		must(t, err)
		if string(p.State) != "a's" || p.Exit != worklease.ExitReleased || p.HolderID != "a" || p.FencingToken != 1 || !p.CleanHandoff() {
			t.Errorf("a resumed token is told %+v", p)
		}
		must(t, l.Checkpoint(t.Context(), token, []byte("b's")))
	}
	_, err := l.Prior(t.Context(), worklease.NewToken("nowhere", "b", 7, token.ExpiresAt()))
	wantIs(t, err, worklease.ErrFenced)
}
