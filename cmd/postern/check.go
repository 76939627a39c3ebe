package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/settings"
)

func newDoctorCommand(c *cli) *cobra.Command {
	var databaseDisk settings.Bytes
	return command{
		use: "doctor", short: "Check the environment of Postern and recommend changes", offline: true,
		long: `Check the configuration, this machine, PostgreSQL and NATS: versions and schema,
settings that reduce durability, clocks, future partitions, rights of the roles, connections and
locks, replication slots and standbys, the streams and their configuration, secrets and their file
permissions, the spool's folder and its disk, and access to the admin interface. Each check prints
what was found and what to do. Nothing is changed. A server that does not respond does not prevent
the other checks.

The exit status is 1 if there are errors, and 0 if there are only warnings. Run it with a daemon's
--config, on its machine and with its account, because files and limits are those of this session.
--nats-monitor adds how NATS syncs to disk, and --database-disk how large PostgreSQL's disk is.`,
		example: `  postern doctor --config /etc/postern/gateway.yaml
  postern doctor --config /etc/postern/gateway.yaml --nats-monitor http://127.0.0.1:8222 --database-disk 200GiB
  postern doctor -o json | jq '.checks[] | select(.verdict != "ok")'`,
		flags: []flag{{"dev", "the configuration is for postern dev: demo secrets and no database are allowed", false},
			{"nats-monitor", "`address` of a NATS server's monitoring, e.g. http://127.0.0.1:8222", true},
			{"all", "also show the checks without findings", false}},
		moreFlags: func(cmd *cobra.Command) {
			cmd.Flags().Var((*bytesFlag)(&databaseDisk), "database-disk", "size of PostgreSQL's disk, e.g. 200GiB")
		},
		run: func(x *call) error {
			r, err := examine(x, doctor.Options{Monitor: x.text("nats-monitor"), DatabaseDisk: int64(databaseDisk)})
			if err := show(x, r, err, printChecks); err != nil {
				return err
			}
			if r.Errors > 0 {
				return fmt.Errorf("%s and %s", countOf(r.Errors, "error"), countOf(r.Warnings, "warning"))
			}
			return nil
		},
	}.build(c)
}

// bytesFlag is a size in the format of the configuration.
type bytesFlag settings.Bytes

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return settings.Bytes(*b).String()
}

func (b *bytesFlag) Type() string { return "size" }

func (b *bytesFlag) Set(text string) error { return (*settings.Bytes)(b).UnmarshalText([]byte(text)) }

// doctorTimeout limits all checks together.
const doctorTimeout = time.Minute

func examine(x *call, o doctor.Options) (*doctor.Report, error) {
	ctx := x.ctx
	if x.config != "" || os.Getenv(config.EnvName("database", "url")) != "" {
		load := config.Load
		if x.has("dev") {
			load = config.LoadDev
		}
		if o.Config, o.ConfigError = load(x.config); o.ConfigError != nil {
			var err error
			if o.Config, err = config.LoadWithInstance(x.config); err != nil {
				// Nothing in the configuration can be used. ConfigError says why, and PostgreSQL
				// and NATS cannot be reached.
				return doctor.Examine(ctx, o), nil
			}
		}
	}
	d, err := x.database()
	if err != nil {
		o.PoolError = err
	} else if o.Pool, err = postgres.Connect(ctx, postgres.Options{URL: d.url, Identity: d.identity, Role: operatorRole,
		AppName: "postern operator", MaxConns: 2}); err != nil {
		o.PoolError = x.explainConnect(d, err)
	} else {
		defer o.Pool.Close()
	}
	conn, failure, err := x.connectStream(ctx)
	if o.Conn, o.ConnError = conn, errors.Join(failure, err); conn != nil {
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorTimeout, fmt.Errorf("not checked within %s", doctorTimeout))
	defer cancel()
	return doctor.Examine(ctx, o), nil
}

var checkColumns = []column[doctor.Check]{
	{"CHECK", func(k doctor.Check) any { return k.Name }},
	{"VERDICT", func(k doctor.Check) any { return k.Verdict }},
	{"FOUND", func(k doctor.Check) any { return k.Found }},
	{"WHAT TO DO", func(k doctor.Check) any { return k.Advice }},
}

