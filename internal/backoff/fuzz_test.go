package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/aetomala/worklease/internal/backoff"
)

// L7. Whatever a Policy says, it can be kept once it is clamped.
func FuzzClamp(f *testing.F) {
	f.Add(int64(0), int64(0), 0.0, 0)
	f.Add(int64(100*time.Millisecond), int64(5*time.Second), 0.2, 3)
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.Inf(1), math.MaxInt)
	f.Add(int64(math.MinInt64), int64(math.MinInt64), math.NaN(), math.MinInt)
	f.Add(int64(1), int64(math.MaxInt64), 1.0, 63)
	f.Fuzz(func(t *testing.T, initial, most int64, jitter float64, failures int) {
		p := backoff.Policy{Initial: time.Duration(initial), Max: time.Duration(most), Jitter: jitter}
		c := p.Clamp()
		if c.Initial <= 0 || c.Max < c.Initial || !(c.Jitter >= 0 && c.Jitter <= 1) {
			t.Fatalf("Clamp(%+v) = %+v", p, c)
		}
		if c.Clamp() != c {
			t.Errorf("Clamp(%+v) = %+v", c, c.Clamp())
		}
		if kept := 0 < initial && initial <= most && jitter >= 0 && jitter <= 1; kept && c != p {
			t.Errorf("Clamp(%+v) = %+v, and nothing was wrong with it", p, c)
		}
		shortest := c.Initial
		for i := 1; i < min(failures, 64) && shortest < c.Max; i++ {
			shortest = min(c.Max, shortest+min(shortest, math.MaxInt64-shortest))
		}
		longest := shortest + min(time.Duration(math.Ceil(float64(shortest)*min(c.Jitter, 1))), math.MaxInt64-shortest)
		if longest < shortest { // rounding at the very end
			longest = math.MaxInt64
		}
		if got := c.Wait(failures); got < shortest || got > longest {
			t.Errorf("%+v: Wait(%d) = %v, want within [%v, %v]", c, failures, got, shortest, longest)
		}
	})
}
