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
	"github.com/postern-gateway/postern/internal/effects/hindsight"
	"github.com/postern-gateway/postern/internal/events"
)

func newEffectsPlanCommand(c *cli) *cobra.Command {
	var rule, since string
	cmd := &cobra.Command{
		Use:   "plan --rule RULE --since TIME",
		Short: "Show which changes of the past would have had which effects under a rule; a dry run",
		Long: `Show which changes of the past would have had which effects under a rule as --config FILE has it, beside what the ledger has of their keys: new, known
(under this version of the rule), older (under another version, so that it would follow again), or twice (a change before it has the key). At the end come those that are gone: what
the ledger has of changes since then, under whatever version, and what none of these changes would have had under the rule as it is in FILE. Nothing is written and nothing is called.

The history of each object that changed since then is folded in the order in which its events were stored, from what is kept of it. Live, events that came at once may have been applied
in another order, and a rule may have been added, or changed, in between. Beside a dev instance, name its folder: --config FILE --dir DIR.`,
		Example: `  postern effects plan --rule receipt --since 7d --config postern.yaml
  postern effects plan --rule receipt --since 2026-11-01 --config postern.yaml -o json | jq -r '.[] | select(.ledger == "new") | .key'`,
		Args: wantArgs(),
	}
	cmd.Flags().StringVar(&rule, "rule", "", "name of the `rule`, in the configuration")
	cmd.Flags().StringVar(&since, "since", "", "changes by events stored from this `time` on: an RFC 3339 time, a date, or how long ago (15m, 2h, 7d)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if rule == "" || since == "" {
			return usagef("name the rule with --rule, and from when on changes count with --since")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			o, err := c.hindsight(cmd.Context(), pool, rule, since)
			if err != nil {
				return err
			}
			return lookBack(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), c, o)
		})
	}
	return cmd
}

// hindsight is what is looked at: a rule of the configuration, and its source.
func (c *cli) hindsight(ctx context.Context, pool *pgxpool.Pool, name, since string) (o hindsight.Options, err error) {
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
		return o, usagef("there is no rule %q in the configuration used here: name its file with --config", name)
	}
	from, err := admin.Since(url.Values{"since": {since}})
	if err != nil {
		return o, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	return hindsight.Options{Pool: pool, Known: known, Sources: admin.Configured(endpoints, known), Rule: rule, Since: from}, err
}

var hindsightColumns = []column[hindsight.Change]{
	{"LEDGER", func(h hindsight.Change) string { return string(h.Ledger) }},
	{"KEY", func(h hindsight.Change) string { return h.Key }},
	{"OBJECT", func(h hindsight.Change) string { return object(h.ObjectType, h.ObjectID) }},
	{"EVENT", func(h hindsight.Change) string { return strconv.FormatInt(h.Event, 10) }},
	{"EVENT ID", func(h hindsight.Change) string { return h.EventKey }},
	{"HAS", func(h hindsight.Change) string {
		if h.Effect == 0 {
			return ""
		}
		return fmt.Sprintf("effect %d, v%d, %s", h.Effect, h.HasVersion, h.State)
	}},
	{"TROUBLE", func(h hindsight.Change) string { return h.Trouble }},
}

func lookBack(ctx context.Context, out, errs io.Writer, c *cli, o hindsight.Options) error {
	list := &sink[hindsight.Change]{out: out, json: c.output == "json", columns: hindsightColumns, none: "No change since then would have had an effect under this rule, nor has one."}
	n, err := hindsight.Plan(ctx, o, list.add)
	if err := errors.Join(err, list.end()); err != nil {
		return err
	}
	fmt.Fprintf(errs, "under version %d: %d new, %d known, %d known under another version, %d of a key that came before, %d gone\n", o.Rule.Version,
		n.Changes[hindsight.New], n.Changes[hindsight.Had], n.Changes[hindsight.Older], n.Changes[hindsight.Twice], n.Changes[hindsight.Gone])
	if n.Odd > 0 {
		fmt.Fprintf(errs, "%s cannot be read as when they were applied, and were left out\n", counted(int(n.Odd), "event"))
	}
	return nil
}
