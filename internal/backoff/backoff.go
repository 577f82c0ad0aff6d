// Package backoff has the one rule for the pause after a failure: it doubles up to
// a cap and has a random share on top, so that a crowd that failed together does
// not come back together.
package backoff

import (
	"math"
	"math/rand/v2"
	"time"
)

// Policy says how pauses grow. Use it through [Policy.Clamp].
type Policy struct {
	Initial time.Duration
	Max     time.Duration
	Jitter  float64 // the largest random share, of the pause
}

// Clamp returns a Policy that can be kept: positive durations, a share within
// [0, 1], and no first pause above the cap.
func (p Policy) Clamp() Policy {
	if p.Initial <= 0 {
		p.Initial = time.Millisecond
	}
	if p.Max <= 0 {
		p.Max = time.Millisecond
	}
	if math.IsNaN(p.Jitter) {
		p.Jitter = 0
	}
	p.Jitter = min(max(p.Jitter, 0), 1)
	p.Initial = min(p.Initial, p.Max)
	return p
}

// Wait returns the pause after the given number of failures in a row, from 1.
func (p Policy) Wait(failures int) time.Duration {
	base := p.Initial
	for i := 1; i < failures && base < p.Max; i++ {
		if base > p.Max/2 {
			base = p.Max
		} else {
			base *= 2
		}
	}
	share := time.Duration(rand.Float64() * p.Jitter * float64(base))
	return base + min(share, math.MaxInt64-base)
}
