package console

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/watermarks"
)

var completenessList = list[operations.SourceParams, watermarks.Completeness]{
	title: "Reconciliation", text: "This page shows until when the log and the mirror are complete. A " +
		"reconciliation reads the provider's API and moves these times forward.",
	command: "drift show", api: "/api/v1/watermarks",
	main: []string{"source"},
	columns: []string{"Source", "Account", "Subject", "Complete until", "Behind", "Complete part", "Last run",
		"Problem", "Reason"},
	row:  completenessRow,
	read: operations.Watermarks,
	empty: "Nothing is known to be complete yet. A reconciliation of a source with a section api in the " +
		"configuration fills this list.",
}

func completenessRow(r *request, m *watermarks.Completeness) []cell {
	behind, part := cell{}, cell{}
	if !m.Until.IsZero() {
		behind = text(durationText(max(0, r.now.Sub(m.Until.Time))))
		part = completePart(r.now, m)
	}
	problem, reason := cell{}, cell{}
	switch {
	case !m.DisconnectedSince.IsZero():
		problem = cell{Text: "disconnected", Badge: true, Tone: "bad"}
		reason = shorten("since "+r.at(m.DisconnectedSince).Text+": "+m.DisconnectedReason, 120)
	case m.NotListableReason != "":
		problem = cell{Text: "not listable", Badge: true, Tone: "warning"}
		reason = shorten(m.NotListableReason, 120)
	}
	run := cell{}
	if m.Run != 0 {
		run = codeLink(id(m.Run), runPath(m.Run))
		run.Sub = r.shortTime(m.At.Time).Text
	}
	return []cell{link(m.Source, path("sources", m.Source)), code(m.Account), text(m.Subject), r.at(m.Until), behind,
		part, run, problem, reason}
}

// completePart is a bar from the begin of the complete interval to now.
func completePart(now time.Time, m *watermarks.Completeness) cell {
	c := cell{HasBar: true, Bar: 100, Tone: "good", Text: "100 %", Sub: "from the beginning"}
	if all := now.Sub(m.Since.Time); m.Since.Unix() > 0 && all > 0 {
		c.Bar = min(100, max(0, int(100*m.Until.Sub(m.Since.Time).Seconds()/all.Seconds())))
		c.Text, c.Sub = fmt.Sprintf("%d %%", c.Bar), "from "+m.Since.UTC().Format(time.DateOnly)
	}
	if !m.DisconnectedSince.IsZero() || m.NotListableReason != "" {
		c.Tone = "warning"
	}
	return c
}

// newestScans is how many reconciliations the page shows.
const newestScans = 10

// reconciliationPage shows until when everything is complete, and the newest reconciliations.
func reconciliationPage(ctx context.Context, r *request) (*view, error) {
	v, err := completenessList.page()(ctx, r)
	if err != nil {
		return nil, err
	}
	source := r.URL.Query().Get("source")
	params := operations.RunParams{Job: reconcile.Job}
	params.SetPage(newestScans, "")
	newest, err := operations.Runs(ctx, r.c.Pages, params)
	if err != nil {
		return nil, err
	}
	start := path("runs", "new", "reconcile")
	v.Blocks = append([]block{{Presets: []cell{link("Reconcile now", query(start, "source", source)),
		link("Compare all objects", query(start, "source", source, "objects", "true")),
		link("All reconciliations", query(path("runs"), "job", reconcile.Job)),
		link("Pending refetches", query(path("refetches"), "source", source))}}}, v.Blocks...)
	v.Blocks = append(v.Blocks, newestScanBlock(r, newest.Items))
	return v, nil
}

func newestScanBlock(r *request, newest []runs.Run) block {
	t := &table{Columns: []string{"Run", "Status", "Request", "Checked", "Missing", "Mirror older", "Content differs",
		"Orphans", "Repaired", "Unrepaired", "Created"}, Empty: "No reconciliation has run yet. Start one with the " +
		"link above."}
	for i := range newest {
		run := &newest[i]
		n := run.Counts
		unrepaired := number(n[objectscan.Unrepaired])
		if n[objectscan.Unrepaired] > 0 {
			unrepaired.Tone, unrepaired.Badge = "warning", true
		}
		t.Rows = append(t.Rows, []cell{codeLink(id(run.ID), runPath(run.ID)), runBadge(run), shorten(describeRun(run),
			100), number(n[replay.Processed]), number(n[objectscan.Missing]), number(n[objectscan.MirrorOlder]),
			number(n[objectscan.ContentDiffers]), number(n[objectscan.Orphans]), number(n[objectscan.Repaired]),
			unrepaired, r.shortTime(run.CreatedAt.Time)})
	}
	return block{ID: "scans", Heading: "Newest reconciliations", Table: t}
}

