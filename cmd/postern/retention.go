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
	cmd := &cobra.Command{Use: "retention", Short: "What is forgotten when: policies, partitions of the log", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newRetentionShowCommand(c), newRetentionRunCommand(c))
	return cmd
}

// ages are the flags that take the place of the configuration's section retention.
type ages struct {
	bodies, keys, outcomes, rejections, runs, effects, effectKeys int
	// export: the configuration wants an export before the drop.
	export bool
}

func (a *ages) flags(cmd *cobra.Command) {
	for _, f := range []struct {
		name string
		to   *int
		help string
	}{{"bodies", &a.bodies, "days that events are kept"}, {"keys", &a.keys, "days that keys are kept, which tell duplicates"}, {"outcomes", &a.outcomes, "days that outcomes are kept"},
		{"rejections", &a.rejections, "days that refused deliveries are kept"}, {"runs", &a.runs, "days that ended runs are kept"},
		{"effects", &a.effects, "days that what effects that ended were planned with and answered is kept"}, {"effect-keys", &a.effectKeys, "days that effects that ended are kept, so that they do not follow again"}} {
		cmd.Flags().IntVar(f.to, f.name, 0, f.help+"; 0: for ever (default: what the configuration says)")
	}
}

// policy is the configuration's, with what flags set in its place.
func (a *ages) policy(cmd *cobra.Command, c *cli) (retention.Policy, error) {
	cfg, err := config.LoadBeside(c.config)
	if err != nil {
		return retention.Policy{}, err
	}
	a.export = cfg.Retention.Export != ""
	r := cfg.Retention
	p := retention.Policy{Bodies: r.Bodies, Keys: r.Keys, Outcomes: r.Outcomes, Rejections: r.Rejections, Runs: r.Runs, Effects: r.Effects, EffectKeys: r.EffectKeys}
	for _, f := range []struct {
		name     string
		from, to *int
	}{{"bodies", &a.bodies, &p.Bodies}, {"keys", &a.keys, &p.Keys}, {"outcomes", &a.outcomes, &p.Outcomes}, {"rejections", &a.rejections, &p.Rejections}, {"runs", &a.runs, &p.Runs},
		{"effects", &a.effects, &p.Effects}, {"effect-keys", &a.effectKeys, &p.EffectKeys}} {
		if cmd.Flags().Changed(f.name) {
			*f.to = *f.from
		}
	}
	return p, nil
}

func newRetentionShowCommand(c *cli) *cobra.Command {
	var a ages
	cmd := &cobra.Command{
		Use: "show", Short: "Show the policies and the days of the log, with their sizes, and what would go when", Args: wantArgs(),
		Example: "  postern retention show\n  postern retention show --bodies 30",
	}
	a.flags(cmd)
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
				fmt.Fprintln(cmd.ErrOrStderr(), "postern: no configuration is given, so the ages of the running processors are not known here: give theirs with --config FILE")
			}
			warnRetention(cmd.ErrOrStderr(), view)
			return printRetention(cmd.OutOrStdout(), c, view)
		})
	}
	return cmd
}

// retaining are the flags of `postern retention run`.
type retaining struct {
	ages
	dryRun, yes, noWait bool
}

func newRetentionRunCommand(c *cli) *cobra.Command {
	var r retaining
	cmd := &cobra.Command{
		Use: "run", Short: "Forget now what is past its age",
		Long: `Forget now what is past its age, as processors do once a day where the configuration sets ages. It shows first what goes, and asks.

Events go by whole days, once the youngest of a day is old enough, and only where nothing in them is unfinished and no run is still to read
them. What objects were made of by them is kept as bases, from which a rebuild starts; keys, outcomes and the mirror stay. Nothing else brings
back what is dropped. A running processor carries it out.`,
		Example: "  postern retention run --dry-run\n  postern retention run --bodies 30 --reason 'the disk fills' --yes", Args: wantArgs(),
	}
	r.flags(cmd)
	cmd.Flags().BoolVar(&r.dryRun, "dry-run", false, "show what would go and end")
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and end")
	filterFlags(cmd, admin.RetainParams)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		policy, err := r.policy(cmd, c)
		if err != nil {
			return err
		}
		if policy.Empty() {
			return usagef("no age is set, so everything is kept for ever: set retention.bodies and the others in the configuration, or give --bodies DAYS")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error { return r.run(cmd, c, pool, policy) })
	}
	return cmd
}

