package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
)

// operatorRole is the database role of operator commands. It reads all tables and changes none
// directly.
const operatorRole = "postern_operator"

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

// connectAs opens the database in one of Postern's roles with a maximum number of connections.
func (c *cli) connectAs(ctx context.Context, errs io.Writer, role string, maxConns int32) (*pgxpool.Pool, error) {
	d, err := c.database()
	if err != nil {
		return nil, err
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
		return fmt.Errorf("%w; the dev instance in %s is not running: start it with `postern dev --dir %s`", err, c.dir,
			c.dir)
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

// withPool runs a function with a connection to the database.
func (c *cli) withPool(ctx context.Context, errs io.Writer, use func(pool *pgxpool.Pool) error) error {
	pool, err := c.connect(ctx, errs)
	if err != nil {
		return err
	}
	defer pool.Close()
	return use(pool)
}
