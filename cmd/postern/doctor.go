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

// examining are the flags of `postern doctor`.
type examining struct {
	dev     bool
	monitor string
	disk    config.Bytes
	all     bool
}

func newDoctorCommand(c *cli) *cobra.Command {
	x := examining{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look at what Postern stands on, and say what to do",
		Long: `Look at the configuration, this machine, PostgreSQL and NATS: versions and schema, settings that weaken durability, clocks, partitions ahead, rights of the roles, connections and locks, slots and
standbys, the streams against what the configuration wants, secrets and who can read them, the spool's folder and its disk, who reaches the admin interface. Of each it says what was found and, where something is to be
done, what. Nothing is changed, and what is away keeps nothing else from being looked at.

The exit status is 1 where something is an error, 0 where there are only warnings. Run it with a daemon's --config, on its machine and as its account: files and limits are those of this session.
What cannot be asked can be told: --nats-monitor for how NATS syncs, --database-disk for how large PostgreSQL's disk is.`,
		Example: `  postern doctor --config /etc/postern/gateway.yaml
  postern doctor --config /etc/postern/gateway.yaml --nats-monitor http://127.0.0.1:8222 --database-disk 200GiB
  postern doctor -o json | jq '.checks[] | select(.verdict != "ok")'`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			r, err := x.examine(cmd.Context(), c)
			if err != nil {
				return err
			}
			return x.tell(cmd.OutOrStdout(), c, r)
		},
	}
	cmd.Flags().BoolVar(&x.dev, "dev", false, "the configuration is for postern dev: demo secrets and no database are all right")
	cmd.Flags().StringVar(&x.monitor, "nats-monitor", "", "`address` of a NATS server's monitoring, e.g. http://127.0.0.1:8222")
	cmd.Flags().Var((*bytesFlag)(&x.disk), "database-disk", "how large the disk of PostgreSQL is, e.g. 200GiB")
	cmd.Flags().BoolVar(&x.all, "all", false, "tell in the table what is well, too")
	return cmd
}

// bytesFlag is a size as the configuration has it.
type bytesFlag config.Bytes

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return config.Bytes(*b).String()
}

func (b *bytesFlag) Type() string { return "size" }

func (b *bytesFlag) Set(text string) error { return (*config.Bytes)(b).UnmarshalText([]byte(text)) }

func (x *examining) examine(ctx context.Context, c *cli) (*doctor.Report, error) {
	o := doctor.Options{Monitor: x.monitor, DatabaseDisk: int64(x.disk)}
	if c.config != "" || os.Getenv(config.EnvName("database", "url")) != "" {
		load := config.Load
		if x.dev {
			load = config.LoadDev
		}
		if o.Config, o.ConfigError = load(c.config); o.ConfigError != nil {
			var err error
			if o.Config, err = config.LoadBeside(c.config); err != nil {
				// Nothing of it can be used: ConfigError says why, and there is no way to PostgreSQL and NATS.
				return doctor.Examine(ctx, o), nil
			}
		}
	}
	d, err := c.database()
	if err != nil {
		o.PoolError = err
	} else if o.Pool, err = postgres.Connect(ctx, postgres.Options{URL: d.url, Identity: d.identity, Role: operatorRole, AppName: "postern operator", MaxConns: 2}); err != nil {
		o.PoolError = c.explainConnect(d, err)
	} else {
		defer o.Pool.Close()
	}
	conn, trouble, err := c.connectStream(ctx)
	if o.Conn, o.ConnError = conn, errors.Join(trouble, err); conn != nil {
		defer conn.Close()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, doctorWithin, fmt.Errorf("not looked at within %s", doctorWithin))
	defer cancel()
	return doctor.Examine(ctx, o), nil
}

// doctorWithin bounds all questions together.
const doctorWithin = time.Minute

var checks = []column[doctor.Check]{
	{"CHECK", func(k doctor.Check) string { return k.Name }},
	{"IS", func(k doctor.Check) string { return string(k.Verdict) }},
	{"FOUND", func(k doctor.Check) string { return k.Found }},
	{"WHAT TO DO", func(k doctor.Check) string { return k.Do }},
}

// tell prints a report; the error says that there are errors.
func (x *examining) tell(out io.Writer, c *cli, r *doctor.Report) error {
	if err := x.print(out, c, r); err != nil {
		return err
	}
	if r.Errors > 0 {
		return fmt.Errorf("%s and %s", counted(r.Errors, "error"), counted(r.Warnings, "warning"))
	}
	return nil
}

func (x *examining) print(out io.Writer, c *cli, r *doctor.Report) error {
	if c.output == "json" {
		return printJSON(out, r)
	}
	s := &sink[doctor.Check]{out: out, columns: checks}
	var shown []doctor.Check
	for _, k := range r.Checks {
		if x.all || k.Verdict != doctor.OK {
			shown = append(shown, k)
		}
	}
	if err := s.add(shown); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%s: %s, %s\n", counted(len(r.Checks), "check"), counted(r.Errors, "error"), counted(r.Warnings, "warning"))
	return err
}
