package site

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// PostgresPair is a PostgreSQL primary with a synchronous standby. Clients reach each through a
// proxy that fails on command. Its methods are for one goroutine.
type PostgresPair struct {
	// Links are the proxies to the two servers.
	Links [2]*testkit.FaultProxy
	// URL names both proxies and connects to the server that accepts writes.
	URL string

	nodes   [2]*node
	primary int
	// inSync: the standby has every transaction that the primary has acknowledged.
	inSync bool
}

// node is one server and its data.
type node struct {
	dir, socket string
	// fsync: the server syncs its writes to disk, which is the default of PostgreSQL.
	fsync   bool
	cluster *postgres.Cluster
	pid     int
}

const (
	// OperationTimeout is the longest time of an operation on a server on a busy machine.
	OperationTimeout = 2 * time.Minute
	// waitForStandbySQL and commitAloneSQL set whether commits wait for the standby.
	waitForStandbySQL = "ALTER SYSTEM SET synchronous_standby_names = 'standby'"
	commitAloneSQL    = "ALTER SYSTEM SET synchronous_standby_names = ''"
	reloadSQL         = "SELECT pg_reload_conf()"
)

// StartPostgres makes a migrated primary and its standby below dir, which every account must be
// able to enter. Without fsync a commit survives a crash of the servers, but not of the machine.
// Close stops the pair, also after an error.
func StartPostgres(ctx context.Context, dir string, fsync bool) (*PostgresPair, error) {
	p := &PostgresPair{}
	for i := range p.nodes {
		p.nodes[i] = &node{dir: filepath.Join(dir, fmt.Sprintf("postgres%d", i+1)), fsync: fsync}
	}
	if err := testkit.PrepareCluster(ctx, p.nodes[0].dir); err != nil {
		return p, err
	}
	if err := p.nodes[0].start(ctx); err != nil {
		return p, err
	}
	for _, setting := range []string{"wal_retrieve_retry_interval = '200ms'", "wal_sender_timeout = '10s'",
		"wal_receiver_timeout = '10s'", "max_wal_size = '512MB'"} {
		if err := p.exec(ctx, "ALTER SYSTEM SET "+setting, reloadSQL); err != nil {
			return p, err
		}
	}
	if err := p.AttachStandby(ctx); err != nil {
		return p, err
	}
	return p, p.makeLinks()
}

func (p *PostgresPair) makeLinks() (err error) {
	for i, n := range p.nodes {
		if p.Links[i], err = testkit.NewProxy(filepath.Join(n.socket, ".s.PGSQL.5432")); err != nil {
			return err
		}
	}
	p.URL = fmt.Sprintf("postgres://postgres@%s,%s/postern?target_session_attrs=read-write&sslmode=disable",
		p.Links[0].Addr, p.Links[1].Addr)
	return nil
}

