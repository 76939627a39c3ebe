package rebuild

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/postgres"
)

const side = `o.version_final, o.version_at, o.version_seen, o.version_rank, o.deleted, o.ambiguous, o.refetch_after,
  o.rule_version, o.revision, o.last_event_id, o.overwritten_at,
  CASE WHEN pg_column_size(o.state) <= $5 THEN o.state END, coalesce(pg_column_size(o.state) > $5, false)`

// detailSQL reads some objects from both tables, each with its position in the list.
const detailSQL = `
SELECT d.n, false, ` + side + ` FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(account,
	object_type, object_id, n)
JOIN objects o ON o.source = $1 AND o.account = d.account AND o.object_type = d.object_type
	AND o.object_id = d.object_id
UNION ALL
SELECT d.n, true, ` + side + ` FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(account,
	object_type, object_id, n)
JOIN staged_objects o ON o.source = $1 AND o.account = d.account AND o.object_type = d.object_type
	AND o.object_id = d.object_id`

// outcomesSQL reads the outcomes of some events in the live run and in the rebuild.
const outcomesSQL = `
SELECT o.event_id, o.run, o.status, o.reason, o.rule_version FROM outcomes o WHERE o.event_id = ANY($1::bigint[])
	AND o.run IN (0, $2)`

// decidedOutcome is the outcome of an event in a run.
type decidedOutcome struct {
	status, reason string
	rule           int
}

// outcomeKey identifies an outcome.
type outcomeKey struct{ event, run int64 }

// explain reads the live and the staged row of each item of a page, some at a time. It adds the
// differences and their reasons to the items.
func (c *comparison) explain(ctx context.Context, page *Page) error {
	var source string
	if len(page.Items) > 0 {
		if err := c.pool.QueryRow(ctx, sourceSQL, c.params.Source).Scan(&source); err != nil {
			return err
		}
	}
	for from := 0; from < len(page.Items); from += detailRows {
		items := page.Items[from:min(from+detailRows, len(page.Items))]
		if err := c.read(ctx, items); err != nil {
			return err
		}
		outcomes, err := c.outcomes(ctx, items)
		if err != nil {
			return err
		}
		for i := range items {
			items[i].Source = source
			items[i].describe(c.run.ID, outcomes)
		}
	}
	return nil
}

const sourceSQL = `SELECT name FROM sources WHERE number = $1`

func (c *comparison) read(ctx context.Context, items []Difference) error {
	accounts, types, ids := make([]string, len(items)), make([]string, len(items)), make([]string, len(items))
	for i := range items {
		accounts[i], types[i], ids[i] = items[i].Account, items[i].ObjectType, items[i].ObjectID
	}
	var position int64
	var staged bool
	var s ObjectRow
	return postgres.ForEach(ctx, c.pool, detailSQL, []any{c.params.Source, accounts, types, ids, maxStateBytes},
		[]any{&position, &staged, &s.Version.Final, &s.Version.At, &s.Version.Seen, &s.Version.Rank, &s.Deleted,
			&s.Ambiguous, &s.RefetchAfter, &s.RuleVersion, &s.Revision, &s.LastEventID, &s.OverwrittenAt, &s.state,
			&s.tooLarge}, func() error {
			row := s
			s.state = nil // the next row gets a text of its own
			if staged {
				items[position-1].Staged = &row
			} else {
				items[position-1].Live = &row
			}
			return nil
		})
}

// outcomes returns the outcomes of the deciding events, live and in the rebuild.
func (c *comparison) outcomes(ctx context.Context, items []Difference) (map[outcomeKey]decidedOutcome, error) {
	var ids []int64
	for i := range items {
		for _, s := range []*ObjectRow{items[i].Live, items[i].Staged} {
			if s != nil {
				ids = append(ids, s.LastEventID)
			}
		}
	}
	found := map[outcomeKey]decidedOutcome{}
	var k outcomeKey
	var d decidedOutcome
	err := postgres.ForEach(ctx, c.pool, outcomesSQL, []any{ids, c.run.ID},
		[]any{&k.event, &k.run, &d.status, &d.reason, &d.rule}, func() error { found[k] = d; return nil })
	return found, err
}

