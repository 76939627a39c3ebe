package console

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
)

var scheduleList = list[operations.Page, runs.ScheduleState]{
	title: "Schedules", text: "Jobs that processors start at planned times. The configuration defines them.",
	command: "schedules list", api: "/api/v1/schedules",
	columns: []string{"Schedule", "Job", "Timetable", "Next", "Last run", "Last success", "Skipped"},
	row:     scheduleRow,
	read:    operations.ListPages(runs.ListSchedules),
	empty: "There are no schedules. Define one in the section schedules of the configuration; the page " +
		"docs/how-to/run-jobs-on-a-schedule.md has an example.",
}

func schedulePath(name string) string { return path("schedules", name) }

func scheduleRow(r *request, s *runs.ScheduleState) []cell {
	timetable := code(s.Cron)
	timetable.Sub = visible(s.TimeZone)
	last := cell{}
	if s.LastRun != 0 {
		last = badge(string(s.LastStatus))
		last.Href, last.Sub = runPath(s.LastRun), "run "+id(s.LastRun)
	}
	skipped := number(s.Skipped)
	if s.Skipped > 0 {
		skipped.Title = visible(s.SkippedReason)
	}
	return []cell{link(s.Name, schedulePath(s.Name)), text(s.Job), timetable, r.nextCell(s), last,
		r.ageCell(s.SucceededAt), skipped}
}

// nextCell shows the next planned time, or why there is none.
func (r *request) nextCell(s *runs.ScheduleState) cell {
	switch {
	case !s.PausedAt.IsZero():
		return badge("paused")
	case !s.Planned:
		return cell{Text: "no process plans it", Badge: true, Tone: "bad"}
	}
	return r.ageCell(s.Next)
}

// stripRuns is how many runs of a schedule its page shows.
const stripRuns = 30

func schedulePage(ctx context.Context, r *request) (*view, error) {
	s, err := runs.ShowSchedule(ctx, r.c.Pages, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	var p operations.RunParams
	p.Schedule = s.Name
	p.SetPage(stripRuns, "")
	last, err := operations.Runs(ctx, r.c.Pages, p)
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Schedule", Title: visible(s.Name), Text: visible(scheduleSentence(r, s)), Notes: scheduleNotes(r,
		s)}
	v.Blocks = append(v.Blocks, block{Actions: scheduleActions(r, s), Fields: scheduleFields(r, s)})
	if len(s.Parameters) > 0 {
		b := block{ID: "parameters", Heading: "Parameters of the job"}
		for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
			b.Fields = append(b.Fields, field{sentenceCase(label(name)), []cell{code(s.Parameters[name])}})
		}
		v.Blocks = append(v.Blocks, b)
	}
	t := runList.embed(r, last.Items, "The schedule has not started a run yet.")
	t.Command = "postern runs list --schedule " + quote(s.Name)
	if last.Next != "" {
		t.More = query(path("runs"), "schedule", s.Name, "cursor", last.Next)
	}
	v.Blocks = append(v.Blocks, block{ID: "runs", Heading: "Last runs", Chart: r.runStrip(last.Items), Table: t})
	return v, nil
}

func scheduleSentence(r *request, s *runs.ScheduleState) string {
	sentence := fmt.Sprintf("Starts the job %s at %s in %s.", s.Job, s.Cron, s.TimeZone)
	if !s.Next.IsZero() {
		sentence += fmt.Sprintf(" The next time is %s, %s.", r.at(s.Next).Text, agoText(r.now.Sub(s.Next.Time)))
	}
	return sentence
}

func scheduleNotes(r *request, s *runs.ScheduleState) (all []note) {
	if !s.PausedAt.IsZero() {
		all = append(all, note{Tone: "warning", Text: fmt.Sprintf("%s paused the schedule at %s. Planned times are "+
			"skipped until an operator resumes it.", visible(s.PausedBy), r.at(s.PausedAt).Text)})
	}
	if !s.Planned {
		all = append(all, note{Tone: "bad", Text: fmt.Sprintf("No process plans this schedule. A processor confirmed "+
			"it last at %s. Start a processor whose configuration has it.", r.at(s.ConfirmedAt).Text)})
	}
	if s.LastStatus == runs.Failed {
		run := link("run "+id(s.LastRun), runPath(s.LastRun))
		all = append(all, note{Tone: "bad", Text: "The last run failed:", Link: &run})
	}
	return all
}

var (
	overlapText = map[string]string{runs.OverlapSkip: "the planned time is skipped",
		runs.OverlapQueue: "one run waits for its end"}
	missedText = map[string]string{runs.MissedRun: "one run for all of them", runs.MissedSkip: "no run"}
)

