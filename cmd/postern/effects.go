package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

func newEffectsCommand(c *cli) *cobra.Command {
	cmd := group("effects", "List, approve, retry and compensate effects", effectList.newCommand(c),
		newEffectsShowCommand(c), newEffectsBacktestCommand(c))
	for _, change := range effectChanges {
		cmd.AddCommand(newEffectChangeCommand(c, change))
	}
	return cmd
}

var effectList = listCommand[effects.Effect, operations.EffectParams]{
	subject: "effects, the newest first",
	example: `  postern effects list --state needs_review
  postern effects list --rule receipt --since 1d -o json
  postern effects list --source stripe --type invoice --object in_1Postern0Jan0001`,
	query: operations.Effects,
	columns: []column[effects.Effect]{
		{"EFFECT", func(e effects.Effect) any { return e.ID }},
		{"STATE", func(e effects.Effect) any { return e.State }},
		{"RULE", func(e effects.Effect) any { return describeRule(&e) }},
		{"SOURCE", func(e effects.Effect) any { return e.Source }},
		{"OBJECT", func(e effects.Effect) any { return describeObject(e.ObjectType, e.ObjectID) }},
		{"KEY", func(e effects.Effect) any { return e.Key }},
		{"PLANNED", func(e effects.Effect) any { return e.PlannedAt }},
		{"UPDATED", func(e effects.Effect) any { return e.UpdatedAt }},
		{"DUE", func(e effects.Effect) any { return e.Due }},
		{"ATTEMPTS", func(e effects.Effect) any { return e.Attempts }},
		{"REASON", func(e effects.Effect) any { return e.Reason }},
	},
	emptyText: "No effects.",
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
	return command{
		use: "show ID", short: "Show an effect: the event, its steps, external ids, and the allowed actions",
		long: `Show an effect: the event that caused it, the object, the SHA-256 of its template data,
each started step with the values captured from its response (external ids), and the allowed
actions.`,
		example: "  postern effects show 7\n  postern effects show 7 -o json | jq -r '.steps[].captured'",
		ids:     "postern effects list",
		run: func(x *call) error {
			v, err := operations.Effect(x.ctx, x.pool, x.ids[0])
			return show(x, v, err, printEffect)
		},
	}.build(c)
}

