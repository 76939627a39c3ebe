package console

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
)

// healthBlocks read the blocks of the page about health, in their order. The heading is for a part
// that cannot be read.
var healthBlocks = []struct {
	heading string
	read    func(ctx context.Context, r *request) ([]block, error)
}{{"Processes", processBlocks}, {"Environment of this process", environmentBlocks},
	{"Integrity of the stored data", integrityBlocks}, {"Backlog", backlogBlocks}, {"Spools", spoolBlocks}}

// healthPage shows the state of the instance. A block that cannot be read says so, and the others
// stay.
func healthPage(ctx context.Context, r *request) (*view, error) {
	v := &view{Title: "Health", Text: "Processes, checks, backlogs and spools of this instance.",
		Refresh: healthRefresh}
	for _, part := range healthBlocks {
		all, err := part.read(ctx, r)
		if err != nil {
			p := admin.Describe(err)
			all = []block{{Heading: part.heading, Notes: []note{{Tone: "bad", Text: sentence(p.Title) + " " +
				visible(p.Detail)}}}}
		}
		v.Blocks = append(v.Blocks, all...)
	}
	return v, nil
}

// healthRefresh is the number of seconds after which the page is read again.
const healthRefresh = 10

func processBlocks(ctx context.Context, r *request) ([]block, error) {
	b, err := r.processesBlock(ctx)
	return []block{b}, err
}

// environmentBlocks show the checks of the environment of this process. Passed checks are folded.
func environmentBlocks(ctx context.Context, r *request) ([]block, error) {
	found, err := readAPI[operations.DoctorReport](ctx, r, http.MethodGet, "/api/v1/doctor", nil)
	if err != nil {
		return nil, err
	}
	columns := []string{"Check", "Verdict", "Found", "What to do"}
	problems := &table{Columns: columns, Empty: "All checks of this process have passed.", Command: "postern doctor",
		Curl: curlLine(r, "/api/v1/doctor", nil)}
	passed := &table{Columns: columns[:3]}
	for i := range found.Checks {
		c := &found.Checks[i]
		row := []cell{code(c.Name), badge(string(c.Verdict)), text(c.Found)}
		if c.Verdict == doctor.OK {
			passed.Rows = append(passed.Rows, row)
		} else {
			problems.Rows = append(problems.Rows, append(row, text(c.Advice)))
		}
	}
	return []block{{ID: "environment", Heading: "Environment of this process", Text: "Checked at " +
		r.shortTime(found.At.Time).Text + ".", Table: problems},
		{Heading: fmt.Sprintf("%d passed checks", len(passed.Rows)), Table: passed, Folded: true}}, nil
}

// integrityBlocks show the newest stored report of postern verify.
func integrityBlocks(ctx context.Context, r *request) ([]block, error) {
	t := &table{Columns: []string{"Violation", "Number", "Meaning", "What to do"},
		Command: "postern verify --store-report", Curl: curlLine(r, "/api/v1/reports/verify", nil)}
	b := block{ID: "integrity", Heading: "Integrity of the stored data", Table: t}
	found, err := operations.NewestVerifyReport(ctx, r.c.Pages, struct{}{})
	if errors.Is(err, events.ErrNotFound) {
		t.Empty, t.Curl = "No report is stored. Run postern verify --store-report, for example each night: the newest "+
			"report appears here.", ""
		return []block{b}, nil
	}
	if err != nil {
		return nil, err
	}
	age := time.Duration(found.AgeSeconds * float64(time.Second))
	checked := make([]string, 0, len(found.Report.Checked))
	for _, name := range slices.Sorted(maps.Keys(found.Report.Checked)) {
		checked = append(checked, groupDigits(found.Report.Checked[name])+" "+name)
	}
	asOf := r.at(found.Report.At)
	asOf.Sub = agoText(age)
	b.Fields = []field{{"As of", []cell{asOf}},
		{"Checked", []cell{text(strings.Join(checked, ", "))}}, {"Stored by", []cell{text(found.StoredBy)}}}
	if age > reportTooOld {
		b.Notes = append(b.Notes, note{Tone: "warning", Text: "The report is old. Run postern verify " +
			"--store-report on a schedule."})
	}
	if found.Violations == 0 {
		b.Notes = append(b.Notes, note{Tone: "good", Text: "The report has no violations."})
	} else {
		b.Notes = append(b.Notes, note{Tone: "bad", Text: plural(found.Violations, "violation was found",
			"violations were found") + ". postern verify lists each of them."})
	}
	for i := range found.Report.Findings {
		f := &found.Report.Findings[i]
		t.Rows = append(t.Rows, []cell{code(string(f.Kind)), number(f.Count), wide(text(sentence(f.Meaning))),
			wide(text(sentence(f.Repair)))})
	}
	for _, n := range found.Report.Notes {
		b.Notes = append(b.Notes, note{Tone: "info", Text: sentence(n)})
	}
	return []block{b}, nil
}

