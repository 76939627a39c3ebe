package load

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Machine has a PostgreSQL, a NATS server and the built programs in one folder.
type Machine struct {
	Dir string
	// Admin is a pool of connections to PostgreSQL as superuser. JS is a connection to JetStream.
	Admin *pgxpool.Pool
	JS    jetstream.JetStream
	// Settings are the settings of PostgreSQL beyond the durable ones. Traces receives traces and
	// is nil if they are off.
	Settings map[string]string
	Traces   *Sink

	pg        *postgres.Cluster
	pgPID     int
	nats      *Process
	natsURL   string
	conn      *nats.Conn
	processes []*Process
	started   int
	databases int
}

// builds has the packages to build by the folder of their module. Each program has the name of its
// package.
var builds = map[string][]string{
	"..": {"./cmd/gateway", "./cmd/processor", "./cmd/postern"},
	".": {"./reference/verify", "./reference/bare", "./reference/afternoon", "./reference/onebyone",
		"github.com/nats-io/nats-server/v2"},
}

// template is the database with Postern's schema that others are copied from.
const template = "postern"

// MachineOptions configure a machine.
type MachineOptions struct {
	// Parent is the folder in which the machine's own folder is created. Empty means the system's
	// folder for temporary files.
	Parent string
	// Settings of PostgreSQL by name, on top of durable ones.
	Settings map[string]string
	// Traces starts a Sink, and the programs send their traces to it.
	Traces bool
}

// StartMachine builds the programs and starts PostgreSQL and NATS with durable settings in a new
// folder. The working directory must be the module's.
func StartMachine(ctx context.Context, o MachineOptions, log *slog.Logger) (_ *Machine, err error) {
	m := &Machine{Settings: o.Settings}
	if m.Dir, err = os.MkdirTemp(o.Parent, "postern-bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Stop())
		}
	}()
	if err := os.Chmod(m.Dir, 0o711); err != nil { // PostgreSQL may run as another account
		return nil, err
	}
	for dir, packages := range builds {
		log.Info("build", "packages", strings.Join(packages, " "))
		build := exec.CommandContext(ctx, "go", append([]string{"build", "-buildvcs=false", "-o", m.program("") + "/"},
			packages...)...)
		build.Dir = dir
		if out, err := build.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %v: %w: %s", packages, err, out)
		}
	}
	if err := m.startPostgres(ctx); err != nil {
		return nil, err
	}
	if err := m.startNATS(ctx); err != nil {
		return nil, err
	}
	if o.Traces {
		m.Traces, err = NewSink()
	}
	return m, err
}

func (m *Machine) startPostgres(ctx context.Context) (err error) {
	dir := filepath.Join(m.Dir, "postgres")
	if m.pg, err = postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Settings: m.Settings}); err != nil {
		return err
	}
	pid, err := os.ReadFile(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil {
		return err
	}
	line, _, _ := bytes.Cut(pid, []byte("\n"))
	if m.pgPID, err = strconv.Atoi(string(line)); err != nil {
		return err
	}
	if _, err := postgres.Migrate(ctx, m.pg.URL()); err != nil {
		return err
	}
	m.Admin, err = pgxpool.New(ctx, m.DatabaseURL("postgres"))
	return err
}

func (m *Machine) startNATS(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	conf := filepath.Join(m.Dir, "nats.conf")
	text := fmt.Sprintf("server_name: bench\nlisten: %q\nmax_payload: 1MB\njetstream { store_dir: %q, max_file: "+
		"40GiB, max_mem: 64MB }\n", address, filepath.Join(m.Dir, "jetstream"))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		return err
	}
	if m.nats, err = m.start("nats", nil, m.program("nats-server"), "-c", conf); err != nil {
		return err
	}
	if _, err := m.nats.await(ctx, regexp.MustCompile(`Server is ready`)); err != nil {
		return err
	}
	m.natsURL = "nats://" + address
	if m.conn, err = nats.Connect(m.natsURL); err != nil {
		return err
	}
	m.JS, err = jetstream.New(m.conn)
	return err
}

func (m *Machine) program(name string) string { return filepath.Join(m.Dir, "bin", name) }

// DatabaseURL returns the URL of a database for the superuser.
func (m *Machine) DatabaseURL(name string) string {
	return strings.Replace(m.pg.URL(), "/"+template+"?", "/"+name+"?", 1)
}

// NATS returns the URL of the NATS server.
func (m *Machine) NATS() string { return m.natsURL }

