package worklease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

func TestNewNamesEveryFault(t *testing.T) {
	t.Parallel()
	good := worklease.Config{TTL: ttl, HolderID: "h"}
	with := func(change func(*worklease.Config)) worklease.Config {
		c := good
		change(&c)
		return c
	}
	var typedNil *memory.Backend
	for name, c := range map[string]struct {
		backend worklease.Backend
		cfg     worklease.Config
		faults  []string
	}{
		"good":            {memory.New(), good, nil},
		"shortest TTL":    {memory.New(), with(func(c *worklease.Config) { c.TTL = worklease.MinTTL }), nil},
		"no limit":        {memory.New(), with(func(c *worklease.Config) { c.MaxCheckpointBytes = -1 }), nil},
		"longest holder":  {memory.New(), with(func(c *worklease.Config) { c.HolderID = strings.Repeat("h", worklease.MaxIDBytes) }), nil},
		"nil backend":     {nil, good, []string{"backend"}},
		"typed nil":       {typedNil, good, []string{"backend"}},
		"TTL too short":   {memory.New(), with(func(c *worklease.Config) { c.TTL = worklease.MinTTL - 1 }), []string{"TTL"}},
		"negative TTL":    {memory.New(), with(func(c *worklease.Config) { c.TTL = -time.Hour }), []string{"TTL"}},
		"empty holder":    {memory.New(), with(func(c *worklease.Config) { c.HolderID = "" }), []string{"HolderID"}},
		"holder with NUL": {memory.New(), with(func(c *worklease.Config) { c.HolderID = "a\x00" }), []string{"HolderID"}},
		"holder not text": {memory.New(), with(func(c *worklease.Config) { c.HolderID = "a\xff" }), []string{"HolderID"}},
		"holder too long": {memory.New(), with(func(c *worklease.Config) { c.HolderID = strings.Repeat("h", worklease.MaxIDBytes+1) }), []string{"HolderID"}},
		"all at once":     {nil, worklease.Config{}, []string{"backend", "TTL", "HolderID"}},
	} {
		l, err := worklease.New(c.backend, c.cfg)
		if len(c.faults) == 0 {
			if err != nil || l == nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if l != nil || !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("%s: got a lease %t and the error %v, want ErrInvalid alone", name, l != nil, err)
			continue
		}
		for _, fault := range c.faults {
			if !strings.Contains(err.Error(), fault) {
				t.Errorf("%s: the error does not name the %s: %v", name, fault, err)
			}
		}
	}
}

// Nothing is sent for an argument that is wrong, and every fault is named.
func TestArgumentsAreCheckedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	w := newWire(nil)
	l := configured(t, w, worklease.Config{TTL: ttl, HolderID: "h", MaxCheckpointBytes: 4})
	ctx := t.Context()
	refused := func(what string, err error, faults ...string) {
		t.Helper()
		if !errors.Is(err, worklease.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
			return
		}
		for _, fault := range faults {
			if !strings.Contains(err.Error(), fault) {
				t.Errorf("%s: the error does not name the %s: %v", what, fault, err)
			}
		}
	}
	for _, id := range []string{"", "a\x00b", "\xc3\x28", strings.Repeat("x", worklease.MaxIDBytes+1), strings.Repeat("x", 20_000)} {
		_, err := l.Acquire(ctx, id)
		refused(fmt.Sprintf("Acquire of %.10q", id), err, "work ID")
		_, err = l.Acquire(ctx, id, worklease.WithWaitForLease())
		refused(fmt.Sprintf("waiting Acquire of %.10q", id), err, "work ID")
		if len(err.Error()) > 500 {
			t.Errorf("the error about a long work ID has %d bytes", len(err.Error()))
		}
	}
	//lint:ignore SA1012 a nil context is what is tested
	_, err := l.Acquire(nil, "") //nolint:staticcheck // as above
	refused("Acquire without a context", err, "context", "work ID")

	for _, token := range badTokens() {
		refused("Checkpoint", l.Checkpoint(ctx, token, nil))
		refused("Renew", l.Renew(ctx, token))
		refused("Release", l.Release(ctx, token))
		refused("Forget", l.Forget(ctx, token))
		_, _, err := l.ReadCheckpoint(ctx, token)
		refused("ReadCheckpoint", err)
		_, err = l.Prior(ctx, token)
		refused("Prior", err)
		renewCtx, stop := l.StartRenewal(ctx, token)
		refused("StartRenewal", context.Cause(renewCtx))
		if renewCtx.Err() == nil {
			t.Error("StartRenewal keeps a token that cannot be")
		}
		stop()
		stop()
		if _, ok := l.Deadline(token); ok {
			t.Error("a token that cannot be has a deadline")
		}
	}

	good := worklease.NewToken("w", "h", 1, time.Time{})
	var none context.Context
	refused("Checkpoint without a context", l.Checkpoint(none, good, nil), "context")
	refused("Renew without a context", l.Renew(none, good), "context")
	refused("Release without a context", l.Release(none, good), "context")
	refused("Forget without a context", l.Forget(none, good), "context")

	refused("Checkpoint of 5 bytes", l.Checkpoint(ctx, good, []byte("12345")), "5 bytes", "4")
	refused("Release with 5 bytes", l.Release(ctx, good, worklease.WithState([]byte("12345"))), "5 bytes")
	for _, exit := range []worklease.Exit{worklease.ExitNone, worklease.ExitExpired, worklease.ExitRetired + 1, 255} {
		refused("Release as "+exit.String(), l.Release(ctx, good, worklease.WithExit(exit)), "exit")
	}
	refused("all at once", l.Release(ctx, worklease.Token{}, worklease.WithExit(99), worklease.WithState([]byte("12345"))),
		"token", "exit", "5 bytes")
	if n := w.total(); n != 0 {
		t.Errorf("%d calls were sent", n)
	}
}

