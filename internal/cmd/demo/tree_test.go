package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReadTrees(t *testing.T) {
	t.Parallel()
	root := write(t, map[string]string{
		"z.txt":       "1\n2\n3",
		"a.bin":       "\x00\xff\n\n",
		"empty/none":  "",
		"below/b/c.d": strings.Repeat("x", 1<<20) + "\r\n",
	})
	sources, err := readTrees([]string{root})
	if err != nil {
		t.Fatal(err)
	}
	want := []source{
		{ID: "tree", Dir: root, Files: []string{"a.bin", "z.txt"}, Lines: 5},
		{ID: "tree/below/b", Dir: root + "/below/b", Files: []string{"c.d"}, Lines: 1},
	}
	if diff := cmp.Diff(sources, want); diff != "" {
		t.Errorf("sources (-got +want):\n%s", diff)
	}
	lines, err := sources[0].read()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, l := range lines {
		got = append(got, l.file+" "+string(rune('0'+l.number))+" "+string(l.text))
	}
	if diff := cmp.Diff(got, []string{"a.bin 1 \x00\xff\n", "a.bin 2 \n", "z.txt 1 1\n", "z.txt 2 2\n", "z.txt 3 3"}); diff != "" {
		t.Errorf("lines (-got +want):\n%s", diff)
	}
	if _, err := readTrees([]string{root, root + "/below/../../tree"}); err == nil || !strings.Contains(err.Error(), "two trees") {
		t.Errorf("one tree twice: %v", err)
	}
	if _, err := readTrees([]string{root + "/nowhere"}); err == nil {
		t.Error("a tree that is not there was read")
	}
}
