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

// Pair is a PostgreSQL primary with a synchronous standby, and the person who operates them. Clients reach each through a link that fails on command. Its methods are for one
// goroutine.
type Pair struct {
	// Links are the ways to the two servers.
	Links [2]*testkit.FaultProxy
	// URL names both links and wants the one that can be written to.
	URL string

	nodes   [2]*node
	primary int
	// synced: what the primary acknowledges, the standby has.
	synced bool
}

// node is one server and its data.
type node struct {
	dir, socket string
	// fsync: it writes as carefully as PostgreSQL does by default.
	fsync   bool
	cluster *postgres.Cluster
	pid     int
}

const (
	// Patience is how long an operation on a server may take on a busy machine.
	Patience = 2 * time.Minute
	// namesOn and namesOff are whether commits wait for the standby.
	namesOn  = "ALTER SYSTEM SET synchronous_standby_names = 'standby'"
	namesOff = "ALTER SYSTEM SET synchronous_standby_names = ''"
	reload   = "SELECT pg_reload_conf()"
)

// StartPair makes a migrated primary and its standby below dir, which every account can enter. Without fsync a commit outlives the servers, but not the machine. Close ends the pair, also after an
// error.
func StartPair(ctx context.Context, dir string, fsync bool) (*Pair, error) {
	p := &Pair{}
	for i := range p.nodes {
		p.nodes[i] = &node{dir: filepath.Join(dir, fmt.Sprintf("postgres%d", i+1)), fsync: fsync}
	}
	if err := p.nodes[0].start(ctx); err != nil {
		return p, err
	}
	if _, err := postgres.Migrate(ctx, p.nodes[0].cluster.URL()); err != nil {
		return p, err
	}
	for _, setting := range []string{"wal_retrieve_retry_interval = '200ms'", "wal_sender_timeout = '10s'", "wal_receiver_timeout = '10s'", "max_wal_size = '512MB'"} {
		if err := p.exec(ctx, "ALTER SYSTEM SET "+setting, reload); err != nil {
			return p, err
		}
	}
	if err := p.Attach(ctx); err != nil {
		return p, err
	}
	return p, p.link()
}

func (p *Pair) link() (err error) {
	for i, n := range p.nodes {
		if p.Links[i], err = testkit.NewProxy(filepath.Join(n.socket, ".s.PGSQL.5432")); err != nil {
			return err
		}
	}
	p.URL = fmt.Sprintf("postgres://postgres@%s,%s/postern?target_session_attrs=read-write&sslmode=disable", p.Links[0].Addr, p.Links[1].Addr)
	return nil
}

// start starts the server, with what it had stored.
func (n *node) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
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

// running tells whether the server was started and was not killed.
func (n *node) running() bool { return n.cluster != nil }

// kill ends the server and all its processes at once, like a machine that loses its power but not its disk.
func (n *node) kill() error {
	if !n.running() {
		return nil
	}
	pids, err := n.signal(syscall.SIGSTOP, syscall.SIGKILL)
	<-n.cluster.Done()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	err = errors.Join(err, n.cluster.Stop(ctx), eventually(ctx, Patience, func() error { // a server that is started before they have ended ends at once
		if i := slices.IndexFunc(pids, func(pid int) bool { return !gone(pid) }); i >= 0 {
			return fmt.Errorf("process %d was killed, and goes on", pids[i])
		}
		return nil
	}))
	n.cluster = nil
	return err
}

// signal sends to the server and its children, and returns who they are: first the server alone, so that it starts no other one meanwhile.
func (n *node) signal(first, all syscall.Signal) ([]int, error) {
	_ = syscall.Kill(n.pid, first) // it may have ended
	pids, err := family(n.pid)
	for _, pid := range pids {
		_ = syscall.Kill(pid, all) // likewise
	}
	return pids, err
}

// Pause stops all processes of the primary, or of the standby, where they are, until Heal.
func (p *Pair) Pause(standby bool) error {
	if n := p.of(standby); n.running() {
		_, err := n.signal(syscall.SIGSTOP, syscall.SIGSTOP)
		return err
	}
	return nil
}

