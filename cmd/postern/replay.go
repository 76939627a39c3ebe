package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/replay"
)

func newReplayCommand(c *cli) *cobra.Command {
	return command{
		use: "replay", short: "Apply stored events again",
		long: `Apply stored events again: those that the flags select, all without flags. The command
shows how much is selected and asks first.

A running processor executes the run in addition to live events, directly from the log. If that
process ends, another one continues the run. The usual rules decide, so a replay restores what is
missing and changes nothing else. Each event gets an additional outcome with the run's number; the
live outcome stays. Failures are counted and not retried automatically: the exit status is 1 then,
and postern retry --run N retries them. Ctrl-C stops only the watching; postern runs pause, resume
and cancel control the run.

To retry failed or dead events, use postern retry: a replay does not change their live outcome.

--mode selects the effects of the replayed changes. state, the default, plans none, now or later.
missing plans those without an entry in the ledger. A change that was applied before is not applied
again and has no effects. force repeats all effects of the selected events: mails are sent twice.
Such a run needs an approval: postern runs approve.

With --publish the events are not applied. They are published to the subjects postern.replays.RUN.>
of the stream POSTERN_REPLAYS, for your own consumers.

With --dry-run everything is decided and nothing is written. The command shows the changes of each
object and the number of events by outcome. It reads events with the sources of --config FILE (for a
dev instance, with its demo sources), and keeps the changes in memory.`,
		example: `  postern replay --source stripe --type 'invoice.*' --since 2h --reason 'objects were deleted by hand'
  postern replay --object-type order --object 820982911946154508
  postern replay --source shop --since 1d --dry-run --config postern.yaml
  postern replay --status dead --rate 50 --yes
  postern replay --source shopify --since 25h --yes --idempotency-key "nightly $(date +%F)"` +
			`   # in a crontab: one run per day`,
		params: operations.Params(operations.ReplayParams{}, "publish"),
		flags: []flag{yesFlag, noWaitFlag, {"exact", "count instead of estimating", false},
			{"preview", "show how much is selected and exit", false},
			{"dry-run", "decide everything, write nothing, and show the changes", false},
			{"publish", "publish the events to postern.replays.RUN.> instead of applying them", false}},
		run: startReplay,
	}.build(c)
}

func startReplay(x *call) error {
	selected, err := parse[operations.ReplayParams](x)
	if err != nil {
		return err
	}
	if status := selected.Status; status == "failed" || status == "dead" {
		fmt.Fprintf(x.errs, "postern: a replay does not change the live outcome of %s events; postern retry --status "+
			"%s tries them again\n", status, status)
	}
	selected.Publish = x.has("publish")
	params, err := selected.Replay(x.ctx, x.pool)
	if err != nil {
		return err
	}
	p, err := operations.PreviewReplay(x.ctx, x.pool, params, x.has("exact"))
	if err != nil {
		return err
	}
	if x.has("dry-run") {
		return dryRunReplay(x, params, p.Events)
	}
	if end, err := x.showPreview(p, describePreview(p.Preview)+describeForcedEffects(p.RepeatedEffects)); end {
		return err
	}
	if p.ExactCounts && p.Events == 0 {
		return x.waitForEarlier(operations.ExistingReplay(x.ctx, x.pool, selected))
	}
	question := "Replay them?"
	switch {
	case params.Publish:
		question = "Publish them to postern.replays?"
	case p.RepeatedEffects != nil && (p.RepeatedEffects.Effects > 0 || !p.RepeatedEffects.Complete):
		question = "Replay them, and repeat these effects?"
	}
	if ok, err := x.confirm(question); err != nil || !ok {
		return err
	}
	run, err := operations.StartReplay(x.ctx, x.pool, selected, params, p.Events, operator())
	if err == nil && params.Mode == replay.Force { // it awaits approval
		return x.showStarted(run)
	}
	return x.showOrWatch(run, err)
}

// showPreview prints what a command has selected. end is true with --preview. The JSON output of a
// command without --preview is only the run.
func (x *call) showPreview(v any, text string) (end bool, err error) {
	switch {
	case !x.json():
		_, err = fmt.Fprintln(x.out, text)
	case x.has("preview"):
		err = printJSON(x.out, v)
	}
	return x.has("preview") || err != nil, err
}

// describePreview describes a preview.
func describePreview(p events.Preview) string {
	if p.Events == 0 && p.From.IsZero() {
		return "No events are selected."
	}
	about, within := "about ", "searching"
	if p.ExactCounts {
		about, within = "", "stored"
	}
	return fmt.Sprintf("%s%s of %s%s, %s %s to %s", about, countOf(int(p.Events), "event"), about,
		countOf(int(p.Objects), "object"), within, p.From, p.To)
}

// describeForcedEffects says how many effects would be repeated; "" if none would.
func describeForcedEffects(p *replay.ForcePreview) string {
	switch {
	case p == nil:
		return ""
	case p.Complete && p.Effects == 0:
		return "\nNo effects are repeated"
	case p.Complete:
		return fmt.Sprintf("\nOf their effects, at most %d are repeated", p.Effects)
	}
	return fmt.Sprintf("\nOf their effects, %d or more are repeated; --exact counts them all", p.Effects)
}

