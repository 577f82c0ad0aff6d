package pgxbackend

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/aetomala/worklease/internal/schema"
	"github.com/jackc/pgx/v5"
)

// Ping reports whether this Backend can work: the server answers and is no standby,
// sessions may write, the schema is there and new enough, and the role has the rights
// that the statements need. The error says which command mends what is missing. A schema
// that is newer than this library is accepted.
func (b *Backend) Ping(ctx context.Context) error {
	if err := b.ping(ctx); err != nil {
		return fmt.Errorf("worklease: ping: %w", err)
	}
	return nil
}

func (b *Backend) ping(ctx context.Context) error {
	ctx, cancel, conn, err := b.connect(ctx, b.pool.Acquire)
	if err != nil {
		return err
	}
	defer cancel()
	defer conn.Release()
	var version int
	if err := conn.QueryRow(ctx, schema.VersionSQL, b.schema).Scan(&version); err != nil {
		return classify(err)
	}
	if version < schema.Latest {
		return fmt.Errorf("schema %q is at version %d, this library needs %d: run migrations.Up%s",
			b.schema, version, schema.Latest, b.orTern())
	}
	var role string
	var standby, readOnly, usesSchema, usesTable bool
	var usesSequence *bool
	err = conn.QueryRow(ctx, rightsSQL, b.schema).Scan(&role, &standby, &readOnly, &usesSchema, &usesTable, &usesSequence)
	switch {
	case err != nil:
		return classify(err)
	case standby:
		return errors.New("the server is a standby: connect to the primary, e.g. with target_session_attrs=read-write")
	case readOnly:
		return fmt.Errorf("sessions are read-only: see default_transaction_read_only, e.g.\n"+
			"  ALTER ROLE %s SET default_transaction_read_only = off", role)
	}
	return b.missing(role, usesSchema, usesTable, usesSequence)
}

// orTern is the same for who prefers the tool. It has the schema's name from a
// configuration file alone.
func (b *Backend) orTern() string {
	if b.schema != "public" {
		return fmt.Sprintf(" with migrations.WithSchema(%q)", b.schema)
	}
	return ", or\n  tern migrate --migrations migrations --version-table public.worklease_schema_version"
}

func (b *Backend) missing(role string, usesSchema, usesTable bool, usesSequence *bool) error {
	if usesSequence == nil {
		sequence := b.quoted("worklease_fencing_seq")
		return fmt.Errorf("sequence %s does not exist, as the owner run\n"+
			"  CREATE SEQUENCE %[1]s;\n"+
			"  SELECT setval(%s, max(fencing_token)) FROM %s",
			sequence, literal(sequence), b.quoted("worklease_leases"))
	}
	var grants []string
	if !usesSchema {
		grants = append(grants, "GRANT USAGE ON SCHEMA "+pgx.Identifier{b.schema}.Sanitize()+" TO "+role)
	}
	if !usesTable {
		grants = append(grants, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+b.quoted("worklease_leases")+" TO "+role)
	}
	if !*usesSequence {
		grants = append(grants, "GRANT USAGE ON SEQUENCE "+b.quoted("worklease_fencing_seq")+" TO "+role)
	}
	if len(grants) == 0 {
		return nil
	}
	return fmt.Errorf("role %s lacks rights, as the owner run\n  %s", role, strings.Join(grants, ";\n  "))
}

func (b *Backend) quoted(name string) string { return pgx.Identifier{b.schema, name}.Sanitize() }
