package worklease_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The README's programs are built as a user's module of its own, which compiles
// neither the migration tool nor any test library.
func TestReadmePrograms(t *testing.T) {
	t.Parallel()
	programs := readmePrograms(t)
	if len(programs) == 0 {
		t.Fatal("the README has no program")
	}
	dir := newModule(t)
	for i, program := range programs {
		if lines := strings.Count(program, "\n"); lines > 60 {
			t.Errorf("the program has %d lines: too long for a first screen", lines)
		}
		path := filepath.Join(dir, "program"+string(rune('a'+i)), "main.go")
		must(t, os.Mkdir(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(program), 0o644))
	}
	run(t, dir, "go", "vet", "./...")
	for _, dep := range strings.Fields(run(t, dir, "go", "list", "-deps", "./...")) {
		for _, unwanted := range []string{"/tern", "sprig", "/pgtestdb", "/go-cmp", "/goleak", "/rapid", "/porcupine"} {
			if strings.Contains(dep, unwanted) {
				t.Errorf("a user's program compiles %s", dep)
			}
		}
	}
}

// readmePrograms returns the code blocks of the README that are whole programs.
func readmePrograms(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	must(t, err)
	var programs []string
	for _, block := range strings.Split(string(text), "```go\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		if strings.HasPrefix(code, "package main") {
			programs = append(programs, code)
		}
	}
	return programs
}

// newModule returns a module in a folder of its own that requires this one.
func newModule(t *testing.T) string {
	t.Helper()
	root, err := os.Getwd()
	must(t, err)
	mod, err := os.ReadFile("go.mod")
	must(t, err)
	sum, err := os.ReadFile("go.sum")
	must(t, err)
	dir := t.TempDir()
	text := strings.Replace(string(mod), "module "+module, "module example.com/user", 1) +
		"\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n"
	must(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte(text), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644))
	return dir
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