// dryRunReplay shows what a replay would change, and changes nothing.
func dryRunReplay(x *call, params *replay.Params, expected int64) error {
	endpoints, err := x.endpoints(config.LoadSources)
	if err != nil {
		return err
	}
	dry, err := operations.NewDryRun(x.ctx, x.pool, endpoints, params)
	if err != nil {
		return err
	}
	progress := newProgress(x.errs, 0, false)
	counts, err := replay.DryRun(x.ctx, x.pool, dry, params, 0, func(counts map[string]int64) {
		if !progress.due(time.Now()) {
			return
		}
		line := ""
		if done := counts[replay.Processed]; done < expected {
			line = fmt.Sprintf("%d of about %d events decided", done, expected)
		}
		progress.show(line)
	})
	if err != nil {
		return err
	}
	return printDryRun(x, dry, counts)
}

// The maximum number of paths that a dry run shows of an object, and the maximum length of a value.
const (
	maxTextPaths   = 20
	maxJSONPaths   = 1000
	maxValueLength = 100
)

// printDryRun prints the changes of each object and then the counts, as text or as one JSON
// document per line.
func printDryRun(x *call, dry *apply.DryRun, counts map[string]int64) error {
	objects, created := 0, 0
	most := maxTextPaths
	lines := json.NewEncoder(x.out)
	lines.SetEscapeHTML(false)
	if x.json() {
		most = maxJSONPaths
	}
	err := dry.Differences(most, func(d apply.Difference) error {
		objects++
		if d.New {
			created++
		}
		if x.json() {
			return lines.Encode(d)
		}
		return printDifference(x.out, d)
	})
	if err != nil {
		return err
	}
	if x.json() {
		return lines.Encode(map[string]any{"counts": counts, "objects": objects, "new": created})
	}
	_, err = fmt.Fprintf(x.out, "%s. %s would change, %d of them new. Nothing was written.\n",
		describeCounts(replay.Job, counts), countOf(objects, "object"), created)
	return err
}

func printDifference(out io.Writer, d apply.Difference) error {
	name := strings.Join([]string{d.Source, d.ObjectType, d.ObjectID}, " ")
	if d.Account != "" {
		name += " of " + d.Account
	}
	if d.New {
		name += " (new)"
	}
	fmt.Fprintln(out, escapeControl(name))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, change := range d.Changes {
		fmt.Fprintf(w, "  %s\t%s -> %s\n", escapeControl(change.Path), shortValue(change.Before),
			shortValue(change.After))
	}
	if d.More > 0 {
		fmt.Fprintf(w, "  and %s more\n", countOf(d.More, "path"))
	}
	return w.Flush()
}

// shortValue returns a value as one line of limited length.
func shortValue(value []byte) string {
	text := []rune(escapeControl(string(value)))
	if len(text) > maxValueLength {
		return string(text[:maxValueLength]) + "…"
	}
	return string(text)
}

func newRetryCommand(c *cli) *cobra.Command {
	return command{
		use: "retry [EVENT]", short: "Retry failed and dead events",
		long: `Retry events that failed or are dead, after the cause is fixed: one, by Postern's id or
the provider's event id, or those that the flags select. The command shows how many are selected and
asks first. Other events are not changed.

It retries live outcomes, or with --run N the outcomes of replay N. postern replay applies events
whatever their outcome.

A running processor executes the run, and each event gets all its attempts again. An event that
fails again becomes failed or dead again, with its reason. The counts of the run show the outcomes,
and the exit status is 1 if some failed.`,
		example: `  postern retry evt_1NG8Du2eZvKYlo2C
  postern retry --status dead --source stripe --failure 'is more than an hour after' ` +
			`--reason 'the clock is right again'
  postern retry --run 7 --yes`,
		params: operations.Params(operations.RetryParams{}, "event"),
		flags: []flag{yesFlag, noWaitFlag, {"exact", "count all, however many there are", false},
			{"preview", "show how many are selected and exit", false}},
		run: startRetry,
	}.build(c)
}

func startRetry(x *call) error {
	selected, err := parse[operations.RetryParams](x)
	if err != nil {
		return err
	}
	selected.Event = strings.Join(x.args, "")
	params, err := selected.Retry(x.ctx, x.pool)
	if err != nil {
		return err
	}
	p, err := params.Preview(x.ctx, x.pool, x.has("exact"))
	if err != nil {
		return err
	}
	if end, err := x.showPreview(p, describeRetryPreview(p)); end {
		return err
	}
	if p.Complete && p.Events == 0 {
		return x.waitForEarlier(operations.ExistingRetry(x.ctx, x.pool, selected))
	}
	if ok, err := x.confirm("Retry them?"); err != nil || !ok {
		return err
	}
	return x.showOrWatch(operations.StartRetry(x.ctx, x.pool, selected, params, p.Events, operator()))
}

func describeRetryPreview(p replay.RetryPreview) string {
	if p.Complete && p.Events == 0 {
		return "No failed or dead events are selected."
	}
	atLeast := ""
	if !p.Complete {
		atLeast = "at least "
	}
	return fmt.Sprintf("%s%s failed or dead, stored %s to %s", atLeast, countOf(int(p.Events), "event"), p.From, p.To)
}
