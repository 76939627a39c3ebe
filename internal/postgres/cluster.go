package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	clusterUser     = "postgres"
	clusterDatabase = "postern"
	clusterPort     = "5432"
	socketName      = ".s.PGSQL." + clusterPort
	startTimeout    = 60 * time.Second
	fastTimeout     = 10 * time.Second
	quitTimeout     = 5 * time.Second
)

// ClusterOptions say where a private cluster lies and how careful it is.
type ClusterOptions struct {
	// Dir holds everything of the cluster; made if missing. See ClusterDir for one that the server's account can enter.
	Dir string
	// Fast trades durability for speed: no fsync, no full-page writes, many connections. For tests.
	Fast bool
	// Settings are given to the server on top of its own, by name; empty: none. One that it refuses is an error. Those that say where
	// the server is found are not for others to set.
	Settings map[string]string
	// Logger is told about start and stop; nil: silent. The server's own log is Dir/postgres.log.
	Logger *slog.Logger
}

// Cluster is a PostgreSQL server of our own, a child of this process, reachable through a socket in a directory that only
// its account can enter. It has one database, "postern", and no TCP listener.
type Cluster struct {
	dir, socket string
	log         *slog.Logger
	lock        *os.File
	server      *child
	once        sync.Once
	stopped     error
}

// StartCluster starts the cluster in o.Dir with the installed binaries, creating it where there is none, and returns when it
// takes connections. What a crash left behind is recovered; a directory in use by another process is an error.
func StartCluster(ctx context.Context, o ClusterOptions) (_ *Cluster, err error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	acc, err := serverAccount()
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", dir, err)
	}
	c := &Cluster{dir: dir, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	err = c.start(ctx, acc, o.Fast)
	if err == nil && len(o.Settings) > 0 {
		err = c.restart(ctx, o.Settings)
	}
	if err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), fastTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start cluster %s: %w", dir, err), c.Stop(stopping))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, acc *account, fast bool) (err error) {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return err
	}
	if err := acc.own(c.dir); err != nil {
		return err
	}
	if c.lock, err = lockDir(c.dir); err != nil {
		return err
	}
	inst, err := prepareData(ctx, c.dir, acc, fast)
	if err != nil {
		return err
	}
	if c.socket, err = socketDir(c.dir, acc); err != nil {
		return err
	}
	if err := clearLock(ctx, filepath.Join(c.socket, socketName+".lock"), dataDir(c.dir)); err != nil {
		return err
	}
	if c.server, err = startServer(c.dir, c.socket, inst, acc, fast); err != nil {
		return err
	}
	c.log.Info("postgres started", "dir", c.dir, "version", inst.major, "pid", c.server.cmd.Process.Pid)
	return c.ready(ctx)
}

// URL reaches the database "postern" of the cluster as its superuser.
func (c *Cluster) URL() string { return c.url(clusterDatabase) }

func (c *Cluster) url(database string) string {
	// Each part is named, so that no PG* variable of a caller fills one in.
	q := url.Values{"host": {c.socket}, "port": {clusterPort}, "user": {clusterUser}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Done is closed when the server has ended, whether stopped or by itself.
func (c *Cluster) Done() <-chan struct{} { return c.server.done }

// ready polls until a session works, then sees that the database is there.
func (c *Cluster) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("not ready within "+startTimeout.String()))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.ensureDatabase(ctx)
		if err == nil {
			return nil
		}
		if !IsUnavailable(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-c.server.done:
			return fmt.Errorf("the server ended at once (%w); its log says: %s", c.server.err, lastLines(logFile(c.dir), 5))
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func (c *Cluster) ensureDatabase(ctx context.Context) error {
	cfg, err := sessionConfig(c.url("postgres"))
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", clusterDatabase).Scan(&exists); err != nil {
		return fmt.Errorf("look for database %s: %w", clusterDatabase, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+clusterDatabase); err != nil {
		return fmt.Errorf("create database %s: %w", clusterDatabase, err)
	}
	return nil
}

// Stop ends the server: sessions are cut and the data is left clean (fast shutdown); after 10 s, or when ctx is done, at
// once, which the next start recovers from. A second call returns what the first did.
func (c *Cluster) Stop(ctx context.Context) error {
	c.once.Do(func() { c.stopped = c.shutdown(ctx) })
	return c.stopped
}

func (c *Cluster) shutdown(ctx context.Context) error {
	var err error
	if c.server != nil {
		err = c.server.stop(ctx)
		c.log.Info("postgres stopped", "dir", c.dir)
	}
	if c.socket != "" && filepath.Dir(c.socket) != c.dir {
		err = errors.Join(err, os.RemoveAll(c.socket))
	}
	if c.lock != nil {
		// Unlocked first: a process that is being started has a copy of the file for a moment, and would keep the lock.
		err = errors.Join(err, syscall.Flock(int(c.lock.Fd()), syscall.LOCK_UN), c.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("stop cluster %s: %w", c.dir, err)
	}
	return nil
}

// lockDir takes the directory for this process; the lock goes with the process, however it ends.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another postern dev uses this directory; stop it, or name another one with --dir")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// socketDir is where the socket lies: in the cluster's folder or, where the path is too long for a socket address or has
// characters that the server's list of directories gives a meaning, in a fresh one for temporary files.
func socketDir(dir string, acc *account) (string, error) {
	socket := filepath.Join(dir, "run")
	if len(filepath.Join(socket, socketName)) > 100 || strings.ContainsAny(socket, `,"'`) {
		parent := os.TempDir()
		if len(parent) > 60 || acc != nil && !acc.reaches(parent) {
			parent = "/tmp"
		}
		var err error
		if socket, err = os.MkdirTemp(parent, "postern-"); err != nil {
			return "", err
		}
	}
	return socket, acc.own(socket)
}

func logFile(dir string) string { return filepath.Join(dir, "postgres.log") }

// lastLines is the end of a text file, for an error.
func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// run runs one of the installation's programs as the server's account; its output is part of the error.
func (i installation) run(ctx context.Context, dir string, acc *account, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(i.bin, program), args...)
	cmd.Dir = dir
	cmd.Env = serverEnv()
	// Out of the terminal's reach, and asked rather than killed: then it removes what it began and leaves no child behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: acc.credential(), Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = quitTimeout
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// serverEnv is a small environment, so that no PG* variable or locale of the caller reaches the server.
func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "LANG=C", "TZ=UTC"}
}