// reportTooOld is the age from which the page warns about a report.
const reportTooOld = 8 * 24 * time.Hour

// backlogBlocks show the distance between the log, the streams and the mirror.
func backlogBlocks(ctx context.Context, r *request) ([]block, error) {
	found, err := readAPI[operations.StreamView](ctx, r, http.MethodGet, "/api/v1/stream", nil)
	if err != nil {
		return nil, err
	}
	b := block{ID: "backlog", Heading: "Backlog", Table: &table{Columns: []string{"Backlog", "Number", "Oldest since",
		"Age"}, Command: "postern stream status", Curl: curlLine(r, "/api/v1/stream", nil)}}
	for _, n := range []struct {
		name  string
		count *processor.PendingCount
	}{{"Events without an outcome", &found.Unapplied}, {"Failed events that are retried", &found.Failed},
		{"Retries that are due", &found.Retries}, {"Changes that are not in the feed yet", &found.Unsent}} {
		b.Table.Rows = append(b.Table.Rows, pendingRow(r, n.name, n.count))
	}
	notInStream := []cell{text("Events without an outcome that are in no stream"), number(found.NotInStream), {}, {}}
	if found.Failure != "" {
		notInStream[1] = text("not known")
		b.Notes = append(b.Notes, note{Tone: "bad", Text: "NATS does not respond: " + visible(found.Failure) +
			". Deliveries are stored anyway, and applied later."})
	}
	b.Table.Rows = append(b.Table.Rows, notInStream)
	b.Actions = []action{r.form(action{Label: "Republish now", Reason: "optional", Text: "The republisher publishes " +
		"each event without an outcome again. An event that is already applied changes nothing.",
		Path: "/api/v1/stream/republish-passes", Then: path("health")}),
		r.form(action{Label: "Announce objects", Reason: "optional", Text: "The processors publish the selected " +
			"objects of the mirror to NATS again, and forward them: for a new reader, or after a lost stream. " +
			"Readers that keep the highest revision of each object are not affected.", Path: "/api/v1/objects/announce",
			Then: path("health"), Inputs: []input{{Name: "source", Label: "source", Kind: "text", Help: "empty: all"},
				{Name: "type", Label: "type of object", Kind: "text", Help: "empty: all"}}})}
	return []block{b, streamBlock(r, found), republisherBlock(r, &found.Republisher)}, nil
}

func pendingRow(r *request, name string, n *processor.PendingCount) []cell {
	count := number(n.Count)
	if n.Count >= processor.MaxPendingCount {
		count = cell{Text: groupDigits(n.Count) + " or more", Number: true}
	}
	since, old := cell{}, cell{}
	if n.Since != nil {
		since, old = r.at(*n.Since), text(durationText(time.Duration(n.Seconds*float64(time.Second))))
	}
	return []cell{text(name), count, since, old}
}

func streamBlock(r *request, found *operations.StreamView) block {
	b := block{ID: "streams", Heading: "Streams", Table: &table{Columns: []string{"Stream", "Consumer", "Messages",
		"Size",
		"Not received yet", "Not acknowledged", "Delivered again", "Newest message"}, Empty: "No stream is known."}}
	for i := range found.Streams {
		s := &found.Streams[i]
		name := code(s.Name)
		if s.Missing {
			name.Sub = "does not exist yet"
		}
		newest := cell{}
		if s.LastAt != nil {
			newest = r.time(*s.LastAt)
		}
		b.Table.Rows = append(b.Table.Rows, []cell{name, {}, number(int64(s.Messages)),
			{Text: bytesText(int64(s.Bytes)), Number: true}, {}, {}, {}, newest})
		for j := range s.Consumers {
			c := &s.Consumers[j]
			consumer := code(c.Name)
			if c.Waiting == 0 {
				consumer.Sub = "no client fetches messages"
			}
			b.Table.Rows = append(b.Table.Rows, []cell{{}, consumer, {}, {}, number(int64(c.Pending)),
				number(c.Unacknowledged), number(c.Redelivered), {}})
		}
	}
	return b
}

