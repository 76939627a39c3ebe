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
	cmd := &cobra.Command{Use: "effects", Short: "List, approve, retry and compensate effects", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[effects.Effect]{
		subject: "effects, the newest first",
		example: `  postern effects list --state needs_review
  postern effects list --rule receipt --since 1d -o json
  postern effects list --source stripe --type invoice --object in_1Postern0Jan0001`,
		params:    admin.EffectParams,
		query:     admin.Effects,
		columns:   effectColumns,
		emptyText: "No effects.",
	}.newCommand(c), newEffectsShowCommand(c), newEffectsBacktestCommand(c))
	for _, change := range effectCommands {
		cmd.AddCommand(change.newCommand(c))
	}
	return cmd
}

var effectColumns = []column[effects.Effect]{
	{"EFFECT", func(e effects.Effect) string { return strconv.FormatInt(e.ID, 10) }},
	{"STATE", func(e effects.Effect) string { return string(e.State) }},
	{"RULE", func(e effects.Effect) string { return describeRule(&e) }},
	{"SOURCE", func(e effects.Effect) string { return e.Source }},
	{"OBJECT", func(e effects.Effect) string { return describeObject(e.ObjectType, e.ObjectID) }},
	{"KEY", func(e effects.Effect) string { return e.Key }},
	{"PLANNED", func(e effects.Effect) string { return e.PlannedAt.String() }},
	{"UPDATED", func(e effects.Effect) string { return e.UpdatedAt.String() }},
	{"DUE", func(e effects.Effect) string { return e.Due.String() }},
	{"ATTEMPTS", func(e effects.Effect) string { return strconv.Itoa(e.Attempts) }},
	{"REASON", func(e effects.Effect) string { return e.Reason }},
}

// describeRule returns a rule with its version and the run that forced the effect.
func describeRule(e *effects.Effect) string {
	text := fmt.Sprintf("%s v%d", e.Rule, e.RuleVersion)
	if e.Forced > 0 {
		text += fmt.Sprintf(", forced by run %d", e.Forced)
	}
	return text
}

func newEffectsShowCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show an effect: the event, its steps, external ids, and the allowed actions",
		Long: `Show an effect: the event that caused it, the object, the SHA-256 of its template data,
each started step with the values captured from its response (external ids), and the allowed
actions.`,
		Example: "  postern effects show 7\n  postern effects show 7 -o json | jq -r '.steps[].captured'",
		Args:    wantArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseID(args[0], "postern effects list")
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
	compensating := ""
	if e.Compensating {
		compensating = "its steps are being undone, the last first"
	}
	err := printFields(out, "effect", strconv.FormatInt(e.ID, 10), "key", e.Key, "rule", describeRule(e), "state",
		string(e.State), "compensating", compensating, "reason", e.Reason, "source", e.Source, "account", e.Account,
		"object", describeObject(e.ObjectType, e.ObjectID), "event", event, "window", describeWindow(v), "planned by",
		describePlanner(v), "planned", e.PlannedAt.String(), "approve by", e.ExpiresAt.String(), "updated",
		e.UpdatedAt.String(), "payload", "SHA-256 "+orDash(v.PayloadSHA256), "destination", e.Destination, "attempts",
		strconv.Itoa(e.Attempts), "due", e.Due.String(), "leased by", e.LeaseOwner, "until", e.LeaseUntil.String())
	if err != nil {
		return err
	}
	for i := range v.Steps {
		if err := printStep(out, &v.Steps[i]); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "\nNext\n%s\n", escapeControl(v.AllowedActions))
	return err
}

// describeWindow returns the window of a rule on a schedule.
func describeWindow(v *effects.View) string {
	if v.WindowEnd == "" {
		return ""
	}
	return "from " + v.WindowStart + " to " + v.WindowEnd
}

func describePlanner(v *effects.View) string {
	switch {
	case v.Effect.Event == 0:
		return "the schedule of its rule"
	case v.Run == 0:
		return "the event when it was applied"
	}
	return fmt.Sprintf("run %d", v.Run)
}

func printStep(out io.Writer, s *effects.Step) error {
	head := "Step"
	if s.Undo {
		head = "Undo of step"
	}
	fmt.Fprintf(out, "\n%s %s\n", head, escapeControl(s.Step))
	status := ""
	if s.Status != 0 {
		status = strconv.Itoa(s.Status)
	}
	captured := string(s.Captured)
	if captured == "{}" {
		captured = ""
	}
	return printFields(out, "state", string(s.State), "destination", s.Destination, "request", s.Request, "fingerprint",
		"SHA-256 "+s.Fingerprint, "attempts", strconv.Itoa(s.Attempts), "reserved", s.ReservedAt.String(), "ended",
		s.EndedAt.String(), "status", status, "captured", captured, "error", s.Error)
}

// effectCommand is a command that changes effects.
type effectCommand struct {
	name, short, long, example string
	// takesOne is true if the command takes only one effect.
	takesOne bool
	// addFlags adds the command's own flags; readFlags reads them.
	addFlags  func(*cobra.Command)
	readFlags func(*cobra.Command) (url.Values, error)
}

