package pgxbackend

import (
	"context"
	"errors"
	"time"

	"github.com/aetomala/worklease"
	"github.com/jackc/pgx/v5/pgxpool"
)

// errRowLocked: a live lease was left out of a batch.
var errRowLocked = errors.New("the row is locked by somebody else")

// RenewBatch implements [worklease.BatchRenewer] in one statement, and a second one
// for what the first did not confirm. It does not queue for the application's pool.
func (b *Backend) RenewBatch(ctx context.Context, claims []worklease.Claim, ttl time.Duration) ([]worklease.Renewal, error) {
	ctx, cancel, conn, err := b.connect(ctx, b.control.lane)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer conn.Release()
	renewals := make([]worklease.Renewal, len(claims))
	for i := range renewals {
		renewals[i].Err = errRowLocked
	}
	if err := b.renewMany(ctx, conn, claims, ttl, renewals); err != nil {
		return nil, err
	}
	if err := b.judgeMany(ctx, conn, claims, renewals); err != nil {
		return nil, err
	}
	return renewals, nil
}

func (b *Backend) renewMany(ctx context.Context, conn *pgxpool.Conn, claims []worklease.Claim, ttl time.Duration, renewals []worklease.Renewal) error {
	var place int
	var remaining time.Duration
	return b.many(ctx, conn, b.sql.renewMany, append(arrays(claims), ttl), []any{&place, &remaining}, func() {
		renewals[place-1] = worklease.Renewal{Extension: worklease.Extension{Remaining: remaining}}
	})
}

// judgeMany asks what became of the leases that are not renewed yet.
func (b *Backend) judgeMany(ctx context.Context, conn *pgxpool.Conn, claims []worklease.Claim, renewals []worklease.Renewal) error {
	var open []worklease.Claim
	var places []int
	for i, r := range renewals {
		if r.Err != nil {
			open = append(open, claims[i])
			places = append(places, i)
		}
	}
	if len(open) == 0 {
		return nil
	}
	var place int
	var verdict string
	return b.many(ctx, conn, b.sql.judgeMany, arrays(open), []any{&place, &verdict}, func() {
		if verdict != verdictAgain {
			renewals[places[place-1]].Err = verdictError(verdict, 0)
		}
	})
}

// many sends a statement and calls row after each row has been read into dest. It
// sends it again when somebody else was quicker, as after a deadlock.
func (b *Backend) many(ctx context.Context, conn *pgxpool.Conn, sql string, args, dest []any, row func()) error {
	for round := 1; ; round++ {
		rows, err := conn.Query(ctx, sql, args...)
		if err == nil {
			for rows.Next() && err == nil {
				if err = rows.Scan(dest...); err == nil {
					row()
				}
			}
			rows.Close()
			if err == nil {
				err = rows.Err()
			}
		}
		if err == nil {
			return nil
		}
		if !lostRace(err) || round == maxRounds {
			return classify(err)
		}
	}
}

// arrays are the parameters $1 to $4 of a statement about many claims.
func arrays(claims []worklease.Claim) []any {
	n := len(claims)
	ids, holders, nonces := make([]string, n), make([]string, n), make([]string, n)
	tokens := make([]int64, n)
	for i, c := range claims {
		ids[i], holders[i], tokens[i], nonces[i] = c.WorkID, c.HolderID, int64(c.FencingToken), c.Nonce
	}
	return []any{ids, holders, tokens, nonces}
}
