package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// localFlags are what dev and serve share.
type localFlags struct {
	listen, admin, metrics string
	natsPort               int
}

func (f *localFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "listen", "", "ingest `address` (default 127.0.0.1:8080; port 0 picks a free one)")
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin `address`; beyond loopback callers need tokens (default "+config.DefaultAdminListen+")")
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "`address` of metrics and health for a scraper elsewhere (default none; /metrics is always on the admin address too)")
	cmd.Flags().IntVar(&f.natsPort, "nats-port", 0, "`port` of the embedded JetStream on 127.0.0.1; 0: that of the last start in --dir, or else a free one")
}

// local is what dev and serve run.
type local struct {
	use config.Use
	// edit is laid over the configuration, at the start and at each reload.
	edit func(*config.Config) error
	// cluster: a private PostgreSQL is started where the configuration names no database.
	cluster bool
	// hangup: SIGHUP reloads the configuration; else it ends the process.
	hangup bool
	out    io.Writer
}

// run gives an instance its way to standard error, on which a failure is told as well, so that nothing waits where nobody reads.
func (f *localFlags) run(cmd *cobra.Command, c *cli, l local) error {
	ctx, stopping := context.WithCancel(cmd.Context())
	defer stopping()
	lines := telemetry.NewLines(ctx, cmd.ErrOrStderr())
	defer lines.Close()
	if err := f.stay(cmd, c, l, lines, stopping); err != nil {
		report(err, lines)
		return errors.Join(errReported, err)
	}
	return nil
}

// stay brings the instance up and runs it until the context ends.
func (f *localFlags) stay(cmd *cobra.Command, c *cli, l local, stderr io.Writer, stopping func()) error {
	o := app.LocalOptions{Stopping: stopping, Dir: c.dir, File: c.config, Cluster: l.cluster, NATSPort: f.natsPort, Out: l.out}
	if l.hangup {
		o.Hangup = app.Reloads(cmd.Context())
	}
	o.Loader = config.NewLoader(c.config, l.use, func(cfg *config.Config) error {
		if err := l.edit(cfg); err != nil {
			return err
		}
		return app.Override(cfg, f.listen, f.admin, f.metrics)
	})
	var err error
	if o.Config, err = o.Loader.Load(); err != nil {
		return err
	}
	if o.Logger, err = telemetry.NewLogger(stderr, o.Config.Log.Format, o.Config.Log.Level); err != nil {
		return err
	}
	instance, err := app.NewLocal(cmd.Context(), o)
	if err != nil {
		return err
	}
	return instance.Run(cmd.Context())
}

func newDevCommand(c *cli) *cobra.Command {
	var f localFlags
	var database, source, secretFile string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, for one person",
		Long: `Run everything in one process: a private PostgreSQL started from the installed programs, an embedded JetStream, migrations,
gateway and processor. The state lies in --dir and survives a restart; Ctrl-C stops everything within 10 s.

Without --config there is one demo source per provider, named like it, with a secret that everybody knows. With it, sources
are read again when the file, or a secret's file, has changed, and at a SIGHUP; other settings need a restart.`,
		Example: `  postern dev
  postern dev --dir /tmp/second --listen 127.0.0.1:0 --admin 127.0.0.1:0
  postern dev --database postgres://me@localhost/postern
  stripe listen --print-secret > stripe.secret && postern dev --source stripe --secret-file stripe.secret`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (source == "") != (secretFile == "") {
				return usagef("--source and --secret-file go together: the file's secret becomes that source's")
			}
			edit := func(cfg *config.Config) error {
				if len(cfg.Sources) == 0 {
					cfg.Sources = config.DemoSources()
				}
				if database != "" {
					cfg.Database.URL = config.URL(database)
				}
				if source != "" {
					if err := realAddress(cfg, source); err != nil {
						return err
					}
					return cfg.ReplaceSecret(source, secretFile)
				}
				return nil
			}
			return f.run(cmd, c, local{use: config.ForDev, edit: edit, cluster: true, hangup: c.config != "", out: cmd.OutOrStdout()})
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&database, "database", "", "`URL` of a PostgreSQL of yours, instead of the private one")
	cmd.Flags().StringVar(&source, "source", "", "`name` of the source that --secret-file is for")
	cmd.Flags().StringVar(&secretFile, "secret-file", "", "`file` with the source's signing secret")
	return cmd
}

// realAddress refuses a demo source of a provider that signs the address it was given: real deliveries are signed for another one.
func realAddress(cfg *config.Config, source string) error {
	src, ok := cfg.Sources[source]
	if !ok || !config.IsDemoURL(src.URL) {
		return nil
	}
	for _, e := range (&config.Config{Sources: map[string]*config.Source{source: src}}).Endpoints() {
		without := *e.Source
		without.URL = ""
		if e.Provider.Check(&without) == nil {
			return nil // it would do as well without an address
		}
	}
	return fmt.Errorf("%s signs the address that it was given, and the demo source's is not the one: write sources.%s with provider, secrets and url in a file, and start with --config FILE",
		src.Provider, source)
}

func newServeCommand(c *cli) *cobra.Command {
	var f localFlags
	cmd := &cobra.Command{
		Use:   "serve --config FILE",
		Short: "Run gateway and processor in one process: the small production",
		Long: `Run gateway and processor in one process against the PostgreSQL that the configuration names, migrating it first. JetStream
runs inside the process, with its files in --dir, unless nats.url names servers. Sources are read again when the file, or a
secret's file, has changed, and at a SIGHUP; other settings need a restart.`,
		Example: `  postern serve --config /etc/postern/postern.yaml --dir /var/lib/postern`,
		Args:    wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			edit := func(cfg *config.Config) error {
				if len(cfg.Sources) == 0 {
					return errors.New("no sources are configured, so nothing could be received: start from `postern init`")
				}
				return nil
			}
			return f.run(cmd, c, local{use: config.ForGateway, edit: edit, hangup: true})
		},
	}
	f.add(cmd)
	return cmd
}
