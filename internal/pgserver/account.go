package pgserver

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
)

// account is whom the server runs as when that is not us: PostgreSQL refuses root.
type account struct {
	uid, gid int
}

// serverAccount returns nil when the server can run as the current user.
func serverAccount() *account {
	if os.Geteuid() != 0 {
		return nil
	}
	if u, err := user.Lookup("postgres"); err == nil {
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if errUID == nil && errGID == nil {
			return &account{uid, gid}
		}
	}
	return &account{65534, 65534} // nobody
}

// owns makes a folder and all in it the account's.
func (a *account) owns(dir string) error {
	if a == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}

// reaches reports whether the account can run a program of dir. Starting one is the honest
// question: modes, access lists and mount options all have a say.
func (a *account) reaches(binDir string) bool {
	cmd := exec.Command(filepath.Join(binDir, "postgres"), "--version")
	cmd.Dir = "/"
	cmd.SysProcAttr = childAttr(a)
	return cmd.Run() == nil
}

// enters reports whether the account may pass through every folder on the way to dir, and dir.
func (a *account) enters(dir string) bool {
	if a == nil {
		return true
	}
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

// copyBinaries copies the installation that binDir belongs to into a folder the account can use.
// Only a self-contained one can move, as the npm packages are: it lies in bin, lib and share.
func (a *account) copyBinaries(binDir, to string) (string, error) {
	from := filepath.Dir(binDir)
	for _, part := range []string{"bin", "lib", "share"} {
		if _, err := os.Stat(filepath.Join(from, part)); err != nil {
			return "", fmt.Errorf("user %d, as whom PostgreSQL has to run, cannot run %s/postgres, and it cannot be copied: %w", a.uid, binDir, err)
		}
		if err := os.CopyFS(filepath.Join(to, part), os.DirFS(filepath.Join(from, part))); err != nil {
			return "", err
		}
	}
	return filepath.Join(to, "bin"), a.owns(to)
}
