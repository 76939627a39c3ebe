package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/settings"
)

func newRetentionCommand(c *cli) *cobra.Command {
	return group("retention", "Show and apply retention: maximum ages and partitions of the log",
		newRetentionShowCommand(c), newRetentionRunCommand(c))
}

// maximumAge is a setting of the configuration's section retention, with the flag that replaces it.
type maximumAge struct {
	flag, help, label string
	of                func(*retention.Policy) *int
}

var maximumAges = []maximumAge{
	{"bodies", "days to keep events", "events", func(p *retention.Policy) *int { return &p.Bodies }},
	{"keys", "days to keep the keys that detect duplicates", "keys",
		func(p *retention.Policy) *int { return &p.Keys }},
	{"outcomes", "days to keep outcomes", "outcomes", func(p *retention.Policy) *int { return &p.Outcomes }},
	{"rejections", "days to keep rejected deliveries", "rejections",
		func(p *retention.Policy) *int { return &p.Rejections }},
	{"runs", "days to keep ended runs", "ended runs", func(p *retention.Policy) *int { return &p.Runs }},
	{"effects", "days to keep the input and the responses of ended effects", "contents of effects",
		func(p *retention.Policy) *int { return &p.Effects }},
	{"effect-keys", "days to keep ended effects, so that they are not repeated", "keys of effects",
		func(p *retention.Policy) *int { return &p.EffectKeys }},
}

func maximumAgeFlags(cmd *cobra.Command) {
	for _, age := range maximumAges {
		cmd.Flags().Int(age.flag, 0, age.help+"; 0: no limit (default: as configured)")
	}
}

// retentionPolicy returns the configured policy with the settings of the flags. exports is true if
// the configuration requires an export before a drop.
func (x *call) retentionPolicy() (p retention.Policy, exports bool, err error) {
	cfg, err := config.LoadWithInstance(x.config)
	if err != nil {
		return p, false, err
	}
	r := cfg.Retention
	p = retention.Policy{Bodies: r.Bodies, Keys: r.Keys, Outcomes: r.Outcomes, Rejections: r.Rejections, Runs: r.Runs,
		Effects: r.Effects, EffectKeys: r.EffectKeys}
	for _, age := range maximumAges {
		if x.cmd.Flags().Changed(age.flag) && err == nil {
			*age.of(&p), err = x.cmd.Flags().GetInt(age.flag)
		}
	}
	return p, r.Export != "", err
}

func newRetentionShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show", short: "Show the maximum ages, and the days of the log with their sizes and drop dates",
		example: "  postern retention show\n  postern retention show --bodies 30", moreFlags: maximumAgeFlags,
		run: func(x *call) error {
			policy, _, err := x.retentionPolicy()
			if err != nil {
				return err
			}
			view, _, err := operations.Retention(x.ctx, x.pool, policy, false)
			if err != nil {
				return err
			}
			if x.config == "" {
				fmt.Fprintln(x.errs, "postern: no configuration is given, so the maximum ages of the running "+
					"processors are not known here: name their configuration with --config FILE")
			}
			x.warnRetention(view)
			return show(x, view, nil, printRetention)
		},
	}.build(c)
}

func newRetentionRunCommand(c *cli) *cobra.Command {
	return command{
		use: "run", short: "Delete now what has passed its maximum age",
		long: `Delete now what has passed its maximum age, as processors do once a day if the
configuration sets maximum ages. The command shows what will be deleted and asks first.

Events are deleted by whole days, once the newest of a day is old enough. Days with unfinished
events, and days that a run still has to read, are kept. Their effect on objects is kept in retained
objects, from which a rebuild starts. Keys, outcomes and the mirror stay. Dropped events cannot be
restored. A running processor executes the run.`,
		example: "  postern retention run --dry-run\n  postern retention run " +
			"--bodies 30 --reason 'the disk fills' --yes",
		params: operations.Params(operations.RunRequest{}), moreFlags: maximumAgeFlags,
		flags: []flag{yesFlag, noWaitFlag, {"dry-run", "show what would be deleted and exit", false}},
		check: func(x *call) error {
			policy, _, err := x.retentionPolicy()
			if err == nil && policy.Empty() {
				return usagef("no maximum age is set, so nothing is deleted: set retention.bodies and the others in " +
					"the configuration, or give --bodies DAYS")
			}
			return err
		},
		run: runRetention,
	}.build(c)
}

