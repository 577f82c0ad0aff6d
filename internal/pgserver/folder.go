package pgserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// prefix marks our folders. It is short because a socket path has 107 bytes.
const prefix = "wlpg"

// room is what a data folder needs in memory: a cluster takes 40 MB and every test database 7 MB
// more, while a container often has 64 MB there.
const room = 1 << 30

// A folder is a temporary folder that belongs to this process as long as it lives: it holds a lock
// on it, which the kernel drops at the process's end, whatever that end was.
type folder struct {
	path string
	lock *os.File
}

// newFolder makes a folder below parent. The moment between making and locking it is a gap in which
// a sweeper of another process may take it for a dead one: then the lock is refused or the folder
// gone, and we make another.
func newFolder(parent string) (*folder, error) {
	for range 100 {
		path, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return nil, err
		}
		if lock := lockFolder(path); lock != nil {
			return &folder{path, lock}, nil
		}
	}
	return nil, fmt.Errorf("cannot lock a new folder in %s", parent)
}

func (f *folder) remove() error {
	return errors.Join(os.RemoveAll(f.path), f.lock.Close())
}

// lockFolder returns nil if the folder is gone or somebody else's.
func lockFolder(path string) *os.File {
	dir, err := os.Open(path)
	if err != nil {
		return nil
	}
	held, errHeld := dir.Stat()
	there, errThere := os.Stat(path)
	if !tryLock(dir) || errHeld != nil || errThere != nil || !os.SameFile(held, there) {
		dir.Close()
		return nil
	}
	// Looked at again with the lock in hand: the former holder may have removed it in between.
	if there, err = os.Stat(path); err != nil || !os.SameFile(held, there) {
		dir.Close()
		return nil
	}
	return dir
}

// parents lists where folders may lie, best first. Memory comes first: dropping and creating a
// database per test writes so much that a disk makes it five times slower.
func parents(a *account) []string {
	var dirs []string
	if memDir != "" && freeBytes(memDir) >= room {
		dirs = append(dirs, memDir)
	}
	return append(dirs, onDisk(a)...)
}

// onDisk leaves memory out: there, containers often forbid to run programs.
func onDisk(a *account) []string {
	var dirs []string
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if a.enters(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

func newFolderIn(parents []string) (*folder, error) {
	err := errors.New("no temporary folder that the server's user may enter")
	for _, parent := range parents {
		// The server reports its paths without symbolic links.
		if real, e := filepath.EvalSymlinks(parent); e == nil {
			parent = real
		}
		f, e := newFolder(parent)
		if e == nil {
			return f, nil
		}
		err = e
	}
	return nil, err
}

// sweep removes what dead processes left. It is best effort: folders of other users stay.
func sweep(parents []string) {
	for _, parent := range parents {
		paths, _ := filepath.Glob(filepath.Join(parent, prefix+"*"))
		for _, path := range paths {
			lock := lockFolder(path)
			if lock == nil {
				continue // Its owner lives.
			}
			if !postmasterLives(path) {
				os.RemoveAll(path)
			}
			lock.Close()
		}
	}
}

// postmasterLives reads the first line of the server's own lock file. A process with that number
// may also be somebody else, long after a crash; then the folder stays until that one ends.
func postmasterLives(path string) bool {
	file, err := os.Open(filepath.Join(path, "data", "postmaster.pid"))
	if err != nil {
		return false
	}
	defer file.Close()
	line, _ := bufio.NewReader(file).ReadString('\n')
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	return err == nil && pid > 0 && alive(pid)
}

// A janitor is a shell that waits for our end and then removes a folder. Its standard input is a
// pipe whose other side only this process holds, so it learns of every end, SIGKILL too.
type janitor struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

// The janitor never signals a process that it knows by number only, except where the kernel does
// not end the server for us ($2 is then "quit"). It gives the server ten seconds to leave.
const janitorScript = `
cat >/dev/null
[ -d "$1" ] || exit 0
if pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null); then
	[ "$2" = quit ] && kill -QUIT "$pid"
	i=0
	while [ -e "$1/data/postmaster.pid" ] && kill -0 "$pid" && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done
fi 2>/dev/null
rm -rf "$1"
`

// startJanitor returns nil where there is no shell: the sweep of the next start does the work then.
func startJanitor(path string) *janitor {
	quit := "quit"
	if kernelEndsChildren {
		quit = "wait"
	}
	cmd := exec.Command("/bin/sh", "-c", janitorScript, prefix+"-janitor", path, quit)
	cmd.Dir = "/"
	// A group of its own: ^C must not end the one who cleans up after it.
	cmd.SysProcAttr = childAttr(nil)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil
	}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil
	}
	return &janitor{cmd, pipe}
}

// dismiss is called once the folder is gone.
func (j *janitor) dismiss() {
	if j == nil {
		return
	}
	j.pipe.Close()
	_ = j.cmd.Wait()
}
