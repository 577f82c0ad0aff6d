package fault

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Ledger is a table in which every guarded write leaves its work ID and token,
// in its own transaction. It shows afterwards whether a holder's transaction
// committed when a newer token had already written: each entry keeps the
// snapshot of its statement, and every older token must be committed in it.
type Ledger string // the table's name

// Create creates the table, in the first schema of the search path.
func (l Ledger) Create(ctx context.Context, db DB) error {
	_, err := db.Exec(ctx, `
CREATE TABLE `+l.quoted()+` (
    work_id text          NOT NULL,
    token   bigint        NOT NULL,
    at      timestamptz   NOT NULL DEFAULT clock_timestamp(),
    xid     bigint        NOT NULL DEFAULT txid_current(),
    seen    txid_snapshot NOT NULL DEFAULT txid_current_snapshot()
)`)
	if err != nil {
		return fmt.Errorf("fault: create ledger: %w", err)
	}
	return nil
}

// Record enters a write. Call it in the transaction of the write itself, behind
// the fence, at READ COMMITTED. It returns the database's error as it is.
func (l Ledger) Record(ctx context.Context, tx DB, workID string, token uint64) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+l.quoted()+` (work_id, token) VALUES ($1::text, $2::bigint)`, workID, int64(token))
	return err
}

// Check returns an error that names the entries of older tokens that were not
// committed when a newer token of the same work ID wrote. It compares all pairs
// and is meant for some thousand entries.
func (l Ledger) Check(ctx context.Context, db DB) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	rows, err := db.Query(ctx, `
SELECT DISTINCT format('%s: token %s committed after token %s wrote', older.work_id, older.token, newer.token)
FROM `+l.quoted()+` older
JOIN `+l.quoted()+` newer ON newer.work_id = older.work_id AND newer.token > older.token
WHERE NOT txid_visible_in_snapshot(older.xid, newer.seen)
ORDER BY 1
LIMIT 10`)
	if err != nil {
		return fmt.Errorf("fault: check ledger: %w", err)
	}
	late, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("fault: check ledger: %w", err)
	}
	if len(late) > 0 {
		return fmt.Errorf("fault: ledger: %q", late)
	}
	return nil
}

func (l Ledger) quoted() string { return pgx.Identifier{string(l)}.Sanitize() }
