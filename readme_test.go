package worklease_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

const module = "github.com/aetomala/worklease"

// The README's programs are built as a user's module of its own, which compiles
// neither the migration tool nor any test library. What is no whole program is built
// beside them: a fragment that does not compile fails.
func TestReadmePrograms(t *testing.T) {
	t.Parallel()
	programs, fragments := readmeCode(t)
	if len(programs) == 0 || len(fragments) == 0 {
		t.Fatalf("the README has %d programs and %d fragments", len(programs), len(fragments))
	}
	dir := newModule(t)
	for i, program := range programs {
		if lines := strings.Count(program, "\n"); lines > 60 {
			t.Errorf("the program has %d lines: too long for a first screen", lines)
		}
		writeFile(t, filepath.Join(dir, "programs", fmt.Sprint(i), "main.go"), program)
	}
	run(t, dir, "go", "vet", "./programs/...")
	for _, dep := range strings.Fields(run(t, dir, "go", "list", "-deps", "./programs/...")) {
		for _, unwanted := range []string{"/tern", "sprig", "/pgtestdb", "/go-cmp", "/goleak", "/rapid", "/porcupine"} {
			if strings.Contains(dep, unwanted) {
				t.Errorf("a user's program compiles %s", dep)
			}
		}
	}
	for i, fragment := range fragments {
		writeFile(t, filepath.Join(dir, "fragments", fmt.Sprint(i), "fragment.go"), wrapFragment(t, fragment))
	}
	run(t, dir, "go", "build", "./fragments/...")
}

// readmeCode returns the code blocks of the README that are whole programs, and those
// that are not.
func readmeCode(t *testing.T) (programs, fragments []string) {
	t.Helper()
	for _, block := range strings.Split(readme(t), "```go\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		if strings.HasPrefix(code, "package main") {
			programs = append(programs, code)
		} else {
			fragments = append(fragments, code)
		}
	}
	return programs, fragments
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	must(t, err)
	return string(text)
}

// What a fragment may name without declaring it: the README's cast, and packages.
var (
	fragmentVars = map[string]string{
		"ctx":         "context.Context",
		"db":          "*pgxpool.Pool",
		"backend":     "*pgxbackend.Backend",
		"lease":       "worklease.Lease",
		"token":       "worklease.Token",
		"state":       "[]byte",
		"err":         "error",
		"databaseURL": "string",
		"work":        "func(ctx context.Context, token worklease.Token) (state []byte, err error)",
		"t":           "*testing.T",
	}
	fragmentImports = []string{
		"context", "errors", "expvar", "fmt", "log", "log/slog", "os", "strconv", "testing", "time",
		"github.com/jackc/pgx/v5", "github.com/jackc/pgx/v5/pgxpool", "github.com/peterldowns/pgtestdb",
		module, module + "/checkpoint", module + "/conformance", module + "/leader", module + "/memory",
		module + "/migrations", module + "/migrations/ternmigrator", module + "/pgxbackend", module + "/pool", module + "/worker",
	}
)

// wrapFragment makes a file of a fragment, which is either declarations or the
// statements of a function that returns an error.
func wrapFragment(t *testing.T, fragment string) string {
	t.Helper()
	body := fragment
	if _, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+body, 0); err != nil {
		body = "func _() error {\n" + fragment + unused(t, fragment) + "return nil\n}\n"
	}
	// What it does not declare is declared for it; and then what that needs is imported.
	for _, name := range unresolved(t, body) {
		if kind, ok := fragmentVars[name]; ok {
			body += fmt.Sprintf("\nvar %s %s\n", name, kind)
		}
	}
	head := "package p\n"
	for _, name := range unresolved(t, body) {
		for _, path := range fragmentImports {
			if packageName(path) == name {
				head += fmt.Sprintf("import %q\n", path)
			}
		}
	}
	return head + body
}

func packageName(path string) string {
	return regexp.MustCompile(`([a-z]+)(/v\d+)?$`).FindStringSubmatch(path)[1]
}

func unresolved(t *testing.T, body string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\n"+body, 0)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, body)
	}
	var names []string
	for _, id := range file.Unresolved {
		names = append(names, id.Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unused uses what the statements of a fragment declare, for a reader's sake alone.
func unused(t *testing.T, fragment string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+fragment+"}\n", 0)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, fragment)
	}
	var uses string
	for _, statement := range file.Decls[0].(*ast.FuncDecl).Body.List {
		if define, ok := statement.(*ast.AssignStmt); ok && define.Tok == token.DEFINE {
			for _, left := range define.Lhs {
				uses += "_ = " + left.(*ast.Ident).Name + "\n"
			}
		}
	}
	return strings.ReplaceAll(uses, "_ = _\n", "")
}

