// Package v05 has the table and the statements of v0.5, for tests of what happens beside
// it and after it.
package v05

// Table is what v0.5's documentation had its users make by hand, unqualified.
const Table = `
	CREATE SEQUENCE worklease_fencing_seq;
	CREATE TABLE worklease_leases (
		work_id       TEXT        PRIMARY KEY,
		holder_id     TEXT        NOT NULL,
		fencing_token BIGINT      NOT NULL DEFAULT nextval('worklease_fencing_seq'),
		expires_at    TIMESTAMPTZ NOT NULL,
		checkpoint    BYTEA,
		clean_handoff BOOLEAN     NOT NULL DEFAULT FALSE,
		acquired_at   TIMESTAMPTZ NOT NULL DEFAULT now(),
		updated_at    TIMESTAMPTZ NOT NULL DEFAULT now()
	);
	CREATE INDEX idx_worklease_leases_updated_at ON worklease_leases (updated_at);`

// The statements: $1 is the work ID, $2 the holder ID, and but for Acquire and Read $3
// the token.
const (
	// Acquire has the TTL as $3. No row: it is held.
	Acquire = `
		INSERT INTO worklease_leases (work_id, holder_id, fencing_token, expires_at, acquired_at, updated_at)
		VALUES ($1, $2, nextval('worklease_fencing_seq'), now() + $3::interval, now(), now())
		ON CONFLICT (work_id) DO UPDATE
		SET holder_id = EXCLUDED.holder_id, fencing_token = EXCLUDED.fencing_token, expires_at = EXCLUDED.expires_at,
			acquired_at = now(), updated_at = now()
		WHERE worklease_leases.expires_at < now()
		RETURNING fencing_token, expires_at`

	// Checkpoint has the state as $4 and the TTL as $5.
	Checkpoint = `
		UPDATE worklease_leases
		SET checkpoint = $4, expires_at = now() + $5::interval, updated_at = now(), clean_handoff = false
		WHERE work_id = $1 AND holder_id = $2 AND fencing_token = $3`

	// Renew has the TTL as $4.
	Renew = `
		UPDATE worklease_leases SET expires_at = now() + $4::interval, updated_at = now()
		WHERE work_id = $1 AND holder_id = $2 AND fencing_token = $3`

	Release = `
		UPDATE worklease_leases SET clean_handoff = true, expires_at = now() - interval '1 millisecond', updated_at = now()
		WHERE work_id = $1 AND holder_id = $2 AND fencing_token = $3`

	Read = `SELECT fencing_token, checkpoint, clean_handoff FROM worklease_leases WHERE work_id = $1`
)
