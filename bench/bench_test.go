package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
)

func TestMain(m *testing.M) {
	fault.RunRole(roles)
	pgtest.Main(m)
}

// The rows can be measured. What they count is promised by tests beside the code; what they
// time is nobody's promise on a machine that does other things too.
func TestRowsAreMeasured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.md")
	var out, progress bytes.Buffer
	if code := command(t.Context(), []string{"-short", "-rows", "p3,P9,P12", "-o", file}, &out, &progress); code != 0 {
		t.Fatalf("exit code %d\n%s", code, progress.String())
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{"P3", "P9", "P12"} {
		if !strings.Contains(out.String(), "\n"+row+" ") {
			t.Errorf("no %s in\n%s", row, out.String())
		}
		if !strings.Contains(string(written), "\n| "+row+" |") {
			t.Errorf("no %s in\n%s", row, written)
		}
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "report-aims.svg")); err != nil {
		t.Error(err)
	}
}

func TestUnknownRow(t *testing.T) {
	var out, progress bytes.Buffer
	if code := command(t.Context(), []string{"-rows", "P3,P99"}, &out, &progress); code == 0 || !strings.Contains(progress.String(), "P99") {
		t.Errorf("exit code %d, %q", code, progress.String())
	}
}
