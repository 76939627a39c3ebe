package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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

// ClusterOptions configure a private cluster.
type ClusterOptions struct {
	// Dir contains everything of the cluster and is created if missing. See ClusterDir for a
	// directory that the server's account can enter.
	Dir string
	// Fast disables durability for speed: no fsync, no full-page writes, many connections. It is
	// for tests.
	Fast bool
	// Settings are additional server settings, by name. A setting that the server rejects is an
	// error. Settings for the server's address cannot be changed.
	Settings map[string]string
	// Logger logs start and stop; nil: nothing is logged. The server's own log is Dir/postgres.log.
	Logger *slog.Logger
}

// Cluster is a private PostgreSQL server, a child of this process. Its socket is in a directory
// that only its account can enter. It has one database, "postern", and no TCP listener.
type Cluster struct {
	dir, socket string
	log         *slog.Logger
	lock        *os.File
	server      *child
	stopOnce    sync.Once
	stopErr     error
}

// StartCluster starts the cluster in o.Dir with the installed binaries, creates it if it does not
// exist, and returns when it accepts connections. It recovers the data after a crash. A directory
// that another process uses is an error.
func StartCluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	acc, err := serverAccount()
	if err != nil {
		return nil, fmt.Errorf("start cluster %s: %w", dir, err)
	}
	c := &Cluster{dir: dir, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	if err := c.start(ctx, acc, o); err != nil {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), fastTimeout)
		defer cancel()
		return nil, errors.Join(fmt.Errorf("start cluster %s: %w", dir, err), c.Stop(stopping))
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, acc *account, o ClusterOptions) (err error) {
	if err := os.MkdirAll(filepath.Dir(c.dir), 0o755); err != nil {
		return err
	}
	if err := acc.createPrivateDir(c.dir); err != nil {
		return err
	}
	if c.lock, err = lockDir(c.dir); err != nil {
		return err
	}
	inst, err := prepareData(ctx, c.dir, acc, o.Fast)
	if err != nil {
		return err
	}
	if c.socket, err = socketDir(c.dir, acc); err != nil {
		return err
	}
	if err := removeStaleLock(ctx, filepath.Join(c.socket, socketName+".lock"), dataDir(c.dir)); err != nil {
		return err
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		settings = append(settings, name+"="+o.Settings[name])
	}
	if c.server, err = startServer(c.dir, c.socket, inst, acc, o.Fast, settings); err != nil {
		return err
	}
	c.log.Info("postgres started", "dir", c.dir, "version", inst.major, "pid", c.server.cmd.Process.Pid)
	if err = c.waitReady(ctx); err != nil && len(settings) > 0 {
		return fmt.Errorf("PostgreSQL does not start with %s; correct or remove the rejected setting (the view "+
			"pg_settings lists names and values): %w", strings.Join(settings, ", "), err)
	}
	return err
}

// URL returns the address of the database "postern", as its superuser.
func (c *Cluster) URL() string { return c.url(clusterDatabase) }

func (c *Cluster) url(database string) string {
	// All parts are set, so that no PG* variable of the caller replaces one.
	q := url.Values{"host": {c.socket}, "port": {clusterPort}, "user": {clusterUser}}
	return "postgres:///" + database + "?" + q.Encode()
}

// Done is closed when the server has ended, for whatever reason.
func (c *Cluster) Done() <-chan struct{} { return c.server.done }

// waitReady polls until a session works, then creates the database if it does not exist.
func (c *Cluster) waitReady(ctx context.Context) error {
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
			return fmt.Errorf("the server ended immediately (%w); its log says: %s", c.server.err,
				lastLines(logFile(c.dir), 5))
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
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)",
		clusterDatabase).Scan(&exists); err != nil {
		return fmt.Errorf("find database %s: %w", clusterDatabase, err)
	}
	if exists {
		return nil
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+clusterDatabase); err != nil {
		return fmt.Errorf("create database %s: %w", clusterDatabase, err)
	}
	return nil
}

// Stop requests a fast shutdown, which closes sessions and leaves the data clean. After 10 s, or
// when ctx is done, it stops the server immediately; the next start then recovers the data. A
// second call returns the result of the first.
func (c *Cluster) Stop(ctx context.Context) error {
	c.stopOnce.Do(func() { c.stopErr = c.shutdown(ctx) })
	return c.stopErr
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
		// Unlocked first: a process that is being started has a copy of the file for a moment, and
		// would keep the lock.
		err = errors.Join(err, syscall.Flock(int(c.lock.Fd()), syscall.LOCK_UN), c.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("stop cluster %s: %w", c.dir, err)
	}
	return nil
}

// lockDir locks the directory for this process. The lock ends with the process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errors.New("another postern dev uses this directory: stop it, or give another one with --dir")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// socketDir returns the directory of the socket. It is in the cluster's folder, unless the path is
// too long for a socket address or contains characters with a meaning in the server's list of
// directories. Then it is a new temporary directory.
func socketDir(dir string, acc *account) (string, error) {
	socket := filepath.Join(dir, "run")
	if len(filepath.Join(socket, socketName)) > 100 || strings.ContainsAny(socket, `,"'`) {
		parent := os.TempDir()
		if len(parent) > 60 || acc != nil && !acc.canReach(parent) {
			parent = "/tmp"
		}
		var err error
		if socket, err = os.MkdirTemp(parent, "postern-"); err != nil {
			return "", err
		}
	}
	return socket, acc.createPrivateDir(socket)
}

func logFile(dir string) string { return filepath.Join(dir, "postgres.log") }

// lastLines returns the last lines of a file, for an error.
func lastLines(file string, n int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// run runs one of the installation's programs as the server's account. The error contains its
// output.
func (i installation) run(ctx context.Context, dir string, acc *account, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(i.bin, program), args...)
	cmd.Dir = dir
	cmd.Env = serverEnv()
	// A separate process group protects it from the terminal's signals. On cancellation it gets
	// SIGINT, so that it removes its files and leaves no child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: acc.credential(), Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = quitTimeout
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w: %s", program, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// serverEnv is a small environment, so that no PG* variable or locale of the caller reaches the
// server.
func serverEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "LANG=C", "TZ=UTC"}
}
