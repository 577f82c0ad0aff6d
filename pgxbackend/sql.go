package pgxbackend

import (
	"strings"

	"github.com/jackc/pgx/v5"
)

// Every statement that this package sends is in this file.
//
// # Rules
//
// One state change is one statement: the guard in WHERE, the answer in RETURNING,
// and the verdict about a guard that did not hold in the same round trip.
//
// Time is clock_timestamp(), in SET and WHERE: now() is frozen when a statement
// begins to wait for a row, and what EXCLUDED carries is older still.
//
// "gone" is exit_token = fencing_token: the current owner gave the lease up. The
// exit alone means nothing, since a v0.5 process that takes the row over leaves it
// standing.
//
// A verdict branch reads the statement's snapshot and runs only if nothing was
// updated. Where the two contradict each other the row was changed in between: that
// is the verdict "again", and the statement is simply sent again.
//
// Parameters are cast, so that they mean the same in every query exec mode. The
// parameters $1 to $4 of a fenced statement are work ID, holder ID, token, nonce;
// an empty nonce is that of a resumed token and matches any.

// Exits are stored as worklease.Exit counts them; 4 is retired. 5 is an undone row: its
// last acquisition left no trace, and its prior is what the next owner is told.

// Verdicts.
const (
	verdictDone        = "done"
	verdictOwn         = "own"
	verdictHeld        = "held"
	verdictRetired     = "retired"
	verdictFenced      = "fenced"
	verdictExpired     = "expired"
	verdictSurrendered = "surrendered"
	verdictSuperseded  = "superseded"
	verdictOvertaken   = "overtaken"
	verdictAgain       = "again"
	verdictUndone      = "undone"
)

// durable makes a statement of a role that has synchronous_commit off, or on less
// than the local disk and its standbys, as durable as others. It belongs in the
// RETURNING list of a data-modifying statement, which alone is sure to run.
const durable = `CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
      THEN set_config('synchronous_commit', 'on', true) END`

// notify wakes the waiters of the row in the statement that frees it, if a mark says
// that there may be any: to notify always costs two thirds of the rate of releases, for
// the server serialises the commits that do. The parameter is the channel, empty for
// none. In RETURNING it runs once per row and with the row's own commit.
func notify(parameter string) string {
	return `CASE WHEN ` + parameter + `::text <> '' AND l.awaited_until > clock_timestamp()
      THEN pg_notify(` + parameter + `::text, l.work_id)::text END`
}

// mine is the fence of a statement on l: this acquisition and no other.
const mine = `l.work_id = $1::text AND l.holder_id = $2::text AND l.fencing_token = $3::bigint
    AND ($4::text = '' OR l.nonce = $4::text)`

// notMine is what a verdict branch calls fenced: the row s is another's, or absent.
const notMine = `s.work_id IS NULL OR s.holder_id <> $2::text OR s.fencing_token <> $3::bigint
    OR ($4::text <> '' AND s.nonce <> $4::text)`

