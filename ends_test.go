package worklease_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// R5. Ten thousand leases that end in every way a lease can end leave no hold behind,
// and no goroutine, which would keep the bubble from ending. S24, S26.
func TestRandomEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(3, 4))
		b := memory.New()
		l, other := newLease(t, b, "a"), newLease(t, b, "b")
		ends := []func(token worklease.Token){
			func(token worklease.Token) { // stop
				ctx, stop := l.StartRenewal(t.Context(), token)
				stop()
				wantIs(t, context.Cause(ctx), context.Canceled)
				must(t, l.Release(t.Context(), token))
			},
			func(token worklease.Token) { // cancel
				ctx, cancel := context.WithCancel(t.Context())
				l.StartRenewal(ctx, token)
				time.Sleep(time.Duration(random.Int64N(int64(3 * ttl))))
				cancel()
				must(t, l.Release(ctx, token))
			},
			func(token worklease.Token) { // fence
				time.Sleep(ttl)
				next := acquire(t, other, token.WorkID())
				ctx, _ := l.StartRenewal(t.Context(), token)
				<-ctx.Done()
				must(t, other.Release(t.Context(), next))
			},
			func(token worklease.Token) { // expiry
				ctx, _ := l.StartRenewal(t.Context(), token, worklease.WithProgressDeadline(ttl))
				<-ctx.Done()
				wantIs(t, context.Cause(ctx), worklease.ErrStalled)
			},
			func(token worklease.Token) { // release, twice renewed
				first, _ := l.StartRenewal(t.Context(), token)
				second, _ := l.StartRenewal(t.Context(), token)
				time.Sleep(time.Duration(random.Int64N(int64(3 * ttl))))
				must(t, l.Release(t.Context(), token))
				<-first.Done()
				<-second.Done()
			},
			func(token worklease.Token) { // Forget, of a token that was resumed
				again := resumed(token)
				ctx, _ := l.StartRenewal(t.Context(), again)
				time.Sleep(ttl)
				wantLive(t, ctx)
				must(t, l.Forget(t.Context(), again))
				<-ctx.Done()
				must(t, l.Forget(t.Context(), token))
			},
			func(worklease.Token) {}, // nobody ever renews it
		}
		rounds := 10_000
		if testing.Short() {
			rounds = 1_000
		}
		for i := range rounds {
			ends[random.IntN(len(ends))](acquire(t, l, fmt.Sprint(i)))
		}
		// Leases that were lost are remembered for a while, and dropped when others come.
		time.Sleep(time.Hour)
		for i := range 2 * worklease.Holds(l) {
			must(t, l.Release(t.Context(), acquire(t, l, fmt.Sprint("after ", i))))
		}
		var last []worklease.Token
		for i := range 2 * worklease.Holds(l) {
			last = append(last, acquire(t, l, fmt.Sprint("last ", i)))
		}
		for _, token := range last {
			must(t, l.Release(t.Context(), token))
		}
		if n := worklease.Holds(l); n != 0 {
			t.Errorf("%d holds are left", n)
		}
	})
}
