package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/effects"
)

func newEffectsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "effects", Short: "What follows from changes, once: the ledger of effects", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[effects.Effect]{
		what: "effects, the newest first",
		example: `  postern effects list --state review
  postern effects list --rule receipt --since 1d -o json
  postern effects list --source stripe --type invoice --object in_1Postern0Jan0001`,
		params:  admin.EffectParams,
		query:   admin.Effects,
		columns: effectColumns,
		none:    "No effects.",
	}.command(c), newEffectsShowCommand(c), newEffectsPlanCommand(c))
	for _, change := range effectChanges {
		cmd.AddCommand(change.command(c))
	}
	return cmd
}

var effectColumns = []column[effects.Effect]{
	{"EFFECT", func(e effects.Effect) string { return strconv.FormatInt(e.Effect, 10) }},
	{"STATE", func(e effects.Effect) string { return string(e.State) }},
	{"RULE", func(e effects.Effect) string { return ruleOf(&e) }},
	{"SOURCE", func(e effects.Effect) string { return e.Source }},
	{"OBJECT", func(e effects.Effect) string { return object(e.ObjectType, e.ObjectID) }},
	{"KEY", func(e effects.Effect) string { return e.Key }},
	{"PLANNED", func(e effects.Effect) string { return e.PlannedAt.String() }},
	{"UPDATED", func(e effects.Effect) string { return e.UpdatedAt.String() }},
	{"DUE", func(e effects.Effect) string { return e.Due.String() }},
	{"ATTEMPTS", func(e effects.Effect) string { return strconv.Itoa(e.Attempts) }},
	{"REASON", func(e effects.Effect) string { return e.Reason }},
}

// ruleOf is a rule with its version, and the run that forced the effect.
func ruleOf(e *effects.Effect) string {
	text := fmt.Sprintf("%s v%d", e.Rule, e.RuleVersion)
	if e.Forced > 0 {
		text += fmt.Sprintf(", forced by run %d", e.Forced)
	}
	return text
}

func newEffectsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show an effect: the event, its steps, external ids, and what is safe to do next",
		Long: `Show an effect: the event that made the change, the object, the SHA-256 of what its templates see, each step that was begun with what was
captured of its answer (external ids), and what is safe to do next.`,
		Example: "  postern effects show 7\n  postern effects show 7 -o json | jq -r '.steps[].captured'",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				v, err := admin.Effect(cmd.Context(), pool, id)
				switch {
				case err != nil:
					return err
				case c.output == "json":
					return printJSON(cmd.OutOrStdout(), v)
				}
				return printEffect(cmd.OutOrStdout(), v)
			})
		},
	}
}

func printEffect(out io.Writer, v *effects.View) error {
	e := &v.Effect
	event := strconv.FormatInt(e.Event, 10)
	if v.EventKey != "" {
		event += fmt.Sprintf(", %s, %s, %s", v.EventKey, v.EventType, v.Origin)
	}
	if e.Event == 0 {
		event = ""
	}
	undoing := ""
	if e.Undoing {
		undoing = "its steps are undone, the last first"
	}
	err := facts(out, "effect", strconv.FormatInt(e.Effect, 10), "key", e.Key, "rule", ruleOf(e), "state", string(e.State), "that is", undoing, "reason", e.Reason, "source", e.Source, "account", e.Account,
		"object", object(e.ObjectType, e.ObjectID), "event", event, "window", window(v), "planned by", plannedBy(v), "planned", e.PlannedAt.String(), "approve by", e.ExpiresAt.String(), "updated", e.UpdatedAt.String(), "payload", "SHA-256 "+orDash(v.PayloadSHA256),
		"destination", e.Destination, "attempts", strconv.Itoa(e.Attempts), "due", e.Due.String(), "taken by", e.TakenBy, "until", e.TakenUntil.String())
	if err != nil {
		return err
	}
	for i := range v.Steps {
		if err := printStep(out, &v.Steps[i]); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "\nNext\n%s\n", plain(v.Next))
	return err
}

// window is that of a rule on a schedule.
func window(v *effects.View) string {
	if v.WindowEnd == "" {
		return ""
	}
	return "from " + v.WindowStart + " to " + v.WindowEnd
}

func plannedBy(v *effects.View) string {
	switch {
	case v.Effect.Event == 0:
		return "the schedule of its rule"
	case v.Run == 0:
		return "the event, as it was applied"
	}
	return fmt.Sprintf("run %d", v.Run)
}

func printStep(out io.Writer, s *effects.Step) error {
	head := "Step"
	if s.Undo {
		head = "Undoing of step"
	}
	fmt.Fprintf(out, "\n%s %s\n", head, plain(s.Step))
	status := ""
	if s.Status != 0 {
		status = strconv.Itoa(s.Status)
	}
	captured := string(s.Captured)
	if captured == "{}" {
		captured = ""
	}
	return facts(out, "state", string(s.State), "destination", s.Destination, "request", s.Request, "fingerprint", "SHA-256 "+s.Fingerprint, "attempts", strconv.Itoa(s.Attempts),
		"reserved", s.ReservedAt.String(), "ended", s.EndedAt.String(), "status", status, "captured", captured, "error", s.Error)
}

