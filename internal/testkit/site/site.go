// Package site runs a small production of real processes on this machine: a PostgreSQL primary and
// its synchronous standby, three NATS servers, two gateways and two processors. A proxy that fails
// on command is in front of each server. Tests and the chaos run kill, stop and disconnect its
// parts.
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
	"sync/atomic"
	"time"
)

// Site is a running production.
type Site struct {
	// Dir holds all files of the site, Config is the configuration of all daemons, and Bin is the
	// directory of the programs.
	Dir, Config, Bin string
	Postgres         *PostgresPair
	NATS             *NATSCluster
	Gateways         [2]*Daemon
	Processors       [2]*Daemon
}

// Daemon is a gateway or a processor.
type Daemon struct {
	*Process
	// URL is the ingest address of a gateway, and empty for a processor. Health is the address of
	// the readiness check.
	URL, Health string
	// Spool is the spool directory of a gateway.
	Spool string
	// LateStops counts how often the daemon did not stop within its time.
	LateStops atomic.Int64
}

// Daemons returns the packages of the programs under test.
func Daemons() []string { return []string{"cmd/gateway", "cmd/processor"} }

// Tools returns the packages of the other programs.
func Tools() []string { return []string{"cmd/postern", "internal/testkit/site/natsd"} }

// Build builds programs, given by their packages, into a directory. The flags are passed to go
// build, for example an overlay.
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

// Options are the options of a site.
type Options struct {
	// Bin contains the programs from Build.
	Bin string
	// Settings are further sections of the configuration as YAML, at least sources. The site sets
	// the sections database, nats, admin and log itself.
	Settings string
	// Env is added to the environment of the daemons, as NAME=VALUE.
	Env []string
	// SpoolDirs are the spool directories of the gateways. An empty one means a directory of the
	// site.
	SpoolDirs [2]string
	// Fsync: PostgreSQL syncs its writes to disk, which is its default and slow. Without it a
	// commit survives a crash of the servers, but not of the machine.
	Fsync bool
}

const configTemplate = `database: {url: %q}
nats: {url: %q, replicas: 3}
log: {format: json, level: warn}
%s`

// Start starts a site in a new temporary directory and returns when all daemons are ready. Close
// stops it, also after an error.
func Start(ctx context.Context, o Options) (s *Site, err error) {
	s = &Site{Bin: o.Bin}
	if s.Dir, err = os.MkdirTemp("", "postern-site-"); err != nil {
		return s, err
	}
	// As root, PostgreSQL runs as another account, which must be able to enter.
	if err := os.Chmod(s.Dir, 0o711); err != nil {
		return s, err
	}
	if s.NATS, err = StartNATS(o.Bin, s.Dir); err != nil {
		return s, err
	}
	if s.Postgres, err = StartPostgres(ctx, s.Dir, o.Fsync); err != nil {
		return s, err
	}
	s.Config = filepath.Join(s.Dir, "postern.yaml")
	if err := os.WriteFile(s.Config, fmt.Appendf(nil, configTemplate, s.Postgres.URL, s.NATS.URL, o.Settings),
		0o600); err != nil {
		return s, err
	}
	if err := s.makeDaemons(o, randomLoopbackHost()); err != nil {
		return s, err
	}
	for _, d := range s.Daemons() {
		if err := d.Start(); err != nil {
			return s, err
		}
	}
	return s, s.Ready(ctx)
}

// makeDaemons makes the daemons. Each keeps its addresses.
func (s *Site) makeDaemons(o Options, host string) error {
	free, err := freePorts(host, 6)
	if err != nil {
		return err
	}
	address := func(i int) string { return net.JoinHostPort(host, strconv.Itoa(free[i])) }
	daemon := func(program string, i int, args ...string) *Daemon {
		name := program + strconv.Itoa(i+1)
		return &Daemon{Process: &Process{Name: name, Log: filepath.Join(s.Dir, name+".log"),
			program: filepath.Join(o.Bin, program), args: append(args, "--config", s.Config), env: o.Env}}
	}
	for i := range s.Gateways {
		g := daemon("gateway", i, "--listen", address(i), "--admin", address(2+i))
		g.URL, g.Health, g.Spool = "http://"+address(i), "http://"+address(i)+"/readyz", o.SpoolDirs[i]
		if g.Spool == "" {
			g.Spool = filepath.Join(s.Dir, g.Name+"-spool")
		}
		// the directory is below /tmp
		g.env = append(g.env[:len(g.env):len(g.env)], "POSTERN_INGEST_SPOOL_DIR="+g.Spool,
			"POSTERN_INGEST_SPOOL_UNSAFE_DIR=true")
		s.Gateways[i] = g
		p := daemon("processor", i, "--admin", address(4+i))
		p.Health = "http://" + address(4+i) + "/readyz"
		s.Processors[i] = p
	}
	return nil
}

// Daemons returns the gateways and the processors.
func (s *Site) Daemons() []*Daemon {
	return []*Daemon{s.Gateways[0], s.Gateways[1], s.Processors[0], s.Processors[1]}
}

// Ready waits until all daemons are ready.
func (s *Site) Ready(ctx context.Context) error {
	for _, d := range s.Daemons() {
		if err := d.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Ready waits until the daemon is ready. It fails at once when the daemon has ended.
func (d *Daemon) Ready(ctx context.Context) error {
	var exited error
	err := waitUntil(ctx, OperationTimeout, func() error {
		if !d.Running() {
			exited = fmt.Errorf("%s has ended: %w\n%s", d.Name, d.err, d.LogTail())
			return nil
		}
		return d.ready(ctx)
	})
	return errors.Join(exited, err)
}

// readyTimeout limits one readiness check.
const readyTimeout = 2 * time.Second

func (d *Daemon) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
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

// stopTimeout is how long a daemon may take to stop. It has its own limit, and exits with another
// status after it.
const stopTimeout = time.Minute

// Restart stops a daemon gracefully and starts it again. It may not be ready when Restart returns.
func (d *Daemon) Restart() error {
	if err := d.Stop(stopTimeout); err != nil {
		return err
	}
	return d.Start()
}

// Recover ends all faults and starts the killed processes. All daemons are ready afterwards.
func (s *Site) Recover(ctx context.Context) error {
	if err := errors.Join(s.NATS.recover(), s.Postgres.recover(ctx)); err != nil {
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

// Postern runs the postern command with the configuration of the site and returns its output.
func (s *Site) Postern(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "postern"), append(args, "--config", s.Config)...)
	cmd.Env = cleanEnv()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Close ends all processes and removes the directory.
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

// waitUntil calls check until it returns nil. It returns the last error when the time is over.
func waitUntil(ctx context.Context, within time.Duration, check func() error) error {
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