func printChecks(x *call, r *doctor.Report) error {
	visible := slices.Clone(r.Checks)
	if !x.has("all") {
		visible = slices.DeleteFunc(visible, func(k doctor.Check) bool { return k.Verdict == doctor.OK })
	}
	if err := printTable(x.out, visible, checkColumns); err != nil {
		return err
	}
	_, err := fmt.Fprintf(x.out, "%s: %s, %s\n", countOf(len(r.Checks), "check"), countOf(r.Errors, "error"),
		countOf(r.Warnings, "warning"))
	return err
}

func newHealthCommand(c *cli) *cobra.Command {
	var timeout time.Duration
	var client clientFlags
	return command{
		use: "health", short: "Check whether a daemon can do its work, as a container's health check", offline: true,
		long: `Check whether a daemon can do its work. The exit status is 0 if it responds with 200,
else 1 with the reason. The command is for containers whose image has neither a shell nor curl.
/readyz checks all the daemon needs, including PostgreSQL; /healthz checks only the process.

The daemon is that of --url, else the instance in --dir. Without --dir, and without an instance in
.postern, it is the one at http://` + config.DefaultAdminListen + `.`,
		example: `  postern health
  postern health --dir /tmp/second
  postern health --url http://127.0.0.1:8082/readyz     # a processor`,
		flags: []flag{{"url", "`address` to request, e.g. http://" + config.DefaultAdminListen + "/readyz", true}},
		moreFlags: func(cmd *cobra.Command) {
			client.addTo(cmd)
			cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Second, "maximum time until the response")
		},
		run: func(x *call) error {
			address, in, err := x.healthAddress()
			if err != nil {
				return err
			}
			if _, err := parseURL(address, "http://"+config.DefaultAdminListen+"/readyz"); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeoutCause(x.ctx, timeout, fmt.Errorf("no response within %s", timeout))
			defer cancel()
			if err := checkHealth(ctx, address, in, &client); err != nil {
				return err
			}
			_, err = fmt.Fprintln(x.out, "ok")
			return err
		},
	}.build(c)
}

// healthAddress returns the address to request. The instance is nil unless a folder named it.
func (x *call) healthAddress() (address string, in *config.Instance, err error) {
	if address := x.text("url"); address != "" {
		return address, nil, nil
	}
	address = "http://" + config.DefaultAdminListen + "/readyz"
	if !x.usesFolder() {
		return address, nil, nil
	}
	in, err = x.readInstanceFile()
	switch {
	case errors.Is(err, config.ErrNoInstance) && !x.dirGiven:
		return address, nil, nil
	case err != nil:
		return "", nil, err
	}
	return in.AdminURL + "/readyz", in, nil
}

// checkHealth returns nil if the address responds with 200. If an instance is given, the response
// must be from that instance. It connects directly, without a proxy from the environment.
func checkHealth(ctx context.Context, address string, in *config.Instance, flags *clientFlags) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("request %s: %w", address, err)
	}
	transport, err := flags.transport()
	if err != nil {
		return err
	}
	transport.DisableKeepAlives = true
	res, err := newClient(transport, 0).Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the address, which is named here
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("request %s: %w; check that the daemon runs at this address", address, err)
	}
	defer res.Body.Close()
	if err := checkResponder(in, res); err != nil {
		return err
	}
	if res.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxResponseBytes))
	if err != nil {
		return fmt.Errorf("request %s: %s: %w", address, res.Status, err)
	}
	return fmt.Errorf("request %s: %s: %s", address, res.Status, describeProblem(body))
}

func newNotifyCommand(c *cli) *cobra.Command {
	return group("notify", "Test the recipients of alerts", command{
		use: "test NAME", short: "Send a test alert to one recipient of the configuration", offline: true,
		long: `Send a test alert to one recipient in notify of the configuration, in the same way as
real alerts: signed or by mail, from this machine. Nothing is recorded. The command reports whether
the recipient accepted it.`,
		example: "  postern notify test oncall --config /etc/postern/postern.yaml",
		run: func(x *call) error {
			cfg, err := config.LoadDev(x.config)
			if err != nil {
				return err
			}
			var names []string
			for _, r := range notify.Recipients(cfg) {
				names = append(names, r.Name)
				if r.Name != x.args[0] {
					continue
				}
				if err := notify.Test(x.ctx, &r, time.Now()); err != nil {
					return err
				}
				fmt.Fprintf(x.out, "Sent to %s.\n", r.To)
				return nil
			}
			slices.Sort(names)
			return usagef("there is no notify.%s in this configuration, which has: %s; name its file with --config",
				x.args[0], strings.Join(names, ", "))
		},
	}.build(c))
}