func republisherBlock(r *request, s *processor.RepublisherStatus) block {
	b := block{ID: "republisher", Heading: "Republisher"}
	process := code(s.Process)
	if s.Process == "" {
		process = text("no process has the lease now")
	}
	b.Fields = append(b.Fields, field{"Executed by", []cell{process}})
	for _, t := range []struct {
		name string
		at   *events.Instant
	}{{"All applied until", s.AppliedUntil}, {"Last complete pass", s.EndedAt}, {"Last published", s.PublishedAt}} {
		if t.at != nil {
			b.Fields = append(b.Fields, field{t.name, []cell{r.at(*t.at), text(agoText(r.now.Sub(t.at.Time)))}})
		}
	}
	if s.PublishedAt != nil {
		b.Fields = append(b.Fields, field{"Published then", []cell{text(fmt.Sprintf("%s without an outcome, %s retries",
			groupDigits(s.Missing), groupDigits(s.Due)))}})
	}
	if s.Requested > 0 {
		b.Fields = append(b.Fields, field{"Requested passes", []cell{text(groupDigits(s.Requested))}})
	}
	if s.Detail != "" {
		b.Notes = append(b.Notes, note{Tone: "warning", Text: "The last pass did not reach its end: " +
			visible(s.Detail)})
	}
	return b
}

// spoolBlocks show the spools of the gateways.
func spoolBlocks(ctx context.Context, r *request) ([]block, error) {
	found, err := operations.ListPages(redaction.Spools)(ctx, r.c.Pages, operations.Page{})
	if err != nil {
		return nil, err
	}
	b := block{ID: "spools", Heading: "Spools", Text: "Deliveries on the disks of gateways, from times without a " +
		"database.", Table: &table{Columns: []string{"Spool", "Location", "Deliveries", "Size", "Oldest", "Reported",
		"Redactions that wait"}, Empty: "No gateway has registered a spool.", Command: "postern spool list",
		Curl: curlLine(r, "/api/v1/spools", nil)}}
	for i := range found.Items {
		s := &found.Items[i]
		b.Table.Rows = append(b.Table.Rows, spoolRow(r, s))
		if r.now.Sub(s.ReportedAt.Time) <= redaction.SpoolSilentAfter {
			continue // its gateway runs
		}
		b.Actions = append(b.Actions, r.form(action{Label: "Remove spool " + visible(s.Name), Danger: true,
			Reason: "required", Text: "Use this only if the disk of the spool is lost. Its deliveries are lost too, " +
				"and redactions no longer wait for it.", Path: "/api/v1/spools/" + url.PathEscape(s.Name) + "/remove",
			Then:   path("health"),
			Inputs: []input{input{Name: "force", Label: "also if its content is not known", Kind: "checkbox"}}}))
	}
	if found.Next != "" {
		b.Notes = append(b.Notes, note{Tone: "info", Text: "There are more spools; postern spool list shows all."})
	}
	return []block{b}, nil
}

func spoolRow(r *request, s *redaction.Spool) []cell {
	deliveries, size := text("not known"), cell{}
	if s.Deliveries != nil {
		deliveries = number(*s.Deliveries)
	}
	if s.Bytes != nil {
		size = cell{Text: bytesText(*s.Bytes), Number: true}
	}
	reported := r.at(s.ReportedAt)
	if !s.ReportedAt.IsZero() && r.now.Sub(s.ReportedAt.Time) > redaction.SpoolSilentAfter {
		reported.Sub = "silent: the gateway may not run"
	}
	waiting := make([]string, len(s.Redactions))
	for i, run := range s.Redactions {
		waiting[i] = "run " + id(run)
	}
	return []cell{code(s.Name), text(s.Location), deliveries, size, r.at(s.OldestAt), reported,
		text(strings.Join(waiting, ", "))}
}
