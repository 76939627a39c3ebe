// Package site is a small production of real processes on this machine: a PostgreSQL primary and its synchronous standby, three NATS servers, two gateways and two processors,
// with a link that fails on command before each server. Tests and the chaos run kill, stop and cut what is in it.
package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Site is a running production.
type Site struct {
	// Dir holds everything of it; Config is the configuration that all daemons share, and Bin the folder of the programs.
	Dir, Config, Bin string
	Postgres         *Pair
	NATS             *Trio
	Gateways         [2]*Daemon
	Processors       [2]*Daemon
}

// Daemon is a gateway or a processor.
type Daemon struct {
	*Process
	// URL is a gateway's ingest address, "" for a processor; Health is where it tells whether it is ready.
	URL, Health string
	// Spool is a gateway's own folder.
	Spool string
	// Late counts how often it was asked to stop and gave up after its time.
	Late atomic.Int64
}

// Daemons are the packages of the programs that are under test.
func Daemons() []string { return []string{"cmd/gateway", "cmd/processor"} }

// Tools are those that are not under test.
func Tools() []string { return []string{"cmd/postern", "internal/testkit/site/natsd"} }

// Build makes programs, given by their packages, in a folder. flags are go build's, an overlay for one.
func Build(ctx context.Context, dir string, programs []string, flags ...string) error {
	const module = "github.com/postern-gateway/postern/"
	args := append([]string{"build", "-buildvcs=false", "-o", dir + "/"}, flags...)
	for _, program := range programs {
		args = append(args, module+program)
	}
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// Programs are all programs, built once for a test binary, whose end removes them.
type Programs struct {
	once sync.Once
	dir  string
	err  error
}

// Folder returns where they are. The first who asks builds them.
func (p *Programs) Folder() (string, error) {
	p.once.Do(func() {
		if p.dir, p.err = os.MkdirTemp("", "postern-programs-"); p.err == nil {
			p.err = Build(context.Background(), p.dir, append(Daemons(), Tools()...))
		}
	})
	return p.dir, p.err
}

// Remove removes the folder, if there is one.
func (p *Programs) Remove() error { return os.RemoveAll(p.dir) }

// Options say what is different in a site.
type Options struct {
	// Bin has the programs, from Build.
	Bin string
	// Settings is YAML of further sections of the configuration: sources, at least. Sections database, nats, admin and log are the site's own.
	Settings string
	// Env is put into the daemons' environment, as NAME=VALUE.
	Env []string
	// SpoolDirs are the gateways' spools; empty: folders of the site.
	SpoolDirs [2]string
	// Fsync: PostgreSQL writes as carefully as it does by default, and is as slow; else its commits outlive the servers, but not the machine.
	Fsync bool
}

const settings = `database: {url: %q}
nats: {url: %q, replicas: 3}
log: {format: json, level: warn}
%s`

// Start starts a site below a fresh folder for temporary files, and returns once all daemons are ready. Close ends it, also after an error.
func Start(ctx context.Context, o Options) (s *Site, err error) {
	s = &Site{Bin: o.Bin}
	if s.Dir, err = os.MkdirTemp("", "postern-site-"); err != nil {
		return s, err
	}
	// PostgreSQL runs as another account where this one is root.
	if err := os.Chmod(s.Dir, 0o711); err != nil {
		return s, err
	}
	if s.NATS, err = StartTrio(o.Bin, s.Dir); err != nil {
		return s, err
	}
	if s.Postgres, err = StartPair(ctx, s.Dir, o.Fsync); err != nil {
		return s, err
	}
	s.Config = filepath.Join(s.Dir, "postern.yaml")
	if err := os.WriteFile(s.Config, fmt.Appendf(nil, settings, s.Postgres.URL, s.NATS.URL, o.Settings), 0o600); err != nil {
		return s, err
	}
	if err := s.daemons(o, ownHost()); err != nil {
		return s, err
	}
	for _, d := range s.Daemons() {
		if err := d.Start(); err != nil {
			return s, err
		}
	}
	return s, s.Ready(ctx)
}

// daemons are made, each with addresses of its own that it keeps.
func (s *Site) daemons(o Options, host string) error {
	free, err := freePorts(host, 6)
	if err != nil {
		return err
	}
	address := func(i int) string { return net.JoinHostPort(host, strconv.Itoa(free[i])) }
	daemon := func(program string, i int, args ...string) *Daemon {
		name := program + strconv.Itoa(i+1)
		return &Daemon{Process: &Process{Name: name, Log: filepath.Join(s.Dir, name+".log"), program: filepath.Join(o.Bin, program), args: append(args, "--config", s.Config), env: o.Env}}
	}
	for i := range s.Gateways {
		g := daemon("gateway", i, "--listen", address(i), "--admin", address(2+i))
		g.URL, g.Health, g.Spool = "http://"+address(i), "http://"+address(i)+"/readyz", o.SpoolDirs[i]
		if g.Spool == "" {
			g.Spool = filepath.Join(s.Dir, g.Name+"-spool")
		}
		g.env = append(g.env[:len(g.env):len(g.env)], "POSTERN_INGEST_SPOOL_DIR="+g.Spool, "POSTERN_INGEST_SPOOL_UNSAFE_DIR=true") // below /tmp
		s.Gateways[i] = g
		p := daemon("processor", i, "--admin", address(4+i))
		p.Health = "http://" + address(4+i) + "/readyz"
		s.Processors[i] = p
	}
	return nil
}

// Daemons are the gateways and the processors.
func (s *Site) Daemons() []*Daemon {
	return []*Daemon{s.Gateways[0], s.Gateways[1], s.Processors[0], s.Processors[1]}
}

// Ready waits until every daemon says that it is.
func (s *Site) Ready(ctx context.Context) error {
	for _, d := range s.Daemons() {
		if err := d.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Ready waits until the daemon says that it is, and fails at once where it has ended.
func (d *Daemon) Ready(ctx context.Context) error {
	var over error
	err := eventually(ctx, Patience, func() error {
		if !d.Running() {
			over = fmt.Errorf("%s has ended: %w\n%s", d.Name, d.err, d.Said())
			return nil
		}
		return d.ready(ctx)
	})
	return errors.Join(over, err)
}

// readyWithin bounds one question.
const readyWithin = 2 * time.Second

func (d *Daemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Health, nil)
	if err != nil {
		return err
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is not ready: %s", d.Name, res.Status)
	}
	return nil
}

// stopWithin is how long a daemon may take to stop: it knows best, and ends with another status where it took longer.
const stopWithin = time.Minute

// Restart ends a daemon in order and starts it again; it may not be ready yet.
func (d *Daemon) Restart() error {
	if err := d.Stop(stopWithin); err != nil {
		return err
	}
	return d.Start()
}

// Heal ends every fault and starts what was killed; all daemons are ready afterwards.
func (s *Site) Heal(ctx context.Context) error {
	if err := errors.Join(s.NATS.heal(), s.Postgres.heal(ctx)); err != nil {
		return err
	}
	for _, d := range s.Daemons() {
		d.Resume()
		if !d.Running() {
			if err := d.Start(); err != nil {
				return err
			}
		}
	}
	return s.Ready(ctx)
}

// Postern runs the operator's command with the site's configuration, and returns what it wrote.
func (s *Site) Postern(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "postern"), append(args, "--config", s.Config)...)
	cmd.Env = plain()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Close ends all processes and removes the folder.
func (s *Site) Close() error {
	var errs []error
	for _, d := range s.Daemons() {
		if d != nil {
			d.Kill()
		}
	}
	if s.Postgres != nil {
		errs = append(errs, s.Postgres.Close())
	}
	if s.NATS != nil {
		s.NATS.Close()
	}
	return errors.Join(append(errs, os.RemoveAll(s.Dir))...)
}

// eventually calls check until it returns nil, or the last error when the time is over.
func eventually(ctx context.Context, within time.Duration, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, err)
		}
	}
}
