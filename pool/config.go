package pool

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/id"
	"github.com/aetomala/worklease/internal/isnil"
)

// What New finds wrong. Each is an ErrConfigInvalid, which is a
// [worklease.ErrInvalid].
var (
	ErrConfigInvalid   = fmt.Errorf("%w pool configuration", worklease.ErrInvalid)
	ErrNilLease        = fmt.Errorf("%w: lease is nil", ErrConfigInvalid)
	ErrNilWorkFn       = fmt.Errorf("%w: function is nil", ErrConfigInvalid)
	ErrEmptyWorkIDs    = fmt.Errorf("%w: WorkIDs are empty", ErrConfigInvalid)
	ErrInvalidWorkID   = fmt.Errorf("%w: bad work ID", ErrConfigInvalid)
	ErrDuplicateWorkID = fmt.Errorf("%w: duplicate work ID", ErrConfigInvalid)

	// ErrWithWaitForLeaseProhibited: a pool waits by itself.
	ErrWithWaitForLeaseProhibited = fmt.Errorf("%w: WithWaitForLease is not for pools, which wait by themselves", ErrConfigInvalid)
)

// Config sets up a Pool.
type Config struct {
	WorkIDs []string // required; the slots, each once

	// AcquireOptions are for each acquisition. The pool adds WithWaitForLease, which may
	// not be among them, and a poll interval.
	AcquireOptions []worklease.AcquireOption
	RenewalOptions []worklease.RenewalOption // of each renewal

	// IdleInterval is how often a slot asks for a lease that somebody else has, where
	// nothing can wake it. An expiry that is nearer is waited for instead. Drawn anew
	// from [d, 1.2 d). ≤ 0: 1 s.
	IdleInterval time.Duration

	// RerunInterval is the time from a call that returned nil to the next acquisition,
	// in which another process may come in. Drawn anew from [d, 1.2 d). ≤ 0: 1 s.
	RerunInterval time.Duration

	// BackoffInterval is the time from a call that failed to the next acquisition. ≤ 0:
	// 1 s.
	BackoffInterval time.Duration

	// CleanupTimeout is the time for each farewell, counted after the function has
	// returned, whatever became of Run's context. ≤ 0: 5 s.
	CleanupTimeout time.Duration

	// WindDown is how long a lease is kept for a function that still runs after Run's
	// context has ended. ≤ 0: 30 s.
	WindDown time.Duration

	// Observer is told what happens to the slots; nil: nobody.
	Observer Observer
}

func (cfg Config) check(lease worklease.Lease, fn WorkFn) error {
	var faults []error
	if isnil.Value(lease) {
		faults = append(faults, ErrNilLease)
	}
	if fn == nil {
		faults = append(faults, ErrNilWorkFn)
	}
	if worklease.HasWaitForLease(cfg.AcquireOptions) {
		faults = append(faults, ErrWithWaitForLeaseProhibited)
	}
	if len(cfg.WorkIDs) == 0 {
		faults = append(faults, ErrEmptyWorkIDs)
	}
	first := make(map[string]int)
	for i, workID := range cfg.WorkIDs {
		if fault := id.Fault(workID, worklease.MaxIDBytes); fault != "" {
			faults = append(faults, fmt.Errorf("%w: WorkIDs[%d] %s", ErrInvalidWorkID, i, fault))
		}
		if j, seen := first[workID]; seen {
			faults = append(faults, fmt.Errorf("%w: WorkIDs[%d] is WorkIDs[%d], %.80q", ErrDuplicateWorkID, i, j, workID))
		} else {
			first[workID] = i
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("worklease: new pool: %w", errors.Join(faults...))
}

func (cfg Config) withDefaults() Config {
	cfg.WorkIDs = slices.Clone(cfg.WorkIDs)
	cfg.AcquireOptions = slices.Clone(cfg.AcquireOptions)
	cfg.RenewalOptions = slices.Clone(cfg.RenewalOptions)
	for _, d := range []*time.Duration{&cfg.IdleInterval, &cfg.RerunInterval, &cfg.BackoffInterval} {
		if *d <= 0 {
			*d = time.Second
		}
		*d = min(*d, math.MaxInt64/2) // room for jitter
	}
	if isnil.Value(cfg.Observer) {
		cfg.Observer = NopObserver{}
	}
	return cfg
}

// jitter draws from [d, d + share·d): slots that stopped together do not come back
// together.
func jitter(d time.Duration, share float64) time.Duration {
	return d + time.Duration(rand.Float64()*share*float64(d))
}

// pollInterval makes a waiter that nothing can wake pause for d to 1.2 d: Acquire takes
// up to a tenth off.
func pollInterval(d time.Duration) time.Duration {
	return jitter(d+d/9+1, 0.07)
}
