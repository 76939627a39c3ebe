package console

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
)

// activityText explains the charts.
const activityText = "The charts count what the processes reported, with a delay of up to 10 s. After a crash, the " +
	"counts of the last 10 s are missing."

// overviewRefresh is the number of seconds after which the overview is read again.
const overviewRefresh = 10

// overviewPage shows what needs an operator, and what happens now.
func overviewPage(ctx context.Context, r *request) (*view, error) {
	v := &view{Title: "Overview", Text: activityText, Refresh: overviewRefresh}
	attention, err := r.attentionBlock(ctx)
	if err != nil {
		return nil, err
	}
	charts, err := r.activityCharts(ctx, "", "1h")
	if err != nil {
		return nil, err
	}
	sources, err := r.activeSources(ctx)
	if err != nil {
		return nil, err
	}
	processes, err := r.processesBlock(ctx)
	if err != nil {
		return nil, err
	}
	v.Blocks = append([]block{attention}, charts...)
	running, err := operations.Runs(ctx, r.c.Pages, operations.RunParams{Status: string(runs.Running)})
	if err != nil {
		return nil, err
	}
	if len(running.Items) > 0 {
		v.Blocks = append(v.Blocks, block{ID: "running", Heading: "Runs in progress",
			Table: runList.embed(r, running.Items, "")})
	}
	v.Blocks = append(v.Blocks, sources, processes)
	return v, nil
}

// attentionPages are the pages of things that need attention, by their kind; the others are at the
// path of the API's list.
var attentionPages = map[string]string{
	"dead_outcomes": "failures?status=dead", "spools_not_empty": "health#spools", "processes_not_ready": "#processes",
	"outdated_configurations": "#processes",
}

// attentionBlock lists what needs an operator, with how long it has.
func (r *request) attentionBlock(ctx context.Context) (block, error) {
	found, err := operations.Summarize(ctx, r.c.Pages, operations.SummaryParams{})
	if err != nil {
		return block{}, err
	}
	b := block{ID: "attention", Heading: "Needs attention"}
	if len(found.Items) == 0 {
		b.Notes = []note{{Tone: "good", Text: "Nothing needs attention, as of " + r.shortTime(found.At.Time).Text +
			"."}}
		return b, nil
	}
	for i := range found.Items {
		item := &found.Items[i]
		address, ok := attentionPages[item.Kind]
		if !ok {
			address = strings.TrimPrefix(item.Path, "/")
			if len(item.Params) > 0 {
				address += "?" + encode(item.Params)
			}
		}
		show := link("show", Prefix+address)
		age := ""
		switch {
		case item.Since.IsZero():
		case item.Count == 1:
			age = " (since " + r.at(item.Since).Text + ")"
		default:
			age = " (the oldest since " + r.at(item.Since).Text + ")"
		}
		b.Notes = append(b.Notes, note{Tone: "warning", Text: sentenceCase(item.Text) + age + ".", Link: &show})
	}
	return b, nil
}

// activityCharts draw what happened to one source or to all: deliveries and outcomes.
func (r *request) activityCharts(ctx context.Context, source, since string) ([]block, error) {
	p := operations.ActivityParams{Source: source}
	texts := map[string]string{"since": since}
	if since == "24h" {
		texts["step"] = activity.Hour
	}
	if err := operations.Parse(&p, texts); err != nil {
		return nil, err
	}
	points, err := operations.Activity(ctx, r.c.Pages, p)
	if err != nil {
		return nil, err
	}
	step := time.Minute
	if points.Step == activity.Hour {
		step = time.Hour
	}
	a := newActivityChart(r, points, step, source)
	return []block{{ID: "activity", Charts: []*chart{
		newChart("Received events and rejections, last "+since, a.titles, []series{
			a.series("stored", "good", "events", func(c *activity.Counts) int64 { return c.Stored }),
			a.series("duplicates", "", "", func(c *activity.Counts) int64 { return c.Duplicates }),
			a.series("conflicts", "warning", "conflicts", func(c *activity.Counts) int64 { return c.Conflicts }),
			a.series("rejected", "bad", "rejections", func(c *activity.Counts) int64 { return c.Rejected })}),
		newChart("Outcomes, last "+since, a.titles, []series{
			a.series("applied", "good", "", func(c *activity.Counts) int64 { return c.Applied }),
			a.series("unchanged, stale, ignored", "", "",
				func(c *activity.Counts) int64 { return c.Unchanged + c.Stale + c.Ignored }),
			a.series("ambiguous, failed", "warning", "", func(c *activity.Counts) int64 {
				return c.Ambiguous + c.Failed
			}),
			a.series("dead", "bad", "", func(c *activity.Counts) int64 { return c.Dead })})}}}, nil
}

