package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// workPages are the pages about jobs, effects and the instance.
func (c *Console) workPages() map[string]page {
	return map[string]page{
		"runs":                 runList.page(),
		"runs/{id}":            c.runPage,
		"runs/new/replay":      newReplay,
		"runs/new/retry":       newRetry,
		"runs/new/rebuild":     newRebuild,
		"runs/new/reconcile":   newReconciliation,
		"reconciliation":       reconciliationPage,
		"schedules":            scheduleList.page(),
		"schedules/{name}":     withParams(schedulePage),
		"effects":              effectList.page(),
		"effects/{id}":         withParams(effectPage),
		"effects/rules/{rule}": rulePage,
		"audit":                auditList.page(),
		"redactions":           redactionList.page(),
		"retention":            withParams(retentionPage),
		"health":               withParams(healthPage),
		"help":                 withParams(helpPage),
	}
}

var runList = list[operations.RunParams, runs.Run]{
	title: "Runs", text: "Long jobs over the log, such as replays, rebuilds and reconciliations. Processors execute " +
		"them.",
	command: "runs list", api: "/api/v1/runs",
	main: []string{"job", "status", "schedule"},
	presets: []preset{{"running", "?status=running"}, {"awaiting approval", "?status=awaiting_approval"},
		{"paused", "?status=paused"}, {"failed", "?status=failed"}, {"replays", "?job=replay"},
		{"reconciliations", "?job=reconcile"}, {"rebuilds", "?job=rebuild"}},
	columns: []string{"Run", "Job", "Status", "Request", "Processed", "Actor", "Created", "Duration", "Detail"},
	row:     runRow,
	read:    operations.Runs,
	empty: "No run matches the filter. A run appears here when an operator or a schedule starts a job. Start one " +
		"with the links above.",
	extra: func(context.Context, *request, *operations.RunParams) ([]block, error) {
		return []block{{Presets: newRunLinks()}}, nil
	},
}

func newRunLinks() []cell {
	return []cell{text("Start a new run:"), link("replay events", path("runs", "new", "replay")),
		link("retry failures", path("runs", "new", "retry")), link("rebuild objects", path("runs", "new", "rebuild")),
		link("reconcile", path("runs", "new", "reconcile"))}
}

func runPath(n int64) string { return path("runs", id(n)) }

func runRow(r *request, run *runs.Run) []cell {
	what := shorten(describeRun(run), 70)
	actor := text(run.Actor)
	if run.Schedule != "" {
		actor = link(run.Schedule, path("schedules", run.Schedule))
		actor.Sub = "schedule"
	}
	processed := number(run.Counts[replay.Processed])
	if share, ok := shareDone(run); ok && !run.Status.Ended() {
		processed.HasBar, processed.Bar, processed.Tone = true, share, "accent"
	}
	return []cell{codeLink(id(run.ID), runPath(run.ID)), text(run.Job), runBadge(run), what, processed, actor,
		r.shortTime(run.CreatedAt.Time), r.runDuration(run), shorten(run.Detail, 90)}
}

// runBadge shows the status of a run. A rebuild whose objects are staged waits for a decision.
func runBadge(run *runs.Run) cell {
	if rebuild.Stage(run) == rebuild.Staged {
		return badge("awaiting_decision")
	}
	return badge(string(run.Status))
}

// runDuration is the time from the start of a run to its end, or until now.
func (r *request) runDuration(run *runs.Run) cell {
	if run.StartedAt.IsZero() {
		return cell{}
	}
	return text(durationText(r.lengthOf(run)))
}

// shareDone returns how many percent of the expected events a run has processed. ok is false where
// there is no estimate.
func shareDone(run *runs.Run) (percent int, ok bool) {
	if run.Expected <= 0 {
		return 0, false
	}
	return int(min(100, run.Counts[replay.Processed]*100/run.Expected)), true
}

// describeRun says in words what was requested.
func describeRun(run *runs.Run) string {
	switch run.Job {
	case reconcile.Job:
		return describeReconciliation(run)
	case retention.Job:
		return describeRetention(run)
	case redaction.Job:
		return "Redact the data that the request names" + describeSelection(run, "; ")
	case rebuild.Job:
		var p rebuild.Params
		if json.Unmarshal(run.Params, &p) != nil {
			return "Rebuild objects"
		}
		what := "Rebuild all objects"
		if p.Type != "" {
			what = "Rebuild the objects of type " + p.Type
		}
		if p.Swap {
			return what + " of source " + p.Input["source"] + ", then swap"
		}
		return what + " of source " + p.Input["source"]
	case replay.RetryJob:
		return "Retry failed and dead events" + describeSelection(run, ": ")
	case replay.Job:
		return describeReplay(run)
	}
	return run.Job + describeSelection(run, ": ")
}

