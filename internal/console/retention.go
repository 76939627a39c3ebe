package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/retention"
)

// age is how many days a kind of data is kept; 0: without limit.
type age struct {
	kind string
	days int
}

func policyAges(p retention.Policy) []age {
	return []age{{"events", p.Bodies}, {"keys", p.Keys}, {"outcomes", p.Outcomes}, {"rejections", p.Rejections},
		{"ended runs", p.Runs}, {"data of effects", p.Effects}, {"ended effects", p.EffectKeys}}
}

// retentionPage shows the days of the log, and when each kind of data is deleted.
func retentionPage(ctx context.Context, r *request) (*view, error) {
	found, _, err := operations.Retention(ctx, r.c.Pages, r.c.Retention, false)
	if err != nil {
		return nil, err
	}
	v := &view{Title: "Retention", Text: "How long data is kept. The log consists of days, and a day is dropped as a " +
		"whole."}
	for _, w := range found.Warnings {
		v.Notes = append(v.Notes, note{Tone: "warning", Text: sentenceCase(visible(w)) + "."})
	}
	policy := block{ID: "policy", Heading: "Policy of this process"}
	if found.Policy.Empty() {
		policy.Text = "No age is set, so everything is kept without limit. Set ages in the section retention of the " +
			"configuration."
	}
	for _, a := range policyAges(found.Policy) {
		kept := "without limit"
		if a.days > 0 {
			kept = fmt.Sprintf("%d days", a.days)
		}
		policy.Fields = append(policy.Fields, field{sentenceCase(a.kind), []cell{text(kept)}})
	}
	v.Blocks = append(v.Blocks, dayBlock(r, found), policy)
	last, err := retentionRuns(ctx, r)
	if err != nil {
		return nil, err
	}
	v.Blocks = append(v.Blocks, last, block{Presets: []cell{link("Redactions", path("redactions"))}})
	return v, nil
}

// dayBlock shows the days of the log with their sizes.
func dayBlock(r *request, found *retention.View) block {
	t := &table{Columns: []string{"Day", "Events (estimate)", "Size", "Dead", "Drop"},
		Empty: "The log has no day yet. The first delivery creates one.", Curl: curlLine(r, "/api/v1/retention", nil),
		Command: "postern retention show"}
	var titles []string
	stay := series{label: "bytes that stay", tone: "accent"}
	due := series{label: "bytes that are due", tone: "warning"}
	var total int64
	for i := range found.Partitions {
		p := &found.Partitions[i]
		titles = append(titles, p.From.UTC().Format(time.DateOnly))
		kept, drops := p.Bytes, int64(0)
		if p.Due {
			kept, drops = 0, p.Bytes
		}
		stay.values, due.values, total = append(stay.values, kept), append(due.values, drops), total+p.Bytes
	}
	for i := range found.Partitions {
		t.Rows = append(t.Rows, dayRow(&found.Partitions[len(found.Partitions)-1-i]))
	}
	all := []series{stay}
	if len(due.values) > 0 && slices.Max(due.values) > 0 {
		all = append(all, due)
	}
	c := newChart("Size of each day of the log", titles, all)
	if c != nil {
		for i := range c.Legend {
			c.Legend[i].Total = ""
		}
		c.Legend[0].Total = bytesText(total)
	}
	return block{ID: "days", Heading: "Days of the log", Chart: c, Table: t}
}

func dayRow(p *retention.Partition) []cell {
	events := number(p.Events)
	if !p.Counted {
		events = text("not known")
	}
	size := cell{Text: bytesText(p.Bytes), Number: true}
	dropped := text(p.DropNote)
	if p.Due {
		dropped.Tone, dropped.Badge = "warning", p.KeptReason == ""
	}
	dead := cell{}
	if p.Dead > 0 {
		dead = number(p.Dead)
	}
	return []cell{code(p.From.UTC().Format(time.DateOnly)), events, size, dead, dropped}
}

// bytesText shows a number of bytes with a unit.
func bytesText(n int64) string {
	const unit = 1024
	value := float64(n)
	for _, name := range []string{"B", "KiB", "MiB", "GiB"} {
		if value < unit {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + name
		}
		value /= unit
	}
	return fmt.Sprintf("%.1f TiB", value)
}

// retentionRuns shows the newest runs of retention.
func retentionRuns(ctx context.Context, r *request) (block, error) {
	p := operations.RunParams{Job: retention.Job}
	p.SetPage(10, "")
	last, err := operations.Runs(ctx, r.c.Pages, p)
	if err != nil {
		return block{}, err
	}
	return block{ID: "runs", Heading: "Newest runs of retention", Table: runList.embed(r, last.Items, "Retention has "+
		"not run yet. A schedule with the job retention, or the setting retention, starts it.")}, nil
}
