package fault

import (
	"context"
	"fmt"
)

// Cost is what the server as a whole has spent: a reading of its counters, or
// the difference of two.
type Cost struct {
	WAL       int64 // bytes
	XIDs      int64 // transaction IDs, once their transactions have ended
	Sequences int64 // values drawn from the sequences asked for, taken together
}

// Sub returns what was spent between an earlier reading and this one.
func (c Cost) Sub(earlier Cost) Cost {
	return Cost{c.WAL - earlier.WAL, c.XIDs - earlier.XIDs, c.Sequences - earlier.Sequences}
}

// ReadCost reads the counters, at no cost itself. The sequences step by one.
func ReadCost(ctx context.Context, db DB, sequences ...string) (Cost, error) {
	// The snapshot functions have had these names since PostgreSQL 8.3.
	const sql = `
SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
       txid_snapshot_xmax(txid_current_snapshot()),
       (SELECT coalesce(sum(pg_sequence_last_value(s::regclass)), 0)::bigint FROM unnest($1::text[]) s)`
	ctx, cancel := patient(ctx)
	defer cancel()
	var c Cost
	err := db.QueryRow(ctx, sql, sequences).Scan(&c.WAL, &c.XIDs, &c.Sequences)
	if err != nil {
		return Cost{}, fmt.Errorf("fault: read cost: %w", err)
	}
	return c, nil
}

// Least runs act that many times and returns the least of each cost that a run
// was seen to have: what others on the same server spend meanwhile, and the
// server on itself, only ever adds.
func Least(ctx context.Context, db DB, times int, act func() error, sequences ...string) (Cost, error) {
	var least Cost
	for i := range times {
		before, err := ReadCost(ctx, db, sequences...)
		if err != nil {
			return Cost{}, err
		}
		if err := act(); err != nil {
			return Cost{}, err
		}
		after, err := ReadCost(ctx, db, sequences...)
		if err != nil {
			return Cost{}, err
		}
		spent := after.Sub(before)
		if i == 0 {
			least = spent
		}
		least = Cost{min(least.WAL, spent.WAL), min(least.XIDs, spent.XIDs), min(least.Sequences, spent.Sequences)}
	}
	return least, nil
}