// start starts the server with its existing data.
func (n *node) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, OperationTimeout)
	defer cancel()
	var err error
	if n.cluster, err = postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: n.dir, Fast: !n.fsync}); err != nil {
		return err
	}
	u, err := url.Parse(n.cluster.URL())
	if err != nil {
		return err
	}
	n.socket = u.Query().Get("host")
	text, err := os.ReadFile(filepath.Join(n.dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := strings.Cut(string(text), "\n")
	n.pid, err = strconv.Atoi(line)
	return err
}

// running reports whether the server was started and was not killed.
func (n *node) running() bool { return n.cluster != nil }

// kill ends the server and all its processes at once, like a power failure that leaves the disk
// intact.
func (n *node) kill() error {
	if !n.running() {
		return nil
	}
	pids, err := n.signal(syscall.SIGSTOP, syscall.SIGKILL)
	<-n.cluster.Done()
	ctx, cancel := context.WithTimeout(context.Background(), OperationTimeout)
	defer cancel()
	// a server that is started before its old processes have ended stops at once
	err = errors.Join(err, n.cluster.Stop(ctx), waitUntil(ctx, OperationTimeout, func() error {
		if i := slices.IndexFunc(pids, func(pid int) bool { return !hasExited(pid) }); i >= 0 {
			return fmt.Errorf("process %d was killed and still runs", pids[i])
		}
		return nil
	}))
	n.cluster = nil
	return err
}

// signal sends a signal to the server and its children, and returns their process ids. The server
// gets its signal first, so that it starts no further children.
func (n *node) signal(first, all syscall.Signal) ([]int, error) {
	_ = syscall.Kill(n.pid, first) // it may have ended
	pids, err := processTree(n.pid)
	for _, pid := range pids {
		_ = syscall.Kill(pid, all) // it may have ended
	}
	return pids, err
}

// Pause stops all processes of the primary, or of the standby, until Resume.
func (p *PostgresPair) Pause(standby bool) error {
	if n := p.node(standby); n.running() {
		_, err := n.signal(syscall.SIGSTOP, syscall.SIGSTOP)
		return err
	}
	return nil
}

// Resume continues both servers.
func (p *PostgresPair) Resume() error {
	var errs []error
	for _, n := range p.nodes {
		if n.running() {
			_, err := n.signal(syscall.SIGCONT, syscall.SIGCONT)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *PostgresPair) node(standby bool) *node {
	if standby {
		return p.nodes[1-p.primary]
	}
	return p.nodes[p.primary]
}

// Kill ends the primary, or the standby, like a power failure. Start starts it again.
func (p *PostgresPair) Kill(standby bool) error { return p.node(standby).kill() }

// Start starts the killed servers with their existing data.
func (p *PostgresPair) Start(ctx context.Context) error {
	for _, n := range []*node{p.node(false), p.node(true)} {
		if !n.running() {
			if err := n.start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// StandbyInSync reports whether the standby has every acknowledged transaction, so that it may be
// promoted.
func (p *PostgresPair) StandbyInSync() bool { return p.inSync }

// Promote kills the primary, whose disk is lost, and makes the standby the primary. It then commits
// alone until AttachStandby. Promote requires StandbyInSync.
func (p *PostgresPair) Promote(ctx context.Context) error {
	if !p.inSync {
		return errors.New("promote: the standby may lack acknowledged transactions")
	}
	if err := p.Kill(false); err != nil {
		return err
	}
	p.primary, p.inSync = 1-p.primary, false
	if err := p.promoteStandby(ctx); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	return p.exec(ctx, commitAloneSQL, reloadSQL)
}

// promoteStandby turns a standby into a primary. It does not wait inside one session, because the
// replay of the standby may end that session.
func (p *PostgresPair) promoteStandby(ctx context.Context) error {
	requested := false
	return waitUntil(ctx, OperationTimeout, func() error {
		var standby bool
		if err := p.query(ctx, "SELECT pg_is_in_recovery()", &standby); err != nil || !standby {
			return err
		}
		if !requested {
			if err := p.exec(ctx, "SELECT pg_promote(false)"); err != nil {
				return err
			}
			requested = true
		}
		return errors.New("the server is still a standby")
	})
}

// AttachStandby makes a new standby from a copy of the primary. Once it has caught up, commits wait
// for it.
func (p *PostgresPair) AttachStandby(ctx context.Context) error {
	n := p.node(true)
	if err := errors.Join(n.kill(), os.RemoveAll(filepath.Join(n.dir, "data"))); err != nil {
		return err
	}
	if err := p.baseBackup(ctx, n); err != nil {
		return err
	}
	if err := n.start(ctx); err != nil {
		return err
	}
	if err := p.exec(ctx, waitForStandbySQL, reloadSQL); err != nil {
		return err
	}
	err := p.waitUntilTrue(ctx, `SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'standby'
		AND sync_state = 'sync' AND state = 'streaming'
		AND flush_lsn >= pg_current_wal_flush_lsn()`)
	p.inSync = err == nil
	return err
}

// baseBackup copies the data of the primary, as the account of its server.
func (p *PostgresPair) baseBackup(ctx context.Context, n *node) error {
	from := p.node(false)
	var bin string
	if err := p.query(ctx, "SELECT setting FROM pg_config() WHERE name = 'BINDIR'", &bin); err != nil {
		return err
	}
	info, err := os.Stat(from.dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	if err := errors.Join(os.MkdirAll(n.dir, 0o700), os.Chown(n.dir, int(owner.Uid), int(owner.Gid))); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, OperationTimeout)
	defer cancel()
	args := []string{"-d", "host=" + from.socket + " user=postgres application_name=standby", "-D",
		filepath.Join(n.dir, "data"), "-R", "-X", "stream", "--checkpoint=fast"}
	if !n.fsync {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "pg_basebackup"), args...)
	cmd.Dir, cmd.Env = n.dir, []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the primary: %w: %s", err, out)
	}
	return nil
}

// ReadOnly makes the primary reject all writes, as after it became a standby, or ends that.
func (p *PostgresPair) ReadOnly(ctx context.Context, on bool) error {
	value := "off"
	if on {
		value = "on"
	}
	return p.exec(ctx, "SET default_transaction_read_only = off", "ALTER SYSTEM SET default_transaction_read_only = "+
		value, reloadSQL)
}

// AwaitStandby waits until the standby follows again after it was killed or paused.
func (p *PostgresPair) AwaitStandby(ctx context.Context) error {
	return p.waitUntilTrue(ctx, `SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'standby'
		AND sync_state = 'sync'`)
}

// PrimaryURL returns the URL of the primary without a proxy, as its superuser.
func (p *PostgresPair) PrimaryURL() string { return p.node(false).cluster.URL() }

func (p *PostgresPair) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, p.PrimaryURL())
}

// exec runs statements on the primary, one by one in one session.
func (p *PostgresPair) exec(ctx context.Context, statements ...string) error {
	ctx, cancel := context.WithTimeout(ctx, OperationTimeout)
	defer cancel()
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (p *PostgresPair) query(ctx context.Context, sql string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, OperationTimeout)
	defer cancel()
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, sql).Scan(into)
}

// waitUntilTrue runs a query until it returns true.
func (p *PostgresPair) waitUntilTrue(ctx context.Context, sql string) error {
	return waitUntil(ctx, OperationTimeout, func() error {
		var isTrue bool
		if err := p.query(ctx, sql, &isTrue); err != nil {
			return err
		}
		if !isTrue {
			return fmt.Errorf("not yet true: %s", sql)
		}
		return nil
	})
}

// recover ends all faults and leaves a primary with a synchronous standby.
func (p *PostgresPair) recover(ctx context.Context) error {
	for _, l := range p.Links {
		l.Restore()
	}
	if err := errors.Join(p.Resume(), p.Start(ctx)); err != nil {
		return err
	}
	if err := p.ReadOnly(ctx, false); err != nil {
		return err
	}
	if !p.inSync {
		return p.AttachStandby(ctx)
	}
	return p.AwaitStandby(ctx)
}

// Close stops both servers.
func (p *PostgresPair) Close() error {
	var errs []error
	for i, n := range p.nodes {
		errs = append(errs, n.kill())
		if p.Links[i] != nil {
			p.Links[i].Close()
		}
	}
	return errors.Join(errs...)
}

// SetClockSkew moves the database's clock ahead by the given time, or back if it is negative.
func (p *PostgresPair) SetClockSkew(ctx context.Context, by time.Duration) error {
	return p.exec(ctx, fmt.Sprintf("CREATE OR REPLACE FUNCTION postern.clock_now() RETURNS timestamptz LANGUAGE sql "+
		"VOLATILE AS 'SELECT clock_timestamp()%s'", clockOffsetSQL(by)))
}

func clockOffsetSQL(by time.Duration) string {
	if by == 0 {
		return "" // the definition of the migrations
	}
	return fmt.Sprintf(" + interval ''%d ms''", by.Milliseconds())
}
