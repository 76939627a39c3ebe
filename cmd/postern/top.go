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

// minInterval is the shortest --every. A shorter one is probably a typing error, and would make the
// command poll without pause.
const minInterval = 100 * time.Millisecond

// topCommand holds the settings of `postern top`.
type topCommand struct {
	scraper  *scraper
	interval time.Duration
	once     bool
	json     bool
}

func newTopCommand(c *cli) *cobra.Command {
	t := &topCommand{}
	var from []string
	var clientOptions clientFlags
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch rates, latencies, queues, lag and outcomes",
		Long: `Watch rates, latencies and queues from the metrics of one or more processes, updated
every second. No Prometheus is needed. On a terminal it fills the screen until q or Ctrl-C. With
--once, or if the output is not a terminal, it prints one interval and exits. With -o json each
interval is one line, until interrupted, unless --once is given.

Rates are per second, over all processes. The processes are those of --from, else the instance in
--dir if that is given, else those of --config (the admin address, or the default ones of gateway
and processor), else the instance in .postern. A process that does not respond is shown as down
until it responds again.`,
		Example: `  postern top
  postern top --from http://10.0.0.5:9090/metrics --from http://10.0.0.6:9090/metrics
  postern top --once --every 10s
  postern top -o json | jq .apply.lag_p99_seconds`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if t.interval < minInterval {
				return usagef("--every %s is too short: at least %s", t.interval, minInterval)
			}
			addresses, in, err := c.metricsAddresses(from)
			if err != nil {
				return err
			}
			t.json = c.output == "json"
			if t.scraper, err = newScraper(addresses, in, &clientOptions); err != nil {
				return err
			}
			defer t.scraper.client.CloseIdleConnections()
			return t.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	clientOptions.addTo(cmd)
	clientOptions.addTokenFlag(cmd)
	cmd.Flags().StringArrayVar(&from, "from", nil, "`URL` of a process's metrics; may be given several times")
	cmd.Flags().DurationVar(&t.interval, "every", time.Second, "`time` between two updates")
	cmd.Flags().BoolVar(&t.once, "once", false, "print one interval and exit")
	return cmd
}

// metricsAddresses returns the pages to read: those of --from, else the admin addresses of the
// instance. The instance is nil unless a folder named it.
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

// adminAddresses finds the instance by --dir if that is given, then by --config, then by the
// environment, then in the default folder. The instance is nil unless a folder named it.
func (c *cli) adminAddresses() ([]string, *config.Instance, error) {
	if c.usesFolder() {
		in, err := c.readInstanceFile()
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

func (t *topCommand) run(ctx context.Context, in io.Reader, out io.Writer) error {
	if !t.json && !t.once {
		if s, ok := openScreen(in, out); ok {
			return t.drawIntervals(ctx, s)
		}
	}
	return t.printIntervals(ctx, out)
}

// printIntervals prints one interval, or with -o json one after the other.
func (t *topCommand) printIntervals(ctx context.Context, out io.Writer) error {
	before := t.scraper.scrapeAll(ctx)
	for {
		if !sleep(ctx, t.interval) {
			return nil // an interruption ends the command normally
		}
		after := t.scraper.scrapeAll(ctx)
		if ctx.Err() != nil {
			return nil
		}
		v := newView(before, after)
		if t.once || !t.json {
			return t.printLast(out, &v)
		}
		if err := writeJSONLine(out, &v); err != nil {
			return err
		}
		before = after
	}
}

// printLast prints a single interval. It returns an error if no process responded.
func (t *topCommand) printLast(out io.Writer, v *view) error {
	if t.json {
		if err := writeJSONLine(out, v); err != nil {
			return err
		}
	} else {
		for _, l := range v.frame(frameSize{math.MaxInt, math.MaxInt}) {
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
	return fmt.Errorf("no process responds at %s: is it running?", strings.Join(t.scraper.addresses, ", "))
}

func writeJSONLine(out io.Writer, v *view) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// drawIntervals draws on a terminal until the context ends or the user quits.
func (t *topCommand) drawIntervals(ctx context.Context, s *topScreen) (err error) {
	ctx, quit := context.WithCancel(ctx)
	defer quit()
	if err := s.open(quit); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	before := t.scraper.scrapeAll(ctx)
	v := newView(before, before)
	for {
		if err := s.draw(&v); err != nil {
			return err
		}
		if !sleep(ctx, t.interval) {
			return nil
		}
		after := t.scraper.scrapeAll(ctx)
		v, before = newView(before, after), after
	}
}

// sleep returns false if ctx ends before the time is over.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