// Resume lets both go on.
func (p *Pair) Resume() error {
	var errs []error
	for _, n := range p.nodes {
		if n.running() {
			_, err := n.signal(syscall.SIGCONT, syscall.SIGCONT)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *Pair) of(standby bool) *node {
	if standby {
		return p.nodes[1-p.primary]
	}
	return p.nodes[p.primary]
}

// Kill ends the primary, or the standby, like a machine that loses its power; Start starts it again.
func (p *Pair) Kill(standby bool) error { return p.of(standby).kill() }

// Start starts what was killed: the primary with what it had, the standby likewise.
func (p *Pair) Start(ctx context.Context) error {
	for _, n := range []*node{p.of(false), p.of(true)} {
		if !n.running() {
			if err := n.start(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Synced tells whether the standby has all that the primary acknowledged, so that it may be promoted.
func (p *Pair) Synced() bool { return p.synced }

// Promote kills the primary, whose disk is lost, and makes the standby the primary, which then commits alone until Attach. Only a standby that is Synced is promoted.
func (p *Pair) Promote(ctx context.Context) error {
	if !p.synced {
		return errors.New("promote: the standby may lack what was acknowledged")
	}
	if err := p.Kill(false); err != nil {
		return err
	}
	p.primary, p.synced = 1-p.primary, false
	if err := p.lead(ctx); err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	return p.exec(ctx, namesOff, reload)
}

// lead makes a standby a primary. No session waits for that inside: what the standby still has to replay may end it.
func (p *Pair) lead(ctx context.Context) error {
	asked := false
	return eventually(ctx, Patience, func() error {
		var standby bool
		if err := p.query(ctx, "SELECT pg_is_in_recovery()", &standby); err != nil || !standby {
			return err
		}
		if !asked {
			if err := p.exec(ctx, "SELECT pg_promote(false)"); err != nil {
				return err
			}
			asked = true
		}
		return errors.New("it is still a standby")
	})
}

// Attach makes a standby from nothing out of the primary, and has commits wait for it once it follows.
func (p *Pair) Attach(ctx context.Context) error {
	n := p.of(true)
	if err := errors.Join(n.kill(), os.RemoveAll(filepath.Join(n.dir, "data"))); err != nil {
		return err
	}
	if err := p.baseBackup(ctx, n); err != nil {
		return err
	}
	if err := n.start(ctx); err != nil {
		return err
	}
	if err := p.exec(ctx, namesOn, reload); err != nil {
		return err
	}
	err := p.await(ctx, `SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'standby' AND sync_state = 'sync' AND state = 'streaming'
		AND flush_lsn >= pg_current_wal_flush_lsn()`)
	p.synced = err == nil
	return err
}

// baseBackup copies the primary's data, as the account that its server runs as.
func (p *Pair) baseBackup(ctx context.Context, n *node) error {
	from := p.of(false)
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
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	args := []string{"-d", "host=" + from.socket + " user=postgres application_name=standby", "-D", filepath.Join(n.dir, "data"), "-R", "-X", "stream", "--checkpoint=fast"}
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

// ReadOnly has the primary refuse every write, or no more, as one that has become a standby does.
func (p *Pair) ReadOnly(ctx context.Context, on bool) error {
	value := "off"
	if on {
		value = "on"
	}
	return p.exec(ctx, "SET default_transaction_read_only = off", "ALTER SYSTEM SET default_transaction_read_only = "+value, reload)
}

// Await waits until the standby follows again, after it was killed or paused.
func (p *Pair) Await(ctx context.Context) error {
	return p.await(ctx, `SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name = 'standby' AND sync_state = 'sync'`)
}

// Direct is the primary's URL without a link, as its superuser.
func (p *Pair) Direct() string { return p.of(false).cluster.URL() }

func (p *Pair) connect(ctx context.Context) (*pgx.Conn, error) {
	return pgx.Connect(ctx, p.Direct())
}

// exec runs statements on the primary, one by one in one session.
func (p *Pair) exec(ctx context.Context, statements ...string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
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

func (p *Pair) query(ctx context.Context, sql string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	conn, err := p.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return conn.QueryRow(ctx, sql).Scan(into)
}

// await asks until the answer is true.
func (p *Pair) await(ctx context.Context, sql string) error {
	return eventually(ctx, Patience, func() error {
		var yes bool
		if err := p.query(ctx, sql, &yes); err != nil {
			return err
		}
		if !yes {
			return fmt.Errorf("not yet true: %s", sql)
		}
		return nil
	})
}

// heal ends every fault, and leaves a primary with a synchronous standby.
func (p *Pair) heal(ctx context.Context) error {
	for _, l := range p.Links {
		l.Restore()
	}
	if err := errors.Join(p.Resume(), p.Start(ctx)); err != nil {
		return err
	}
	if err := p.ReadOnly(ctx, false); err != nil {
		return err
	}
	if !p.synced {
		return p.Attach(ctx)
	}
	return p.Await(ctx)
}

// Close ends both servers.
func (p *Pair) Close() error {
	var errs []error
	for i, n := range p.nodes {
		errs = append(errs, n.kill())
		if p.Links[i] != nil {
			p.Links[i].Close()
		}
	}
	return errors.Join(errs...)
}

// Skew lets the database's clock run ahead by so much, or behind.
func (p *Pair) Skew(ctx context.Context, by time.Duration) error {
	return p.exec(ctx, fmt.Sprintf("CREATE OR REPLACE FUNCTION postern.clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()%s'", ahead(by)))
}

func ahead(by time.Duration) string {
	if by == 0 {
		return "" // as the migrations made it
	}
	return fmt.Sprintf(" + interval ''%d ms''", by.Milliseconds())
}
