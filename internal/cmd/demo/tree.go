package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"unicode/utf8"
)

// A source is one folder: the files in it, without those of folders below.
type source struct {
	ID    string   // the work ID: the tree's name and the path in it
	Dir   string   // where it lies
	Files []string // sorted
	Lines int
}

// A line ends with its newline, unless the file ends without one: the lines of a file, put
// together, are the file, whatever bytes it is made of.
type line struct {
	file   string
	number int // from 1
	text   []byte
}

// readTrees finds the folders that have lines, the largest first.
func readTrees(dirs []string) ([]source, error) {
	var sources []source
	trees := map[string]string{}
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(dir)
		if other, taken := trees[name]; taken {
			return nil, fmt.Errorf("two trees are called %s: %s and %s", name, other, dir)
		}
		trees[name] = dir
		found, err := readTree(name, dir)
		if err != nil {
			return nil, err
		}
		sources = append(sources, found...)
	}
	slices.SortFunc(sources, func(a, b source) int {
		return cmp.Or(b.Lines-a.Lines, cmp.Compare(a.ID, b.ID))
	})
	return sources, nil
}

func readTree(name, root string) ([]source, error) {
	folders := map[string]*source{}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if !utf8.ValidString(file) {
			return fmt.Errorf("%q: a name that is not UTF-8 is no work ID", file)
		}
		dir := filepath.Dir(file)
		s := folders[dir]
		if s == nil {
			rel, err := filepath.Rel(root, dir)
			if err != nil {
				return err
			}
			s = &source{ID: path.Join(name, filepath.ToSlash(rel)), Dir: dir}
			folders[dir] = s
		}
		s.Files = append(s.Files, filepath.Base(file)) // WalkDir goes by name
		return nil
	})
	if err != nil {
		return nil, err
	}
	var sources []source
	for _, s := range folders {
		lines, err := s.read()
		if err != nil {
			return nil, err
		}
		if s.Lines = len(lines); s.Lines > 0 {
			sources = append(sources, *s)
		}
	}
	return sources, nil
}

// read returns all lines of the folder in order.
func (s *source) read() ([]line, error) {
	var lines []line
	for _, file := range s.Files {
		content, err := os.ReadFile(filepath.Join(s.Dir, file))
		if err != nil {
			return nil, err
		}
		number := 0
		for text := range bytes.Lines(content) {
			number++
			lines = append(lines, line{file, number, text})
		}
	}
	return lines, nil
}

func sumLines(sources []source) int {
	sum := 0
	for _, s := range sources {
		sum += s.Lines
	}
	return sum
}
