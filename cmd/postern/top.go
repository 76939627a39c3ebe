package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
)

// leastInterval keeps a typing error from asking all the time.
const leastInterval = 100 * time.Millisecond

// top is one run of the command.
type top struct {
	scraper *scraper
	every   time.Duration
	once    bool
	json    bool
}

func newTopCommand(c *cli) *cobra.Command {
	t := &top{}
	var from []string
	var asks asking
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch what is going on: rates, latencies, queues, lag, outcomes",
		Long: `Watch what is going on, second by second, from the metrics of one or more processes; no Prometheus is needed.
On a terminal it fills the screen until q or Ctrl-C. With --once, or where the output is no terminal, it prints what one
interval showed and ends. With -o json each interval is one line, until interrupted unless --once is given.

Rates are of all processes together, and per second. The processes are those of --from, else the instance in --dir where that
is given, else those of --config (the admin address, or the default ones of gateway and processor), else the instance in .postern. One that does not answer is named,
and watched for its return.`,
		Example: `  postern top
  postern top --from http://10.0.0.5:9090/metrics --from http://10.0.0.6:9090/metrics
  postern top --once --every 10s
  postern top -o json | jq .apply.lag_p99_seconds`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.every < leastInterval {
				return usagef("--every %s is too short: at least %s", t.every, leastInterval)
			}
			addresses, in, err := c.metricsAddresses(from)
			if err != nil {
				return err
			}
			t.json = c.output == "json"
			if t.scraper, err = newScraper(addresses, in, &asks); err != nil {
				return err
			}
			defer t.scraper.client.CloseIdleConnections()
			return t.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	asks.flags(cmd)
	asks.tokenFlag(cmd)
	cmd.Flags().StringArrayVar(&from, "from", nil, "`URL` of a process's metrics; may be given several times")
	cmd.Flags().DurationVar(&t.every, "every", time.Second, "`time` between two looks")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one interval and end")
	return cmd
}

// metricsAddresses are the pages to read: those of --from, else the admin addresses of the instance, which is that of
// a folder or nil.
func (c *cli) metricsAddresses(from []string) ([]string, *config.Instance, error) {
	var in *config.Instance
	if len(from) == 0 {
		var err error
		if from, in, err = c.adminAddresses(); err != nil {
			return nil, nil, err
		}
	}
	var out []string
	for _, address := range from {
		u, err := metricsURL(address)
		if err != nil {
			return nil, nil, err
		}
		out = append(out, u)
	}
	return out, in, nil
}

// adminAddresses finds the instance by --dir where that is given, then by --config, then by the environment, then in the default folder.
// The instance is nil where no folder named it.
func (c *cli) adminAddresses() ([]string, *config.Instance, error) {
	if c.byFolder() {
		in, err := c.readInstance()
		if errors.Is(err, config.ErrNoInstance) {
			err = fmt.Errorf("%w, or name processes with --from URL or --config FILE", err)
		}
		if err != nil {
			return nil, nil, err
		}
		return []string{in.AdminURL}, in, nil
	}
	cfg, err := config.LoadOperator(c.config)
	if err != nil {
		return nil, nil, err
	}
	scheme := "http://"
	if cfg.Admin.TLS.Cert != "" {
		scheme = "https://"
	}
	if cfg.Admin.Listen != "" {
		return []string{scheme + cfg.Admin.Listen}, nil, nil
	}
	return []string{scheme + config.DefaultAdminListen, scheme + config.DefaultProcessorListen}, nil, nil
}

func (t *top) run(ctx context.Context, in io.Reader, out io.Writer) error {
	if !t.json && !t.once {
		if s, ok := openScreen(in, out); ok {
			return t.watch(ctx, s)
		}
	}
	return t.print(ctx, out)
}

// print writes one interval, or with -o json one after the other.
func (t *top) print(ctx context.Context, out io.Writer) error {
	before := t.scraper.all(ctx)
	for {
		if !pause(ctx, t.every) {
			return nil // interrupted, which is how it ends
		}
		after := t.scraper.all(ctx)
		if ctx.Err() != nil {
			return nil
		}
		v := newView(before, after)
		if t.once || !t.json {
			return t.last(out, &v)
		}
		if err := writeLine(out, &v); err != nil {
			return err
		}
		before = after
	}
}

// last prints the one interval that was asked for; it is an error if no process told anything.
func (t *top) last(out io.Writer, v *view) error {
	if t.json {
		if err := writeLine(out, v); err != nil {
			return err
		}
	} else {
		for _, l := range v.frame(room{math.MaxInt, math.MaxInt}) {
			if _, err := fmt.Fprintln(out, strings.TrimRight(l, " ")); err != nil {
				return err
			}
		}
	}
	for _, p := range v.Processes {
		if p.Up {
			return nil
		}
	}
	return fmt.Errorf("no process answers at %s: is it running?", strings.Join(t.scraper.from, ", "))
}

func writeLine(out io.Writer, v *view) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// watch draws on a terminal until the context ends or the person has seen enough.
func (t *top) watch(ctx context.Context, s *screen) (err error) {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if err := s.open(quit); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	before := t.scraper.all(ctx)
	v := newView(before, before)
	for {
		if err := s.draw(&v); err != nil {
			return err
		}
		if !pause(ctx, t.every) {
			return nil
		}
		after := t.scraper.all(ctx)
		v, before = newView(before, after), after
	}
}

// pause returns false where ctx ends before the time is over.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
