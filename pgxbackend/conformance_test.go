package pgxbackend_test

import (
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/conformance"
	"github.com/aetomala/worklease/internal/pgtest"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	b := newBackend(t, pool)
	conformance.Run(t, func(*testing.T) worklease.Backend { return b },
		conformance.EndLease(func(t *testing.T, _ worklease.Backend, workID string) { endLease(t, pool, workID) }))
}

// endLease sets the expiry of a lease back, so that it has lapsed.
func endLease(t testing.TB, pool *pgxpool.Pool, workID string) {
	t.Helper()
	tag, err := pool.Exec(t.Context(), `UPDATE worklease_leases SET expires_at = clock_timestamp() - interval '1 second'
		WHERE work_id = $1`, workID)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("end the lease of %q: %v, %v", workID, tag, err)
	}
}