// describe sets the differing parts, the paths and the reasons. It releases the states.
func (d *Difference) describe(run int64, outcomes map[outcomeKey]decidedOutcome) {
	d.Parts, d.Paths, d.Reasons = []string{}, []string{}, []string{}
	live, staged := d.Live, d.Staged
	if live != nil && staged != nil {
		d.compare(live, staged)
	}
	switch {
	case d.Kind == LiveNewer:
		d.addReason("the live object shows event %d, which the rebuild has not read yet", live.LastEventID)
	case live == nil && staged == nil: // deleted since the comparison
	case live == nil:
		d.addReason("no event has created this object live; the rebuild found event %d", staged.LastEventID)
		d.addOutcome("live", staged.LastEventID, 0, outcomes)
	case staged == nil:
		d.addReason("no event of the log creates this object now; the live object shows event %d", live.LastEventID)
		d.addOutcome("in the rebuild", live.LastEventID, run, outcomes)
	default:
		d.addReasons(live, staged, run, outcomes)
	}
	for _, s := range []*ObjectRow{live, staged} {
		if s != nil {
			s.state = nil
		}
	}
}

func (d *Difference) compare(live, staged *ObjectRow) {
	for _, part := range []struct {
		name    string
		differs bool
	}{
		{"version", live.Version != staged.Version}, {"deleted", live.Deleted != staged.Deleted},
		{"ambiguous", live.Ambiguous != staged.Ambiguous},
		{"rule_version", live.RuleVersion != staged.RuleVersion},
		{"refetch_after", live.RefetchAfter != staged.RefetchAfter},
		{"overwritten_at", live.OverwrittenAt != staged.OverwrittenAt},
	} {
		if part.differs {
			d.Parts = append(d.Parts, part.name)
		}
	}
	if live.tooLarge || staged.tooLarge {
		d.Paths = append(d.Paths, fmt.Sprintf("(not compared here: a state is larger than %d KiB)", maxStateBytes>>10))
	} else if differingPaths := differingPaths(live.state, staged.state); len(differingPaths) > 0 {
		d.Parts, d.Paths = append(d.Parts, "state"), differingPaths
	}
	if len(d.Parts) == 0 || len(d.Parts) == 1 && d.Parts[0] == "refetch_after" {
		d.Parts = append(d.Parts, "tied_states")
	}
}

func (d *Difference) addReasons(live, staged *ObjectRow, run int64, outcomes map[outcomeKey]decidedOutcome) {
	if live.RuleVersion != staged.RuleVersion {
		d.addReason("the live object was made by rule %d, the staged one by rule %d", live.RuleVersion,
			staged.RuleVersion)
	}
	if live.LastEventID == staged.LastEventID {
		d.addReason("both show event %d: its content is read differently now than when it was applied, or the row "+
			"was changed by other means", live.LastEventID)
		return
	}
	d.addReason("live shows event %d, the rebuild event %d", live.LastEventID, staged.LastEventID)
	d.addOutcome("live", staged.LastEventID, 0, outcomes)
	d.addOutcome("in the rebuild", live.LastEventID, run, outcomes)
}

// addOutcome adds the outcome of an event in a run.
func (d *Difference) addOutcome(where string, event, run int64, outcomes map[outcomeKey]decidedOutcome) {
	if o, ok := outcomes[outcomeKey{event, run}]; ok {
		d.addReason("%s event %d is %s by rule %d: %s", where, event, o.status, o.rule, o.reason)
	} else if event != 0 {
		d.addReason("%s event %d has no outcome", where, event)
	}
}

func (d *Difference) addReason(format string, args ...any) {
	d.Reasons = append(d.Reasons, fmt.Sprintf(format, args...))
}

// maxPaths bounds the paths that are named.
const maxPaths = 20

// differingPaths returns the dotted paths at which two JSON texts differ. Nil equals null.
func differingPaths(a, b []byte) []string {
	p := &pathFinder{found: []string{}}
	p.compare("", parse(a), parse(b))
	if len(p.found) > maxPaths {
		p.found = append(p.found[:maxPaths], "...")
	}
	return p.found
}

func parse(text []byte) *canonical.Value {
	if len(text) == 0 {
		text = []byte("null")
	}
	v, err := canonical.Parse(text)
	if err != nil { // cannot happen: jsonb wrote the text
		return nil
	}
	return v
}

// pathFinder collects differing paths.
type pathFinder struct{ found []string }

func (p *pathFinder) compare(path string, a, b *canonical.Value) {
	if len(p.found) > maxPaths || a.Kind() == b.Kind() && a.Sum(canonical.Options{}) == b.Sum(canonical.Options{}) {
		return
	}
	if a.Kind() != canonical.Object || b.Kind() != canonical.Object {
		if path == "" {
			path = "(all)"
		}
		p.found = append(p.found, path)
		return
	}
	known := map[string]bool{}
	for name, v := range a.Members() {
		known[name] = true
		p.compare(joinPath(path, name), v, b.Get(name))
	}
	for name, v := range b.Members() {
		if !known[name] {
			p.compare(joinPath(path, name), a.Get(name), v)
		}
	}
}

func joinPath(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
