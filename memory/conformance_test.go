package memory_test

import (
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/conformance"
	"github.com/aetomala/worklease/memory"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(*testing.T) worklease.Backend { return memory.New() }, conformance.InBubbles())
}

// Without a bubble and without a way to end a lease, the suite waits.
func TestConformanceInRealTime(t *testing.T) {
	t.Parallel()
	shared := memory.New()
	conformance.Run(t, func(*testing.T) worklease.Backend { return shared })
}