// Every error that a user can meet is in the table.
func TestReadmeErrors(t *testing.T) {
	t.Parallel()
	_, section, _ := strings.Cut(readme(t), "\n## Errors\n")
	section, _, _ = strings.Cut(section, "\n## ")
	errorNames := exportedErrors(t)
	if len(errorNames) < 20 {
		t.Fatalf("the module has %d errors: %v", len(errorNames), errorNames)
	}
	for _, name := range errorNames {
		if !regexp.MustCompile("(?m)^\\|.*`[*]?" + regexp.QuoteMeta(name) + "`").MatchString(section) {
			t.Errorf("the table of errors has no %s", name)
		}
	}
}

// exportedErrors are the error variables and types of the public packages, those of the
// root without its name.
func exportedErrors(t *testing.T) (names []string) {
	t.Helper()
	eachGoFile(t, func(path string, file *ast.File) {
		if strings.HasSuffix(path, "_test.go") || !isPublic(path) {
			return
		}
		prefix := file.Name.Name + "."
		if filepath.Dir(path) == "." {
			prefix = ""
		}
		for name, object := range file.Scope.Objects {
			isVar := object.Kind == ast.Var && (strings.HasPrefix(name, "Err") || name == "Retire")
			isType := object.Kind == ast.Typ && strings.HasSuffix(name, "Error") && ast.IsExported(name)
			if isVar || isType {
				names = append(names, prefix+name)
			}
		}
	})
	slices.Sort(names)
	return names
}

func isPublic(path string) bool {
	first, _, _ := strings.Cut(filepath.ToSlash(path), "/")
	return first != "internal" && first != "examples" && first != "bench"
}

// eachGoFile parses the tree's files.
func eachGoFile(t *testing.T, visit func(path string, file *ast.File)) {
	t.Helper()
	must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); path != "." && (name == "node_modules" || name[0] == '.') {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err == nil {
			visit(path, file)
		}
		return err
	}))
}

// Every test and benchmark that the README and UPGRADING lean on is in the tree.
func TestReadmeTests(t *testing.T) {
	t.Parallel()
	upgrading, err := os.ReadFile("UPGRADING.md")
	must(t, err)
	exist := map[string]bool{}
	eachGoFile(t, func(path string, file *ast.File) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasSuffix(path, "_test.go") {
				exist[f.Name.Name] = true
			}
		}
	})
	for _, name := range regexp.MustCompile(`\b(Test|Benchmark|Fuzz|Example)[A-Z]\w+`).FindAllString(readme(t)+string(upgrading), -1) {
		if !exist[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// Every make target that the README names is in the Makefile.
func TestReadmeTargets(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("Makefile")
	must(t, err)
	targets := regexp.MustCompile("(?m)(?:^|`|=1 )make ([a-z-]+)").FindAllStringSubmatch(readme(t), -1)
	if len(targets) == 0 {
		t.Fatal("the README names no target")
	}
	for _, target := range targets {
		if !regexp.MustCompile(`(?m)^` + target[1] + `:`).Match(makefile) {
			t.Errorf("there is no make %s", target[1])
		}
	}
}

// Every link within the repository leads to a file, and to a heading in it.
func TestLinks(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"README.md", "UPGRADING.md", "CHANGELOG.md", "examples/README.md"} {
		text, err := os.ReadFile(page)
		must(t, err)
		prose := regexp.MustCompile("(?s)```.*?```|`[^`\n]*`").ReplaceAllString(string(text), "`code`")
		for _, link := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(prose, -1) {
			if strings.Contains(link[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(link[1], "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			linked, err := os.ReadFile(target)
			if info, statErr := os.Stat(target); statErr == nil && info.IsDir() && anchor == "" {
				continue
			}
			if err != nil || anchor != "" && !slices.Contains(anchors(string(linked)), anchor) {
				t.Errorf("%s links to %s, which is not there", page, link[1])
			}
		}
	}
}

// anchors are the headings of a page, as links name them.
func anchors(text string) (names []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		names = append(names, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1]))
	}
	return names
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
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
	writeFile(t, filepath.Join(dir, "go.mod"), text)
	writeFile(t, filepath.Join(dir, "go.sum"), string(sum))
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
