package pgxbackend_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/fault"
	link "github.com/aetomala/worklease/internal/hold"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/aetomala/worklease/pgxbackend"
	"github.com/jackc/pgx/v5/pgxpool"
)

// R5: whatever ends a lease, nothing is left of it: no goroutine, no hold, no
// connection. S24, S26.
func TestRandomEnds(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	direct := pgtest.Open(t, url)
	const label = "random ends"
	pprof.Do(t.Context(), pprof.Labels(label, ""), func(context.Context) {
		const lives = 3
		for range lives {
			endAtRandom(t, url, direct, rounds(20, 60, 10_000/lives))
		}
		for _, role := range []string{"", " worklease listen", " worklease control", " worklease notify"} {
			must(t, fault.AwaitCount(t.Context(), direct, fault.Backends{App: "random" + role}, 0))
		}
		// What is given back in the background takes some seconds.
		eventually(t, "the goroutine of this test is left alone", func() bool { return labelled(t, label) == 1 })
	})
}

// labelled counts goroutines with a label: those who have it started them, however far
// back, and other tests' goroutines do not disturb.
func labelled(t *testing.T, label string) (count int) {
	t.Helper()
	var profile bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&profile, 1))
	alike := 0
	for lines := bufio.NewScanner(&profile); lines.Scan(); {
		line := lines.Text()
		if _, err := fmt.Sscanf(line, "%d @", &alike); err == nil {
			continue
		}
		if strings.HasPrefix(line, "# labels:") && strings.Contains(line, label) {
			count += alike
		}
	}
	return count
}

// endAtRandom is the life of a Backend.
func endAtRandom(t *testing.T, url string, direct *pgxpool.Pool, n int) {
	t.Helper()
	pool := pgtest.Open(t, url, pgtest.Config(func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "random" }))
	b, err := pgxbackend.New(pool)
	must(t, err)
	l := newLease(t, b, "holder")
	hasty := newLeaseFor(t, b, "hasty", 50*time.Millisecond)
	var tokens []worklease.Token
	lost := 0
	acquire := func(l worklease.Lease) worklease.Token {
		token := take(t, l, "w", worklease.WithWaitForLease())
		tokens = append(tokens, token)
		return token
	}
	for range n {
		switch rand.IntN(7) {
		case 0: // stop
			token := acquire(l)
			_, stop := l.StartRenewal(t.Context(), token)
			stop()
			must(t, l.Release(t.Context(), token))
		case 1: // cancel
			token := acquire(l)
			ctx, cancel := context.WithCancel(t.Context())
			l.StartRenewal(ctx, token)
			cancel()
			must(t, l.Release(ctx, token))
		case 2: // fence
			token := acquire(l)
			endLease(t, direct, "w")
			next := acquire(l)
			ctx, _ := l.StartRenewal(t.Context(), token, worklease.WithRenewalInterval(time.Millisecond))
			await(t, "it is fenced", ctx.Done())
			must(t, l.Release(t.Context(), next))
			lost++
		case 3: // expiry
			token := acquire(hasty)
			ctx, _ := hasty.StartRenewal(t.Context(), token, worklease.WithProgressDeadline(time.Millisecond))
			await(t, "it stalls", ctx.Done())
			lost++
		case 4: // a wait that ends
			token := acquire(l)
			ctx, cancel := context.WithCancel(t.Context())
			done := backgroundErr(func() error {
				_, err := l.Acquire(ctx, "w", worklease.WithWaitForLease())
				return err
			})
			cancel()
			refused(t, "the wait", await(t, "the wait ends", done).err, context.Canceled)
			must(t, l.Release(t.Context(), token))
		case 5: // release under renewal
			token := acquire(l)
			ctx, _ := l.StartRenewal(t.Context(), token)
			must(t, l.Release(t.Context(), token))
			await(t, "renewal ends", ctx.Done())
		case 6: // forgotten under renewal
			token := acquire(l)
			ctx, _ := l.StartRenewal(t.Context(), token)
			must(t, l.Forget(t.Context(), token))
			await(t, "renewal ends", ctx.Done())
		}
	}
	eventually(t, "the pool has its connections", func() bool { return pool.Stat().AcquiredConns() == 0 })
	// A lost lease is remembered for a while, so that it does not come back.
	known := 0
	for _, token := range tokens {
		if b.Holds().Find(link.Claim(token.Claim())) != nil {
			known++
		}
	}
	if known > lost {
		t.Errorf("%d holds are left of %d, %d were lost", known, len(tokens), lost)
	}
	// Close, under waits and renewals.
	_, stop := l.StartRenewal(t.Context(), acquire(l))
	defer stop()
	done := queue(t, b, l, "w")
	b.Close()
	refused(t, "the wait", await(t, "the wait ends", done).err, worklease.ErrClosed)
	endLease(t, direct, "w")
	pool.Close()
	if s := b.Stats(); s.Waiters != 0 || s.Watched != 0 {
		t.Errorf("left: %+v", s)
	}
}
