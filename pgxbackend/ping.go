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
// the schema is there and new enough, and the role has the rights that the
// statements need. The error says which command mends what is missing. A schema
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
		return fmt.Errorf("schema %q is at version %d, this library needs %d: run migrations.Up, or\n"+
			"  tern migrate --migrations migrations --version-table '%s'",
			b.schema, version, schema.Latest, b.quoted("worklease_schema_version"))
	}
	var role string
	var standby, usesSchema, usesTable bool
	var usesSequence *bool
	err = conn.QueryRow(ctx, rightsSQL, b.schema).Scan(&role, &standby, &usesSchema, &usesTable, &usesSequence)
	if err != nil {
		return classify(err)
	}
	return b.missing(role, standby, usesSchema, usesTable, usesSequence)
}

func (b *Backend) missing(role string, standby, usesSchema, usesTable bool, usesSequence *bool) error {
	if usesSequence == nil {
		sequence := b.quoted("worklease_fencing_seq")
		return fmt.Errorf("sequence %s does not exist, as the owner run\n"+
			"  CREATE SEQUENCE %[1]s;\n"+
			"  SELECT setval(%s, max(fencing_token)) FROM %s",
			sequence, literal(sequence), b.quoted("worklease_leases"))
	}
	if standby {
		return errors.New("the server is a standby: connect to the primary, e.g. with target_session_attrs=read-write")
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
