package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/stream"
)

// operatorRole is the database role of operator commands. It reads all tables and changes none
// directly.
const operatorRole = "postern_operator"

// maintenanceRole is the database role that owns the tables and views.
const maintenanceRole = "postern_maintenance"

// gatewayRole is the database role that appends to the log.
const gatewayRole = "postern_gateway"

// database says how a command connects to PostgreSQL.
type database struct {
	// url is the URL of the instance, and maintenance the URL for migrations.
	url, maintenance string
	// identity is the database's identity in the instance file of --dir; "" if no such file applies
	// or the file has none.
	identity string
	// namedBy is the flag, the variable or the folder that names the URL.
	namedBy string
}

// database finds the database by --config, then by the environment, then by --dir. If --dir is
// given together with a configuration without a database, it uses the dev instance in that folder.
// If both name a database, it must be the same one.
func (c *cli) database() (database, error) {
	variable := config.EnvName("database", "url")
	if c.config == "" && os.Getenv(variable) == "" {
		return c.instanceDatabase()
	}
	cfg, err := config.LoadWithInstance(c.config)
	if err == nil && cfg.Database.URL == "" && !c.dirGiven {
		if _, err = config.LoadOperator(c.config); err != nil {
			err = fmt.Errorf("%w; or name a dev instance with --dir DIR to use its database", err)
		}
	}
	if err != nil {
		return database{}, err
	}
	d := database{url: string(cfg.Database.URL), maintenance: string(cfg.Database.MaintenanceURL),
		namedBy: "--config " +
			c.config}
	if os.Getenv(variable) != "" {
		d.namedBy = variable
	}
	if d.url == "" {
		return c.instanceDatabase()
	}
	if d.maintenance == "" {
		d.maintenance = d.url
	}
	if !c.dirGiven {
		return d, nil
	}
	in, err := c.readInstanceFile()
	switch {
	case errors.Is(err, config.ErrNoInstance) && c.config != "":
		return d, nil
	case err != nil:
		return database{}, fmt.Errorf("%w; to use the database of %s omit --dir", err, d.namedBy)
	}
	d.identity = in.DatabaseID
	return d, nil
}

// usesFolder reports whether the folder names the addresses of the instance: --dir is given, or
// nothing else names an instance.
func (c *cli) usesFolder() bool {
	return c.dirGiven || c.config == "" && os.Getenv(config.EnvName("database", "url")) == ""
}

// readInstanceFile reads the instance file of --dir. A misspelled variable is an error, because the
// command would use the folder instead of the intended instance.
func (c *cli) readInstanceFile() (*config.Instance, error) {
	if err := config.CheckVariables(); err != nil {
		return nil, err
	}
	return config.ReadInstance(c.dir)
}

// instanceDatabase returns the database of the dev instance in --dir.
func (c *cli) instanceDatabase() (database, error) {
	in, err := c.readInstanceFile()
	if errors.Is(err, config.ErrNoInstance) {
		err = fmt.Errorf("%w, or name another with --config FILE or %s", err, config.EnvName("database", "url"))
	}
	if err != nil {
		return database{}, err
	}
	return database{url: in.DatabaseURL, maintenance: in.DatabaseURL, identity: in.DatabaseID, namedBy: c.dir}, nil
}

// maintenanceURL returns the URL for migrations after a check that the database belongs to the
// instance.
func (c *cli) maintenanceURL(ctx context.Context) (string, error) {
	d, err := c.database()
	if err != nil {
		return "", err
	}
	if err := postgres.CheckIdentity(ctx, d.maintenance, d.identity); err != nil {
		return "", c.explainConnect(d, err)
	}
	return d.maintenance, nil
}

// connect opens the database as the operator role. The caller closes the pool.
func (c *cli) connect(ctx context.Context, errs io.Writer) (*pgxpool.Pool, error) {
	return c.connectAs(ctx, errs, operatorRole, 2)
}

