package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoPooler says that this machine has no PgBouncer to start.
var ErrNoPooler = errors.New("no pgbouncer on PATH or in /usr/sbin (Debian: apt-get install pgbouncer)")

// Pooler is a PgBouncer in transaction mode before one database.
type Pooler struct {
	folder  *folder
	janitor *janitor
	process *process
	url     string
}

// StartPooler starts a pooler that serves all clients with the given number of connections to
// database, which is a URL. It returns once that answers through it, and ends early, leaving
// nothing, when ctx does. The error Is ErrNoPooler where there is none to start.
func StartPooler(ctx context.Context, database string, connections int) (*Pooler, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	binary, err := findPooler()
	if err != nil {
		return nil, err
	}
	server, err := pgx.ParseConfig(database)
	if err != nil {
		return nil, err
	}
	for attempt := 1; ; attempt++ {
		p, err := startPooler(ctx, binary, server, connections)
		// Somebody else may have taken the port between our look and the pooler's.
		if err == nil || attempt == 5 || !errors.Is(err, errPoolerEnded) {
			return p, err
		}
	}
}

var errPoolerEnded = errors.New("pgbouncer ended")

// findPooler looks where Debian puts it, too: an ordinary user's PATH is without that folder.
func findPooler() (string, error) {
	if !supported {
		return "", ErrNoPooler
	}
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", ErrNoPooler
}

func startPooler(ctx context.Context, binary string, server *pgx.ConnConfig, connections int) (*Pooler, error) {
	account := serverAccount() // PgBouncer refuses root, too
	where := parents(account)
	sweep(where)
	f, err := newFolderIn(where)
	if err != nil {
		return nil, err
	}
	p := &Pooler{folder: f, janitor: startJanitor(f.path)}
	if err := p.start(ctx, account, binary, server, connections); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	return p, nil
}

// poolerConfig has no user list: with auth_type any, the server's user is the one in the database's
// line, whoever asks. The pidfile lies where the janitor looks for a process.
const poolerConfig = `[databases]
%s = %s

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
pidfile = %s
auth_type = any
pool_mode = transaction
default_pool_size = %d
`

func (p *Pooler) start(ctx context.Context, account *account, binary string, server *pgx.ConnConfig, connections int) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	// The alias tells whether who answers on the port is this pooler.
	alias := filepath.Base(p.folder.path)
	pidfile := filepath.Join(p.folder.path, "data", "postmaster.pid")
	config := filepath.Join(p.folder.path, "pgbouncer.ini")
	text := fmt.Sprintf(poolerConfig, alias, connectionString(server), port, pidfile, connections)
	if err := errors.Join(os.Mkdir(filepath.Dir(pidfile), 0o700), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return err
	}
	log, err := os.Create(p.logPath())
	if err != nil {
		return err
	}
	defer log.Close()
	if err := account.owns(p.folder.path); err != nil {
		return err
	}
	cmd := exec.Command(binary, config)
	cmd.Dir = p.folder.path
	cmd.SysProcAttr = childAttr(account)
	cmd.Stdout, cmd.Stderr = log, log
	endWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	if p.process, err = startProcess(cmd); err != nil {
		return err
	}
	user := url.User(server.User)
	p.url = fmt.Sprintf("postgres://%s@127.0.0.1:%d/%s?sslmode=disable", user, port, alias)
	return p.await(ctx)
}

// connectionString is what the line of a database says. PgBouncer takes no empty value.
func connectionString(server *pgx.ConnConfig) string {
	line := fmt.Sprintf("port=%d", server.Port)
	for _, one := range [][2]string{
		{"host", server.Host}, {"dbname", server.Database}, {"user", server.User}, {"password", server.Password},
	} {
		if key, value := one[0], one[1]; value != "" {
			line += fmt.Sprintf(" %s='%s'", key, strings.ReplaceAll(value, "'", "''"))
		}
	}
	return line
}

// await polls: the pooler tells nobody when it becomes ready.
func (p *Pooler) await(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, p.url)
		if err == nil {
			_, err = conn.Exec(ctx, "select", pgx.QueryExecModeSimpleProtocol)
			_ = conn.Close(ctx)
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.process.done:
			return fmt.Errorf("%w: %s\n%s", errPoolerEnded, p.process.cmd.ProcessState, p.Log())
		case <-ctx.Done():
			return fmt.Errorf("waiting for pgbouncer: %w (%w)\n%s", context.Cause(ctx), err, p.Log())
		case <-tick.C:
		}
	}
}

// URL is where the database answers through the pooler.
func (p *Pooler) URL() string { return p.url }

// Log returns what the pooler has written so far.
func (p *Pooler) Log() string {
	log, _ := os.ReadFile(p.logPath())
	return strings.TrimSpace(string(log))
}

func (p *Pooler) logPath() string { return filepath.Join(p.folder.path, "log") }

// Stop ends the pooler at once, and its clients with it, and removes its folder. It may be called
// once.
func (p *Pooler) Stop() error {
	if p.process != nil {
		p.process.kill() // by its signals, different versions mean different things
		<-p.process.done
	}
	err := p.folder.remove()
	p.janitor.dismiss()
	return err
}