// acquireSQL looks, and takes only what it saw free: $1 work ID, $2 holder ID, $3
// TTL, $4 nonce, $5 reopen.
//
// A refusal is the look alone: no token is drawn, no transaction ID taken, no row
// locked, nothing written. The guard is tested again under the row lock. The token
// is drawn when the row is secured, above the row's own, whatever the sequence
// says: so tokens rise in commit order. On the insert path it is drawn before; what
// could then come in between keeps the row, and sends the insert to the update.
//
// The prior stays as it is where the last acquisition left no trace: it was undone,
// or it was won by this very call, which never heard of it.
//
// No row in the answer: the race for the row was lost; look again.
const acquireSQL = `-- worklease: acquire
WITH blocked AS MATERIALIZED (
  SELECT l.* FROM {table} l
  WHERE l.work_id = $1::text AND CASE WHEN l.exit_token = l.fencing_token
    THEN NOT $5::boolean AND (l.exit = 4 OR l.exit = 5 AND l.prior_exit = 4)
    ELSE l.expires_at > clock_timestamp() END
), got AS (
  INSERT INTO {table} AS l (work_id, holder_id, fencing_token, expires_at, ttl, nonce, acquired_at, updated_at)
  SELECT $1::text, $2::text, nextval({sequence}), clock_timestamp() + $3::interval, $3::interval, $4::text,
    clock_timestamp(), clock_timestamp()
  WHERE NOT EXISTS (SELECT FROM blocked)
  ON CONFLICT (work_id) DO UPDATE SET
    holder_id = $2::text, nonce = $4::text, ttl = $3::interval,
    fencing_token = greatest(l.fencing_token + 1, nextval({sequence})),
    expires_at = clock_timestamp() + $3::interval,
    acquired_at = clock_timestamp(), updated_at = clock_timestamp(),
    clean_handoff = false, exit = NULL, exit_token = NULL,
    checkpoint_no = 0, checkpoint_by = '',
    prior_exit = CASE WHEN {traceless} THEN l.prior_exit WHEN l.exit_token = l.fencing_token THEN l.exit ELSE 1 END,
    prior_holder = CASE WHEN {traceless} THEN l.prior_holder ELSE l.holder_id END,
    prior_token = CASE WHEN {traceless} THEN l.prior_token ELSE l.fencing_token END,
    prior_nonce = CASE WHEN {traceless} THEN l.prior_nonce ELSE l.nonce END,
    prior_checkpoint_no = CASE WHEN {traceless} THEN l.prior_checkpoint_no ELSE l.checkpoint_no END,
    prior_checkpoint_by = CASE WHEN {traceless} THEN l.prior_checkpoint_by ELSE l.checkpoint_by END,
    crashes = {crashes}, prior_crashes = CASE WHEN {traceless} THEN l.prior_crashes ELSE {crashes} END
  WHERE CASE WHEN l.exit_token = l.fencing_token
    THEN $5::boolean OR NOT (l.exit = 4 OR l.exit = 5 AND l.prior_exit = 4)
    ELSE l.expires_at <= clock_timestamp() END
  RETURNING l.fencing_token, l.expires_at, l.expires_at - clock_timestamp() AS remaining,
    l.prior_exit, l.prior_holder, l.prior_token, l.prior_crashes, l.checkpoint, l.checkpointed_at, {durable}
)
SELECT 'done', fencing_token, expires_at, remaining,
  prior_exit, prior_holder, prior_token, prior_crashes, checkpointed_at,
  coalesce(octet_length(checkpoint) > {inline}, false), CASE WHEN octet_length(checkpoint) <= {inline} THEN checkpoint END
FROM got
UNION ALL
SELECT 'own', fencing_token, expires_at, expires_at - clock_timestamp(),
  prior_exit, prior_holder, prior_token, prior_crashes, checkpointed_at,
  coalesce(octet_length(checkpoint) > {inline}, false), CASE WHEN octet_length(checkpoint) <= {inline} THEN checkpoint END
FROM blocked l WHERE exit_token IS DISTINCT FROM fencing_token AND {own}
UNION ALL
SELECT 'held', fencing_token, NULL, expires_at - clock_timestamp(), NULL, holder_id, NULL, NULL, NULL, NULL, NULL
FROM blocked l WHERE exit_token IS DISTINCT FROM fencing_token AND NOT {own}
UNION ALL
SELECT 'retired', CASE WHEN exit = 5 THEN prior_token ELSE fencing_token END, exited_at, NULL,
  NULL, CASE WHEN exit = 5 THEN prior_holder ELSE holder_id END, NULL, NULL, NULL, NULL, NULL
FROM blocked WHERE exit_token = fencing_token`

// own is a row that this call has won before. The holder counts too: a v0.5 process
// that takes the row over leaves the nonce standing.
const own = `(l.nonce = $4::text AND $4::text <> '' AND l.holder_id = $2::text)`

const traceless = `CASE WHEN l.exit_token = l.fencing_token THEN l.exit = 5 ELSE ` + own + ` END`

// A declared exit ends a row of crashes; an acquisition without a trace adds none.
const crashes = `CASE WHEN {traceless} THEN l.crashes WHEN l.exit_token = l.fencing_token THEN 0 ELSE l.crashes + 1 END`