func describeReplay(run *runs.Run) string {
	var p replay.Params
	_ = json.Unmarshal(run.Params, &p) // parameters of another format have no words
	what := "Apply events again"
	if p.Publish {
		what = "Publish events to postern.replays"
	}
	what += cmp.Or(describeSelection(run, ": "), ": the whole log")
	if p.Mode == replay.Missing || p.Mode == replay.Force {
		what += "; mode " + string(p.Mode)
	}
	if p.Rate > 0 {
		what += fmt.Sprintf("; at most %g/s", p.Rate)
	}
	return what
}

// describeSelection lists the parameters as they were entered, after a prefix; "" for none.
func describeSelection(run *runs.Run, prefix string) string {
	input := inputOfRun(run)
	if len(input) == 0 {
		return ""
	}
	parts := make([]string, 0, len(input))
	for _, name := range slices.Sorted(maps.Keys(input)) {
		parts = append(parts, label(name)+" "+input[name])
	}
	return prefix + strings.Join(parts, ", ")
}

// inputOfRun returns the parameters of a run as they were entered.
func inputOfRun(run *runs.Run) map[string]string {
	var stored struct {
		Input map[string]string `json:"input"`
	}
	_ = json.Unmarshal(run.Params, &stored) // parameters of another format have no input
	return stored.Input
}

func describeReconciliation(run *runs.Run) string {
	var p reconcile.Params
	if json.Unmarshal(run.Params, &p) != nil {
		return "Compare with the provider"
	}
	what := "Compare the events"
	switch {
	case p.Scope == reconcile.Object && p.Overwrite:
		what = "Overwrite " + p.Type + " " + p.ID
	case p.Scope == reconcile.Object:
		what = "Compare " + p.Type + " " + p.ID
	case p.Scope == reconcile.Objects && p.Type != "":
		what = "Compare the objects of type " + p.Type
	case p.Scope == reconcile.Objects:
		what = "Compare the objects of all types"
	}
	what += " of source " + p.Input["source"] + " with the provider"
	if p.Account != "" {
		what += ", account " + p.Account
	}
	if p.AllAccounts {
		what += ", all accounts"
	}
	if p.Full {
		what += ", full list"
	}
	if !p.Since.IsZero() {
		what += ", since " + p.Since.UTC().Format(time.RFC3339)
	}
	if !p.Until.IsZero() {
		what += ", until " + p.Until.UTC().Format(time.RFC3339)
	}
	if p.DryRun {
		what += ", dry run"
	}
	return what
}

func describeRetention(run *runs.Run) string {
	var p retention.Params
	if json.Unmarshal(run.Params, &p) != nil {
		return "Delete data that is past its age"
	}
	var parts []string
	for _, a := range policyAges(p.Policy) {
		if a.days > 0 {
			parts = append(parts, fmt.Sprintf("%s %d days", a.kind, a.days))
		}
	}
	return "Delete data that is past its age: " + strings.Join(parts, ", ")
}

// runValues are the parameters of a run as fields.
func runValues(run *runs.Run) []field {
	input := inputOfRun(run)
	var fields []field
	for _, name := range slices.Sorted(maps.Keys(input)) {
		value := shorten(input[name], 400)
		value.Code = true
		if name == "source" {
			value = link(input[name], path("sources", input[name]))
		}
		fields = append(fields, field{sentenceCase(label(name)), []cell{value}})
	}
	return fields
}

// readPosition says how far a run has read: to which time of the log, or of the provider.
func (r *request) readPosition(run *runs.Run) []cell {
	switch {
	case run.Bound == 0 || run.Cursor <= 1:
		return nil
	case run.Job == reconcile.Job:
		return []cell{r.time(time.UnixMicro(run.Cursor)), text("of"), r.time(time.UnixMicro(run.Bound))}
	case run.Cursor >= run.Bound:
		return []cell{text("completely")}
	}
	return []cell{r.time(events.Time(run.Cursor)), text("of"), r.time(events.Time(run.Bound))}
}
