package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// localFlags are what dev and serve share.
type localFlags struct {
	listen, admin string
	natsPort      int
}

func (f *localFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "listen", "", "ingest `address` (default 127.0.0.1:8080; port 0 picks a free one)")
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin `address`, loopback only (default "+config.DefaultAdminListen+")")
	cmd.Flags().IntVar(&f.natsPort, "nats-port", 0, "`port` of the embedded JetStream on 127.0.0.1; 0: that of the last start in --dir, or else a free one")
}

// run brings the instance up and stays until the context ends.
func (f *localFlags) run(cmd *cobra.Command, c *cli, cfg *config.Config, cluster bool, log *slog.Logger, out io.Writer) error {
	if err := app.Override(cfg, f.listen, f.admin); err != nil {
		return err
	}
	l, err := app.NewLocal(cmd.Context(), app.LocalOptions{Config: cfg, Logger: log, Dir: c.dir, Cluster: cluster, NATSPort: f.natsPort, Out: out})
	if err != nil {
		return err
	}
	return l.Run(cmd.Context())
}

func newDevCommand(c *cli) *cobra.Command {
	var f localFlags
	var database, source, secretFile string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, for one person",
		Long: `Run everything in one process: a private PostgreSQL started from the installed programs, an embedded JetStream, migrations,
gateway and processor. The state lies in --dir and survives a restart; Ctrl-C stops everything within 10 s.

Without --config there is one demo source per provider, named like it, with a secret that everybody knows.`,
		Example: `  postern dev
  postern dev --dir /tmp/second --listen 127.0.0.1:0 --admin 127.0.0.1:0
  postern dev --database postgres://me@localhost/postern
  stripe listen --print-secret > stripe.secret && postern dev --source stripe --secret-file stripe.secret`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadDev(c.config)
			if err != nil {
				return err
			}
			if len(cfg.Sources) == 0 {
				cfg.Sources = config.DemoSources()
			}
			if database != "" {
				cfg.Database.URL = config.URL(database)
			}
			if (source == "") != (secretFile == "") {
				return usagef("--source and --secret-file go together: the file's secret becomes that source's")
			}
			if source != "" {
				if err := cfg.ReplaceSecret(source, secretFile); err != nil {
					return err
				}
			}
			log, err := telemetry.NewLogger(cmd.ErrOrStderr(), cfg.Log.Format, cfg.Log.Level)
			if err != nil {
				return err
			}
			return f.run(cmd, c, cfg, true, log, cmd.OutOrStdout())
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&database, "database", "", "`URL` of a PostgreSQL of yours, instead of the private one")
	cmd.Flags().StringVar(&source, "source", "", "`name` of the source that --secret-file is for")
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "`file` with the source's signing secret")
	return cmd
}

func newServeCommand(c *cli) *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run gateway and processor in one process: the small production",
		Long: `Run gateway and processor in one process against the PostgreSQL that the configuration names, migrating it first. JetStream
runs inside the process, with its files in --dir, unless nats.url names servers.`,
		Example: `  postern serve --config /etc/postern/postern.yaml --dir /var/lib/postern`,
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(c.config)
			if err != nil {
				return err
			}
			if len(cfg.Sources) == 0 {
				return fmt.Errorf("no sources are configured, so nothing could be received: start from `postern init`")
			}
			log, err := telemetry.NewLogger(cmd.ErrOrStderr(), cfg.Log.Format, cfg.Log.Level)
			if err != nil {
				return err
			}
			return f.run(cmd, c, cfg, false, log, nil)
		},
	}
	f.add(cmd)
	return cmd
}