// NewDatabase creates a database as a copy of another. Without a name it copies the empty one with
// Postern's schema.
func (m *Machine) NewDatabase(ctx context.Context, of string) (string, error) {
	return m.copyDatabase(ctx, cmp.Or(of, template), "file_copy")
}

// NewDatabaseQuietly creates an empty database with Postern's schema. Unlike NewDatabase it causes
// no checkpoint.
func (m *Machine) NewDatabaseQuietly(ctx context.Context) (string, error) {
	return m.copyDatabase(ctx, template, "wal_log")
}

func (m *Machine) copyDatabase(ctx context.Context, of, strategy string) (string, error) {
	m.databases++
	name := fmt.Sprintf("bench_%d", m.databases)
	if _, err := m.Admin.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+
		pgx.Identifier{of}.Sanitize()+" STRATEGY "+strategy); err != nil {
		return "", fmt.Errorf("copy database %s: %w", of, err)
	}
	return name, nil
}

// DropDatabase removes a database and ends its connections.
func (m *Machine) DropDatabase(ctx context.Context, name string) error {
	_, err := m.Admin.Exec(ctx, "DROP DATABASE "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
	return err
}

// Set changes settings of PostgreSQL with ALTER SYSTEM. An empty value restores the default.
func (m *Machine) Set(ctx context.Context, settings map[string]string) error {
	for name, value := range settings {
		sql := "ALTER SYSTEM SET " + name + " = '" + value + "'"
		if value == "" {
			sql = "ALTER SYSTEM RESET " + name
		}
		if _, err := m.Admin.Exec(ctx, sql); err != nil {
			return err
		}
	}
	_, err := m.Admin.Exec(ctx, "SELECT pg_reload_conf()")
	return err
}

// SettingsInForce returns the current values of some settings and of all that the machine was
// started with.
func (m *Machine) SettingsInForce(ctx context.Context, names ...string) (map[string]string, error) {
	found := map[string]string{}
	for _, name := range slices.Concat(names, slices.Collect(maps.Keys(m.Settings))) {
		var v string
		if err := m.Admin.QueryRow(ctx, "SELECT current_setting($1)", name).Scan(&v); err != nil {
			return nil, fmt.Errorf("read setting %s: %w", name, err)
		}
		found[name] = v
	}
	return found, nil
}

// Reset gives every run the same start: no streams, and all changed pages on disk.
func (m *Machine) Reset(ctx context.Context) error {
	if err := m.DropStreams(ctx); err != nil {
		return err
	}
	_, err := m.Admin.Exec(ctx, "CHECKPOINT")
	return err
}

// DropStreams removes all streams.
func (m *Machine) DropStreams(ctx context.Context) error {
	for name := range m.JS.StreamNames(ctx).Name() {
		if err := m.JS.DeleteStream(ctx, name); err != nil {
			return fmt.Errorf("delete stream %s: %w", name, err)
		}
	}
	return nil
}

// Serve starts one of the programs and waits until it is ready.
func (m *Machine) Serve(ctx context.Context, name string, env []string, args ...string) (*Process, error) {
	p, err := m.start(name, env, m.program(name), args...)
	if err != nil {
		return nil, err
	}
	found, err := p.await(ctx, ready)
	if err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	for _, at := range addresses.FindAllStringSubmatch(found[0], -1) {
		if at[1] == "ingest" {
			p.Address = at[2]
		} else {
			p.Admin = at[2]
		}
	}
	return p, nil
}

var (
	ready     = regexp.MustCompile(`(?m)^.*\bmsg"?[=:]"?ready\b.*$`)
	addresses = regexp.MustCompile(`\b(ingest|admin)"?[=:]"?([0-9.]+:[0-9]+)`)
)

// Stop ends all processes and removes the folder.
func (m *Machine) Stop() error {
	var errs []error
	if m.conn != nil {
		m.conn.Close()
	}
	for i := len(m.processes) - 1; i >= 0; i-- {
		errs = append(errs, m.processes[i].Stop())
	}
	if m.Admin != nil {
		m.Admin.Close()
	}
	if m.pg != nil {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		errs = append(errs, m.pg.Stop(ctx))
	}
	if m.Traces != nil {
		errs = append(errs, m.Traces.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(m.Dir))...)
}

// Connect opens a connection to a database as the superuser.
func (m *Machine) Connect(ctx context.Context, database string) (*pgx.Conn, error) {
	return pgx.Connect(ctx, m.DatabaseURL(database))
}
