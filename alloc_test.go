package worklease_test

import (
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// P12: a lease in memory is cheap enough to be taken for every item.
func TestAllocations(t *testing.T) {
	l, err := worklease.New(memory.New(), worklease.Config{TTL: time.Minute, HolderID: "holder"})
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(1000, func() {
		token, err := l.Acquire(t.Context(), "w")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(t.Context(), token); err != nil {
			t.Fatal(err)
		}
	})
	if n > 4 {
		t.Errorf("Acquire and Release allocate %v times, want 4 at most", n)
	}
}
