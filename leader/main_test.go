package leader_test

import (
	"context"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/internal/tenure/processtest"
	"github.com/aetomala/worklease/leader"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	fault.RunRole(map[string]func(context.Context) error{"candidate": candidate})
	goleak.VerifyTestMain(pgtest.Wrap(m))
}

const processTTL = time.Second

// namesake is what all have in common, but for what their connections are called (S7).
var namesake = worklease.Config{TTL: processTTL, HolderID: "namesake"}

// candidate is a process that leads whenever it can, until it is told to stop. It writes
// to the ledger while it leads.
func candidate(ctx context.Context) error {
	s, err := processtest.Mine(context.WithoutCancel(ctx), namesake)
	if err != nil {
		return err
	}
	defer s.Close()
	fault.Emit("ready", nil)
	runForOffice(ctx, s, fault.Emit)
	return nil
}

// runForOffice has one term after the other and tells of each.
func runForOffice(ctx context.Context, s *processtest.Service, emit func(event string, data any)) {
	var token worklease.Token
	tell := func(event string) func(context.Context, worklease.Token) {
		return func(_ context.Context, t worklease.Token) {
			if event == "elected" {
				token = t
			}
			emit(event, t.FencingToken())
		}
	}
	for ctx.Err() == nil {
		leader.Elect(ctx, s.Lease, "office", leader.Config{
			AcquireOptions: []worklease.AcquireOption{
				worklease.WithWaitForLease(), worklease.WithPollInterval(50 * time.Millisecond),
			},
			BackoffInterval: 50 * time.Millisecond,
			OnElected:       tell("elected"), OnLost: tell("lost"), OnRelinquished: tell("relinquished"),
		}, func(ctx context.Context) error {
			for ctx.Err() == nil {
				// What fails was not written, and a loss ends ctx.
				s.Write(ctx, token)
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
}
