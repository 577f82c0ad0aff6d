-- The lease table, its fencing sequence, and the adoption of a v0.5 table.
--
-- Every statement holds on an empty schema, on a v0.5 table with live rows, and
-- on a table that already is at this version: installing twice changes nothing.

CREATE SEQUENCE IF NOT EXISTS {{ .schema | default "public" }}.worklease_fencing_seq;

-- The columns that v0.5 has too, under the names and types it knows.
CREATE TABLE IF NOT EXISTS {{ .schema | default "public" }}.worklease_leases (
    work_id       text        COLLATE "C" PRIMARY KEY,
    holder_id     text        NOT NULL,
    fencing_token bigint      NOT NULL,
    expires_at    timestamptz NOT NULL,
    checkpoint    bytea,
    clean_handoff boolean     NOT NULL DEFAULT false,
    acquired_at   timestamptz NOT NULL DEFAULT now(),
    updated_at    timestamptz NOT NULL DEFAULT now()
);

-- One ALTER TABLE: one lock, so that v0.5 processes wait once. The dollar quotes
-- keep the literal whole whatever the schema is called.
ALTER TABLE {{ .schema | default "public" }}.worklease_leases
    ALTER COLUMN fencing_token SET DEFAULT nextval($name${{ .schema | default "public" }}.worklease_fencing_seq$name$::regclass),
    -- How long a renewal or checkpoint extends the lease; null in rows that v0.5 wrote.
    ADD COLUMN IF NOT EXISTS ttl interval,
    -- Names one acquisition; a lost reply is recognised by it.
    ADD COLUMN IF NOT EXISTS nonce text NOT NULL DEFAULT '',
    -- How the owner left: 2 released, 3 abandoned, 4 retired, 5 undone. It counts only
    -- while exit_token = fencing_token: v0.5 takes a row over and leaves it standing.
    ADD COLUMN IF NOT EXISTS exit smallint,
    ADD COLUMN IF NOT EXISTS exit_token bigint,
    ADD COLUMN IF NOT EXISTS exited_at timestamptz,
    -- Orders the checkpoints of one hold; checkpoint_by tells two holds of one token apart.
    ADD COLUMN IF NOT EXISTS checkpoint_no bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS checkpoint_by text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS checkpointed_at timestamptz,
    -- Owners in a row that crashed since the checkpoint last changed.
    ADD COLUMN IF NOT EXISTS crashes integer NOT NULL DEFAULT 0,
    -- Until when somebody may be waiting for a notification; only then is one sent.
    ADD COLUMN IF NOT EXISTS awaited_until timestamptz,
    -- What the current owner was told of the one before it: 0 nobody, 1 expired, else as exit.
    ADD COLUMN IF NOT EXISTS prior_exit smallint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS prior_holder text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS prior_token bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS prior_nonce text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS prior_checkpoint_no bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS prior_checkpoint_by text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS prior_crashes integer NOT NULL DEFAULT 0,
    -- Room on each page for the next version of a row: heartbeats stay HOT.
    SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);

-- Lock order must not depend on the server's locale. Altered only where it differs:
-- a view over work_id refuses the ALTER, also one that would change nothing.
DO $adopt$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_attribute a
        JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation
        WHERE a.attrelid = $name${{ .schema | default "public" }}.worklease_leases$name$::regclass
        AND a.attname = 'work_id' AND c.collname <> 'C'
    ) THEN
        ALTER TABLE {{ .schema | default "public" }}.worklease_leases ALTER COLUMN work_id TYPE text COLLATE "C";
    END IF;
END
$adopt$;

-- v0.5's index makes every heartbeat write to it.
DROP INDEX IF EXISTS {{ .schema | default "public" }}.idx_worklease_leases_updated_at;

-- Rows may be ahead of the sequence (v0.4 counted in the row). Raised, never lowered;
-- equal counts too, for a sequence that was never used gives its last_value out again.
SELECT setval($name${{ .schema | default "public" }}.worklease_fencing_seq$name$::regclass, max(fencing_token))
FROM {{ .schema | default "public" }}.worklease_leases
HAVING max(fencing_token) >= (SELECT last_value FROM {{ .schema | default "public" }}.worklease_fencing_seq);

-- Makes the token a key column: a fence (FOR KEY SHARE) stops a takeover and lets heartbeats pass.
-- It comes last: where the comment below is lost, its presence says that all of the above was done.
CREATE UNIQUE INDEX IF NOT EXISTS worklease_leases_work_id_fencing_token_idx
    ON {{ .schema | default "public" }}.worklease_leases (work_id, fencing_token);

COMMENT ON TABLE {{ .schema | default "public" }}.worklease_leases IS 'worklease schema version 1';

---- create above / drop below ----

DROP TABLE {{ .schema | default "public" }}.worklease_leases;
DROP SEQUENCE {{ .schema | default "public" }}.worklease_fencing_seq;