func TestLongestArgumentsAreTaken(t *testing.T) {
	t.Parallel()
	l := configured(t, memory.New(), worklease.Config{TTL: ttl, HolderID: "h", MaxCheckpointBytes: 4})
	token := acquire(t, l, strings.Repeat("x", worklease.MaxIDBytes))
	must(t, l.Checkpoint(t.Context(), token, []byte("1234")))
	must(t, l.Release(t.Context(), token, worklease.WithState([]byte("5678"))))

	standard := newLease(t, memory.New(), "h")
	token = acquire(t, standard, "work")
	must(t, standard.Checkpoint(t.Context(), token, make([]byte, 16<<20)))
	wantIs(t, standard.Checkpoint(t.Context(), token, make([]byte, 16<<20+1)), worklease.ErrInvalid)

	unlimited := configured(t, memory.New(), worklease.Config{TTL: ttl, HolderID: "h", MaxCheckpointBytes: -1})
	token = acquire(t, unlimited, "work")
	must(t, unlimited.Checkpoint(t.Context(), token, make([]byte, 16<<20+1)))
}

func TestNilOptionsAreIgnored(t *testing.T) {
	t.Parallel()
	l := newLease(t, memory.New(), "h")
	token, err := l.Acquire(t.Context(), "work", nil, worklease.WithReopen(), nil)
	must(t, err)
	_, stop := l.StartRenewal(t.Context(), token, nil, worklease.WithRenewalInterval(time.Second), nil)
	stop()
	must(t, l.Release(t.Context(), token, nil, worklease.WithExit(worklease.ExitAbandoned), nil))
}

func TestHasWaitForLease(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts []worklease.AcquireOption
		want bool
	}{
		{nil, false},
		{[]worklease.AcquireOption{nil}, false},
		{[]worklease.AcquireOption{worklease.WithReopen(), worklease.WithPollInterval(1)}, false},
		{[]worklease.AcquireOption{nil, worklease.WithReopen(), worklease.WithWaitForLease()}, true},
	} {
		if got := worklease.HasWaitForLease(c.opts); got != c.want {
			t.Errorf("got %t for %d options, want %t", got, len(c.opts), c.want)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for value, want := range map[fmt.Stringer]string{
		worklease.ExitNone: "none", worklease.ExitExpired: "expired", worklease.ExitReleased: "released",
		worklease.ExitAbandoned: "abandoned", worklease.ExitRetired: "retired", worklease.Exit(77): "Exit(77)",
		worklease.OperationCheckpoint: "checkpoint", worklease.OperationRenew: "renew",
		worklease.OperationRelease: "release", worklease.Operation(77): "Operation(77)",
	} {
		if got := value.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for exit, want := range map[worklease.Exit]bool{
		worklease.ExitNone: false, worklease.ExitExpired: false, worklease.ExitAbandoned: false,
		worklease.ExitReleased: true, worklease.ExitRetired: true,
	} {
		if got := (worklease.Prior{Exit: exit}).CleanHandoff(); got != want {
			t.Errorf("%v is a clean handoff: %t", exit, got)
		}
	}
}