// newReconciliation shows what a reconciliation would do, and starts it.
func newReconciliation(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	var p operations.ReconcileParams
	f, err := r.runFilter(ctx, p, []string{"source", "account", "object_type", "object_id", "objects", "full", "since",
		"until", "dry_run"}, "type")
	if err == nil {
		err = operations.Parse(&p, texts)
	}
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "New run", Title: "Reconcile", Text: "Compares the log or the mirror with the provider's API, " +
		"and adds what is missing. Choose what to compare, then start the run below."}
	v.Blocks = []block{{Filter: f}}
	if p.Source == "" {
		v.Blocks = append(v.Blocks, block{Notes: []note{{Tone: "info", Text: "Name the source first."}}})
		return v, nil
	}
	known := operations.SourceParams{Source: p.Source}
	found, err := operations.Watermarks(ctx, r.c.Pages, known)
	if err != nil {
		return nil, err
	}
	preview := block{ID: "preview", Heading: "What the run does", Text: describeReconcileParams(&p),
		Table: completenessList.embed(r, found.Items, "Postern does not know yet until when this source is complete. "+
			"The run starts at the oldest entry that the provider lists.")}
	start := block{ID: "start", Actions: []action{r.form(action{Label: "Start the reconciliation", Open: true,
		Text: "A processor executes the run. Its calls count against the rate budget of the API.", Reason: "optional",
		Path: "/api/v1/reconciliations", Values: valuesOf(texts), Inputs: []input{keyInput()},
		Then: Prefix + "runs/{run}"})}}
	v.Blocks = append(v.Blocks, preview, stayBlock("Objects whose state is the same stay as they are.",
		"An object in the mirror that is newer than the provider's list stays as it is.",
		"A deletion of many objects at once waits for an approval."), start)
	return v, nil
}

// describeReconcileParams says in words what a reconciliation would do.
func describeReconcileParams(p *operations.ReconcileParams) string {
	objectType := cmp.Or(p.Type, p.ObjectType)
	what := "The run reads the events that the provider sent"
	switch {
	case p.ObjectID != "":
		what = "The run reads the object " + objectType + " " + p.ObjectID + " and compares it with the mirror"
	case objectType != "":
		what = "The run walks the provider's list of type " + objectType + " and compares each object with the mirror"
	case p.Objects != nil && *p.Objects:
		what = "The run walks the provider's lists of all types and compares each object with the mirror"
	}
	what += ". "
	switch {
	case p.DryRun:
		what += "It only counts the differences, and changes nothing."
	case p.ObjectID != "" || objectType != "" || p.Objects != nil && *p.Objects:
		what += "It appends a refetch for each object that differs."
	default:
		what += "It appends each event that the log does not have."
	}
	return visible(what)
}

// valuesOf are the given parameters as fixed values of a form.
func valuesOf(texts map[string]string) (all []value) {
	for name, text := range texts {
		all = append(all, value{name, text})
	}
	slices.SortFunc(all, func(a, b value) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// keyInput is the control for an idempotency key of the operator's own.
func keyInput() input {
	return input{Name: "idempotency_key", Label: "idempotency key (optional)", Kind: "text",
		Help: "a second request with the same key gets the same run"}
}

// stayBlock says what a run does not touch, and why.
func stayBlock(sentences ...string) block {
	return block{ID: "stays", Heading: "What stays as it is", Text: strings.Join(sentences, " ")}
}

// runFilter is the form that selects what a new run does. The controls that the form for its start
// has, and those named in without, are left out.
func (r *request) runFilter(ctx context.Context, params any, main []string, without ...string) (*filter, error) {
	f, err := r.filterOf(ctx, params, main, nil, nil)
	for _, inputs := range [][]input{f.Main, f.Others} {
		for i := range inputs {
			switch in := &inputs[i]; { // those that select nothing
			case in.Name == "mode" || in.Name == "objects":
				in.Unset = "default"
			case len(in.Choices) == 1 && in.Choices[0].Value == "true":
				in.Unset = "no"
			}
		}
	}
	without = append(without, "reason", "idempotency_key", "limit")
	f.Others = slices.DeleteFunc(f.Others, func(in input) bool { return slices.Contains(without, in.Name) })
	f.OthersSet = slices.ContainsFunc(f.Others, func(in input) bool { return in.Value != "" })
	return f, err
}

// with returns the address of this page with other parameters; "" removes one.
func (r *request) with(texts map[string]string, namesAndValues ...string) string {
	values := url.Values{}
	for name, text := range texts {
		values.Set(name, text)
	}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		values.Del(namesAndValues[i])
		if namesAndValues[i+1] != "" {
			values.Set(namesAndValues[i], namesAndValues[i+1])
		}
	}
	if len(values) == 0 {
		return r.URL.Path
	}
	return r.URL.Path + "?" + values.Encode()
}
