//go:build unix

package main

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/aetomala/worklease/internal/pgserver"
)

func TestTheTable(t *testing.T) {
	t.Parallel()
	versions := []pgserver.Version{{Major: 12, BinDir: "/twelve"}, {Major: 18, BinDir: "/eighteen"}}
	command := []string{"sh", "-c", `echo "this is $PGBIN"; test "$PGBIN $WORKLEASE_EXEC_MODE" != "/eighteen exec"`}
	var out strings.Builder
	if err := run(t.Context(), command, versions, &out); err == nil {
		t.Error("a failed run went by unnoticed")
	}
	got := regexp.MustCompile(`[0-9.]+ s`).ReplaceAllString(out.String(), "N s")
	_, table, _ := strings.Cut(got, "\n\n")
	for _, want := range []string{
		`PostgreSQL +cache_statement +cache_describe +exec +simple_protocol`,
		`12 +ok N s +- +- +-`,
		`18 +ok N s +ok N s +FAIL N s +ok N s`,
	} {
		if !regexp.MustCompile(want).MatchString(table) {
			t.Errorf("no line like %q in\n%s", want, table)
		}
	}
	if strings.Count(got, "this is") != 1 {
		t.Errorf("not just the failed run's output is shown:\n%s", got)
	}
}

func TestAnInterruptEndsTheMatrix(t *testing.T) {
	t.Parallel()
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	var out strings.Builder
	err := run(ctx, []string{"true"}, []pgserver.Version{{Major: 18}}, &out)
	if !errors.Is(err, why) {
		t.Errorf("got %v, want %v", err, why)
	}
}