// activityChart are the steps of a chart, each with its counts.
type activityChart struct {
	source string
	step   time.Duration
	starts []time.Time
	counts []activity.Counts
	titles []string
}

func newActivityChart(r *request, points *activity.Points, step time.Duration, source string) *activityChart {
	a := &activityChart{source: source, step: step}
	byTime := map[int64]activity.Counts{}
	for i := range points.Points {
		byTime[points.Points[i].At.Unix()] = points.Points[i].Counts
	}
	for at := points.Since.Time; at.Before(points.Until.Time); at = at.Add(step) {
		a.starts = append(a.starts, at)
		a.counts = append(a.counts, byTime[at.Unix()])
		a.titles = append(a.titles, at.In(r.zone).Format("15:04"))
	}
	return a
}

// series returns the numbers of one kind. Their bars lead to the list of that name in their time;
// "" for no list.
func (a *activityChart) series(label, tone, list string, count func(*activity.Counts) int64) series {
	s := series{label: label, tone: tone}
	for i, at := range a.starts {
		s.values = append(s.values, count(&a.counts[i]))
		if list != "" {
			s.hrefs = append(s.hrefs, query(path(list), "source", a.source, "since", at.UTC().Format(time.RFC3339),
				"until", at.Add(a.step).UTC().Format(time.RFC3339)))
		}
	}
	return s
}

// processesBlock lists the processes of the instance, as they reported themselves.
func (r *request) processesBlock(ctx context.Context) (block, error) {
	page, err := operations.ListPages(activity.Processes)(ctx, r.c.Pages, operations.Page{})
	if err != nil {
		return block{}, err
	}
	t := &table{Columns: []string{"Process", "State", "Version", "Started", "Configuration loaded", "Admin address"},
		Empty: "No process has reported itself in the last hour.", Curl: curlLine(r, "/api/v1/processes", nil)}
	digests, notes := map[string]bool{}, []note(nil)
	for i := range page.Items {
		p := &page.Items[i]
		digests[p.ConfigDigest] = true
		state := badge("ready")
		switch {
		case !p.Reports:
			state = cell{Text: "silent", Badge: true, Tone: "bad", Sub: "last report " + r.at(p.ReportedAt).Text}
		case p.NotReady != "":
			state = cell{Text: "not ready", Badge: true, Tone: "bad", Sub: visible(p.NotReady)}
		}
		if p.ConfigProblem != "" && p.Reports {
			notes = append(notes, note{Tone: "warning", Text: sentenceCase(p.Kind) + " on " + visible(p.Host) + ": " +
				shorten(p.ConfigProblem, 500).Text})
		}
		name := text(p.Kind)
		name.Sub = p.Host + " " + strconv.Itoa(p.PID)
		t.Rows = append(t.Rows, []cell{name, state, text(p.Version), r.at(p.StartedAt), r.at(p.ConfigLoadedAt),
			code(p.AdminAddress)})
	}
	b := block{ID: "processes", Heading: "Processes", Table: t, Notes: notes}
	if len(digests) > 1 {
		b.Notes = append(b.Notes, note{Tone: "warning", Text: "The processes have different configurations. " +
			"Compare the times at which they were loaded, and restart or reload the oldest one."})
	}
	return b, nil
}
