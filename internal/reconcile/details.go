package reconcile

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// mostDrifts is how many objects that differ a run tells of field by field; the counts are exact beyond it.
	mostDrifts = 1000
	// mostFields is how many fields of one object are told, and mostValue how many bytes of a value.
	mostFields, mostValue = 30, 512
)

const (
	countDriftsSQL = `SELECT count(*) FROM drifts WHERE run = $1`

	driftSQL = `
INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, more)
SELECT $1, $2, $3, $4, d.* FROM unnest($5::text[], $6::text[], $7::jsonb[], $8::int[]) AS d ON CONFLICT DO NOTHING`
)

// details is how many objects that differ the run may still tell of.
func (w *work) details(ctx context.Context) (int, error) {
	var n int
	if err := w.Pool.QueryRow(ctx, countDriftsSQL, w.hold.Run.Run).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the objects that differ: %w", err)
	}
	return mostDrifts - n, nil
}

// detailed does what keeps a sweep's place, and keeps besides at which fields objects differ, for the first of the run. Their locks are held from when their rows are read, so that what
// is redacted is either not read or deleted from here too.
func (s *sweep) detailed(ctx context.Context, items []*item, fn func(context.Context, pgx.Tx) error) error {
	items = items[:min(len(items), max(0, s.details))]
	if len(items) == 0 {
		return s.change(ctx, "keep how far a sweep is", fn)
	}
	var rows []*drift
	err := s.changeAfter(ctx, "keep how far a sweep is", func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err = s.drifts(ctx, tx, items)
		return err
	}, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.keepDrifts(ctx, tx, rows); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
	if err == nil {
		s.details -= len(items)
	}
	return err
}

// drift is an object that differs.
type drift struct {
	id     string
	kind   kind
	fields []versioning.Change
	more   int
}

func (s *sweep) keepDrifts(ctx context.Context, tx pgx.Tx, all []*drift) error {
	var ids, kinds []string
	var fields []json.RawMessage
	var more []int32
	for _, d := range all {
		text, err := json.Marshal(d.fields)
		if err != nil {
			return err
		}
		ids, kinds, fields, more = append(ids, d.id), append(kinds, string(d.kind)), append(fields, text), append(more, int32(d.more))
	}
	_, err := tx.Exec(ctx, driftSQL, s.hold.Run.Run, s.order.Source, s.order.Account, s.objectType, ids, kinds, fields, more)
	return err
}

// drifts reads the rows of objects under their locks and tells at which fields they differ from what the API tells.
func (s *sweep) drifts(ctx context.Context, tx pgx.Tx, items []*item) ([]*drift, error) {
	var keys []versioning.Key
	var wanted []versioning.Wanted
	for _, it := range items {
		keys = append(keys, s.key(it.id))
		wanted = append(wanted, versioning.Wanted{Key: s.key(it.id), Lo: math.MinInt64, Hi: math.MaxInt64})
	}
	if err := processor.LockObjects(ctx, tx, keys); err != nil {
		return nil, err
	}
	rows, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	if err != nil {
		return nil, err
	}
	all := make([]*drift, len(items))
	for i, it := range items {
		all[i] = &drift{id: it.id, kind: it.kind, fields: []versioning.Change{}}
		if it.look == nil || !rows[i].Exists {
			continue
		}
		if err := all[i].differ(&rows[i].Row, it); err != nil {
			return nil, fmt.Errorf("compare %s %s: %w", s.objectType, it.id, err)
		}
	}
	return all, nil
}

// differ lists the fields at which a row differs from what the API tells: before is here, after is there.
func (d *drift) differ(row *versioning.Row, it *item) error {
	if it.in.Own && row.Version.At != it.in.Version.At {
		here, _ := row.Version.MarshalJSON() // integers and a bool always marshal
		there, _ := it.in.Version.MarshalJSON()
		d.fields = append(d.fields, versioning.Change{Path: "version", Before: here, After: there})
	}
	if row.State.Deleted != it.in.State.Deleted {
		d.fields = append(d.fields, versioning.Change{Path: "deleted", Before: fmt.Append(nil, row.State.Deleted), After: fmt.Append(nil, it.in.State.Deleted)})
	}
	here, err := parse(row.State.JSON)
	if err != nil {
		return err
	}
	there, err := parse(it.in.State.JSON)
	if err != nil {
		return err
	}
	canonical.Differ("state", here, there, func(path string, here, there *canonical.Value) bool {
		switch {
		case none(here) && none(there), it.changing(path):
		case len(d.fields) < mostFields:
			d.fields = append(d.fields, versioning.Change{Path: path, Before: short(here), After: short(there)})
		default:
			d.more++
		}
		return true
	})
	return nil
}

func parse(state []byte) (*canonical.Value, error) {
	if state == nil {
		return nil, nil
	}
	return canonical.Parse(state)
}

// none: a member that is null is like one that is not there.
func none(v *canonical.Value) bool {
	return v.Kind() == canonical.Missing || v.Kind() == canonical.Null
}

// elements are the places of an array in a path: volatile fields are those of each.
var elements = regexp.MustCompile(`\[\d+\]`)

// changing says whether a field changes without a version, so that it does not count.
func (it *item) changing(path string) bool {
	path = elements.ReplaceAllString(path, "")
	return slices.ContainsFunc(it.volatile, func(field string) bool {
		rest, found := strings.CutPrefix(path, "state."+field)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// short is a value as it is kept: the beginning of its text, as a text, where it is long.
func short(v *canonical.Value) json.RawMessage {
	switch raw := v.Raw(); {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) > mostValue:
		text, _ := json.Marshal(strings.ToValidUTF8(string(raw[:mostValue]), "") + "…") // a text always marshals
		return text
	default:
		text, _ := v.Storable() // jsonb takes it
		return text
	}
}
