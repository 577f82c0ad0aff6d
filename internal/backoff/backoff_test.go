package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/aetomala/worklease/internal/backoff"
)

// L7.
func TestClamp(t *testing.T) {
	t.Parallel()
	type p = backoff.Policy
	for _, c := range []struct{ in, want p }{
		{p{}, p{time.Millisecond, time.Millisecond, 0}},
		{p{-1, -1, -1}, p{time.Millisecond, time.Millisecond, 0}},
		{p{time.Second, 0, 2}, p{time.Millisecond, time.Millisecond, 1}},
		{p{time.Second, time.Minute, math.NaN()}, p{time.Second, time.Minute, 0}},
		{p{time.Hour, time.Minute, math.Inf(1)}, p{time.Minute, time.Minute, 1}},
		{p{0, time.Minute, math.Inf(-1)}, p{time.Millisecond, time.Minute, 0}},
	} {
		if got := c.in.Clamp(); got != c.want {
			t.Errorf("Clamp(%v) = %v, want %v", c.in, got, c.want)
		}
	}
}

// L7.
func TestWaitDoublesUpToTheCap(t *testing.T) {
	t.Parallel()
	p := backoff.Policy{Initial: 100 * time.Millisecond, Max: time.Second, Jitter: 0.5}
	for failures, base := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond,
		4: 800 * time.Millisecond, 5: time.Second, 1000: time.Second, math.MaxInt: time.Second,
	} {
		for range 100 {
			if got := p.Wait(failures); got < base || got > base+base/2 {
				t.Fatalf("Wait(%d) = %v, want within [%v, %v]", failures, got, base, base+base/2)
			}
		}
	}
}

func TestWaitDoesNotOverflow(t *testing.T) {
	t.Parallel()
	p := backoff.Policy{Initial: math.MaxInt64 / 3, Max: math.MaxInt64 / 2}.Clamp()
	if got := p.Wait(9); got != p.Max {
		t.Errorf("Wait = %v, want the cap %v", got, p.Max)
	}
}