// effectChange is a command by which a person changes effects.
type effectChange struct {
	name, short, long, example string
	// single: it takes one effect.
	single bool
	// flags adds those of its own; values reads them.
	flags  func(*cobra.Command)
	values func(*cobra.Command) (url.Values, error)
}

var effectChanges = []effectChange{
	{name: "approve", short: "Let effects begin that wait for a person", example: "  postern effects approve 7 8 9 --reason 'agreed with finance'"},
	{name: "reject", short: "End effects for good; what was done of them stays", example: "  postern effects reject 7 --reason 'sent by hand'"},
	{name: "retry", short: "Have effects tried now that came to nothing",
		long: `Have effects tried now that failed, or that a person has seen to. What is done of them is not done again. The request of a step that was not done is made anew of its rule
as it is now; one of which nobody knows whether it was done is sent as it was, under the same key, or asked for. A step that must not be repeated needs postern effects resolve first.`,
		example: "  postern effects retry 7 --reason 'the address is mended'"},
	{name: "resolve", short: "Say what happened to a step of which nobody knows it", single: true,
		long: `Say what happened to a step of which nobody knows whether it was done: look at the other side first. One that was done is not done again, and the next one is taken; one that was not done is taken again.
A step whose answer lacked what was to be captured is given it with --done --captured.`,
		example: `  postern effects resolve 7 --step mail --done --reason 'it is in the outbox'
  postern effects resolve 7 --step invoice --done --captured '{"id": "inv_12"}' --reason 'found by its reference'
  postern effects resolve 7 --step mail --not-done --reason 'not in the outbox'`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().String("step", "", "name of the `step`")
			cmd.Flags().Bool("done", false, "it was done")
			cmd.Flags().Bool("not-done", false, "it was not done")
			cmd.Flags().String("captured", "", "what its answer said, or should have said, as a `JSON` object")
		},
		values: func(cmd *cobra.Command) (url.Values, error) {
			values := url.Values{"step": {cmd.Flag("step").Value.String()}, "done": {cmd.Flag("done").Value.String()}}
			switch {
			case values.Get("step") == "":
				return nil, usagef("say of which step you know with --step: postern effects show tells them")
			case cmd.Flag("done").Value.String() == cmd.Flag("not-done").Value.String():
				return nil, usagef("say what happened: --done or --not-done")
			}
			if captured := cmd.Flag("captured").Value.String(); captured != "" {
				values.Set("captured", captured)
			}
			return values, nil
		}},
	{name: "compensate", short: "Undo what was done of effects, the last step first",
		long: `Undo what was done of effects, the last step first, as the compensate of each step in their rule says. Each is kept in the ledger like any step.
Where a step has none, nothing is undone, unless --partial is given.`,
		example: "  postern effects compensate 7 --reason 'ordered by mistake'\n  postern effects compensate 7 --partial --reason 'all but the mail'",
		flags: func(cmd *cobra.Command) {
			cmd.Flags().Bool("partial", false, "undo what can be undone, and leave the rest")
		},
		values: func(cmd *cobra.Command) (url.Values, error) {
			if cmd.Flag("partial").Value.String() == "true" {
				return url.Values{"partial": {"true"}}, nil
			}
			return nil, nil
		}},
}

func (e effectChange) command(c *cli) *cobra.Command {
	var reason string
	args := "ID..."
	if e.single {
		args = "ID"
	}
	cmd := &cobra.Command{Use: e.name + " " + args + " --reason WHY", Short: e.short, Long: e.long, Example: e.example, Args: cobra.ArbitraryArgs}
	cmd.Flags().StringVar(&reason, "reason", "", "why; must be given, and is kept in the audit")
	if e.flags != nil {
		e.flags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := e.ids(cmd, args)
		if err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return usagef("say why with --reason")
		}
		var values url.Values
		if e.values != nil {
			if values, err = e.values(cmd); err != nil {
				return err
			}
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return e.run(cmd.Context(), cmd.OutOrStdout(), c, pool, ids, values, because(reason))
		})
	}
	return cmd
}

// ids are the effects that a command line names.
func (e effectChange) ids(cmd *cobra.Command, args []string) (ids []int64, err error) {
	if len(args) == 0 || e.single && len(args) > 1 {
		return nil, usagef("%s takes %s, got %d; see %s --help", cmd.CommandPath(), strings.TrimSuffix(strings.Fields(cmd.Use)[1], "..."), len(args), cmd.CommandPath())
	}
	for _, arg := range args {
		id, err := number(arg)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (e effectChange) run(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, ids []int64, values url.Values, by admin.By) error {
	all, err := admin.ChangeEffects(ctx, pool, e.name, ids, values, by)
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printEffects(out, all)
	}
	for i := range all {
		if _, err := fmt.Fprintf(out, "Effect %d is %s: %s.\n", all[i].Effect.Effect, all[i].State, plain(all[i].Next)); err != nil {
			return err
		}
	}
	return nil
}

func printEffects(out io.Writer, all []effects.View) error {
	list := &sink[effects.View]{out: out, json: true}
	if err := list.add(all); err != nil {
		return err
	}
	return list.end()
}
