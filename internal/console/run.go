package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

// openRunRefresh is the number of seconds after which the page of an open run is read again.
const openRunRefresh = 2

// runPage shows one run. Its parameters select differences, or a part of the comparison.
func (c *Console) runPage(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	if err := checkRunTexts(texts); err != nil {
		return nil, err
	}
	n, err := r.pathNumber("run")
	if err != nil {
		return nil, err
	}
	run, err := runs.Show(ctx, c.Pages, n)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Run " + id(run.ID), Title: sentenceCase(run.Job), Lead: []cell{runBadge(run)},
		Text: visible(describeRun(run)) + "."}
	switch run.Status {
	case runs.AwaitingApproval, runs.Queued, runs.Running:
		v.Refresh = openRunRefresh
	case runs.Paused, runs.Done, runs.Failed, runs.Cancelled:
	}
	v.Notes = runNotes(r, run)
	v.Blocks = append(v.Blocks, progressBlock(r, run), requestBlock(r, run))
	if len(run.Counts) > 0 {
		v.Blocks = append(v.Blocks, countBlock(run))
	}
	more, err := resultBlocks(ctx, r, run, texts)
	if err != nil {
		return nil, err
	}
	v.Blocks = append(v.Blocks, more...)
	audit, err := operations.Audit(ctx, c.Pages, operations.AuditParams{Run: run.ID})
	if err != nil {
		return nil, err
	}
	if len(audit.Items) > 0 {
		v.Blocks = append(v.Blocks, auditBlock(r, audit.Items))
	}
	v.Blocks = append(v.Blocks, block{ID: "params", Heading: "Parameters as stored", Folded: true,
		Document: newDocument(run.Params, "")})
	return v, r.separateApprovals(ctx, v, operations.Causes{Runs: []int64{run.ID}})
}

// checkRunTexts rejects parameters that the page of no run has.
func checkRunTexts(texts map[string]string) error {
	texts = maps.Clone(texts)
	delete(texts, "compare")
	return operations.Parse(&operations.DifferenceParams{}, texts, "id")
}

// runNotes say why a run failed, and what it waits for.
func runNotes(r *request, run *runs.Run) (all []note) {
	detail := visible(run.Detail)
	switch {
	case run.Status == runs.Failed:
		all = append(all, note{Tone: "bad", Text: "The run failed: " + cmp.Or(detail, "no reason is stored") + "."})
	case !run.StalledSince.IsZero():
		all = append(all, note{Tone: "warning", Text: stalledText(r, run)})
	case run.Status == runs.AwaitingApproval:
		all = append(all, note{Tone: "warning", Text: strings.TrimSpace("The run starts after an approval. " + detail)})
	case run.Status == runs.Queued && run.ConsecutiveFailures == 0:
		all = append(all, note{Tone: "info", Text: strings.TrimSpace("The run waits for a processor with capacity. " +
			detail)})
	case run.ConsecutiveFailures > 0:
		all = append(all, note{Tone: "warning", Text: fmt.Sprintf("The run was deferred %s since it last made "+
			"progress. The reason: %s", timesText(run.ConsecutiveFailures), detail)})
	case !run.Status.Ended() && detail != "":
		all = append(all, note{Tone: "info", Text: "Now: " + detail + "."})
	case detail != "":
		all = append(all, note{Tone: "info", Text: "Last detail: " + detail + "."})
	}
	failed, dead := run.Counts["failed"], run.Counts["dead"]
	if run.Status == runs.Done && failed+dead > 0 {
		retry := link("retry them", query(path("runs", "new", "retry"), "run", retryRun(run)))
		all = append(all, note{Tone: "warning", Text: plural(failed, "event failed",
			"events failed") + ", and " + plural(dead, "is dead", "are dead") + ". Fix the cause, then", Link: &retry})
	}
	return all
}

