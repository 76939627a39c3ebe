package rebuild

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
)

const side = `o.version_final, o.version_at, o.version_seen, o.version_rank, o.deleted, o.ambiguous, o.look_after, o.rule_version, o.revision, o.last_event_id, o.settled,
  CASE WHEN pg_column_size(o.state) <= $5 THEN o.state END, coalesce(pg_column_size(o.state) > $5, false)`

// detailSQL reads some objects from a table, with their names' places.
const detailSQL = `
SELECT d.n, false, ` + side + ` FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(account, object_type, object_id, n)
JOIN objects o ON o.source = $1 AND o.account = d.account AND o.object_type = d.object_type AND o.object_id = d.object_id
UNION ALL
SELECT d.n, true, ` + side + ` FROM unnest($2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(account, object_type, object_id, n)
JOIN staged o ON o.source = $1 AND o.account = d.account AND o.object_type = d.object_type AND o.object_id = d.object_id`

// decidedSQL reads what the live run and the rebuild decided of some events.
const decidedSQL = `
SELECT o.event_id, o.run, o.status, o.reason, o.rule_version FROM outcomes o WHERE o.event_id = ANY($1::bigint[]) AND o.run IN (0, $2)`

// decision is the outcome of an event in a run.
type decision struct {
	status, reason string
	rule           int
}

// decided names an outcome.
type decided struct{ event, run int64 }

// explain reads what the items of a page are on both sides, some at a time, and says what differs and why.
func (c *comparison) explain(ctx context.Context, page *Page) error {
	var source string
	if len(page.Items) > 0 {
		if err := c.pool.QueryRow(ctx, sourceSQL, c.order.Source).Scan(&source); err != nil {
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
			items[i].say(c.run.Run, outcomes)
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
	rows, err := c.pool.Query(ctx, detailSQL, c.order.Source, accounts, types, ids, stateBytes)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var place int64
		var staged bool
		var s Side
		if err := rows.Scan(&place, &staged, &s.Version.Final, &s.Version.At, &s.Version.Seen, &s.Version.Rank, &s.Deleted, &s.Ambiguous, &s.LookAfter,
			&s.RuleVersion, &s.Revision, &s.LastEventID, &s.Settled, &s.state, &s.large); err != nil {
			return err
		}
		if staged {
			items[place-1].Staged = &s
		} else {
			items[place-1].Live = &s
		}
	}
	return rows.Err()
}

// outcomes are those of the events that decided, live and in the rebuild.
func (c *comparison) outcomes(ctx context.Context, items []Difference) (map[decided]decision, error) {
	var ids []int64
	for i := range items {
		for _, s := range []*Side{items[i].Live, items[i].Staged} {
			if s != nil {
				ids = append(ids, s.LastEventID)
			}
		}
	}
	rows, err := c.pool.Query(ctx, decidedSQL, ids, c.run.Run)
	if err != nil {
		return nil, err
	}
	found := map[decided]decision{}
	var k decided
	var d decision
	_, err = pgx.ForEachRow(rows, []any{&k.event, &k.run, &d.status, &d.reason, &d.rule}, func() error { found[k] = d; return nil })
	return found, err
}

// say names what differs and the reasons that the ledger knows; it lets go of the states.
func (d *Difference) say(run int64, outcomes map[decided]decision) {
	d.What, d.Paths, d.Why = []string{}, []string{}, []string{}
	live, staged := d.Live, d.Staged
	if live != nil && staged != nil {
		d.compare(live, staged)
	}
	switch {
	case d.Kind == Ahead:
		d.why("the live object shows event %d, which the rebuild has not read yet", live.LastEventID)
	case live == nil && staged == nil: // gone since
	case live == nil:
		d.why("no event has made this object live; the rebuild found event %d", staged.LastEventID)
		d.tell("live", staged.LastEventID, 0, outcomes)
	case staged == nil:
		d.why("no event of the log makes this object now; live it shows event %d", live.LastEventID)
		d.tell("in the rebuild", live.LastEventID, run, outcomes)
	default:
		d.reasons(live, staged, run, outcomes)
	}
	for _, s := range []*Side{live, staged} {
		if s != nil {
			s.state = nil
		}
	}
}

func (d *Difference) compare(live, staged *Side) {
	for _, part := range []struct {
		name    string
		differs bool
	}{
		{"version", live.Version != staged.Version}, {"deleted", live.Deleted != staged.Deleted}, {"ambiguous", live.Ambiguous != staged.Ambiguous},
		{"rule_version", live.RuleVersion != staged.RuleVersion}, {"look_after", live.LookAfter != staged.LookAfter},
		{"settled", live.Settled != staged.Settled},
	} {
		if part.differs {
			d.What = append(d.What, part.name)
		}
	}
	if live.large || staged.large {
		d.Paths = append(d.Paths, fmt.Sprintf("(not compared here: a state is larger than %d KiB)", stateBytes>>10))
	} else if paths := paths(live.state, staged.state); len(paths) > 0 {
		d.What, d.Paths = append(d.What, "state"), paths
	}
	if len(d.What) == 0 || len(d.What) == 1 && d.What[0] == "look_after" {
		d.What = append(d.What, "tie_set")
	}
}

func (d *Difference) reasons(live, staged *Side, run int64, outcomes map[decided]decision) {
	if live.RuleVersion != staged.RuleVersion {
		d.why("rule %d made the live object, rule %d the staged one", live.RuleVersion, staged.RuleVersion)
	}
	if live.LastEventID == staged.LastEventID {
		d.why("both show event %d, which is read otherwise now than when it was applied, or the row was changed by other means", live.LastEventID)
		return
	}
	d.why("live shows event %d, the rebuild event %d", live.LastEventID, staged.LastEventID)
	d.tell("live", staged.LastEventID, 0, outcomes)
	d.tell("in the rebuild", live.LastEventID, run, outcomes)
}

// tell says what became of an event in a run.
func (d *Difference) tell(where string, event, run int64, outcomes map[decided]decision) {
	if o, ok := outcomes[decided{event, run}]; ok {
		d.why("%s event %d is %s by rule %d: %s", where, event, o.status, o.rule, o.reason)
	} else if event != 0 {
		d.why("%s event %d has no outcome", where, event)
	}
}

func (d *Difference) why(format string, args ...any) {
	d.Why = append(d.Why, fmt.Sprintf(format, args...))
}

// maxPaths bounds the paths that are named.
const maxPaths = 20

// paths are where two JSON texts differ, dotted; nil and null are the same.
func paths(a, b []byte) []string {
	p := &differ{found: []string{}}
	p.values("", parse(a), parse(b))
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
	if err != nil { // jsonb wrote it
		return nil
	}
	return v
}

// differ finds paths.
type differ struct{ found []string }

func (p *differ) values(path string, a, b *canonical.Value) {
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
		p.values(below(path, name), v, b.Get(name))
	}
	for name, v := range b.Members() {
		if !known[name] {
			p.values(below(path, name), a.Get(name), v)
		}
	}
}

func below(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
