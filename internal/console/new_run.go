package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

// previewRows is how many events a preview lists.
const previewRows = 20

// switches are the parameters of a preview page that are not those of the run.
type switches struct{ exact, dryRun bool }

// takeSwitches removes the switches from the parameters.
func takeSwitches(texts map[string]string) (s switches) {
	s.exact, s.dryRun = texts["exact"] == "true", texts["dry_run"] == "true"
	delete(texts, "exact")
	delete(texts, "dry_run")
	return s
}

// newReplay shows what a replay would select, and starts it.
func newReplay(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	on := takeSwitches(texts)
	var p operations.ReplayParams
	f, err := r.runFilter(ctx, p, []string{"source", "type", "object_type", "object_id", "status", "since",
		"until", "mode"}, "rate")
	if err == nil {
		err = operations.Parse(&p, texts)
	}
	if err != nil {
		return nil, err
	}
	params, err := p.Replay(ctx, r.c.Pages)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "New run", Title: "Replay events", Text: "A replay applies stored events again. Choose the " +
		"events, check the preview, then start the run below."}
	size, err := operations.PreviewReplay(ctx, r.c.Pages, params, on.exact)
	if timedOut(err) {
		v.Blocks = []block{{Filter: f, Notes: []note{uncounted(r, texts)}}}
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	first, err := firstEvents(ctx, r, &params.Filter)
	if err != nil {
		return nil, err
	}
	dry, err := dryRunBlock(ctx, r, v, texts, on.dryRun)
	if err != nil {
		return nil, err
	}
	v.Blocks = []block{{Filter: f}, sizeBlock(r, texts, &size.Preview), modeBlock(params, &size), replayStays(params),
		dry}
	if size.Events > 0 {
		v.Blocks = append(v.Blocks, r.replayForm(texts, &p, params, size.Events))
	}
	v.Blocks = append(v.Blocks, first)
	return v, nil
}

// replayForm starts a replay of the events that the preview has shown.
func (r *request) replayForm(texts map[string]string, p *operations.ReplayParams, o *replay.Params,
	expected int64) block {
	selection := maps.Clone(texts)
	delete(selection, "rate")
	return block{ID: "start", Actions: []action{r.form(action{Label: "Start the replay", Open: true,
		Text: replayText(o), Danger: o.Mode == replay.Force, Reason: "optional", Path: replaysPath,
		Values: absoluteTimes(selection, &p.EventSelection), Inputs: []input{rateInput(texts["rate"]), keyInput()},
		Expected: expected, Typed: expected >= typedFrom || o.Mode == replay.Force, Then: Prefix + "runs/{run}"})}}
}

func replayText(o *replay.Params) string {
	if o.Mode == replay.Force {
		return "The run repeats effects. It starts only after an operator approves it."
	}
	return "A processor executes the run. You can pause and cancel it."
}

func rateInput(value string) input {
	return input{Name: "rate", Label: "events per second (optional)", Kind: "number", Value: value,
		Help: "limits the run, so that live traffic keeps its latency"}
}

// absoluteTimes are the parameters as fixed values. Relative times become absolute ones, so that
// the run selects what the preview shows.
func absoluteTimes(texts map[string]string, p *operations.EventSelection) []value {
	texts = maps.Clone(texts)
	for name, t := range map[string]operations.Time{"since": p.Since, "until": p.Until,
		"occurred_since": p.OccurredSince, "occurred_until": p.OccurredUntil} {
		if !t.IsZero() {
			texts[name] = t.Time().UTC().Format(time.RFC3339Nano)
		}
	}
	return valuesOf(texts)
}