// stalledText says since when a running run has made no progress, and what to do.
func stalledText(r *request, run *runs.Run) string {
	text := "The run has made no progress since " + r.at(run.StalledSince).Text + ". "
	if run.LeaseOwner == "" {
		return text + "No process executes it: check that a processor runs. It continues at its last checkpoint."
	}
	return strings.TrimSpace(text + "Its process still has the lease. " + visible(run.Detail))
}

// retryRun is the run whose outcomes a retry reads: only a replay has outcomes of its own.
func retryRun(run *runs.Run) string {
	if run.Job == replay.Job {
		return id(run.ID)
	}
	return ""
}

func timesText(n int) string {
	if n == 1 {
		return "once"
	}
	return groupDigits(int64(n)) + " times"
}

// plural is a number with the word for one or for several things.
func plural[T int | int64](n T, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return groupDigits(int64(n)) + " " + several
}

// progressBlock shows how far a run is, and its actions.
func progressBlock(r *request, run *runs.Run) block {
	b := block{ID: "progress", Actions: runActions(r, run)}
	done := run.Counts[replay.Processed]
	progress := text(groupDigits(done) + " processed")
	if share, ok := shareDone(run); ok {
		progress = cell{HasBar: true, Bar: share, Tone: "accent", Text: fmt.Sprintf("%s of about %s",
			groupDigits(done), groupDigits(run.Expected))}
		if run.Status == runs.Done {
			progress.Bar, progress.Tone = 100, "good"
		}
	}
	b.Fields = append(b.Fields, field{"Progress", []cell{progress}})
	if rate, ok := r.c.rates.rate(run, r.now); ok {
		speed := fmt.Sprintf("%.0f per second", rate)
		if left := run.Expected - done; left > 0 && rate > 0 {
			speed += ", about " + durationText(time.Duration(float64(left)/rate*float64(time.Second))) + " left"
		}
		b.Fields = append(b.Fields, field{"Rate", []cell{text(speed)}})
	}
	b.Fields = append(b.Fields, field{"Stage", []cell{text(rebuild.Stage(run))}}, field{"Read up to",
		r.readPosition(run)}, field{"Executed by", []cell{code(run.LeaseOwner)}},
		field{"Created", []cell{r.at(run.CreatedAt)}}, field{"Started", []cell{r.at(run.StartedAt)}})
	if run.EndedAt.IsZero() {
		b.Fields = append(b.Fields, field{"Last change", []cell{r.ageCell(run.UpdatedAt)}})
	} else {
		b.Fields = append(b.Fields, field{"Ended", []cell{r.at(run.EndedAt)}},
			field{"Duration", []cell{r.runDuration(run)}})
	}
	return b
}

// requestBlock shows who requested a run, why, and who approved it.
func requestBlock(r *request, run *runs.Run) block {
	b := block{ID: "request", Heading: "Request", Fields: append(runValues(run),
		field{"Actor", []cell{text(run.Actor)}},
		field{"Schedule", []cell{link(run.Schedule, schedulePath(run.Schedule))}},
		field{"Planned for", []cell{r.at(run.PlannedAt)}}, field{"Reason", []cell{text(run.Reason)}},
		field{"Idempotency key", []cell{code(run.IdempotencyKey)}})}
	for _, a := range run.Approvals {
		by := text(a.Actor)
		by.Sub = visible(a.Reason)
		b.Fields = append(b.Fields, field{"Approved by", []cell{by, r.at(a.At)}},
			field{"What was approved", []cell{text(a.Message)}})
	}
	if len(run.Approvals) == 0 && run.ApprovedBy != "" {
		by := text(run.ApprovedBy)
		by.Sub = visible(run.ApprovalReason)
		b.Fields = append(b.Fields, field{"Approved by", []cell{by}})
	}
	return b
}

