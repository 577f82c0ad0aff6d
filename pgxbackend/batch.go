package pgxbackend

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/hold"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errRowLocked: a live lease was left out of a batch.
var errRowLocked = errors.New("the row is locked by somebody else")

// RenewBatch implements [worklease.BatchRenewer] in one statement, and a second one
// for what the first did not confirm. It does not queue for the application's pool. A
// renewal that was stopped while the call waited for a connection is left out.
func (b *Backend) RenewBatch(ctx context.Context, claims []worklease.Claim, ttl time.Duration) (renewals []worklease.Renewal, err error) {
	ctx, cancel, conn, err := b.connect(ctx, b.control.quick)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer giveBack(conn, &err)
	renewals = make([]worklease.Renewal, len(claims))
	for i := range renewals {
		renewals[i].Err = errRowLocked
	}
	wanted := hold.Wanted(ctx)
	for places := range rounds(claims) {
		places = slices.DeleteFunc(places, func(i int) bool { return !wanted(hold.Claim(claims[i])) })
		if err := b.renewMany(ctx, conn, claims, places, ttl, renewals); err != nil {
			return nil, err
		}
	}
	b.judgeMany(ctx, conn, claims, renewals)
	return renewals, nil
}

// rounds yields the places of claims, so that no work ID comes twice in a round: one
// statement changes a row once.
func rounds(claims []worklease.Claim) iter.Seq[[]int] {
	return func(yield func([]int) bool) {
		rest := make([]int, len(claims))
		for i := range rest {
			rest[i] = i
		}
		for len(rest) > 0 {
			seen := make(map[string]bool, len(rest))
			var round, later []int
			for _, i := range rest {
				if id := claims[i].WorkID; seen[id] {
					later = append(later, i)
				} else {
					seen[id] = true
					round = append(round, i)
				}
			}
			if !yield(round) {
				return
			}
			rest = later
		}
	}
}

// renewMany renews the claims in places and records those that the answer confirms.
func (b *Backend) renewMany(ctx context.Context, conn *pgxpool.Conn, claims []worklease.Claim, places []int, ttl time.Duration, renewals []worklease.Renewal) error {
	type renewed struct {
		Place     int
		Remaining time.Duration
	}
	if len(places) == 0 {
		return nil
	}
	rows, err := many[renewed](ctx, conn, b.sql.renewMany, append(arrays(claims, places), ttl))
	for _, r := range rows {
		renewals[places[r.Place-1]] = worklease.Renewal{Extension: worklease.Extension{Remaining: r.Remaining}}
	}
	return err
}

// judgeMany asks what became of the leases that are not renewed yet.
func (b *Backend) judgeMany(ctx context.Context, conn *pgxpool.Conn, claims []worklease.Claim, renewals []worklease.Renewal) {
	var open []int
	wanted := hold.Wanted(ctx)
	for i, r := range renewals {
		switch {
		case r.Err == nil:
		case wanted(hold.Claim(claims[i])):
			open = append(open, i)
		default:
			renewals[i].Err = context.Canceled
		}
	}
	if len(open) == 0 {
		return
	}
	type judged struct {
		Place   int
		Verdict string
	}
	rows, err := many[judged](ctx, conn, b.sql.judgeMany, arrays(claims, open))
	if err != nil {
		for _, i := range open { // the others are renewed all the same
			renewals[i].Err = err
		}
	}
	for _, r := range rows {
		if r.Verdict != verdictAgain {
			renewals[open[r.Place-1]].Err = verdictError(r.Verdict, 0)
		}
	}
}

// many sends a statement and returns its rows, all of them or none: what a statement
// that failed has returned is not so. It sends it again when somebody else was
// quicker.
func many[T any](ctx context.Context, conn *pgxpool.Conn, sql string, args []any) ([]T, error) {
	for round := 1; ; round++ {
		rows, _ := conn.Query(ctx, sql, args...) // the error comes with the rows
		found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		if err == nil {
			return found, nil
		}
		if !lostRace(err) || round == maxRounds {
			return nil, classify(err)
		}
	}
}

// arrays are the parameters $1 to $4 of a statement about the claims in places.
func arrays(claims []worklease.Claim, places []int) []any {
	n := len(places)
	ids, holders, nonces := make([]string, n), make([]string, n), make([]string, n)
	tokens := make([]int64, n)
	for i, place := range places {
		c := claims[place]
		ids[i], holders[i], tokens[i], nonces[i] = c.WorkID, c.HolderID, int64(c.FencingToken), c.Nonce
	}
	return []any{ids, holders, tokens, nonces}
}
