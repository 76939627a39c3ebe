package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/retention"
)

func newRetentionCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "retention", Short: "Show and apply retention: maximum ages and partitions of the log",
		RunE: showHelpOrError, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newRetentionShowCommand(c), newRetentionRunCommand(c))
	return cmd
}

// retentionFlags replace settings of the configuration's section retention.
type retentionFlags struct {
	bodies, keys, outcomes, rejections, runs, effects, effectKeys int
	// export is true if the configuration requires an export before a drop.
	export bool
}

func (a *retentionFlags) addTo(cmd *cobra.Command) {
	for _, f := range []struct {
		name string
		to   *int
		help string
	}{{"bodies", &a.bodies, "days to keep events"},
		{"keys", &a.keys, "days to keep the keys that detect duplicates"},
		{"outcomes", &a.outcomes, "days to keep outcomes"},
		{"rejections", &a.rejections, "days to keep rejected deliveries"},
		{"runs", &a.runs, "days to keep ended runs"},
		{"effects", &a.effects, "days to keep the input and the responses of ended effects"},
		{"effect-keys", &a.effectKeys, "days to keep ended effects, so that they are not repeated"}} {
		cmd.Flags().IntVar(f.to, f.name, 0, f.help+"; 0: no limit (default: as configured)")
	}
}

// policy returns the configured policy with the settings of the flags.
func (a *retentionFlags) policy(cmd *cobra.Command, c *cli) (retention.Policy, error) {
	cfg, err := config.LoadWithInstance(c.config)
	if err != nil {
		return retention.Policy{}, err
	}
	a.export = cfg.Retention.Export != ""
	r := cfg.Retention
	p := retention.Policy{Bodies: r.Bodies, Keys: r.Keys, Outcomes: r.Outcomes, Rejections: r.Rejections, Runs: r.Runs,
		Effects: r.Effects, EffectKeys: r.EffectKeys}
	for _, f := range []struct {
		name     string
		from, to *int
	}{{"bodies", &a.bodies, &p.Bodies}, {"keys", &a.keys, &p.Keys}, {"outcomes", &a.outcomes, &p.Outcomes},
		{"rejections", &a.rejections, &p.Rejections}, {"runs", &a.runs, &p.Runs},
		{"effects", &a.effects, &p.Effects}, {"effect-keys", &a.effectKeys, &p.EffectKeys}} {
		if cmd.Flags().Changed(f.name) {
			*f.to = *f.from
		}
	}
	return p, nil
}

func newRetentionShowCommand(c *cli) *cobra.Command {
	var a retentionFlags
	cmd := &cobra.Command{
		Use: "show", Short: "Show the maximum ages, and the days of the log with their sizes and drop dates",
		Args:    wantArgs(),
		Example: "  postern retention show\n  postern retention show --bodies 30",
	}
	a.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		policy, err := a.policy(cmd, c)
		if err != nil {
			return err
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			view, _, err := admin.Retention(cmd.Context(), pool, policy, false)
			if err != nil {
				return err
			}
			if c.config == "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "postern: no configuration is given, so the maximum ages of the "+
					"running processors are not known here: name their configuration with --config FILE")
			}
			warnRetention(cmd.ErrOrStderr(), view)
			return printRetention(cmd.OutOrStdout(), c, view)
		})
	}
	return cmd
}

// retentionRunFlags are the flags of `postern retention run`.
type retentionRunFlags struct {
	retentionFlags
	dryRun, yes, noWait bool
}

func newRetentionRunCommand(c *cli) *cobra.Command {
	var r retentionRunFlags
	cmd := &cobra.Command{
		Use: "run", Short: "Delete now what has passed its maximum age",
		Long: `Delete now what has passed its maximum age, as processors do once a day if the
configuration sets maximum ages. The command shows what will be deleted and asks first.

Events are deleted by whole days, once the newest of a day is old enough. Days with unfinished
events, and days that a run still has to read, are kept. Their effect on objects is kept in retained
objects, from which a rebuild starts. Keys, outcomes and the mirror stay. Dropped events cannot be
restored. A running processor executes the run.`,
		Example: "  postern retention run --dry-run\n  postern retention run " +
			"--bodies 30 --reason 'the disk fills' --yes", Args: wantArgs(),
	}
	r.addTo(cmd)
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "show what would be deleted and exit")
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and exit")
	filterFlags(cmd, admin.RetentionRunParams)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		policy, err := r.policy(cmd, c)
		if err != nil {
			return err
		}
		if policy.Empty() {
			return usagef("no maximum age is set, so nothing is deleted: set retention.bodies and the others in the " +
				"configuration, or give --bodies DAYS")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(),
			func(pool *pgxpool.Pool) error { return r.run(cmd, c, pool, policy) })
	}
	return cmd
}

