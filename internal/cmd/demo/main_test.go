package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/aetomala/worklease/internal/fault"
	"github.com/aetomala/worklease/internal/pgtest"
)

func TestMain(m *testing.M) {
	fault.RunRole(roles)
	pgtest.Main(m)
}

// write writes the files of a tree below a new folder and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir() + "/tree"
	for name, content := range files {
		if err := os.MkdirAll(filepath.Dir(root+"/"+name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(root+"/"+name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