// connectAs opens the database in one of Postern's roles with a maximum number of connections. For
// postern_maintenance it uses the login for migrations.
func (c *cli) connectAs(ctx context.Context, errs io.Writer, role string, maxConns int32) (*pgxpool.Pool, error) {
	d, err := c.database()
	if err != nil {
		return nil, err
	}
	if role == maintenanceRole {
		d.url = d.maintenance
	}
	pool, err := postgres.Connect(ctx, postgres.Options{URL: d.url, Identity: d.identity, Role: role,
		AppName: "postern operator", MaxConns: maxConns})
	if err != nil {
		return nil, c.explainConnect(d, err)
	}
	switch err := postgres.CheckSchema(ctx, pool); {
	case errors.Is(err, postgres.ErrSchemaNewer):
		fmt.Fprintln(errs, "postern: warning:", err) // the command may still work
	case err != nil:
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// explainConnect adds the usual cause to an error: the dev instance is not running, or the URL
// names another instance.
func (c *cli) explainConnect(d database, err error) error {
	if errors.Is(err, postgres.ErrOtherDatabase) && d.namedBy != c.dir {
		return fmt.Errorf("%w: %s names another database than the instance in %s has: omit one of the two", err,
			d.namedBy, c.dir)
	}
	if errors.Is(err, postgres.ErrOtherDatabase) {
		return fmt.Errorf("%w: the address in %s belongs to another instance now: start the instance of this folder "+
			"again with `postern dev --dir %s`", err, filepath.Join(c.dir, config.InstanceFile), c.dir)
	}
	if in, readErr := config.ReadInstance(c.dir); readErr == nil && in.DatabaseURL == d.url &&
		(c.config == "" || c.dirGiven) {
		stopped := fmt.Sprintf("the dev instance in %s is not running: start it with `postern dev --dir %s`", c.dir,
			c.dir)
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Net == "unix" && errors.Is(err, os.ErrNotExist) {
			// there is no socket of its private PostgreSQL
			return errors.New(stopped)
		}
		return fmt.Errorf("%w; %s", err, stopped)
	}
	return err
}

// checkResponder returns an error unless the response is from the process that wrote the instance
// file of a folder. The system may give the port to another process after the instance has stopped.
func checkResponder(in *config.Instance, res *http.Response) error {
	if in == nil || in.ID == "" || res.Header.Get(config.InstanceHeader) == in.ID {
		return nil
	}
	return fmt.Errorf("%s does not respond as the instance in %s: that instance has stopped, and another process "+
		"uses its port: start it again with `postern dev --dir %s`", res.Request.URL.Redacted(), in.Dir, in.Dir)
}

// errNoSources means that this command has no configuration of the sources, which it needs to read
// events.
var errNoSources = errors.New("the configuration of the sources is not known here: name it with --config FILE")

// endpoints returns the sources of --config or of the environment, with or without their secrets,
// depending on load. If neither names an instance, it returns the demo sources of the dev instance
// in --dir; others are not known. Errors: errNoSources.
func (c *cli) endpoints(load func(path string) (*config.Config, error)) ([]config.Endpoint, error) {
	cfg, err := load(c.config)
	if err != nil {
		return nil, err
	}
	switch {
	case c.config != "" || len(cfg.Sources) > 0:
	case cfg.Database.URL != "":
		return nil, errNoSources
	default:
		in, err := c.readInstanceFile()
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", errNoSources, err)
		}
		cfg.Sources = config.DemoSources()
		maps.DeleteFunc(cfg.Sources,
			func(name string, src *config.Source) bool { return in.Sources[name].Provider != src.Provider })
	}
	return cfg.Endpoints(), nil
}

// natsConfig returns the connection settings of the instance's JetStream, found in the same way as
// the database. The URL is empty if nothing names one.
func (c *cli) natsConfig() (config.NATS, error) {
	var n config.NATS
	named := c.config != "" || os.Getenv(config.EnvName("database", "url")) != ""
	if named || os.Getenv(config.EnvName("nats", "url")) != "" {
		cfg, err := config.LoadWithInstance(c.config)
		if err != nil {
			return n, err
		}
		n = cfg.NATS
	}
	if (n.URL != "" || named) && !c.dirGiven {
		return n, nil
	}
	in, err := c.readInstanceFile()
	if errors.Is(err, config.ErrNoInstance) {
		return n, nil // the database connection reports the missing instance
	}
	if err != nil {
		return n, err
	}
	if n.URL != "" && in.NATSURL != "" && !sameServers(string(n.URL), in.NATSURL) {
		return n, usagef("nats.url names other servers than the instance in %s has: omit --dir, or the setting (%s "+
			"or --config)", c.dir, config.EnvName("nats", "url"))
	}
	if n.URL == "" {
		n.URL = settings.URL(in.NATSURL)
	}
	return n, nil
}

// sameServers reports whether two lists of NATS URLs have a server in common, ignoring their
// credentials.
func sameServers(a, b string) bool {
	servers := map[string]bool{}
	for address := range strings.SplitSeq(a, ",") {
		servers[hostAndPort(address)] = true
	}
	return slices.ContainsFunc(strings.Split(b, ","),
		func(address string) bool { return servers[hostAndPort(address)] })
}

// hostAndPort returns host and port of a NATS URL, in which scheme and port are optional.
func hostAndPort(address string) string {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil {
		return address
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))
}

// natsTimeout is how long a command waits for a NATS server.
const natsTimeout = 3 * time.Second

// connectStream opens a connection to the instance's JetStream. The connection is nil, with the
// reason in failure, if no URL is configured or no server responds. The caller closes it.
func (c *cli) connectStream(ctx context.Context) (conn *stream.Conn, failure, err error) {
	n, err := c.natsConfig()
	if err != nil {
		return nil, nil, err
	}
	if n.URL == "" {
		return nil, errors.New(
			"nats.url is not set here: name the configuration with --config FILE, or POSTERN_NATS_URL; if postern " +
				"serve runs without it, add that instance's folder: --dir DIR"), nil
	}
	conn, err = stream.Connect(stream.Options{URL: string(n.URL), Credentials: n.Credentials, CA: n.TLS.CA,
		Cert: n.TLS.Cert, Key: n.TLS.Key, Name: "postern operator",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err, nil
	}
	if err := conn.AwaitConnection(ctx, natsTimeout); err != nil {
		conn.Close()
		return nil, err, nil
	}
	return conn, nil, nil
}