func runRetention(x *call) error {
	policy, exports, err := x.retentionPolicy()
	if err != nil {
		return err
	}
	view, params, err := operations.Retention(x.ctx, x.pool, policy, true)
	if err != nil {
		return err
	}
	x.warnRetention(view)
	switch {
	case !x.json():
		err = printExpiring(x, view)
	case x.has("dry-run"):
		err = printJSON(x.out, view)
	}
	if err != nil || x.has("dry-run") {
		return err
	}
	if ok, err := x.confirm("Delete this permanently?"); err != nil || !ok {
		return err
	}
	params.Export = exports
	request, err := parse[operations.RunRequest](x)
	if err != nil {
		return err
	}
	return x.showOrWatch(operations.StartRetention(x.ctx, x.pool, params, request, operator()))
}

// describeAge describes a maximum age.
func describeAge(n int) string {
	if n == 0 {
		return "no limit"
	}
	return countOf(n, "day")
}

var partitionColumns = []column[retention.Partition]{
	{"DAY", func(p retention.Partition) any { return p.From.Format("2006-01-02") }},
	{"EVENTS", func(p retention.Partition) any {
		if !p.Counted {
			return "not counted yet"
		}
		return fmt.Sprintf("about %d", p.Events)
	}},
	{"SIZE", func(p retention.Partition) any { return settings.Bytes(p.Bytes).String() }},
	{"DROPPED", func(p retention.Partition) any { return p.DropNote }},
}

func printRetention(x *call, v *retention.View) error {
	var ages []any
	for _, age := range maximumAges {
		ages = append(ages, age.label, describeAge(*age.of(&v.Policy)))
	}
	if err := printFields(x.out, ages...); err != nil {
		return err
	}
	fmt.Fprintln(x.out)
	return printList(x, v.Partitions, partitionColumns, "The log has no partitions yet.")
}

// warnRetention prints warnings about data that a policy deletes and that may still be needed.
func (x *call) warnRetention(v *retention.View) {
	for _, warning := range v.Warnings {
		fmt.Fprintf(x.errs, "postern: warning: %s\n", warning)
	}
}

// printExpiring prints what a run would delete.
func printExpiring(x *call, v *retention.View) error {
	dropped, kept := v.PlannedDrops()
	if len(dropped) > 0 {
		fmt.Fprintln(x.out, "These days of the log are dropped, with headers and bodies:")
		if err := printTable(x.out, dropped, partitionColumns[:3]); err != nil {
			return err
		}
	}
	for _, p := range dropped {
		if p.Dead > 0 {
			fmt.Fprintf(x.out, "%s has %s that would be deleted too: postern events list --status dead\n",
				p.From.Format("2006-01-02"), countOf(int(p.Dead), "dead event"))
		}
	}
	for _, p := range kept {
		fmt.Fprintf(x.out, "%s is kept for now: %s\n", p.From.Format("2006-01-02"), escapeControl(p.KeptReason))
	}
	for _, what := range slices.Sorted(maps.Keys(v.Expired)) {
		fmt.Fprintf(x.out, "%d %s are deleted.\n", v.Expired[what], what)
	}
	if len(dropped)+len(v.Expired) == 0 {
		fmt.Fprintln(x.out, "Nothing has passed its maximum age and can be deleted.")
	}
	return nil
}

// describeRetentionCounts describes the counts of a retention run.
func describeRetentionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d retained as objects", counts[retention.CountEvents]),
		countOf(int(counts[retention.CountPartitions]), "partition") + " dropped"}
	for _, what := range []string{retention.CountKeys, retention.CountOutcomes, retention.CountConflicts,
		retention.CountRejections, retention.CountRuns, retention.CountEffects, retention.CountEffectKeys} {
		parts = appendCounts(parts, counts, what, what+" deleted")
	}
	return strings.Join(parts, ", ")
}
