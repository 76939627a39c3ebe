package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/postgres"
)

// doctorFlags are the flags of `postern doctor`.
type doctorFlags struct {
	dev          bool
	natsMonitor  string
	databaseDisk config.Bytes
	showAll      bool
}

func newDoctorCommand(c *cli) *cobra.Command {
	x := doctorFlags{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the environment of Postern and recommend changes",
		Long: `Check the configuration, this machine, PostgreSQL and NATS: versions and schema,
settings that reduce durability, clocks, future partitions, rights of the roles, connections and
locks, replication slots and standbys, the streams and their configuration, secrets and their file
permissions, the spool's folder and its disk, and access to the admin interface. Each check prints
what was found and what to do. Nothing is changed. A server that does not respond does not prevent
the other checks.

The exit status is 1 if there are errors, and 0 if there are only warnings. Run it with a daemon's
--config, on its machine and with its account, because files and limits are those of this session.
--nats-monitor adds how NATS syncs to disk, and --database-disk how large PostgreSQL's disk is.`,
		Example: `  postern doctor --config /etc/postern/gateway.yaml
  postern doctor --config /etc/postern/gateway.yaml --nats-monitor http://127.0.0.1:8222 --database-disk 200GiB
  postern doctor -o json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := x.examine(cmd.Context(), c)
			if err != nil {
				return err
			}
			return x.printReport(cmd.OutOrStdout(), c, r)
		},
	}
	cmd.Flags().BoolVar(&x.dev, "dev", false,
		"the configuration is for postern dev: demo secrets and no database are allowed")
	cmd.Flags().StringVar(&x.natsMonitor, "nats-monitor", "", "`address` of a NATS server's monitoring, e.g. "+
		"http://127.0.0.1:8222")
	cmd.Flags().Var((*bytesFlag)(&x.databaseDisk), "database-disk", "size of PostgreSQL's disk, e.g. 200GiB")
	cmd.Flags().BoolVar(&x.showAll, "all", false, "also show the checks without findings")
	return cmd
}

// bytesFlag is a size in the format of the configuration.
type bytesFlag config.Bytes

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return config.Bytes(*b).String()
}

func (b *bytesFlag) Type() string { return "size" }

func (b *bytesFlag) Set(text string) error { return (*config.Bytes)(b).UnmarshalText([]byte(text)) }

func (x *doctorFlags) examine(ctx context.Context, c *cli) (*doctor.Report, error) {
	o := doctor.Options{Monitor: x.natsMonitor, DatabaseDisk: int64(x.databaseDisk)}
	if c.config != "" || os.Getenv(config.EnvName("database", "url")) != "" {
		load := config.Load
		if x.dev {
			load = config.LoadDev
		}
		if o.Config, o.ConfigError = load(c.config); o.ConfigError != nil {
			var err error
			if o.Config, err = config.LoadWithInstance(c.config); err != nil {
				// Nothing in the configuration can be used. ConfigError says why, and PostgreSQL
				// and NATS cannot be reached.
				return doctor.Examine(ctx, o), nil
			}
		}
	}
	d, err := c.database()
	if err != nil {
		o.PoolError = err
	} else if o.Pool, err = postgres.Connect(ctx, postgres.Options{URL: d.url, Identity: d.identity, Role: operatorRole,
		AppName: "postern operator", MaxConns: 2}); err != nil {
		o.PoolError = c.explainConnect(d, err)
	} else {
		defer o.Pool.Close()
	}
	conn, failure, err := c.connectStream(ctx)
	if o.Conn, o.ConnError = conn, errors.Join(failure, err); conn != nil {
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, fmt.Errorf("not checked within %s", doctorTimeout))
	defer cancel()
	return doctor.Examine(ctx, o), nil
}

// doctorTimeout limits all checks together.
const doctorTimeout = time.Minute

var checks = []column[doctor.Check]{
	{"CHECK", func(k doctor.Check) string { return k.Name }},
	{"VERDICT", func(k doctor.Check) string { return string(k.Verdict) }},
	{"FOUND", func(k doctor.Check) string { return k.Found }},
	{"WHAT TO DO", func(k doctor.Check) string { return k.Advice }},
}

// printReport prints a report and returns an error if there are errors.
func (x *doctorFlags) printReport(out io.Writer, c *cli, r *doctor.Report) error {
	if err := x.printChecks(out, c, r); err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%s and %s", countOf(r.Errors, "error"), countOf(r.Warnings, "warning"))
	}
	return nil
}

func (x *doctorFlags) printChecks(out io.Writer, c *cli, r *doctor.Report) error {
	if c.output == "json" {
		return printJSON(out, r)
	}
	s := &listPrinter[doctor.Check]{out: out, columns: checks}
	var visible []doctor.Check
	for _, k := range r.Checks {
		if x.showAll || k.Verdict != doctor.OK {
			visible = append(visible, k)
		}
	}
	if err := s.add(visible); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s: %s, %s\n", countOf(len(r.Checks), "check"), countOf(r.Errors, "error"),
		countOf(r.Warnings, "warning"))
	return err
}
