package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// ErrNoPostgres says that this machine has no PostgreSQL to start, and what can be done about it.
var ErrNoPostgres = errors.New(`no PostgreSQL found; one of these helps:
  DATABASE_URL=postgres://…   use a server that is running already (the user must be a superuser)
  PGBIN=/path/to/bin          use the initdb and postgres in that folder
  make deps                   install PostgreSQL on this machine`)

// FindBinDir returns the folder with the initdb and postgres that Start uses. A PGBIN that is set
// is the only place looked at: whoever sets it wants that version or none. Without it come, in this
// order, the folder pg_config names, the one of the postgres on PATH, the usual places of Debian,
// Red Hat and Homebrew, and the npm packages of this repository, in each the newest version first.
// The error Is ErrNoPostgres.
func FindBinDir(ctx context.Context) (string, error) {
	if dir := os.Getenv("PGBIN"); dir != "" {
		if !isBinDir(dir) {
			return "", fmt.Errorf("PGBIN=%s has no initdb and postgres: %w", dir, ErrNoPostgres)
		}
		return filepath.Abs(dir)
	}
	for _, candidates := range []func(context.Context) []string{
		fromPgConfig, fromPath, fromUsualPlaces, fromNodeModules,
	} {
		for _, dir := range candidates(ctx) {
			if isBinDir(dir) {
				return dir, nil
			}
		}
	}
	return "", ErrNoPostgres
}

// isBinDir looks for the two programs themselves: with Debian's libpq-dev alone, pg_config names a
// folder that has neither.
func isBinDir(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		// LookPath of a name with a slash checks that it is a file and executable.
		if _, err := exec.LookPath(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

func fromPgConfig(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output()
	if err != nil {
		return nil
	}
	return []string{strings.TrimSpace(string(out))}
}

func fromPath(context.Context) []string {
	postgres, err := exec.LookPath("postgres")
	if err != nil {
		return nil
	}
	// The server finds its libraries and share files relative to the real binary.
	if real, err := filepath.EvalSymlinks(postgres); err == nil {
		postgres = real
	}
	return []string{filepath.Dir(postgres)}
}

func fromUsualPlaces(context.Context) []string {
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin",
		"/usr/pgsql-*/bin",
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin",
	} {
		dirs = append(dirs, newestFirst(pattern)...)
	}
	return dirs
}

// fromNodeModules looks for what `make deps` installs where there is no package manager to ask.
func fromNodeModules(context.Context) []string {
	var dirs []string
	versions, _ := Packaged() // None is no error here.
	for _, v := range versions {
		dirs = append(dirs, v.BinDir)
	}
	return dirs
}

// Version is a PostgreSQL from an npm package.
type Version struct {
	Major  int
	BinDir string
}

// Packaged returns the PostgreSQL versions in node_modules beside this module's go.mod, newest
// first. It returns an error when there is none.
func Packaged() ([]Version, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for !exists(filepath.Join(dir, "go.mod")) {
		parent := filepath.Dir(dir)
		if parent == dir {
			return nil, errors.New("no go.mod here or above")
		}
		dir = parent
	}
	pattern := filepath.Join(dir, "node_modules", "pg*-"+npmPlatform(), "native", "bin")
	var versions []Version
	for _, bin := range newestFirst(pattern) {
		versions = append(versions, Version{majorOf(bin), bin})
	}
	if versions == nil {
		return nil, fmt.Errorf("no PostgreSQL in %s", filepath.Join(dir, "node_modules"))
	}
	return versions, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// npmPlatform is this machine in the words of npm, as the aliases in package.json use them.
func npmPlatform() string {
	arch := runtime.GOARCH
	if arch == "amd64" {
		arch = "x64"
	}
	return runtime.GOOS + "-" + arch
}

// newestFirst orders by number, for 9 is older than 10.
func newestFirst(pattern string) []string {
	dirs, _ := filepath.Glob(pattern) // The only error is a malformed pattern.
	slices.SortStableFunc(dirs, func(a, b string) int { return majorOf(b) - majorOf(a) })
	return dirs
}

var versionInPath = regexp.MustCompile(`(?:postgresql[/@]|pgsql-|/pg)(\d+)`)

// majorOf reads the version from a path. One without a number, as Homebrew has one, counts as the
// newest.
func majorOf(dir string) int {
	all := versionInPath.FindAllStringSubmatch(dir, -1)
	if all == nil {
		return 1 << 30
	}
	n, _ := strconv.Atoi(all[len(all)-1][1])
	return n
}
