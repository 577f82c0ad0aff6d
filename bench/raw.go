package main

// The yardsticks: the barest statements that could do the jobs, and v0.5's.

// createTwinsSQL makes a raw twin of our table, with what LIKE does not copy, and v0.5's
// table as its users made it.
const createTwinsSQL = `
CREATE TABLE {raw} (LIKE {table} INCLUDING ALL);
ALTER TABLE {raw} SET (fillfactor = 70);
CREATE SEQUENCE {v05sequence};
CREATE TABLE {v05} (
  work_id text PRIMARY KEY,
  holder_id text NOT NULL,
  fencing_token bigint NOT NULL DEFAULT nextval('{v05sequence}'),
  expires_at timestamptz NOT NULL,
  checkpoint bytea,
  clean_handoff boolean NOT NULL DEFAULT false,
  acquired_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON {v05} (updated_at)`

// rawAcquireSQL takes what is free: $1 work ID, $2 holder ID, $3 TTL.
const rawAcquireSQL = `
INSERT INTO {raw} AS l (work_id, holder_id, fencing_token, expires_at)
VALUES ($1, $2, nextval('{sequence}'), clock_timestamp() + $3::interval)
ON CONFLICT (work_id) DO UPDATE
SET holder_id = EXCLUDED.holder_id, fencing_token = EXCLUDED.fencing_token, expires_at = EXCLUDED.expires_at
WHERE l.expires_at <= clock_timestamp()
RETURNING fencing_token, expires_at`

// rawCheckpointSQL saves and extends: $1 work ID, $2 token, $3 state, $4 TTL.
const rawCheckpointSQL = `
UPDATE {raw} SET checkpoint = $3, expires_at = clock_timestamp() + $4::interval
WHERE work_id = $1 AND fencing_token = $2`

// rawRenewSQL extends: $1 work ID, $2 token, $3 TTL.
const rawRenewSQL = `
UPDATE {raw} SET expires_at = clock_timestamp() + $3::interval
WHERE work_id = $1 AND fencing_token = $2 AND expires_at > clock_timestamp()`

// rawReleaseSQL frees and says how the owner left: $1 work ID, $2 token.
const rawReleaseSQL = `
UPDATE {raw} SET exit = 2, expires_at = clock_timestamp()
WHERE work_id = $1 AND fencing_token = $2`

// rawNotifyingReleaseSQL also notifies, whether anybody waits or not.
const rawNotifyingReleaseSQL = rawReleaseSQL + `
RETURNING pg_notify('{channel}', work_id)::text`

// v05AcquireSQL is v0.5's: $1 work ID, $2 holder ID, $3 TTL.
const v05AcquireSQL = `
INSERT INTO {v05} AS l (work_id, holder_id, fencing_token, expires_at, acquired_at, updated_at)
VALUES ($1, $2, nextval('{v05sequence}'), now() + $3::interval, now(), now())
ON CONFLICT (work_id) DO UPDATE
SET holder_id = EXCLUDED.holder_id, fencing_token = EXCLUDED.fencing_token, expires_at = EXCLUDED.expires_at,
  acquired_at = now(), updated_at = now()
WHERE l.expires_at < now()
RETURNING fencing_token, expires_at`

// v05BeatSQL is what v0.5's renewal changes: $1 work ID, $2 TTL.
const v05BeatSQL = `UPDATE {v05} SET expires_at = now() + $2::interval, updated_at = now() WHERE work_id = $1`

// freeSQL frees all work of both tables at once, as a release would.
const freeSQL = `
UPDATE {table} SET exit = 2, exit_token = fencing_token, exited_at = clock_timestamp(), expires_at = clock_timestamp(),
  clean_handoff = true
WHERE exit_token IS DISTINCT FROM fencing_token;
UPDATE {raw} SET exit = 2, expires_at = clock_timestamp() WHERE expires_at > clock_timestamp()`

// fillSQL makes that many rows of released work in both tables: no plan is made for a table that is
// all but empty.
const fillSQL = `
INSERT INTO {table} (work_id, holder_id, fencing_token, expires_at, ttl, nonce, exit, exit_token, exited_at, clean_handoff)
SELECT 'b' || lpad(i::text, 7, '0'), 'bench', i, clock_timestamp(), interval '1 hour', substr(md5(i::text), 1, 26),
  2, i, clock_timestamp(), true
FROM generate_series(1, %[1]d) i;
INSERT INTO {raw} SELECT * FROM {table};
SELECT setval('{sequence}', %[1]d)`

// emptySQL removes all but what fillSQL made.
const emptySQL = `DELETE FROM {table} WHERE work_id LIKE 'w%'; DELETE FROM {raw} WHERE work_id LIKE 'w%'`

// holdRawSQL has the raw twin's work held, in rows as new as ours.
const holdRawSQL = `
DELETE FROM {raw} WHERE work_id LIKE 'w%';
INSERT INTO {raw} (work_id, holder_id, fencing_token, expires_at, ttl, nonce)
SELECT work_id, holder_id, fencing_token, clock_timestamp() + interval '1 hour', ttl, nonce
FROM {table} WHERE work_id LIKE 'w%'`
