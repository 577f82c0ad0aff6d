package worklease

import (
	"time"

	"github.com/aetomala/worklease/internal/backoff"
)

const (
	defaultPollInterval  = 2 * time.Second
	defaultBackoff       = 100 * time.Millisecond
	defaultBackoffCap    = 5 * time.Second
	defaultBackoffJitter = 0.20
)

// AcquireOption tunes one [Lease.Acquire]. A nil option is ignored.
type AcquireOption func(*acquireOptions)

type acquireOptions struct {
	wait   bool
	poll   time.Duration
	reopen bool
}

// WithWaitForLease makes Acquire wait until the work is free, or its context ends.
func WithWaitForLease() AcquireOption {
	return func(o *acquireOptions) { o.wait = true }
}

// WithPollInterval sets how often a waiter asks again where nothing can wake it.
// d ≤ 0: 2 s; the shortest is 1 ms. An expiry that is nearer is waited for instead.
func WithPollInterval(d time.Duration) AcquireOption {
	return func(o *acquireOptions) { o.poll = d }
}

// WithReopen lets Acquire take work that was retired, too.
func WithReopen() AcquireOption {
	return func(o *acquireOptions) { o.reopen = true }
}

// HasWaitForLease reports whether opts contain [WithWaitForLease].
func HasWaitForLease(opts []AcquireOption) bool { return collect(opts).wait }

// ReleaseOption tunes one [Lease.Release]. A nil option is ignored.
type ReleaseOption func(*releaseOptions)

type releaseOptions struct {
	state   []byte
	exit    Exit
	timeout time.Duration
}

// WithState saves state as the last checkpoint, in the statement that releases. A
// nil state keeps what is stored.
func WithState(state []byte) ReleaseOption {
	return func(o *releaseOptions) { o.state = state }
}

// WithExit declares how the owner leaves: ExitReleased, which is the default,
// ExitAbandoned or ExitRetired. Release refuses any other with [ErrInvalid].
func WithExit(e Exit) ReleaseOption {
	return func(o *releaseOptions) { o.exit = e }
}

// WithReleaseTimeout sets how long Release may take, in place of the end of its
// context. d ≤ 0: 5 s.
func WithReleaseTimeout(d time.Duration) ReleaseOption {
	return func(o *releaseOptions) {
		if d <= 0 {
			d = farewellTime
		}
		o.timeout = d
	}
}

// RenewalOption tunes one [Lease.StartRenewal]. A nil option is ignored.
type RenewalOption func(*renewalOptions)

type renewalOptions struct {
	interval time.Duration
	backoff  backoff.Policy
	progress time.Duration
}

// WithRenewalInterval sets the time from one renewal to the next, counted from
// when the last one that succeeded was sent. d ≤ 0 or above half the TTL: half the
// TTL. (A resumed lease has the TTL that it was acquired with.)
//
// The interval decides how many renewals in a row may get lost: each attempt is
// given up after half of what is left of the window, and at most a third of the
// TTL, so that half the TTL always leaves time for two more.
func WithRenewalInterval(d time.Duration) RenewalOption {
	return func(o *renewalOptions) { o.interval = d }
}

// WithRenewalBackoff sets the pauses between failed renewals: they double from
// initial up to maxInterval, with a random share of up to jitter on top, and leave
// room for another attempt before the window ends. The defaults are 100 ms, 5 s
// and 0.20; durations ≤ 0 mean 1 ms, jitter is brought into [0, 1].
func WithRenewalBackoff(initial, maxInterval time.Duration, jitter float64) RenewalOption {
	return func(o *renewalOptions) {
		o.backoff = backoff.Policy{Initial: initial, Max: maxInterval, Jitter: jitter}
	}
}

// WithProgressDeadline stops renewing, with ErrStalled as the cause, when no
// Checkpoint came for d, counted from StartRenewal at first: an owner that lives
// but does not move loses its lease. d ≤ 0: off.
func WithProgressDeadline(d time.Duration) RenewalOption {
	return func(o *renewalOptions) { o.progress = d }
}

func (l *lease) renewalOptions(opts []RenewalOption) renewalOptions {
	o := apply(renewalOptions{
		backoff: backoff.Policy{Initial: defaultBackoff, Max: defaultBackoffCap, Jitter: defaultBackoffJitter},
	}, opts)
	if half := l.cfg.TTL / 2; o.interval <= 0 || o.interval > half {
		o.interval = half
	}
	o.backoff = o.backoff.Clamp()
	return o
}

func collect(opts []AcquireOption) acquireOptions {
	o := apply(acquireOptions{}, opts)
	if o.poll <= 0 {
		o.poll = defaultPollInterval
	}
	o.poll = max(o.poll, time.Millisecond)
	return o
}

// apply returns o as changed by those of opts that are not nil.
func apply[O any, F ~func(*O)](o O, opts []F) O {
	if len(opts) == 0 {
		return o // which then needs no place on the heap
	}
	changed := o
	for _, opt := range opts {
		if opt != nil {
			opt(&changed)
		}
	}
	return changed
}