// checkpointSQL saves and extends, also a lapsed lease that nobody took: $5 state,
// null to keep what is stored; $6 its number, $7 the hold that drew it, $8 the TTL
// where the row has none. A number that is not above the stored one is never
// written: it is this very save, or an older one of the same hold that arrives
// late, or another hold was quicker, which the caller has to know.
const checkpointSQL = `-- worklease: checkpoint
WITH saved AS (
  UPDATE {table} l SET
    checkpoint = coalesce($5::bytea, l.checkpoint),
    checkpointed_at = CASE WHEN $5::bytea IS NULL THEN l.checkpointed_at ELSE clock_timestamp() END,
    crashes = CASE WHEN $5::bytea IS NULL THEN l.crashes ELSE 0 END,
    checkpoint_no = $6::bigint, checkpoint_by = $7::text,
    expires_at = clock_timestamp() + coalesce(l.ttl, $8::interval), updated_at = clock_timestamp(),
    clean_handoff = false
  WHERE {mine} AND l.exit_token IS DISTINCT FROM l.fencing_token AND l.checkpoint_no < $6::bigint
  RETURNING l.expires_at - clock_timestamp() AS remaining, {durable}
)
SELECT 'done', remaining, NULL::bigint FROM saved
UNION ALL
SELECT CASE
    WHEN {notMine} THEN 'fenced'
    WHEN s.checkpoint_no = $6::bigint AND s.checkpoint_by = $7::text THEN 'done'
    WHEN s.checkpoint_no > $6::bigint AND s.checkpoint_by = $7::text THEN 'superseded'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    WHEN s.checkpoint_no >= $6::bigint THEN 'overtaken'
    ELSE 'again' END,
  CASE WHEN s.exit_token = s.fencing_token THEN NULL ELSE s.expires_at - clock_timestamp() END,
  s.checkpoint_no
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM saved)`

// renewSQL extends a live lease: $5 the TTL where the row has none. It leaves the
// checkpoint where it is. An expiry further ahead than the TTL, after the database's
// clock was set back, is pulled in.
const renewSQL = `-- worklease: renew
WITH renewed AS (
  UPDATE {table} l SET expires_at = clock_timestamp() + coalesce(l.ttl, $5::interval), updated_at = clock_timestamp()
  WHERE {mine} AND l.exit_token IS DISTINCT FROM l.fencing_token AND l.expires_at > clock_timestamp()
  RETURNING l.expires_at - clock_timestamp() AS remaining
)
SELECT 'done', remaining FROM renewed
UNION ALL
SELECT CASE
    WHEN {notMine} THEN 'fenced'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    WHEN s.expires_at <= clock_timestamp() THEN 'expired'
    ELSE 'again' END,
  NULL
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM renewed)`

// releaseSQL surrenders the lease, also a lapsed one that nobody took: $5 the exit,
// $6 a last state or null, $7 its number, $8 the hold that drew it, $9 the channel.
//
// A repeat is done if the row shows its effect: the same exit and, with a state,
// those very bytes; one successor on, the exit that the successor was told of and,
// with a state, its number, or its bytes while the successor has not saved. To call
// another state done would acknowledge what is not there.
const releaseSQL = `-- worklease: release
WITH released AS (
  UPDATE {table} l SET
    exit = $5::smallint, exit_token = l.fencing_token, exited_at = clock_timestamp(),
    expires_at = least(l.expires_at, clock_timestamp()), updated_at = clock_timestamp(),
    clean_handoff = $5::smallint IN (2, 4),
    checkpoint = coalesce($6::bytea, l.checkpoint),
    checkpointed_at = CASE WHEN $6::bytea IS NULL THEN l.checkpointed_at ELSE clock_timestamp() END,
    crashes = CASE WHEN $6::bytea IS NULL THEN l.crashes ELSE 0 END,
    checkpoint_no = CASE WHEN $6::bytea IS NULL THEN l.checkpoint_no ELSE $7::bigint END,
    checkpoint_by = CASE WHEN $6::bytea IS NULL THEN l.checkpoint_by ELSE $8::text END
  WHERE {mine} AND l.exit_token IS DISTINCT FROM l.fencing_token
    AND ($6::bytea IS NULL OR l.checkpoint_no < $7::bigint)
  RETURNING {durable}, {notify9}
)
SELECT 'done', NULL::bigint FROM released
UNION ALL
SELECT CASE
    WHEN s.prior_token = $3::bigint AND s.prior_holder = $2::text AND ($4::text = '' OR s.prior_nonce = $4::text)
      AND s.prior_exit = $5::smallint AND s.fencing_token <> $3::bigint
      AND ($6::bytea IS NULL OR s.prior_checkpoint_no = $7::bigint AND s.prior_checkpoint_by = $8::text
        OR s.checkpoint_no = 0 AND s.checkpoint = $6::bytea) THEN 'done'
    WHEN {notMine} THEN 'fenced'
    WHEN s.exit_token = s.fencing_token AND s.exit = $5::smallint
      AND ($6::bytea IS NULL OR s.checkpoint = $6::bytea) THEN 'done'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    WHEN $6::bytea IS NOT NULL AND s.checkpoint_no >= $7::bigint THEN 'overtaken'
    ELSE 'again' END,
  s.checkpoint_no
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM released)`