func (r *retentionRunFlags) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, policy retention.Policy) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	view, params, err := admin.Retention(ctx, pool, policy, true)
	if err != nil {
		return err
	}
	warnRetention(cmd.ErrOrStderr(), view)
	if r.dryRun && c.output == "json" {
		return printJSON(out, view)
	}
	if c.output != "json" {
		if err := printExpiring(out, view); err != nil {
			return err
		}
	}
	if r.dryRun {
		return nil
	}
	if ok, err := confirmWithUser(cmd, "Delete this permanently?", r.yes); err != nil || !ok {
		return err
	}
	params.Export = r.export
	run, err := admin.StartRetention(ctx, pool, params, operator(), filterValues(cmd, admin.RetentionRunParams))
	return showOrWatch(cmd, c, pool, run, err, r.noWait)
}

// describeAge describes a maximum age.
func describeAge(n int) string {
	if n == 0 {
		return "no limit"
	}
	return countOf(n, "day")
}

var partitionColumns = []column[retention.Partition]{
	{"DAY", func(p retention.Partition) string { return p.From.Format("2006-01-02") }},
	{"EVENTS", func(p retention.Partition) string {
		if !p.Counted {
			return "not counted yet"
		}
		return "about " + strconv.FormatInt(p.Events, 10)
	}},
	{"SIZE", func(p retention.Partition) string { return config.Bytes(p.Bytes).String() }},
	{"DROPPED", func(p retention.Partition) string { return p.DropNote }},
}

func printRetention(out io.Writer, c *cli, v *retention.View) error {
	if c.output == "json" {
		return printJSON(out, v)
	}
	p := v.Policy
	if err := printFields(out, "events", describeAge(p.Bodies), "keys", describeAge(p.Keys),
		"outcomes", describeAge(p.Outcomes), "rejections", describeAge(p.Rejections), "ended runs", describeAge(p.Runs),
		"contents of effects", describeAge(p.Effects), "keys of effects", describeAge(p.EffectKeys)); err != nil {
		return err
	}
	fmt.Fprintln(out)
	list := &listPrinter[retention.Partition]{out: out, columns: partitionColumns,
		emptyText: "The log has no partitions yet."}
	if err := list.add(v.Partitions); err != nil {
		return err
	}
	return list.end()
}

// warnRetention prints warnings about data that a policy deletes and that may still be needed.
func warnRetention(errs io.Writer, v *retention.View) {
	for _, warning := range v.Warnings {
		fmt.Fprintf(errs, "postern: warning: %s\n", warning)
	}
}

// printExpiring prints what a run would delete.
func printExpiring(out io.Writer, v *retention.View) error {
	dropped, kept := v.PlannedDrops()
	if len(dropped) > 0 {
		fmt.Fprintln(out, "These days of the log are dropped, with headers and bodies:")
		list := &listPrinter[retention.Partition]{out: out, columns: partitionColumns[:3]}
		if err := list.add(dropped); err != nil {
			return err
		}
	}
	for _, p := range dropped {
		if p.Dead > 0 {
			fmt.Fprintf(out, "%s has %s that would be deleted too: postern events list --status dead\n",
				p.From.Format("2006-01-02"), countOf(int(p.Dead), "dead event"))
		}
	}
	for _, p := range kept {
		fmt.Fprintf(out, "%s is kept for now: %s\n", p.From.Format("2006-01-02"), escapeControl(p.KeptReason))
	}
	for _, what := range slices.Sorted(maps.Keys(v.Expired)) {
		fmt.Fprintf(out, "%d %s are deleted.\n", v.Expired[what], what)
	}
	if len(dropped)+len(v.Expired) == 0 {
		fmt.Fprintln(out, "Nothing has passed its maximum age and can be deleted.")
	}
	return nil
}

// describeRetentionCounts describes the counts of a retention run.
func describeRetentionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d retained as objects", counts[retention.CountEvents]),
		countOf(int(counts[retention.CountPartitions]), "partition") + " dropped"}
	for _, what := range []string{retention.CountKeys, retention.CountOutcomes, retention.CountConflicts,
		retention.CountRejections, retention.CountRuns, retention.CountEffects, retention.CountEffectKeys} {
		if n := counts[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s deleted", n, what))
		}
	}
	return strings.Join(parts, ", ")
}
