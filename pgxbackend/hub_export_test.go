package pgxbackend

import "time"

// Pace is what tests change of a hub's patience; zero keeps what is usual.
type Pace struct {
	Safety, Linger, Quiet, Ask, Deaf time.Duration
}

// WithPace sets the patience of the hub.
func WithPace(p Pace) Option {
	return func(o *options) {
		for to, d := range map[*time.Duration]time.Duration{
			&o.pace.safety: p.Safety, &o.pace.linger: p.Linger, &o.pace.quiet: p.Quiet, &o.pace.ask: p.Ask, &o.pace.deaf: p.Deaf,
		} {
			if d > 0 {
				*to = d
			}
		}
	}
}

// Channel is where the Backend's notices are sent.
func (b *Backend) Channel() string { return b.hub.ears.channel }