// undoSQL gives back an acquisition that nobody will use. It is known by its nonce;
// its number ($3) may be 0, when the reply never came. The prior stays for the next
// owner, and so does the time of an earlier exit, for retired work.
const undoSQL = `-- worklease: undo
WITH undone AS (
  UPDATE {table} l SET exit = 5, exit_token = l.fencing_token,
    expires_at = least(l.expires_at, clock_timestamp()), updated_at = clock_timestamp()
  WHERE l.work_id = $1::text AND l.holder_id = $2::text AND l.nonce = $4::text AND $4::text <> ''
    AND ($3::bigint = 0 OR l.fencing_token = $3::bigint) AND l.exit_token IS DISTINCT FROM l.fencing_token
  RETURNING {durable}, {notify5}
)
SELECT 'done' FROM undone
UNION ALL
SELECT CASE
    WHEN s.work_id IS NULL OR s.holder_id <> $2::text OR s.nonce <> $4::text OR $4::text = ''
      OR ($3::bigint <> 0 AND s.fencing_token <> $3::bigint) THEN 'fenced'
    WHEN s.exit_token = s.fencing_token AND s.exit = 5 THEN 'done'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    ELSE 'again' END
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM undone)`

// forgetSQL blanks the row in place and frees the work. The token stays, so that
// the next is greater; deleting the row would let tokens run backwards. It is an
// undone row with an empty prior.
const forgetSQL = `-- worklease: forget
WITH forgotten AS (
  UPDATE {table} l SET exit = 5, exit_token = l.fencing_token, exited_at = NULL,
    expires_at = least(l.expires_at, clock_timestamp()), updated_at = clock_timestamp(), clean_handoff = false,
    checkpoint = NULL, checkpointed_at = NULL, checkpoint_no = 0, checkpoint_by = '', crashes = 0,
    prior_exit = 0, prior_holder = '', prior_token = 0, prior_nonce = '',
    prior_checkpoint_no = 0, prior_checkpoint_by = '', prior_crashes = 0
  WHERE {mine}
  RETURNING {durable}, {notify5}
)
SELECT 'done' FROM forgotten
UNION ALL
SELECT CASE WHEN {notMine} THEN 'fenced' ELSE 'again' END
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM forgotten)`

// readSQL reads under the fence: $5 whether the state is wanted.
const readSQL = `-- worklease: read
SELECT CASE WHEN {notMine} THEN 'fenced' ELSE 'done' END,
  s.checkpoint_no, s.checkpoint_by, CASE WHEN $5::boolean THEN s.checkpoint END,
  s.prior_exit, s.prior_holder, s.prior_token, s.prior_crashes, s.checkpointed_at
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text`

// fenceSQL proves the claim and holds off any successor until the transaction ends:
// the token is a key column, so that FOR KEY SHARE stops the acquisition that would
// change it and lets renewals, checkpoints and releases pass.
//
// With $5 it also bounds how long the transaction's client may fall silent: by the
// time left, and never longer than the session allows already. A lease that has
// lapsed, or is about to, has half its TTL: a step must not fail between its own
// statements.
const fenceSQL = `-- worklease: fence
WITH fenced AS MATERIALIZED (
  SELECT l.expires_at, l.ttl FROM {table} l
  WHERE {mine} AND l.exit_token IS DISTINCT FROM l.fencing_token
  FOR KEY SHARE OF l
)
SELECT 'done', {silence} FROM fenced
UNION ALL
SELECT CASE
    WHEN {notMine} THEN 'fenced'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    ELSE 'again' END,
  NULL
FROM (SELECT) one LEFT JOIN {table} s ON s.work_id = $1::text
WHERE NOT EXISTS (SELECT FROM fenced)`

