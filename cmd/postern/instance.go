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

// operatorRole is what operator commands act as: it may read everything and write nothing.
const operatorRole = "postern_operator"

// gatewayRole is what appends to the log.
const gatewayRole = "postern_gateway"

// database is how a command reaches PostgreSQL.
type database struct {
	// url is the instance's, maintenance that of its maintenance.
	url, maintenance string
	// identity is what the instance file of --dir says of the database; empty: no such file counts, or it does not know.
	identity string
	// from is what named the URL: a flag, a variable or a folder.
	from string
}

// database finds it by --config, then by the environment, then by --dir. Where --dir is given beside a configuration that names no
// database, it is that of the dev instance in the folder. Where both name one, it must be the same one.
func (c *cli) database() (database, error) {
	variable := config.EnvName("database", "url")
	if c.config == "" && os.Getenv(variable) == "" {
		return c.instanceDatabase()
	}
	cfg, err := config.LoadBeside(c.config)
	if err == nil && cfg.Database.URL == "" && !c.dirGiven {
		if _, err = config.LoadOperator(c.config); err != nil {
			err = fmt.Errorf("%w; or name a dev instance beside it with --dir DIR, for its database", err)
		}
	}
	if err != nil {
		return database{}, err
	}
	d := database{url: string(cfg.Database.URL), maintenance: string(cfg.Database.MaintenanceURL), from: "--config " + c.config}
	if os.Getenv(variable) != "" {
		d.from = variable
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
	in, err := c.readInstance()
	switch {
	case errors.Is(err, config.ErrNoInstance) && c.config != "":
		return d, nil
	case err != nil:
		return database{}, fmt.Errorf("%w; for the database of %s leave out --dir", err, d.from)
	}
	d.identity = in.DatabaseID
	return d, nil
}

// byFolder reports whether the folder names the addresses of the instance: --dir is given, or nothing else names an instance.
func (c *cli) byFolder() bool {
	return c.dirGiven || c.config == "" && os.Getenv(config.EnvName("database", "url")) == ""
}

// readInstance reads the instance file of --dir. A variable that is a slip from one that names another instance is an error: the
// folder would count in its place.
func (c *cli) readInstance() (*config.Instance, error) {
	if err := config.CheckVariables(); err != nil {
		return nil, err
	}
	return config.ReadInstance(c.dir)
}

// instanceDatabase is that of the dev instance in --dir.
func (c *cli) instanceDatabase() (database, error) {
	in, err := c.readInstance()
	if errors.Is(err, config.ErrNoInstance) {
		err = fmt.Errorf("%w, or name another with --config FILE or %s", err, config.EnvName("database", "url"))
	}
	if err != nil {
		return database{}, err
	}
	return database{url: in.DatabaseURL, maintenance: in.DatabaseURL, identity: in.DatabaseID, from: c.dir}, nil
}

// maintenanceURL is the URL for migrations, of a database that is proven to be the instance's.
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

// connect opens the database as the operator. Whoever calls closes the pool.
func (c *cli) connect(ctx context.Context, errs io.Writer) (*pgxpool.Pool, error) {
	return c.connectAs(ctx, errs, operatorRole, 2)
}

// connectAs opens the database as a role of ours, with so many connections at most.
func (c *cli) connectAs(ctx context.Context, errs io.Writer, role string, most int32) (*pgxpool.Pool, error) {
	d, err := c.database()
	if err != nil {
		return nil, err
	}
	pool, err := postgres.Connect(ctx, postgres.Options{URL: d.url, Identity: d.identity, Role: role, AppName: "postern operator", MaxConns: most})
	if err != nil {
		return nil, c.explainConnect(d, err)
	}
	switch err := postgres.CheckSchema(ctx, pool); {
	case errors.Is(err, postgres.ErrSchemaNewer):
		fmt.Fprintln(errs, "postern: warning:", err) // what is asked may still be answered
	case err != nil:
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// explainConnect adds the usual cause: the dev instance does not run, or the URL leads to another one.
func (c *cli) explainConnect(d database, err error) error {
	if errors.Is(err, postgres.ErrOtherDatabase) && d.from != c.dir {
		return fmt.Errorf("%w: %s names another database than the instance in %s has: leave out one of the two", err, d.from, c.dir)
	}
	if errors.Is(err, postgres.ErrOtherDatabase) {
		return fmt.Errorf("%w: the address in %s leads to another instance by now: start the one of this folder again with `postern dev --dir %s`",
			err, filepath.Join(c.dir, config.InstanceFile), c.dir)
	}
	if in, readErr := config.ReadInstance(c.dir); readErr == nil && in.DatabaseURL == d.url && (c.config == "" || c.dirGiven) {
		return fmt.Errorf("%w; the dev instance in %s does not run: start it with `postern dev --dir %s`", err, c.dir, c.dir)
	}
	return err
}

// checkResponder returns an error unless a response is from the process that wrote the instance file of a folder. Ports are given to
// another process after the instance has stopped.
func checkResponder(in *config.Instance, res *http.Response) error {
	if in == nil || in.ID == "" || res.Header.Get(config.InstanceHeader) == in.ID {
		return nil
	}
	return fmt.Errorf("%s does not answer as the instance in %s: that one has stopped, and another process has its port: "+
		"start it again with `postern dev --dir %s`", res.Request.URL.Redacted(), in.Dir, in.Dir)
}

// withPool runs a command that asks the database.
func (c *cli) withPool(ctx context.Context, errs io.Writer, ask func(pool *pgxpool.Pool) error) error {
	pool, err := c.connect(ctx, errs)
	if err != nil {
		return err
	}
	defer pool.Close()
	return ask(pool)
}