var effectCommands = []effectCommand{
	{name: "approve", short: "Approve effects that await approval",
		example: "  postern effects approve 7 8 9 --reason 'agreed with finance'"},
	{name: "reject", short: "Reject effects for good; completed steps stay",
		example: "  postern effects reject 7 --reason 'sent by hand'"},
	{name: "retry", short: "Retry failed effects now",
		long: `Retry failed effects, and effects that needed review, now. Completed steps are not repeated.
The request of a step that was not done is built again from the current rule. A step with unknown
outcome is sent unchanged with the same key, or its outcome is requested. A step that must not be
repeated needs postern effects resolve first.`,
		example: "  postern effects retry 7 --reason 'the address is corrected'"},
	{name: "resolve", short: "Resolve a step with unknown outcome", takesOne: true,
		long: `Record the outcome of a step whose outcome is unknown. Check it at the destination first. A
step that was done is not repeated, and the effect continues with the next one. A step that was not
done is executed again. If the response lacked a value to capture, give it with --done --captured.`,
		example: `  postern effects resolve 7 --step mail --done --reason 'it is in the outbox'
  postern effects resolve 7 --step invoice --done --captured '{"id": "inv_12"}' --reason 'found by its reference'
  postern effects resolve 7 --step mail --not-done --reason 'not in the outbox'`,
		addFlags: func(cmd *cobra.Command) {
			cmd.Flags().String("step", "", "name of the `step`")
			cmd.Flags().Bool("done", false, "the step was done")
			cmd.Flags().Bool("not-done", false, "the step was not done")
			cmd.Flags().String("captured", "",
				"what the response contained, or should have contained, as a `JSON` object")
		},
		readFlags: func(cmd *cobra.Command) (url.Values, error) {
			values := url.Values{"step": {cmd.Flag("step").Value.String()}, "done": {cmd.Flag("done").Value.String()}}
			switch {
			case values.Get("step") == "":
				return nil, usagef("name the step with --step: postern effects show lists them")
			case cmd.Flag("done").Value.String() == cmd.Flag("not-done").Value.String():
				return nil, usagef("say what happened: --done or --not-done")
			}
			if captured := cmd.Flag("captured").Value.String(); captured != "" {
				values.Set("captured", captured)
			}
			return values, nil
		}},
	{name: "compensate", short: "Undo the completed steps of effects, the last step first",
		long: `Undo the completed steps of effects, the last step first, each with the compensate of its step
in the rule. The ledger keeps each undo like a step. If a step has no compensate, nothing is undone,
unless --partial is given.`,
		example: "  postern effects compensate 7 --reason 'ordered by mistake'\n  postern effects compensate 7 " +
			"--partial --reason 'everything except the mail'",
		addFlags: func(cmd *cobra.Command) {
			cmd.Flags().Bool("partial", false, "undo the steps that can be undone and leave the others")
		},
		readFlags: func(cmd *cobra.Command) (url.Values, error) {
			if cmd.Flag("partial").Value.String() == "true" {
				return url.Values{"partial": {"true"}}, nil
			}
			return nil, nil
		}},
}

func (e effectCommand) newCommand(c *cli) *cobra.Command {
	var reason string
	args := "ID..."
	if e.takesOne {
		args = "ID"
	}
	cmd := &cobra.Command{Use: e.name + " " + args + " --reason TEXT", Short: e.short, Long: e.long, Example: e.example,
		Args: cobra.ArbitraryArgs}
	cmd.Flags().StringVar(&reason, "reason", "", "the reason; required, kept in the audit trail")
	if e.addFlags != nil {
		e.addFlags(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := e.readIDs(cmd, args)
		if err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return usagef("give a reason with --reason")
		}
		var values url.Values
		if e.readFlags != nil {
			if values, err = e.readFlags(cmd); err != nil {
				return err
			}
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return e.run(cmd.Context(), cmd.OutOrStdout(), c, pool, ids, values, operatorWithReason(reason))
		})
	}
	return cmd
}

// readIDs returns the effects that the command line names.
func (e effectCommand) readIDs(cmd *cobra.Command, args []string) (ids []int64, err error) {
	if len(args) == 0 || e.takesOne && len(args) > 1 {
		return nil, usagef("%s takes %s, got %d; see %s --help", cmd.CommandPath(),
			strings.TrimSuffix(strings.Fields(cmd.Use)[1], "..."), len(args), cmd.CommandPath())
	}
	for _, arg := range args {
		id, err := parseID(arg, "postern effects list")
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (e effectCommand) run(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, ids []int64,
	values url.Values, by admin.Requester) error {
	all, err := admin.ChangeEffects(ctx, pool, e.name, ids, values, by)
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printEffects(out, all)
	}
	for i := range all {
		if _, err := fmt.Fprintf(out, "Effect %d is %s: %s.\n", all[i].Effect.ID, all[i].State,
			escapeControl(all[i].AllowedActions)); err != nil {
			return err
		}
	}
	return nil
}

func printEffects(out io.Writer, all []effects.View) error {
	list := &listPrinter[effects.View]{out: out, json: true}
	if err := list.add(all); err != nil {
		return err
	}
	return list.end()
}