const silence = `CASE WHEN $5::boolean THEN set_config('idle_in_transaction_session_timeout', ceil(1000 * extract(epoch FROM least(
    nullif(current_setting('idle_in_transaction_session_timeout')::interval, interval '0'),
    greatest(expires_at - clock_timestamp(), coalesce(ttl, interval '30 seconds') / 2),
    interval '24 days')))::bigint::text, true) END`

// outcomeSQL finds out whether a transaction whose commit went unanswered took
// place: $5 the number of its save, $6 the hold that drew it. The lock waits for that
// transaction to end: a plain read, or a weaker lock, would see the row as it was
// before. One successor on, what that one was told of its predecessor answers.
const outcomeSQL = `-- worklease: outcome
SELECT CASE
    WHEN {mine} THEN CASE
      WHEN l.checkpoint_no = $5::bigint AND l.checkpoint_by = $6::text THEN 'done'
      WHEN l.checkpoint_no > $5::bigint OR l.exit_token = l.fencing_token AND l.exit = 5 THEN 'unknown'
      ELSE 'undone' END
    WHEN l.prior_token = $3::bigint AND l.prior_holder = $2::text AND ($4::text = '' OR l.prior_nonce = $4::text) THEN CASE
      WHEN l.prior_checkpoint_no = $5::bigint AND l.prior_checkpoint_by = $6::text THEN 'done'
      WHEN l.prior_checkpoint_no > $5::bigint THEN 'unknown'
      ELSE 'fenced' END
    ELSE 'unknown' END
FROM {table} l WHERE l.work_id = $1::text
FOR NO KEY UPDATE OF l`

// renewManySQL renews many leases: $1 to $4 the claims, $5 the TTL where a row has
// none. Rows are locked in one order, so that two batches cannot deadlock, and rows
// that somebody else has locked are skipped. What is missing from the answer is
// unknown, not lost. A claim is known by its place in the arrays.
const renewManySQL = `-- worklease: renew many
WITH claims AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
    WITH ORDINALITY AS c(work_id, holder_id, fencing_token, nonce, place)
), locked AS MATERIALIZED (
  SELECT l.work_id, c.place FROM claims c JOIN {table} l ON l.work_id = c.work_id AND l.holder_id = c.holder_id
    AND l.fencing_token = c.fencing_token AND (c.nonce = '' OR l.nonce = c.nonce)
  WHERE l.exit_token IS DISTINCT FROM l.fencing_token AND l.expires_at > clock_timestamp()
  ORDER BY l.work_id FOR NO KEY UPDATE OF l SKIP LOCKED
)
UPDATE {table} l SET expires_at = clock_timestamp() + coalesce(l.ttl, $5::interval), updated_at = clock_timestamp()
FROM locked k WHERE l.work_id = k.work_id
RETURNING k.place, l.expires_at - clock_timestamp()`

// judgeManySQL says what became of the leases that a batch did not renew: $1 to $4
// the claims. It locks nothing and waits for nobody. A lease that it finds live is
// locked by somebody else.
const judgeManySQL = `-- worklease: judge many
SELECT c.place, CASE
    WHEN s.work_id IS NULL OR s.holder_id <> c.holder_id OR s.fencing_token <> c.fencing_token
      OR (c.nonce <> '' AND s.nonce <> c.nonce) THEN 'fenced'
    WHEN s.exit_token = s.fencing_token THEN 'surrendered'
    WHEN s.expires_at <= clock_timestamp() THEN 'expired'
    ELSE 'again' END
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
  WITH ORDINALITY AS c(work_id, holder_id, fencing_token, nonce, place)
LEFT JOIN {table} s ON s.work_id = c.work_id`

