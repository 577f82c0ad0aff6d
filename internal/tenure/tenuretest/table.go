package tenuretest

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aetomala/worklease"
)

// Nothing is the row's column where nothing was acquired.
const Nothing = "as it was"

// Table is the table of endings in a package comment: by its first column, the others.
type Table map[string][]string

// ReadTable reads the table of the package comment in file.
func ReadTable(t *testing.T, file string) Table {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, text2, found := strings.Cut(string(text), "//\tthe function  ")
	if !found {
		t.Fatalf("%s has no table", file)
	}
	body, _, _ := strings.Cut(text2, "//\n")
	table := Table{}
	for _, line := range strings.Split(strings.TrimSpace(body), "\n")[1:] {
		columns := regexp.MustCompile(` {2,}`).Split(strings.TrimPrefix(line, "//\t"), -1)
		table[columns[0]] = columns[1:]
	}
	return table
}

// Check compares the table with endings. line is the first column of an ending, and
// compare what follows the row's column. Lines that no ending is of are among others.
func (table Table) Check(t *testing.T, endings []Ending, others []string, line func(Ending) string, compare func(t *testing.T, e Ending, columns []string)) {
	t.Helper()
	used := map[string]bool{}
	for _, e := range endings {
		name := line(e)
		columns := table[name]
		if len(columns) < 2 {
			t.Errorf("%s: the table has no line %q", e.Name, name)
			continue
		}
		used[name] = true
		if columns[0] != e.row() && columns[0] != Nothing {
			t.Errorf("%s: the row says %s, the table %s", e.Name, e.row(), columns[0])
		}
		compare(t, e, columns[1:])
	}
	for name := range table {
		if used[name] == slices.Contains(others, name) {
			t.Errorf("the table has %q, used by an ending: %v", name, used[name])
		}
	}
}

func (e Ending) row() string {
	if e.Exit == worklease.ExitNone || e.Exit == worklease.ExitExpired {
		return "nothing"
	}
	return e.Exit.String()
}

// CompareError compares a column that tells of an error with what the ending's Is.
func CompareError(t *testing.T, e Ending, column string) {
	t.Helper()
	returns := e.Panics == nil && !e.Exits
	if returns == strings.HasPrefix(column, "not:") {
		t.Errorf("%s: returns: %v, the table says %s", e.Name, returns, column)
	}
	if returns && (column == "nil") != (e.Errs == nil) {
		t.Errorf("%s: errors are %v, the table says %s", e.Name, e.Errs, column)
	}
	for name, err := range map[string]error{
		"worklease.ErrFenced": worklease.ErrFenced, "worklease.ErrStalled": worklease.ErrStalled,
		"worklease.ErrWindDown": worklease.ErrWindDown, "worklease.ErrInvalid": worklease.ErrInvalid,
	} {
		if strings.Contains(column, name) && !slices.ContainsFunc(e.Errs, func(is error) bool { return errors.Is(is, err) }) {
			t.Errorf("%s: errors are %v, the table says %s", e.Name, e.Errs, column)
		}
	}
}

// Told are the words that a layer told, without their times.
func Told(told string) string {
	return strings.TrimSpace(regexp.MustCompile(`(^|, )\S+s `).ReplaceAllString(told, "$1"))
}