func scheduleFields(r *request, s *runs.ScheduleState) []field {
	fields := []field{{"Timetable", []cell{code(s.Cron), text("in " + s.TimeZone)}}, {"Next", r.nextCells(s)},
		{"If a run is open", []cell{text(overlapText[s.Overlap])}},
		{"Missed times", []cell{text(missedText[s.Missed])}},
		{"Decided until", []cell{r.at(s.DecidedAt)}}, {"Confirmed", []cell{r.at(s.ConfirmedAt)}}}
	if s.LastRun != 0 {
		last := badge(string(s.LastStatus))
		fields = append(fields, field{"Last run", []cell{link("run "+id(s.LastRun), runPath(s.LastRun)), last,
			r.at(s.LastEndedAt)}})
	}
	success := text("never")
	if !s.SucceededAt.IsZero() {
		success = r.ageCell(s.SucceededAt)
	}
	fields = append(fields, field{"Last success", []cell{success}})
	if s.Skipped > 0 {
		fields = append(fields, field{"Skipped times", []cell{text(groupDigits(s.Skipped) + ", the last at"),
			r.at(s.SkippedAt)}}, field{"Why skipped", []cell{text(s.SkippedReason)}})
	}
	return fields
}

// nextCells show the next planned time in the operator's zone and in the schedule's.
func (r *request) nextCells(s *runs.ScheduleState) []cell {
	cells := []cell{r.nextCell(s)}
	zone, err := time.LoadLocation(s.TimeZone)
	if err == nil && !s.Next.IsZero() && zone.String() != r.zone.String() {
		cells = append(cells, text(s.Next.In(zone).Format("2006-01-02 15:04:05 ")+s.TimeZone))
	}
	return cells
}

func scheduleActions(r *request, s *runs.ScheduleState) (all []action) {
	base := "/api/v1/schedules/" + url.PathEscape(s.Name)
	all = append(all, r.form(action{Label: "Run now", Text: "The job starts now, also while the schedule is paused.",
		Reason: "optional", Path: base + "/run", Then: Prefix + "runs/{run}"}))
	if s.PausedAt.IsZero() {
		return append(all, r.form(action{Label: "Pause", Text: "Planned times are skipped until the schedule is " +
			"resumed. Open runs continue.", Reason: "optional", Path: base + "/pause", Then: schedulePath(s.Name)}))
	}
	return append(all, r.form(action{Label: "Resume", Text: "The next planned time starts the job again. Skipped " +
		"times stay skipped.", Reason: "optional", Path: base + "/resume", Then: schedulePath(s.Name)}))
}

// runStrip draws the last runs, the oldest at the left, each as a bar as high as its duration.
func (r *request) runStrip(last []runs.Run) *chart {
	if len(last) == 0 {
		return nil
	}
	longest := time.Second
	for i := range last {
		longest = max(longest, r.lengthOf(&last[i]))
	}
	c := &chart{Width: chartWidth, Height: chartHeight, Label: "Duration and result of the last runs"}
	counts := map[string]int64{}
	slot := chartWidth / stripRuns
	for i := range last {
		run := &last[len(last)-1-i]
		h := chartHeight/4 + int(int64(chartHeight*3/4)*int64(r.lengthOf(run))/int64(longest))
		tone := stripTone(run.Status)
		counts[tone]++
		c.Bars = append(c.Bars, bar{X: i * slot, Y: chartHeight - h, Width: slot - 4, Height: h, Tone: tone,
			Title: strings.Join([]string{"run " + id(run.ID), string(run.Status), r.runDuration(run).Text}, ", "),
			Href:  runPath(run.ID)})
	}
	for _, k := range []legendItem{{"good", "done", ""}, {"bad", "failed", ""}, {"info", "open", ""},
		{"quiet", "cancelled", ""}} {
		if counts[k.Tone] > 0 {
			k.Total = groupDigits(counts[k.Tone])
			c.Legend = append(c.Legend, k)
		}
	}
	c.From, c.To = r.at(last[len(last)-1].CreatedAt).Text, r.at(last[0].CreatedAt).Text
	return c
}

func (r *request) lengthOf(run *runs.Run) time.Duration {
	switch {
	case run.StartedAt.IsZero():
		return 0
	case run.EndedAt.IsZero():
		return max(0, r.now.Sub(run.StartedAt.Time))
	}
	return max(0, run.EndedAt.Sub(run.StartedAt.Time))
}

func stripTone(s runs.Status) string {
	switch s {
	case runs.Done:
		return "good"
	case runs.Failed:
		return "bad"
	case runs.Cancelled:
		return "quiet"
	case runs.AwaitingApproval, runs.Queued, runs.Running, runs.Paused:
	}
	return "info"
}
