package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/events"
)

func newEffectsBacktestCommand(c *cli) *cobra.Command {
	var rule, since string
	cmd := &cobra.Command{
		Use:   "backtest --rule RULE --since TIME",
		Short: "Show which past changes would have caused which effects under a rule, as a dry run",
		Long: `Show which past changes would have caused which effects under a rule in --config FILE,
and what the ledger has for their keys: new, known (under this version of the rule), older (under
another version, so it would be repeated), or twice (an earlier change has the key). The list ends
with those that are gone: effects in the ledger since that time, of any version, that none of these
changes would have caused under the rule in FILE. Nothing is written and nothing is sent.

The command applies the stored events of each changed object in the order in which they were stored.
Live, concurrent events may have been applied in another order, and rules may have changed
meanwhile. To use it with a dev instance, name its folder: --config FILE --dir DIR.`,
		Example: `  postern effects backtest --rule receipt --since 7d --config postern.yaml
  postern effects backtest --rule receipt --since 2026-11-01 --config postern.yaml -o json ` +
			`| jq -r '.[] | select(.ledger == "new") | .key'`,
		Args: wantArgs(),
	}
	cmd.Flags().StringVar(&rule, "rule", "", "name of the `rule`, in the configuration")
	cmd.Flags().StringVar(&since, "since", "", "changes by events stored from this `time` on: an RFC 3339 time, a "+
		"date, or how long ago (15m, 2h, 7d)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if rule == "" || since == "" {
			return usagef("name the rule with --rule and the first time of the changes with --since")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			o, err := c.backtestOptions(cmd.Context(), pool, rule, since)
			if err != nil {
				return err
			}
			return runBacktest(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), c, o)
		})
	}
	return cmd
}

// backtestOptions reads the rule and its source from the configuration.
func (c *cli) backtestOptions(ctx context.Context, pool *pgxpool.Pool, name, since string) (o backtest.Options,
	err error) {
	var cfg *config.Config
	endpoints, err := c.endpoints(func(path string) (_ *config.Config, err error) {
		cfg, err = config.LoadSources(path)
		return cfg, err
	})
	if err != nil {
		return o, err
	}
	rule, err := cfg.Rule(name)
	switch {
	case err != nil:
		return o, fmt.Errorf("rule %s: %w", name, err)
	case rule == nil:
		return o, usagef("there is no rule %q in this configuration: name its file with --config", name)
	}
	from, err := admin.ParseSince(url.Values{"since": {since}})
	if err != nil {
		return o, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	return backtest.Options{Pool: pool, RegisteredSources: known, Sources: admin.ConfiguredSources(endpoints,
		known), Rule: rule,
		Since: from}, err
}

var backtestColumns = []column[backtest.Change]{
	{"LEDGER", func(h backtest.Change) string { return string(h.Ledger) }},
	{"KEY", func(h backtest.Change) string { return h.Key }},
	{"OBJECT", func(h backtest.Change) string { return describeObject(h.ObjectType, h.ObjectID) }},
	{"EVENT", func(h backtest.Change) string { return strconv.FormatInt(h.Event, 10) }},
	{"EVENT ID", func(h backtest.Change) string { return h.EventKey }},
	{"LEDGER EFFECT", func(h backtest.Change) string {
		if h.Effect == 0 {
			return ""
		}
		return fmt.Sprintf("effect %d, v%d, %s", h.Effect, h.LedgerVersion, h.State)
	}},
	{"ERROR", func(h backtest.Change) string { return h.Failure }},
}

func runBacktest(ctx context.Context, out, errs io.Writer, c *cli, o backtest.Options) error {
	list := &listPrinter[backtest.Change]{out: out, json: c.output == "json", columns: backtestColumns,
		emptyText: "No change since then would have caused an effect under this rule, and none did."}
	n, err := backtest.Run(ctx, o, list.add)
	if err := errors.Join(err, list.end()); err != nil {
		return err
	}
	fmt.Fprintf(errs, "under version %d: %d new, %d known, %d known under another version, %d with the key of an "+
		"earlier change, %d gone\n", o.Rule.Version, n.Changes[backtest.New], n.Changes[backtest.Existing],
		n.Changes[backtest.OtherVersion], n.Changes[backtest.RepeatedKey], n.Changes[backtest.Gone])
	if n.Anomalies > 0 {
		fmt.Fprintf(errs, "%s cannot be read as they were when applied, and were skipped\n",
			countOf(int(n.Anomalies), "event"))
	}
	return nil
}