func timedOut(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

func uncounted(r *request, texts map[string]string) note {
	back := link("back to the estimate", r.with(texts))
	return note{Tone: "warning", Text: "The number could not be counted in 10 s. Narrow the selection, or use the " +
		"estimate:", Link: &back}
}

// sizeBlock says how many events are selected.
func sizeBlock(r *request, texts map[string]string, p *events.Preview) block {
	b := block{ID: "preview", Heading: "Preview"}
	count := cell{Text: groupDigits(p.Events)}
	cells := []cell{count, text("counted")}
	if !p.ExactCounts {
		cells = []cell{{Text: "about " + groupDigits(p.Events)}, text("estimated,"), link("count exactly",
			r.with(texts, "exact", "true")+"#preview")}
	}
	b.Fields = []field{{"Events", cells}, {"Objects", []cell{{Text: groupDigits(p.Objects)}}}}
	if !p.From.IsZero() {
		b.Fields = append(b.Fields, field{"Stored from", []cell{r.at(p.From)}}, field{"Stored until",
			[]cell{r.at(p.To)}})
	}
	return b
}

// firstEvents lists the newest events of a selection.
func firstEvents(ctx context.Context, r *request, f *events.Filter) (block, error) {
	b := block{ID: "events", Heading: fmt.Sprintf("The newest %d", previewRows), Table: &table{
		Columns: eventList.columns, Empty: "No event matches the filter, so there is nothing to do. Change the " +
			"selection."}}
	var items []events.Item
	if f.IDs != nil {
		b.Heading = fmt.Sprintf("The first %d", previewRows)
		for _, n := range f.IDs[:min(len(f.IDs), previewRows)] {
			e, err := operations.Event(ctx, r.c.Pages, operations.EventName{ID: id(n)})
			if errors.Is(err, events.ErrNotFound) {
				b.Notes = append(b.Notes, note{Tone: "warning", Text: "Event " + id(n) + " is not in the log."})
				continue
			}
			if err != nil {
				return b, err
			}
			items = append(items, itemOf(e))
		}
	} else {
		found, err := events.List(ctx, r.c.Pages, *f, "", previewRows)
		if err != nil {
			return b, err
		}
		if items = found.Items; len(items) == 0 && found.Next != "" {
			b.Table.Empty = "None of the newest 10,000 events fits. Older ones may fit."
		}
	}
	b.Table.Rows = rows(r, items, eventRow)
	return b, nil
}

// itemOf is an event as a list shows it.
func itemOf(e *events.EventDetail) events.Item {
	item := events.Item{ID: e.ID, Source: e.Source, EventID: e.EventID, EventType: e.EventType, Account: e.Account,
		ObjectType: e.ObjectType, ObjectID: e.ObjectID, OccurredAt: e.OccurredAt, ReceivedAt: e.ReceivedAt,
		Origin: e.Origin, Status: "pending", Redacted: e.RedactedAt != nil}
	if o := liveOutcome(e); o != nil {
		item.Status = o.Status
	}
	return item
}

func replayStays(o *replay.Params) block {
	if o.Publish {
		return stayBlock("The mirror stays as it is: the events are only published to postern.replays.")
	}
	return stayBlock("An object whose stored state is newer than an event stays as it is.", "Redacted events have no "+
		"content. They are counted as ignored.", "Days that retention has dropped are not in the log any more.",
		"Events that arrive after the start of the run are not part of it.")
}

// modeBlock says which effects happen.
func modeBlock(o *replay.Params, size *operations.ReplayPreview) block {
	b := block{ID: "mode", Heading: "Effects"}
	switch o.Mode {
	case replay.Missing:
		b.Text = "Mode missing: if the replay changes an object, Postern executes its effects that are not in the " +
			"ledger yet."
	case replay.Force:
		n := "an unknown number of effects"
		if a := size.RepeatedEffects; a != nil {
			n = plural(a.Effects, "effect", "effects")
			if !a.Complete {
				n = "at least " + n
			}
		}
		b.Notes = []note{{Tone: "bad", Text: "Mode force: " + n + " of these events would happen again, for example " +
			"mails and payments. An operator must approve the run."}}
	case replay.State, "":
		b.Text = "Mode state: no effect happens, now or later."
	}
	return b
}

// dryRunBlock executes a dry run if it is requested, and offers it otherwise. What the dry run
// cannot do becomes a sentence.
func dryRunBlock(ctx context.Context, r *request, v *view, texts map[string]string, requested bool) (block, error) {
	b := block{ID: "dry-run", Heading: "Dry run"}
	if !requested {
		b.Text = "A dry run decides every event and writes nothing. It shows the changes by object."
		b.Fields = []field{{"Dry run", []cell{link("show the changes", r.with(texts, "dry_run", "true")+"#dry-run")}}}
		return b, nil
	}
	params := maps.Clone(texts)
	params["dry_run"] = "true"
	result, err := readAPI[operations.DryRunResult](ctx, r, http.MethodPost, replaysPath, params)
	var p *admin.Problem
	if errors.As(err, &p) && p.Status < http.StatusInternalServerError {
		text := p.Detail
		switch p.Status {
		case http.StatusTooManyRequests:
			text = "Another dry run is in progress. This page tries again in 5 seconds."
			v.Refresh = 5
		case http.StatusUnprocessableEntity:
			text = "The selection is too large for a dry run on a page. " + p.Detail
		case http.StatusForbidden:
			text = "A dry run needs the role operator."
		}
		b.Notes = []note{{Tone: "warning", Text: visible(text)}}
		return b, nil
	}
	if timedOut(err) {
		b.Notes = []note{{Tone: "warning", Text: "The dry run did not end in 10 s. Narrow the selection, or use " +
			"postern replay --dry-run."}}
		return b, nil
	}
	if err != nil {
		return b, err
	}
	for _, name := range slices.Sorted(maps.Keys(result.Counts)) {
		b.Fields = append(b.Fields, field{sentenceCase(label(name)), []cell{{Text: groupDigits(result.Counts[name])}}})
	}
	b.Table = &table{Columns: []string{"Object", "Source", "Path", "Now", "After the replay"},
		Empty: "The replay would change nothing."}
	for i := range result.Objects {
		b.Table.Rows = append(b.Table.Rows, changeRows(r, &result.Objects[i])...)
	}
	return b, nil
}

// changeRows show the places of one object that a dry run would change.
func changeRows(r *request, d *apply.Difference) (rows [][]cell) {
	object := r.objectCell(d.Source, d.Account, d.ObjectType, d.ObjectID)
	if d.New {
		object.Sub += ", new"
	}
	for i := range d.Changes {
		c := &d.Changes[i]
		rows = append(rows, []cell{object, text(d.Source), code(c.Path), code(shortJSON(c.Before)),
			code(shortJSON(c.After))})
		object = cell{}
	}
	if d.More > 0 {
		rows = append(rows, []cell{{}, {}, text(fmt.Sprintf("and %d more places", d.More)), {}, {}})
	}
	return rows
}

// newRetry shows which failed and dead events a retry would select, and starts it.
func newRetry(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	on := takeSwitches(texts)
	var p operations.RetryParams
	f, err := r.runFilter(ctx, p, []string{"source", "status", "failure", "type", "object_type", "object_id",
		"since", "until"}, "rate")
	if err == nil {
		err = operations.Parse(&p, texts)
	}
	if err != nil {
		return nil, err
	}
	params, err := p.Retry(ctx, r.c.Pages)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "New run", Title: "Retry failed events", Text: "A retry applies failed and dead events again. " +
		"Fix the cause first, or they fail again."}
	size, err := params.Preview(ctx, r.c.Pages, on.exact)
	if timedOut(err) {
		v.Blocks = []block{{Filter: f, Notes: []note{uncounted(r, texts)}}}
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	count := []cell{{Text: groupDigits(size.Events)}, text("counted")}
	if !size.Complete {
		count = []cell{{Text: "at least " + groupDigits(size.Events)}, link("count exactly",
			r.with(texts, "exact", "true")+"#preview")}
	}
	preview := block{ID: "preview", Heading: "Preview", Fields: []field{{"Events", count}}}
	if size.Events > 0 {
		preview.Fields = append(preview.Fields, field{"Stored from", []cell{r.at(size.From)}},
			field{"Stored until", []cell{r.at(size.To)}})
	}
	first, err := firstFailures(ctx, r, params)
	if err != nil {
		return nil, err
	}
	v.Blocks = []block{{Filter: f}, preview, stayBlock("Events with another outcome stay as they are.",
		"An object whose stored state is newer than an event stays as it is.")}
	if size.Events > 0 {
		v.Blocks = append(v.Blocks, r.retryForm(texts, &p, size.Events))
	}
	v.Blocks = append(v.Blocks, first)
	return v, nil
}

// retryForm starts a retry of the events that the preview has shown.
func (r *request) retryForm(texts map[string]string, p *operations.RetryParams, expected int64) block {
	selection := maps.Clone(texts)
	delete(selection, "rate")
	return block{ID: "start", Actions: []action{r.form(action{Label: "Start the retry", Open: true,
		Text: "A processor executes the run. You can pause and cancel it.", Reason: "optional", Path: retriesPath,
		Values: absoluteTimes(selection, &p.EventSelection), Inputs: []input{rateInput(texts["rate"]), keyInput()},
		Expected: expected, Typed: expected >= typedFrom, Then: Prefix + "runs/{run}"})}}
}

// firstFailures lists the oldest events of a retry with their failures.
func firstFailures(ctx context.Context, r *request, o *replay.RetryParams) (block, error) {
	b := block{ID: "events", Heading: fmt.Sprintf("The oldest %d", previewRows),
		Table: &table{Columns: []string{"Event", "Type", "Object", "Outcome", "Failure", "At", "Attempts"},
			Empty: "No failed or dead event matches the filter, so there is nothing to do."}}
	var ids []int64
	for cursor, read := int64(0), 0; len(ids) == 0 && cursor < math.MaxInt64 && read < 10; read++ {
		var err error
		if ids, cursor, err = o.Match(ctx, r.c.Pages, cursor, math.MaxInt64); err != nil {
			return b, err
		}
	}
	for _, n := range ids[:min(len(ids), previewRows)] {
		e, err := operations.Event(ctx, r.c.Pages, operations.EventName{ID: id(n)})
		if errors.Is(err, events.ErrNotFound) {
			continue
		}
		if err != nil {
			return b, err
		}
		row := []cell{codeLink(id(n), eventPath(n)), text(e.EventType), r.objectCell(e.Source, e.Account, e.ObjectType,
			e.ObjectID), {}, {}, {}, {}}
		if i := slices.IndexFunc(e.Outcomes, func(f events.Outcome) bool { return f.Run == o.Unfinished.Run }); i >= 0 {
			f := &e.Outcomes[i]
			row = append(row[:3], badge(f.Status), shorten(f.Reason, 200), r.at(f.At), number(f.Attempts))
		}
		b.Table.Rows = append(b.Table.Rows, row)
	}
	return b, nil
}

// newRebuild shows how much a rebuild would read, and starts it.
func newRebuild(ctx context.Context, r *request) (*view, error) {
	texts := r.texts
	on := takeSwitches(texts)
	var p operations.RebuildParams
	f, err := r.runFilter(ctx, p, []string{"source", "type"}, "object_type", "swap")
	if err == nil {
		err = operations.Parse(&p, texts, "swap")
	}
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "New run", Title: "Rebuild objects", Text: "A rebuild makes the objects of a source again from " +
		"the log, alongside the live ones. Then its page shows a comparison, and offers the swap."}
	v.Blocks = []block{{Filter: f}}
	if p.Source == "" {
		v.Blocks = append(v.Blocks, block{Notes: []note{{Tone: "info", Text: "Name the source first."}}})
		return v, nil
	}
	// The same selection of a replay has the same size.
	selected := operations.ReplayParams{}
	selected.Source, selected.ObjectType = p.Source, strings.TrimSpace(p.Type+p.ObjectType)
	params, err := selected.Replay(ctx, r.c.Pages)
	if err != nil {
		return nil, err
	}
	size, err := operations.PreviewReplay(ctx, r.c.Pages, params, on.exact)
	if timedOut(err) {
		v.Blocks = append(v.Blocks, block{Notes: []note{uncounted(r, texts)}})
		return v, nil
	}
	if err != nil {
		return nil, err
	}
	open := operations.RunParams{Job: rebuild.Job}
	open.SetPage(previewRows, "")
	others, err := operations.Runs(ctx, r.c.Pages, open)
	if err != nil {
		return nil, err
	}
	unfinished := slices.DeleteFunc(others.Items, func(run runs.Run) bool { return run.Status.Ended() })
	v.Blocks = append(v.Blocks, sizeBlock(r, texts, &size.Preview), block{ID: "open", Heading: "Open rebuilds",
		Table: runList.embed(r, unfinished, "No other rebuild is open. A source can have one at a time.")},
		stayBlock("The live objects stay as they are until an operator swaps.", "No effect happens.", "Objects whose "+
			"events retention has dropped are taken from their retained state."), block{ID: "start",
			Actions: []action{r.form(action{Label: "Start the rebuild", Open: true, Text: "A processor stages the " +
				"objects. Nothing changes before the swap.", Reason: "optional", Path: "/api/v1/rebuilds",
				Values: valuesOf(texts), Inputs: []input{keyInput()}, Then: Prefix + "runs/{run}"})}})
	return v, nil
}
