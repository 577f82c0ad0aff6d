package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/aetomala/worklease/internal/pgserver"
)

// durable are the settings of a server that means its commits, as production does: what
// saves a commit, and what costs one, shows only there.
var durable = map[string]string{"fsync": "on", "full_page_writes": "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}

// server is a disposable PostgreSQL whose log of commits lies on a disk, whatever holds its
// data.
type server struct {
	*pgserver.Server
	wal string
}

func startServer(ctx context.Context) (*server, error) {
	pg, err := pgserver.Start(ctx, pgserver.Options{Settings: durable})
	if err != nil {
		return nil, err
	}
	s := &server{Server: pg}
	pg.Shutdown()
	err = s.moveWAL(ctx)
	if err == nil {
		err = pg.Restart(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// moveWAL has the log lie in a temporary folder, which the server's user may be another than
// ours to own.
func (s *server) moveWAL(ctx context.Context) error {
	from := filepath.Join(s.DataDir(), "pg_wal")
	var err error
	// Not os.TempDir: that may be memory too.
	if s.wal, err = os.MkdirTemp("/var/tmp", "wlbench"); err != nil {
		if s.wal, err = os.MkdirTemp("", "wlbench"); err != nil {
			return err
		}
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from+"/.", s.wal).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	if err := os.RemoveAll(from); err != nil {
		return err
	}
	return os.Symlink(s.wal, from)
}

func (s *server) stop() error {
	err := s.Stop()
	if s.wal != "" {
		if e := os.RemoveAll(s.wal); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
