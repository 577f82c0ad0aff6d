package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// createTableSQL makes a table with no key: nothing but the fence keeps a line from being there
// twice. The column row tells the order of insertion. Text is bytea, for sources hold test data
// that is no text.
const createTableSQL = `CREATE TABLE %s (
  row      bigint GENERATED ALWAYS AS IDENTITY,
  work_id  text NOT NULL,
  token    bigint NOT NULL,
  position integer NOT NULL, -- of the batch in the work: what its checkpoint was before
  file     text NOT NULL,
  line     integer NOT NULL,
  text     bytea NOT NULL
)`

// Made after the import, for the verdict to read by.
const createIndexSQL = `CREATE INDEX ON %s (work_id, row)`

// insertSQL is one statement and not a COPY on purpose: nothing on the server ends a session whose
// client falls silent in the middle of a COPY, neither idle_in_transaction_session_timeout nor
// statement_timeout. A worker frozen there would keep its successors waiting for as long as its
// connection lasts.
const insertSQL = `INSERT INTO %s (work_id, token, position, file, line, text)
SELECT $1::text, $2::bigint, $3::integer, b.file, b.line, b.text
FROM unnest($4::text[], $5::integer[], $6::bytea[]) WITH ORDINALITY AS b (file, line, text, place)
ORDER BY b.place`

// rowsSQL returns the rows of a work ID in the order in which they were inserted, which is that of
// their commits too: a work ID has one owner at a time, who has one transaction at a time.
const rowsSQL = `SELECT file, line, text, token FROM %s WHERE work_id = $1::text ORDER BY row`

// strayRowsSQL counts the rows of work IDs that there are not.
const strayRowsSQL = `SELECT count(*) FROM %s WHERE work_id <> ALL ($1::text[])`

func tableName(schema string) pgx.Identifier { return pgx.Identifier{schema, "imported_lines"} }

// executor is a transaction, or a pool: then the insert is a transaction of its own.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// A batch is the lines that a step inserts.
type batch struct {
	workID   string
	token    uint64
	position int
	lines    []line
}

func (b batch) insert(ctx context.Context, to executor, schema string) error {
	files, numbers, texts := make([]string, len(b.lines)), make([]int, len(b.lines)), make([][]byte, len(b.lines))
	for i, l := range b.lines {
		files[i], numbers[i], texts[i] = l.file, l.number, l.text
	}
	_, err := to.Exec(ctx, fmt.Sprintf(insertSQL, tableName(schema).Sanitize()),
		b.workID, int64(b.token), b.position, files, numbers, texts)
	return err
}

// A row is a line as the table has it.
type row struct {
	line
	token uint64
}

// readRows returns the rows of a work ID in the order of their commits.
func readRows(ctx context.Context, pool *pgxpool.Pool, schema, workID string) ([]row, error) {
	rows, err := pool.Query(ctx, fmt.Sprintf(rowsSQL, tableName(schema).Sanitize()), workID)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (row, error) {
		var found row
		var token int64
		err := r.Scan(&found.file, &found.number, &found.text, &token)
		found.token = uint64(token)
		return found, err
	})
}
