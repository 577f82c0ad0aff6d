package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	wal     string
	janitor *exec.Cmd
	pipe    io.Closer // whose other side the janitor waits at
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
	if err := s.hireJanitor(); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "-a", from+"/.", s.wal).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w\n%s", err, out)
	}
	if err := os.RemoveAll(from); err != nil {
		return err
	}
	return os.Symlink(s.wal, from)
}

// hireJanitor starts a shell that removes the folder when this process is gone, whatever its
// end is.
func (s *server) hireJanitor() error {
	s.janitor = exec.Command("/bin/sh", "-c", `cat >/dev/null; rm -rf "$1"`, "wlbench-janitor", s.wal)
	s.janitor.Dir = "/"
	s.janitor.SysProcAttr = apart()
	pipe, err := s.janitor.StdinPipe()
	if err != nil {
		return err
	}
	s.pipe = pipe
	return s.janitor.Start()
}

func (s *server) stop() error {
	err := s.Stop()
	if s.pipe == nil {
		return err
	}
	return errors.Join(err, s.pipe.Close(), s.janitor.Wait())
}