func (r *retaining) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, policy retention.Policy) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	view, order, err := admin.Retention(ctx, pool, policy, true)
	if err != nil {
		return err
	}
	warnRetention(cmd.ErrOrStderr(), view)
	if r.dryRun && c.output == "json" {
		return printJSON(out, view)
	}
	if c.output != "json" {
		if err := printForgotten(out, view); err != nil {
			return err
		}
	}
	if r.dryRun {
		return nil
	}
	if ok, err := confirm(cmd, "Forget this for good?", r.yes); err != nil || !ok {
		return err
	}
	order.Export = r.export
	run, err := admin.Retain(ctx, pool, order, operator(), filterValues(cmd, admin.RetainParams))
	return wait(cmd, c, pool, run, err, r.noWait)
}

// days is an age in words.
func days(n int) string {
	if n == 0 {
		return "for ever"
	}
	return counted(n, "day")
}

var partitionColumns = []column[retention.Partition]{
	{"DAY", func(p retention.Partition) string { return p.From.Format("2006-01-02") }},
	{"EVENTS", func(p retention.Partition) string { return "about " + strconv.FormatInt(p.Events, 10) }},
	{"SIZE", func(p retention.Partition) string { return config.Bytes(p.Bytes).String() }},
	{"GOES", func(p retention.Partition) string { return p.Goes }},
}

func printRetention(out io.Writer, c *cli, v *retention.View) error {
	if c.output == "json" {
		return printJSON(out, v)
	}
	p := v.Policy
	if err := facts(out, "events are kept", days(p.Bodies), "keys", days(p.Keys), "outcomes", days(p.Outcomes), "rejections", days(p.Rejections), "ended runs", days(p.Runs), "contents of effects", days(p.Effects), "keys of effects", days(p.EffectKeys)); err != nil {
		return err
	}
	fmt.Fprintln(out)
	list := &sink[retention.Partition]{out: out, columns: partitionColumns, none: "The log has no days yet."}
	if err := list.add(v.Partitions); err != nil {
		return err
	}
	return list.end()
}

// warnRetention tells what a policy takes that may be needed still.
func warnRetention(errs io.Writer, v *retention.View) {
	for _, warning := range v.Warnings {
		fmt.Fprintf(errs, "postern: warning: %s\n", warning)
	}
}

// printForgotten says what a run would forget.
func printForgotten(out io.Writer, v *retention.View) error {
	goes, stay := v.Drops()
	if len(goes) > 0 {
		fmt.Fprintln(out, "These days of the log go, with headers and bodies:")
		list := &sink[retention.Partition]{out: out, columns: partitionColumns[:3]}
		if err := list.add(goes); err != nil {
			return err
		}
	}
	for _, p := range goes {
		if p.Dead > 0 {
			fmt.Fprintf(out, "%s has %s, which nobody has mended: postern events list --status dead\n", p.From.Format("2006-01-02"), counted(int(p.Dead), "dead event"))
		}
	}
	for _, p := range stay {
		fmt.Fprintf(out, "%s stays for now: %s\n", p.From.Format("2006-01-02"), plain(p.Kept))
	}
	for _, what := range slices.Sorted(maps.Keys(v.Forget)) {
		fmt.Fprintf(out, "%d %s go.\n", v.Forget[what], what)
	}
	if len(goes)+len(v.Forget) == 0 {
		fmt.Fprintln(out, "Nothing is past its age and may go.")
	}
	return nil
}

// retentionCounts are what a run of retention has done, in words.
func retentionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d folded into bases", counts[retention.CountEvents]), counted(int(counts[retention.CountPartitions]), "partition") + " dropped"}
	for _, what := range []string{retention.CountKeys, retention.CountOutcomes, retention.CountConflicts, retention.CountRejections, retention.CountRuns, retention.CountEffects, retention.CountEffectKeys} {
		if n := counts[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s forgotten", n, what))
		}
	}
	return strings.Join(parts, ", ")
}