// lookSQL looks at many work IDs ($1) and marks those that are held, so that what
// frees them notifies for $2 from now. It waits for no lock: a row that a release, a
// renewal or an open transaction has locked stays unmarked, and says so. Nobody may
// sleep on a look that did not confirm the mark: a release in flight would free the
// row and notify nobody. It names the sequence, so that whoever waits hears of a
// missing one.
const lookSQL = `-- worklease: look
WITH ids AS (
  SELECT unnest($1::text[]) AS work_id
), mark AS (
  UPDATE {table} l SET awaited_until = clock_timestamp() + $2::interval
  FROM (SELECT k.work_id FROM ids JOIN {table} k USING (work_id)
    WHERE k.exit_token IS DISTINCT FROM k.fencing_token AND k.expires_at > clock_timestamp()
      AND (k.awaited_until IS NULL OR k.awaited_until < clock_timestamp() + $2::interval / 2)
    ORDER BY k.work_id FOR NO KEY UPDATE OF k SKIP LOCKED) s
  WHERE l.work_id = s.work_id AND l.exit_token IS DISTINCT FROM l.fencing_token AND l.expires_at > clock_timestamp()
  RETURNING l.work_id, l.fencing_token, l.awaited_until
)
SELECT i.work_id,
  l.work_id IS NULL OR l.exit_token IS NOT DISTINCT FROM l.fencing_token OR l.expires_at <= clock_timestamp(),
  l.fencing_token, l.expires_at - clock_timestamp(), coalesce(m.awaited_until, l.awaited_until) - clock_timestamp(), {sequence}::oid
FROM ids i LEFT JOIN {table} l USING (work_id)
LEFT JOIN mark m ON m.work_id = i.work_id AND m.fencing_token = l.fencing_token`

// noticeSQL sends the notices that did not go out with what freed the rows: $1 the
// channel, $2 the work IDs. Where nobody waits it sends none.
const noticeSQL = `-- worklease: notice
SELECT pg_notify($1::text, l.work_id) FROM {table} l
WHERE l.work_id = ANY ($2::text[]) AND l.awaited_until > clock_timestamp()`

// probeSQL sends a notification to ourselves: $1 the channel, $2 what to hear.
const probeSQL = `-- worklease: probe
SELECT pg_notify($1::text, $2::text)`

// heartbeatSQL asks a listening session for its subscription: $1 the channel.
const heartbeatSQL = `-- worklease: heartbeat
SELECT EXISTS (SELECT FROM pg_listening_channels() c WHERE c = $1::text)`

// rightsSQL asks the catalog what the role may do: $1 the schema's name. It needs no
// right itself. No row: no table; null: no sequence.
const rightsSQL = `-- worklease: rights
SELECT quote_ident(current_user), pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', has_schema_privilege(n.oid, 'USAGE'),
  has_table_privilege(t.oid, 'SELECT') AND has_table_privilege(t.oid, 'INSERT')
    AND has_table_privilege(t.oid, 'UPDATE') AND has_table_privilege(t.oid, 'DELETE'),
  (SELECT has_sequence_privilege(s.oid, 'USAGE') FROM pg_catalog.pg_class s
    WHERE s.relnamespace = n.oid AND s.relname = 'worklease_fencing_seq' AND s.relkind = 'S')
FROM pg_catalog.pg_namespace n JOIN pg_catalog.pg_class t ON t.relnamespace = n.oid
WHERE n.nspname = $1::text AND t.relname = 'worklease_leases'`

// statements are the texts for one schema.
type statements struct {
	acquire, checkpoint, renew, release, undo, forget, read string
	fence, outcome, renewMany, judgeMany, look, notice      string
}

func newStatements(schema string) statements {
	table := pgx.Identifier{schema, "worklease_leases"}.Sanitize()
	sequence := pgx.Identifier{schema, "worklease_fencing_seq"}.Sanitize()
	parts := strings.NewReplacer("{mine}", mine, "{notMine}", notMine, "{durable}", durable, "{crashes}", crashes,
		"{silence}", silence, "{notify5}", notify("$5"), "{notify9}", notify("$9"))
	names := strings.NewReplacer(
		"{own}", own,
		"{traceless}", traceless,
		"{table}", table,
		"{sequence}", literal(sequence)+"::regclass",
		"{inline}", inlineLimit,
	)
	fill := func(sql string) string { return names.Replace(parts.Replace(sql)) }
	return statements{
		acquire:    fill(acquireSQL),
		checkpoint: fill(checkpointSQL),
		renew:      fill(renewSQL),
		release:    fill(releaseSQL),
		undo:       fill(undoSQL),
		forget:     fill(forgetSQL),
		read:       fill(readSQL),
		fence:      fill(fenceSQL),
		outcome:    fill(outcomeSQL),
		renewMany:  fill(renewManySQL),
		judgeMany:  fill(judgeManySQL),
		look:       fill(lookSQL),
		notice:     fill(noticeSQL),
	}
}

// literal quotes a string for SQL. The E form means the same whatever
// standard_conforming_strings says.
func literal(s string) string {
	return `E'` + strings.NewReplacer(`\`, `\\`, `'`, `''`).Replace(s) + `'`
}
