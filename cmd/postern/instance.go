package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
)

// operatorRole is what operator commands act as: it may read everything and write nothing.
const operatorRole = "postern_operator"

// gatewayRole is what appends to the log.
const gatewayRole = "postern_gateway"

// databaseURLs are those of the instance and of its maintenance, found by --config, then by the environment, then by --dir. Where
// --dir is given beside a configuration that names no database, it is that of the dev instance in the folder.
func (c *cli) databaseURLs() (url, maintenance string, err error) {
	if c.config == "" && os.Getenv(config.EnvName("database", "url")) == "" {
		return c.instanceURLs()
	}
	cfg, err := config.LoadBeside(c.config)
	if err == nil && cfg.Database.URL == "" && !c.dirGiven {
		if _, err = config.LoadOperator(c.config); err != nil {
			err = fmt.Errorf("%w; or name a dev instance beside it with --dir DIR, for its database", err)
		}
	}
	if err != nil {
		return "", "", err
	}
	url, maintenance = string(cfg.Database.URL), string(cfg.Database.MaintenanceURL)
	if url == "" {
		return c.instanceURLs()
	}
	if maintenance == "" {
		maintenance = url
	}
	return url, maintenance, nil
}

// instanceURLs are those of the dev instance in --dir.
func (c *cli) instanceURLs() (url, maintenance string, err error) {
	in, err := config.ReadInstance(c.dir)
	if errors.Is(err, config.ErrNoInstance) {
		err = fmt.Errorf("%w, or name another with --config FILE or %s", err, config.EnvName("database", "url"))
	}
	if err != nil {
		return "", "", err
	}
	return in.DatabaseURL, in.DatabaseURL, nil
}

// connect opens the database as the operator. Whoever calls closes the pool.
func (c *cli) connect(ctx context.Context, errs io.Writer) (*pgxpool.Pool, error) {
	return c.connectAs(ctx, errs, operatorRole, 2)
}

// connectAs opens the database as a role of ours, with so many connections at most.
func (c *cli) connectAs(ctx context.Context, errs io.Writer, role string, most int32) (*pgxpool.Pool, error) {
	url, _, err := c.databaseURLs()
	if err != nil {
		return nil, err
	}
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: role, AppName: "postern operator", MaxConns: most})
	if err != nil {
		return nil, c.explainConnect(url, err)
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

// explainConnect adds what usually is the cause for a dev instance: it does not run.
func (c *cli) explainConnect(url string, err error) error {
	if in, readErr := config.ReadInstance(c.dir); readErr == nil && in.DatabaseURL == url && (c.config == "" || c.dirGiven) {
		return fmt.Errorf("%w; the dev instance in %s does not run: start it with `postern dev --dir %s`", err, c.dir, c.dir)
	}
	return err
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
