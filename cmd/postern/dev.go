package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/telemetry"
)

// localFlags are the flags that dev and serve share.
type localFlags struct {
	listen, admin, metrics string
	natsPort               int
}

func (f *localFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "listen", "", "ingest `address` (default 127.0.0.1:8080; port 0 picks a free one)")
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin `address`; any other than loopback requires tokens (default "+
		config.DefaultAdminListen+")")
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "`address` of metrics and health for a scraper on another "+
		"machine (default none; /metrics is always on the admin address too)")
	cmd.Flags().IntVar(&f.natsPort, "nats-port", 0, "`port` of the embedded JetStream on 127.0.0.1 (0: that of the "+
		"last start in --dir, or else a free one)")
}

// local describes how dev and serve run an instance.
type local struct {
	kind string
	use  config.Use
	// edit changes the configuration at the start and at each reload.
	edit func(*config.Config) error
	// cluster starts a private PostgreSQL if the configuration names no database.
	cluster bool
	// hangup makes SIGHUP reload the configuration; otherwise SIGHUP ends the process.
	hangup bool
	out    io.Writer
}

// run runs an instance with a buffered standard error, on which it also reports a failure. So a
// reader that stalls does not block the instance.
func (f *localFlags) run(x *call, l local) error {
	ctx, cancel := context.WithCancel(x.ctx)
	defer cancel()
	stderr := telemetry.NewAsyncWriter(ctx, x.errs)
	defer stderr.Close()
	if err := f.runInstance(x, l, stderr, cancel); err != nil {
		report(err, stderr)
		return errors.Join(errReported, err)
	}
	return nil
}

// runInstance starts the instance and runs it until the context ends.
func (f *localFlags) runInstance(x *call, l local, stderr io.Writer, cancel func()) error {
	o := app.LocalOptions{OnStopping: cancel, Dir: x.dir, File: x.config, Cluster: l.cluster, Kind: l.kind,
		NATSPort: f.natsPort, Out: l.out}
	if l.hangup {
		o.Hangup = app.ReloadsOnHangup(x.ctx)
	}
	o.Loader = config.NewLoader(x.config, l.use, func(cfg *config.Config) error {
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
	instance, err := app.NewLocal(x.ctx, o)
	if err != nil {
		return err
	}
	return instance.Run(x.ctx)
}

func newDevCommand(c *cli) *cobra.Command {
	var f localFlags
	return command{
		use: "dev", short: "Run a development instance in one process", offline: true, moreFlags: f.addTo,
		long: `Run everything in one process: a private PostgreSQL from the installed programs, an
embedded JetStream, migrations, gateway and processor. The state is in --dir and survives a restart.
Ctrl-C stops everything within 10 s.

Without --config there is one demo source per provider, with the provider's name and a public
secret. With --config, sources are read again when the file or a secret's file changes, and at a
SIGHUP; other settings need a restart.`,
		example: `  postern dev
  postern dev --dir /tmp/second --listen 127.0.0.1:0 --admin 127.0.0.1:0
  postern dev --database postgres://me@localhost/postern
  stripe listen --print-secret > stripe.secret && postern dev --source stripe --secret-file stripe.secret`,
		flags: []flag{{"database", "`URL` of your own PostgreSQL instead of the private one", true},
			{"source", "`name` of the source that uses --secret-file", true},
			{"secret-file", "`file` with the source's signing secret", true}},
		run: func(x *call) error {
			source, secretFile := x.text("source"), x.text("secret-file")
			if (source == "") != (secretFile == "") {
				return usagef(
					"--source and --secret-file go together: the secret in the file becomes the secret of that source")
			}
			edit := func(cfg *config.Config) error {
				if len(cfg.Sources) == 0 {
					cfg.Sources = config.DemoSources()
				}
				if url := x.text("database"); url != "" {
					cfg.Database.URL = settings.URL(url)
				}
				if source == "" {
					return nil
				}
				if err := checkSignedAddress(cfg, source); err != nil {
					return err
				}
				return cfg.ReplaceSecret(source, secretFile)
			}
			return f.run(x, local{kind: activity.Dev, use: config.ForDev, edit: edit, cluster: true,
				hangup: x.config != "", out: x.out})
		},
	}.build(c)
}

// checkSignedAddress rejects a demo source of a provider that signs its webhook address. Real
// deliveries are signed for another address.
func checkSignedAddress(cfg *config.Config, source string) error {
	src, ok := cfg.Sources[source]
	if !ok || !config.IsDemoURL(src.URL) {
		return nil
	}
	for _, e := range (&config.Config{Sources: map[string]*config.Source{source: src}}).Endpoints() {
		without := *e.Source
		without.URL = ""
		if e.Provider.Check(&without) == nil {
			return nil // the provider does not sign the address
		}
	}
	return fmt.Errorf("%s signs the webhook address, and the demo source has another one: write sources.%s with "+
		"provider, secrets and url in a file, and start with --config FILE", src.Provider, source)
}

func newServeCommand(c *cli) *cobra.Command {
	var f localFlags
	return command{
		use: "serve --config FILE", short: "Run gateway and processor in one process for a small production",
		offline: true, moreFlags: f.addTo,
		long: `Run gateway and processor in one process with the PostgreSQL that the configuration
names, and apply migrations first. JetStream runs inside the process, with its files in --dir,
unless nats.url names servers. Sources are read again when the file or a secret's file changes, and
at a SIGHUP; other settings need a restart.`,
		example: `  postern serve --config /etc/postern/postern.yaml --dir /var/lib/postern`,
		run: func(x *call) error {
			edit := func(cfg *config.Config) error {
				if len(cfg.Sources) == 0 {
					return errors.New(
						"no sources are configured, so nothing can be received: start from `postern init`")
				}
				return nil
			}
			return f.run(x, local{kind: activity.Serve, use: config.ForGateway, edit: edit, hangup: true})
		},
	}.build(c)
}