// countBlock shows the counts of a run, each with its share.
func countBlock(run *runs.Run) block {
	t := &table{Columns: []string{"Count", "Number", "Share of the processed ones"}}
	total := run.Counts[replay.Processed]
	t.Rows = append(t.Rows, []cell{text(replay.Processed), number(total), {}})
	for _, name := range slices.Sorted(maps.Keys(run.Counts)) {
		n := run.Counts[name]
		if n == 0 || name == replay.Processed {
			continue
		}
		share := cell{}
		if total > 0 && n > 0 && n <= total {
			share = cell{HasBar: true, Bar: int(max(1, n*100/total)), Tone: cmp.Or(toneOf[name], "quiet"),
				Text: fmt.Sprintf("%.1f %%", float64(n)*100/float64(total))}
		}
		t.Rows = append(t.Rows, []cell{text(label(name)), number(n), share})
	}
	return block{ID: "result", Heading: "Result", Table: t}
}

// runActions are the changes that the status of a run allows.
func runActions(r *request, run *runs.Run) (all []action) {
	change := func(name, text, reason string, danger bool) {
		all = append(all, r.form(action{Label: sentenceCase(name), Text: text, Danger: danger, Reason: reason,
			Path: "/api/v1/runs/" + id(run.ID) + "/" + name, Then: runPath(run.ID)}))
	}
	if run.Status == runs.AwaitingApproval {
		change("approve", "The run starts, and does what this page describes: "+visible(describeRun(run))+".",
			"required", false)
	}
	if run.Status == runs.Queued || run.Status == runs.Running {
		change("pause", "The run stops at its next checkpoint. It can be resumed.", "optional", false)
	}
	if run.Status == runs.Paused {
		text := "The run continues at its last checkpoint."
		if rebuild.Stage(run) == rebuild.Staged {
			text = "The rebuild reads the events that are newer than its staged objects, and then waits again."
		}
		change("resume", text, "optional", false)
	}
	if !run.Status.Ended() && rebuild.Stage(run) != rebuild.Staged {
		change("cancel", "The run ends. Its completed changes remain.", "optional", true)
	}
	return all
}

// resultBlocks show what an object scan or a rebuild has found.
func resultBlocks(ctx context.Context, r *request, run *runs.Run, texts map[string]string) ([]block, error) {
	switch {
	case run.Job == reconcile.Job:
		return driftBlocks(ctx, r, run, texts)
	case run.Job == rebuild.Job && (rebuild.Stage(run) == rebuild.Staged || texts["compare"] != ""):
		return comparisonBlocks(ctx, r, run, texts)
	case run.Job == rebuild.Job && !run.Status.Ended() && run.Status != runs.Queued:
		return []block{{ID: "comparison", Heading: "Comparison", Text: "All objects must be staged before a swap. " +
			"The objects that are staged so far can be compared.", Fields: []field{{"Compare", []cell{link("compare "+
			"now",
			query(runPath(run.ID), "compare", "1"))}}}}}, nil
	}
	return nil, nil
}

