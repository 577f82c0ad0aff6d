package worklease_test

import (
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/aetomala/worklease"

// A user's build of these packages has nothing in it but the standard library and
// this module, and arrows that point one way.
func TestImports(t *testing.T) {
	t.Parallel()
	leaves := []string{"internal/backoff", "internal/ctxerr", "internal/hold"}
	for pkg, allowed := range map[string][]string{
		".":           leaves,
		"memory":      append(leaves, "."),
		"conformance": append(leaves, "."),
		"checkpoint":  append(leaves, "."),
	} {
		for _, dep := range dependencies(t, pkg) {
			if within, ok := strings.CutPrefix(dep, module); ok {
				if name := path.Clean("./" + within); name != path.Clean(pkg) && !slices.Contains(allowed, name) {
					t.Errorf("%s depends on %s", pkg, name)
				}
				continue
			}
			t.Errorf("%s depends on %s, outside of the standard library", pkg, dep)
		}
	}
	for _, pkg := range []string{".", "memory", "checkpoint"} {
		if slices.Contains(allDependencies(t, pkg), "testing") {
			t.Errorf("%s depends on testing", pkg)
		}
	}
}

// dependencies are what a build of pkg compiles beside the standard library.
func dependencies(t *testing.T, pkg string) []string {
	t.Helper()
	return list(t, pkg, "{{if not .Standard}}{{.ImportPath}}{{end}}")
}

func allDependencies(t *testing.T, pkg string) []string {
	t.Helper()
	return list(t, pkg, "{{.ImportPath}}")
}

func list(t *testing.T, pkg, format string) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", format, "./"+pkg)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	return strings.Fields(string(out))
}
