package schema_test

import (
	"testing"

	"github.com/jackc/tern/v2/migrate"

	"github.com/aetomala/worklease/internal/schema"
	"github.com/aetomala/worklease/migrations"
)

func TestLatestIsTheNumberOfMigrations(t *testing.T) {
	t.Parallel()
	files, err := migrate.FindMigrations(migrations.FS)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != schema.Latest {
		t.Errorf("schema.Latest is %d, and there are %d migrations: %q", schema.Latest, len(files), files)
	}
}
