// Package imports holds the arrows of the module: what may compile what in.
package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/aetomala/worklease"

// pkg is what go list tells of a package.
type pkg struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// list returns the packages that match, which may be none yet.
func list(t *testing.T, patterns ...string) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps"}, patterns...)...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, said.Bytes())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// ours returns the module's packages by their paths below it; the root is "".
func ours(t *testing.T) map[string]pkg {
	t.Helper()
	all := map[string]pkg{}
	for _, p := range list(t, module+"/...") {
		all[within(p.ImportPath)] = p
	}
	if _, ok := all["pgxbackend"]; !ok {
		t.Fatalf("go list finds no pgxbackend among %d packages", len(all))
	}
	return all
}

func within(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, module), "/")
}

// driverless import no driver, and nothing else that is not Go's own or ours.
var driverless = []string{"", "memory", "conformance", "checkpoint", "internal/tenure", "worker", "leader", "pool"}

func TestOnlyTheStandardLibrary(t *testing.T) {
	t.Parallel()
	all := ours(t)
	standard := map[string]bool{"C": true}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	for _, name := range driverless {
		p := all[name]
		if len(p.Deps) == 0 {
			t.Errorf("there is no package %q", name)
		}
		for _, dep := range p.Deps {
			if !standard[dep] && !strings.HasPrefix(dep, module) {
				t.Errorf("%s compiles %s in", p.ImportPath, dep)
			}
		}
		if name != "conformance" && slices.Contains(p.Deps, "testing") {
			t.Errorf("%s compiles package testing in", p.ImportPath)
		}
	}
}

// What a user of pgxbackend compiles: pgx and what that needs, no tool and no test
// library.
func TestBackendCompilesOnlyTheDriver(t *testing.T) {
	t.Parallel()
	allowed := []string{
		module, "github.com/jackc/pgx/v5", "github.com/jackc/puddle/v2", "github.com/jackc/pgpassfile",
		"github.com/jackc/pgservicefile", "golang.org/x/text", "golang.org/x/sync", "golang.org/x/crypto",
	}
	all := ours(t)
	standard := map[string]bool{"C": true}
	for _, p := range list(t, "std") {
		standard[p.ImportPath] = true
	}
	for _, dep := range all["pgxbackend"].Deps {
		fits := func(prefix string) bool { return dep == prefix || strings.HasPrefix(dep, prefix+"/") }
		if !standard[dep] && !slices.ContainsFunc(allowed, fits) {
			t.Errorf("pgxbackend compiles %s in", dep)
		}
		if dep == "testing" || strings.HasPrefix(dep, module+"/migrations") || strings.HasPrefix(dep, module+"/internal/pg") || dep == module+"/internal/fault" {
			t.Errorf("pgxbackend compiles %s in", dep)
		}
	}
}

// The arrows point one way: layers → tenure → worklease ← backends.
func TestArrowsPointOneWay(t *testing.T) {
	t.Parallel()
	// What each may import of this module, besides the small packages below.
	arrows := map[string][]string{
		"":                {"internal/hold"},
		"memory":          {""},
		"conformance":     {""},
		"checkpoint":      {""},
		"pgxbackend":      {"", "internal/hold", "internal/schema"},
		"internal/tenure": {""},
		"worker":          {"", "internal/tenure"},
		"leader":          {"", "internal/tenure"},
		"pool":            {"", "internal/tenure"},
		"migrations":      {"", "internal/schema"},
	}
	small := []string{"internal/backoff", "internal/ctxerr", "internal/due", "internal/id", "internal/isnil"}
	all := ours(t)
	for name, allowed := range arrows {
		for _, path := range all[name].Imports {
			if path != module && !strings.HasPrefix(path, module+"/") {
				continue
			}
			if to := within(path); !slices.Contains(allowed, to) && !slices.Contains(small, to) {
				t.Errorf("%s/%s imports %q of this module", module, name, to)
			}
		}
	}
	for _, name := range append(small, "internal/hold", "internal/schema") {
		for _, path := range all[name].Imports {
			if strings.HasPrefix(path, module) {
				t.Errorf("%s imports %s, and should stand alone", name, path)
			}
		}
	}
	// Tools and test helpers are nobody's.
	for name, p := range all {
		if name == "internal/pgtest" || name == "internal/tenure/processtest" || strings.HasPrefix(name, "internal/cmd/") || strings.HasPrefix(name, "examples/") || strings.HasPrefix(name, "bench") {
			continue
		}
		for _, helper := range []string{"internal/pgtest", "internal/pgserver", "internal/fault", "internal/tenure/processtest", "internal/tenure/tenuretest"} {
			if name != helper && slices.Contains(p.Imports, module+"/"+helper) {
				t.Errorf("%s imports %s, which is for tests", p.ImportPath, helper)
			}
		}
	}
}
