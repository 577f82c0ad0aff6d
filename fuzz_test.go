package worklease_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// oneOf reports an err that is neither nil nor one of those that may be.
func oneOf(t *testing.T, what string, err error, may ...error) bool {
	t.Helper()
	for _, one := range may {
		if errors.Is(err, one) {
			return false
		}
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return err == nil
}

// blind has no powers, so that waits are polled and renewals go one by one.
type blind struct{ worklease.Backend }

// Whatever the arguments are: they are refused as such, or the operation works.
func FuzzArguments(f *testing.F) {
	long := strings.Repeat("x", worklease.MaxIDBytes)
	f.Add("work", "holder", int64(time.Minute), 0, []byte("state"), uint8(worklease.ExitReleased), int64(0), int64(0), int64(0), int64(0), 0.2)
	f.Add(long, long, int64(worklease.MinTTL), 4, []byte("12345"), uint8(worklease.ExitRetired), int64(1), int64(1), int64(1), int64(1), math.NaN())
	f.Add(long+"x", "h\x00", int64(-1), -1, []byte(nil), uint8(9), int64(-1), int64(-1), int64(-1), int64(-1), math.Inf(-1))
	f.Add("", "\xff", int64(worklease.MinTTL-1), 1, []byte{}, uint8(0), int64(7), int64(7), int64(7), int64(7), -1.0)
	f.Add("\U0010ffff", "日本", int64(math.MaxInt64), math.MaxInt, []byte{0}, uint8(worklease.ExitAbandoned),
		int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), math.MaxFloat64)
	f.Fuzz(func(t *testing.T, workID, holderID string, ttl int64, limit int, state []byte, exit uint8, interval, initial, most, progress int64, jitter float64) {
		synctest.Test(t, func(t *testing.T) {
			for _, b := range []worklease.Backend{memory.New(), blind{memory.New()}} {
				l, err := worklease.New(b, worklease.Config{TTL: time.Duration(ttl), HolderID: holderID, MaxCheckpointBytes: limit})
				if possible := time.Duration(ttl) >= worklease.MinTTL && isID(holderID); possible != (err == nil) {
					t.Errorf("New: %v", err)
				}
				if !oneOf(t, "New", err, worklease.ErrInvalid) {
					continue
				}
				token, err := l.Acquire(t.Context(), workID, worklease.WithPollInterval(time.Duration(interval)))
				if isID(workID) != (err == nil) {
					t.Errorf("Acquire: %v", err)
				}
				if !oneOf(t, "Acquire", err, worklease.ErrInvalid) {
					continue
				}
				if token.WorkID() != workID || token.HolderID() != holderID || token.Validate() != nil {
					t.Errorf("%q of %q became %v", workID, holderID, token)
				}
				ctx, stop := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(time.Duration(interval)),
					worklease.WithRenewalBackoff(time.Duration(initial), time.Duration(most), jitter),
					worklease.WithProgressDeadline(time.Duration(progress)))
				oneOf(t, "Checkpoint", l.Checkpoint(t.Context(), token, state), worklease.ErrInvalid)
				wait, cancel := context.WithTimeout(t.Context(), 5*worklease.MinTTL)
				_, err = l.Acquire(wait, workID, worklease.WithWaitForLease(), worklease.WithPollInterval(time.Duration(interval)))
				cancel()
				if progress <= 0 && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a wait for what is held: %v", err)
				}
				if progress <= 0 && ctx.Err() != nil {
					t.Errorf("renewal ended: %v", context.Cause(ctx))
				}
				stop()
				err = l.Release(t.Context(), token, worklease.WithExit(worklease.Exit(exit)), worklease.WithState(state))
				if !oneOf(t, "Release", err, worklease.ErrInvalid, worklease.ErrFenced, worklease.ErrLeaseExpired) {
					continue
				}
				again, err := l.Acquire(t.Context(), workID, worklease.WithReopen())
				if !oneOf(t, "Acquire after it", err) {
					continue
				}
				prior, err := l.Prior(t.Context(), again)
				oneOf(t, "Prior", err)
				if !bytes.Equal(prior.State, state) || (prior.State == nil) != (state == nil) {
					t.Errorf("%q was saved as %q", state, prior.State)
				}
			}
			time.Sleep(time.Minute) // for what was given back in the background
		})
	})
}

func isID(s string) bool {
	return s != "" && len(s) <= worklease.MaxIDBytes && utf8.ValidString(s) && !strings.Contains(s, "\x00")
}

// A token may come from anywhere. One that no acquisition can have returned is refused,
// any other has been superseded; nothing else happens.
func FuzzNewToken(f *testing.F) {
	f.Add("work", "holder", uint64(1), int64(0), int64(0))
	f.Add("", "", uint64(0), int64(math.MinInt64), int64(math.MaxInt64))
	f.Add("w\x00", "h", uint64(math.MaxInt64), int64(math.MaxInt64), int64(-1))
	f.Add("w", "h", uint64(math.MaxInt64+1), int64(-62135596800), int64(1e9))
	f.Add("other", "holder", uint64(math.MaxInt64), int64(1), int64(1))
	f.Fuzz(func(t *testing.T, workID, holderID string, number uint64, seconds, nanos int64) {
		synctest.Test(t, func(t *testing.T) {
			at := time.Unix(seconds, nanos)
			token := worklease.NewToken(workID, holderID, number, at)
			if token.WorkID() != workID || token.HolderID() != holderID || token.FencingToken() != number ||
				!token.ExpiresAt().Equal(at) || token.ExpiresAt().Location() != time.UTC {
				t.Errorf("NewToken(%q, %q, %d, %v) = %v", workID, holderID, number, at, token)
			}
			if token != worklease.NewToken(workID, holderID, number, at.UTC()) {
				t.Errorf("%v differs from itself", token)
			}
			slog.New(slog.NewTextHandler(new(bytes.Buffer), nil)).Info(token.String(), "token", token)

			want := worklease.ErrFenced
			if !isID(workID) || !isID(holderID) || number == 0 || number > math.MaxInt64 {
				want = worklease.ErrInvalid
			}
			l := newLease(t, memory.New(), "somebody")
			acquire(t, l, "work")
			_, _, read := l.ReadCheckpoint(t.Context(), token)
			_, prior := l.Prior(t.Context(), token)
			if _, ok := l.Deadline(token); ok {
				t.Error("it has a deadline")
			}
			ctx, stop := l.StartRenewal(t.Context(), token)
			<-ctx.Done()
			stop()
			for what, err := range map[string]error{
				"Validate":       token.Validate(),
				"ReadCheckpoint": read, "Prior": prior, "StartRenewal": context.Cause(ctx),
				"Checkpoint": l.Checkpoint(t.Context(), token, nil),
				"Renew":      l.Renew(t.Context(), token),
				"Release":    l.Release(t.Context(), token),
				"Forget":     l.Forget(t.Context(), token),
			} {
				if what == "Validate" && want == worklease.ErrFenced {
					must(t, err)
				} else if !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			}
		})
	})
}
