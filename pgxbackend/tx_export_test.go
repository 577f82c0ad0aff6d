package pgxbackend

import "time"

// WithCommitTimeout shortens the wait for the reply to a commit.
func WithCommitTimeout(d time.Duration) StepOption {
	return func(s *stepOptions) { s.commit = d }
}