func driftBlocks(ctx context.Context, r *request, run *runs.Run, texts map[string]string) ([]block, error) {
	report, err := objectscan.ReportDrift(ctx, r.c.Pages, run.ID)
	if errors.Is(err, events.ErrNotFound) { // events or one object, or the scan has not started
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	params := operations.DifferenceParams{Run: run.ID}
	if err := operations.Parse(&params, texts, "id"); err != nil {
		return nil, err
	}
	found, err := operations.Differences(ctx, r.c.Pages, params)
	if err != nil {
		return nil, err
	}
	t := &table{Columns: []string{"Object", "Kind", "Result", "Mirror → provider", "Refetch", "Reason"},
		Empty: "The scan has found no difference of this kind."}
	for i := range found.Items {
		t.Rows = append(t.Rows, differenceRow(r, report.Source, &found.Items[i]))
	}
	if found.Next != "" {
		t.More = r.with(texts, "cursor", found.Next)
	}
	presets := []cell{link("all", runPath(run.ID)+"#differences")}
	for _, kind := range []string{"missing", "mirror_older", "content_differs", "orphan"} {
		presets = append(presets, link(label(kind), query(runPath(run.ID), "kind", kind)+"#differences"))
	}
	presets = append(presets, link("unrepaired", query(runPath(run.ID), "result", "unrepaired")+"#differences"))
	return []block{driftBlock(r, report), {ID: "differences", Heading: "Differences", Text: "The objects in which " +
		"the mirror differed from the provider. The run stores the first thousand.", Presets: presets, Table: t}}, nil
}

func driftBlock(r *request, report *objectscan.DriftReport) block {
	b := block{ID: "drift", Heading: "Drift by type", Table: &table{Columns: []string{"Type", "Phase", "Checked",
		"Equal", "Missing", "Mirror older", "Mirror newer", "Content differs", "Orphans", "Not listed", "Repaired",
		"Unrepaired", "Changes from", "Note"}, Empty: "The scan has not reached a type yet."}}
	for i := range report.Types {
		d := &report.Types[i]
		phase, why := badge(d.Phase), cell{}
		if d.Reason != "" {
			why = shorten(d.Reason, 120)
		} else if len(d.Skipped) > 0 {
			why = text(plural(len(d.Skipped), "part", "parts") + " of the list skipped")
		}
		since := r.at(d.Since)
		if d.Since.IsZero() {
			since = text("everything")
		}
		unrepaired := number(d.Unrepaired)
		if d.Unrepaired > 0 {
			unrepaired.Badge, unrepaired.Tone = true, "warning"
		}
		b.Table.Rows = append(b.Table.Rows, []cell{text(d.ObjectType), phase, number(d.Checked), number(d.Equal),
			number(d.Missing), number(d.MirrorOlder), number(d.MirrorNewer), number(d.ContentDiffers),
			number(d.Orphans), number(d.NotListed), number(d.Repaired), unrepaired, since, why})
	}
	if report.SkewSeconds != 0 {
		b.Notes = append(b.Notes, note{Tone: "warning", Text: fmt.Sprintf("The clocks of the API and the database "+
			"differ by %d s.", report.SkewSeconds)})
	}
	if len(report.VersionOnlyTypes) > 0 {
		b.Notes = append(b.Notes, note{Tone: "info", Text: "The API lists only versions of " +
			visible(strings.Join(report.VersionOnlyTypes, ", ")) + ". A change without a new version is not found."})
	}
	return b
}

func differenceRow(r *request, source string, d *objectscan.Difference) []cell {
	var fields []string
	for i := range d.Fields[:min(len(d.Fields), shownFields)] {
		f := &d.Fields[i]
		fields = append(fields, fmt.Sprintf("%s: %s → %s", f.Path, shortJSON(f.Before), shortJSON(f.After)))
	}
	if more := d.More + len(d.Fields) - len(fields); more > 0 {
		fields = append(fields, fmt.Sprintf("and %d more", more))
	}
	result := badge(d.Result)
	if d.Result == "" {
		result = cell{}
	}
	event := cell{}
	if d.EventID != nil {
		event = codeLink("event", eventPath(*d.EventID))
	}
	return []cell{r.objectCell(source, d.Account, d.ObjectType, d.ObjectID), text(label(d.Kind)), result,
		shorten(strings.Join(fields, "; "), 400), event, shorten(d.Reason, 120)}
}

// shownFields is how many differing fields of an object a row shows.
const shownFields = 4

// shortJSON shows a value in a few characters.
func shortJSON(raw []byte) string {
	s := strings.TrimSpace(string(raw))
	if runes := []rune(s); len(runes) > 60 {
		return string(runes[:60]) + "…"
	}
	return cmp.Or(s, "none")
}

// comparisonBlocks compare the staged objects of a rebuild with the live ones. Only here is a swap
// offered.
func comparisonBlocks(ctx context.Context, r *request, run *runs.Run, texts map[string]string) ([]block, error) {
	params := operations.CompareParams{Run: run.ID}
	texts = maps.Clone(texts)
	delete(texts, "compare")
	if err := operations.Parse(&params, texts, "id"); err != nil {
		return nil, err
	}
	found, err := operations.CompareRebuild(ctx, r.c.Pages, params)
	if errors.Is(err, events.ErrInvalid) && run.Status.Ended() {
		return []block{{ID: "comparison", Heading: "Comparison", Notes: []note{{Tone: "info",
			Text: visible(err.Error()) + "."}}}}, nil
	}
	if err != nil {
		return nil, err
	}
	b := block{ID: "comparison", Heading: "Comparison of the staged and the live objects", Actions: rebuildActions(r,
		run)}
	for _, kind := range []rebuild.Kind{rebuild.Same, rebuild.Differing, rebuild.OnlyLive, rebuild.OnlyStaged,
		rebuild.LiveNewer, rebuild.RefetchOnly} {
		b.Fields = append(b.Fields, field{kindText[kind], []cell{text(groupDigits(found.Counts[kind]))}})
	}
	if found.Next != nil || params.Cursor != "" {
		b.Notes = append(b.Notes, note{Tone: "info", Text: "The numbers count this part of the comparison only."})
	}
	if found.Dead != nil && found.Dead.Events > 0 {
		first := codeLink(id(found.Dead.First), eventPath(found.Dead.First))
		b.Notes = append(b.Notes, note{Tone: "warning", Text: fmt.Sprintf("%s events are in the mirror and dead in "+
			"the "+
			"rebuild. The first one: %s", groupDigits(found.Dead.Events), visible(found.Dead.Reason)), Link: &first})
	}
	b.Table = &table{Columns: []string{"Object", "Kind", "Differs in", "Reasons", "Live", "Staged"},
		Empty: "All compared objects are the same."}
	for i := range found.Items {
		d := &found.Items[i]
		b.Table.Rows = append(b.Table.Rows, []cell{r.objectCell(d.Source, d.Account, d.ObjectType, d.ObjectID),
			text(label(string(d.Kind))), shorten(strings.Join(append(slices.Clone(d.Parts), d.Paths...), ", "), 120),
			shorten(strings.Join(d.Reasons, "; "), 200), stagedCell(d.Live), stagedCell(d.Staged)})
	}
	if found.Next != nil {
		b.Table.More = r.with(texts, "compare", "1", "cursor", *found.Next)
	}
	return []block{b}, nil
}

var kindText = map[rebuild.Kind]string{rebuild.Same: "The same", rebuild.Differing: "Differ",
	rebuild.OnlyLive: "Only live", rebuild.OnlyStaged: "Only staged", rebuild.LiveNewer: "Live is newer",
	rebuild.RefetchOnly: "Same, but refetch"}

func stagedCell(o *rebuild.ObjectRow) cell {
	if o == nil {
		return cell{Text: "none"}
	}
	c := codeLink("event", eventPath(o.LastEventID))
	c.Sub = visible(o.Version.String())
	return c
}

// rebuildActions decide about a rebuild whose objects are staged.
func rebuildActions(r *request, run *runs.Run) []action {
	if rebuild.Stage(run) != rebuild.Staged {
		return nil
	}
	return []action{r.form(action{Label: "Swap", Danger: true, Reason: "optional", Text: "The staged objects replace " +
		"the live ones. Objects that are only live are removed from the mirror. Read the comparison below first.",
		Path: "/api/v1/rebuilds/" + id(run.ID) + "/swap", Then: runPath(run.ID)}), r.form(action{Label: "Discard",
		Danger: true, Reason: "optional", Text: "The staged objects are deleted. The live objects stay as they are.",
		Path: "/api/v1/rebuilds/" + id(run.ID) + "/discard", Then: runPath(run.ID)})}
}