func printEffect(x *call, v *effects.View) error {
	e := &v.Effect
	event, compensating, window, planner := "", "", "", "the schedule of its rule"
	if e.Event != 0 {
		event, planner = toText(e.Event), "the event when it was applied"
	}
	if v.EventKey != "" {
		event += fmt.Sprintf(", %s, %s, %s", v.EventKey, v.EventType, v.Origin)
	}
	if e.Event != 0 && v.Run != 0 {
		planner = fmt.Sprintf("run %d", v.Run)
	}
	if e.Compensating {
		compensating = "its steps are being undone, the last first"
	}
	if v.WindowEnd != "" { // of a rule on a schedule
		window = "from " + v.WindowStart + " to " + v.WindowEnd
	}
	err := printFields(x.out, "effect", e.ID, "key", e.Key, "rule", describeRule(e), "state", e.State, "compensating",
		compensating, "reason", e.Reason, "source", e.Source, "account", e.Account, "object",
		describeObject(e.ObjectType, e.ObjectID), "event", event, "window", window, "planned by", planner, "planned",
		e.PlannedAt, "approve by", e.ExpiresAt, "updated", e.UpdatedAt, "payload", "SHA-256 "+orDash(v.PayloadSHA256),
		"destination", e.Destination, "attempts", e.Attempts, "due", e.Due, "leased by", e.LeaseOwner, "until",
		e.LeaseUntil)
	if err != nil {
		return err
	}
	for i := range v.Steps {
		if err := printStep(x, v, &v.Steps[i]); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(x.out, "\nNext\n%s\n", escapeControl(v.AllowedActions))
	return err
}

func printStep(x *call, v *effects.View, s *effects.Step) error {
	head := "Step"
	if s.Undo {
		head = "Undo of step"
	}
	fmt.Fprintf(x.out, "\n%s %s\n", head, escapeControl(s.Step))
	var status any
	if s.Status != 0 {
		status = s.Status
	}
	captured, fingerprint, undo := string(s.Captured), "", ""
	if captured == "{}" {
		captured = ""
	}
	if s.Fingerprint != "" {
		fingerprint = "SHA-256 " + s.Fingerprint
	}
	switch {
	case slices.Contains(v.NotUndoable, s.Step):
		undo = "not possible: its rule has no compensate for it"
	case s.Undoable && !s.Undo && s.State != effects.Skipped:
		undo = "possible, by the compensate of its rule"
	}
	return printFields(x.out, "state", s.State, "destination", s.Destination, "request", s.Request, "fingerprint",
		fingerprint, "attempts", s.Attempts, "reserved", s.ReservedAt, "ended", s.EndedAt, "status",
		status, "captured", captured, "undo", undo, "reason", s.Reason, "error", s.Error)
}

// effectChanges are the commands that change effects.
var effectChanges = []command{
	{use: "approve ID... --reason TEXT", short: "Approve effects that await approval",
		example: "  postern effects approve 7 8 9 --reason 'agreed with finance'"},
	{use: "reject ID... --reason TEXT", short: "Reject effects for good; completed steps stay",
		example: "  postern effects reject 7 --reason 'sent by hand'"},
	{use: "retry ID... --reason TEXT", short: "Retry failed effects now",
		long: `Retry failed effects, and effects that needed review, now. Completed steps are not repeated.
The request of a step that was not done is built again from the current rule. A step with unknown
outcome is sent unchanged with the same key, or its outcome is requested. A step that must not be
repeated needs postern effects resolve first.`,
		example: "  postern effects retry 7 --reason 'the address is corrected'"},
	{use: "resolve ID --reason TEXT", short: "Resolve a step with unknown outcome",
		long: `Record the outcome of a step whose outcome is unknown. Check it at the destination first. A
step that was done is not repeated, and the effect continues with the next one. A step that was not
done is executed again. If the response lacked a value to capture, give it with --done --captured.`,
		example: `  postern effects resolve 7 --step mail --done --reason 'it is in the outbox'
  postern effects resolve 7 --step invoice --done --captured '{"id": "inv_12"}' --reason 'found by its reference'
  postern effects resolve 7 --step mail --not-done --reason 'not in the outbox'`,
		flags: []flag{{"step", "name of the `step`", true}, {"done", "the step was done", false},
			{"not-done", "the step was not done", false},
			{"captured", "what the response contained, or should have contained, as a `JSON` object", true}},
		check: checkResolution},
	{use: "compensate ID... --reason TEXT", short: "Undo the completed steps of effects, the last step first",
		long: `Undo the completed steps of effects, the last step first, each with the compensate of its step
in the rule. The ledger keeps each undo like a step. If a step has no compensate, nothing is undone,
unless --partial is given.`,
		example: "  postern effects compensate 7 --reason 'ordered by mistake'\n  postern effects compensate 7 " +
			"--partial --reason 'everything except the mail'",
		flags: []flag{{"partial", "undo the steps that can be undone and leave the others", false}}},
}

func checkResolution(x *call) error {
	switch {
	case x.text("step") == "":
		return usagef("name the step with --step: postern effects show lists them")
	case x.has("done") == x.has("not-done"):
		return usagef("say what happened: --done or --not-done")
	}
	return nil
}

// changeEffects executes the change that the command names.
func changeEffects(x *call) ([]effects.View, error) {
	reason, by := operations.ReasonParams{Reason: x.reason()}, operator()
	switch x.cmd.Name() {
	case "approve":
		return operations.ApproveEffects(x.ctx, x.pool, x.ids, reason, by)
	case "reject":
		return operations.RejectEffects(x.ctx, x.pool, x.ids, reason, by)
	case "retry":
		return operations.RetryEffects(x.ctx, x.pool, x.ids, reason, by)
	case "compensate":
		return operations.CompensateEffects(x.ctx, x.pool, x.ids, operations.CompensateParams{ReasonParams: reason,
			Partial: x.has("partial")}, by)
	}
	p := operations.ResolveParams{ReasonParams: reason, Step: x.text("step"), Done: new(x.has("done"))}
	if captured := x.text("captured"); captured != "" {
		p.Captured = []byte(captured)
	}
	return operations.ResolveEffect(x.ctx, x.pool, x.ids, p, by)
}

// newEffectChangeCommand completes a command that changes effects.
func newEffectChangeCommand(c *cli, s command) *cobra.Command {
	checkOwn := s.check
	s.ids = "postern effects list"
	s.flags = append(s.flags, flag{reasonFlag.name, "the reason; required, kept in the audit trail", true})
	s.check = func(x *call) error {
		if err := x.requireReason(""); err != nil || checkOwn == nil {
			return err
		}
		return checkOwn(x)
	}
	s.run = func(x *call) error {
		all, err := changeEffects(x)
		switch {
		case err != nil:
			return err
		case x.json():
			return printList(x, all, nil, "")
		}
		for i := range all {
			fmt.Fprintf(x.out, "Effect %d is %s: %s.\n", all[i].Effect.ID, all[i].State,
				escapeControl(all[i].AllowedActions))
		}
		return nil
	}
	return s.build(c)
}

func newEffectsBacktestCommand(c *cli) *cobra.Command {
	return command{
		use:   "backtest --rule RULE --since TIME",
		short: "Show which past changes would have caused which effects under a rule, as a dry run",
		long: `Show which past changes would have caused which effects under a rule in --config FILE,
and what the ledger has for their keys: new, known (under this version of the rule), older (under
another version, so it would be repeated), or twice (an earlier change has the key). The list ends
with those that are gone: effects in the ledger since that time, of any version, that none of these
changes would have caused under the rule in FILE. Nothing is written and nothing is sent.

The command applies the stored events of each changed object in the order in which they were stored.
Live, concurrent events may have been applied in another order, and rules may have changed
meanwhile. To use it with a dev instance, name its folder: --config FILE --dir DIR.`,
		example: `  postern effects backtest --rule receipt --since 7d --config postern.yaml
  postern effects backtest --rule receipt --since 2026-11-01 --config postern.yaml -o json ` +
			`| jq -r '.[] | select(.ledger == "new") | .key'`,
		flags: []flag{{"rule", "name of the `rule`, in the configuration", true},
			{"since", "changes by events stored from this `time` on: an RFC 3339 time, a date, or how long ago " +
				"(15m, 2h, 7d)", true}},
		check: func(x *call) error {
			if x.text("rule") == "" || x.text("since") == "" {
				return usagef("name the rule with --rule and the time of the oldest change with --since, such as 7d")
			}
			return nil
		},
		run: runBacktest,
	}.build(c)
}

// backtestOptions reads the rule and its source from the configuration.
func backtestOptions(x *call) (o backtest.Options, err error) {
	var cfg *config.Config
	endpoints, err := x.endpoints(func(path string) (_ *config.Config, err error) {
		cfg, err = config.LoadSources(path)
		return cfg, err
	})
	if err != nil {
		return o, err
	}
	name := x.text("rule")
	rule, err := cfg.Rule(name)
	switch {
	case err != nil:
		return o, fmt.Errorf("rule %s: %w", name, err)
	case rule == nil:
		return o, usagef("there is no rule %q in this configuration: name its file with --config", name)
	}
	var p operations.BacktestParams
	if err := operations.Parse(&p, map[string]string{"since": x.text("since")}); err != nil {
		return o, err
	}
	known, err := events.RegisterSources(x.ctx, x.pool, nil)
	return backtest.Options{Pool: x.pool, RegisteredSources: known, Rule: rule, Since: p.Since.Time(),
		Sources: operations.ConfiguredSources(endpoints, known)}, err
}

var backtestColumns = []column[backtest.Change]{
	{"LEDGER", func(h backtest.Change) any { return h.Ledger }},
	{"KEY", func(h backtest.Change) any { return h.Key }},
	{"OBJECT", func(h backtest.Change) any { return describeObject(h.ObjectType, h.ObjectID) }},
	{"EVENT", func(h backtest.Change) any { return h.Event }},
	{"EVENT ID", func(h backtest.Change) any { return h.EventKey }},
	{"LEDGER EFFECT", func(h backtest.Change) any {
		if h.Effect == 0 {
			return ""
		}
		return fmt.Sprintf("effect %d, v%d, %s", h.Effect, h.LedgerVersion, h.State)
	}},
	{"ERROR", func(h backtest.Change) any { return h.Failure }},
}

func runBacktest(x *call) error {
	o, err := backtestOptions(x)
	if err != nil {
		return err
	}
	list := &listPrinter[backtest.Change]{out: x.out, json: x.json(), columns: backtestColumns,
		emptyText: "No change since then would have caused an effect under this rule, and none did."}
	n, err := backtest.Run(x.ctx, o, list.add)
	if err := errors.Join(err, list.end()); err != nil {
		return err
	}
	fmt.Fprintf(x.errs, "under version %d: %d new, %d known, %d known under another version, %d with the key of an "+
		"earlier change, %d gone\n", o.Rule.Version, n.Changes[backtest.New], n.Changes[backtest.Existing],
		n.Changes[backtest.OtherVersion], n.Changes[backtest.RepeatedKey], n.Changes[backtest.Gone])
	if n.Anomalies > 0 {
		fmt.Fprintf(x.errs, "%s cannot be read as they were when applied, and were skipped\n",
			countOf(int(n.Anomalies), "event"))
	}
	return nil
}
