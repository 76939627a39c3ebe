package objectscan

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// maxDrifts is how many differing objects a run stores field by field. The counts include all
	// of them.
	maxDrifts = 1000
	// maxDriftFields is how many fields of one object are stored, and maxValueBytes how many bytes
	// of a value.
	maxDriftFields, maxValueBytes = 30, 512
)

const (
	countDriftsSQL = `SELECT count(*) FROM drifts WHERE run = $1`

	driftSQL = `
INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, more_fields)
SELECT $1, $2, $3, $4, d.* FROM unnest($5::text[], $6::text[], $7::jsonb[], $8::int[]) AS d ON CONFLICT DO NOTHING`
)

// remainingDetails returns for how many more differing objects the run may store the fields.
func (r *Run) remainingDetails(ctx context.Context) (int, error) {
	var n int
	if err := r.Pool.QueryRow(ctx, countDriftsSQL, r.Lease.Run.ID).Scan(&n); err != nil {
		return 0, fmt.Errorf("count the objects that differ: %w", err)
	}
	return maxDrifts - n, nil
}

// changeWithDetails changes the scan's progress and stores in which fields the first differing
// objects of the run differ. It holds the objects' locks from before it reads their rows. Redacted
// data is therefore either not read, or deleted from here too.
func (s *objectScan) changeWithDetails(ctx context.Context, items []*item,
	fn func(context.Context, pgx.Tx) error) error {
	items = items[:min(len(items), max(0, s.remainingDetails))]
	if len(items) == 0 {
		return s.change(ctx, "store the progress of a scan", fn)
	}
	var rows []*drift
	err := s.changeAfter(ctx, "store the progress of a scan", func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err = s.loadDrifts(ctx, tx, items)
		return err
	}, func(ctx context.Context, tx pgx.Tx) error {
		if err := s.storeDrifts(ctx, tx, rows); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
	if err == nil {
		s.remainingDetails -= len(items)
	}
	return err
}

// drift is an object that differs.
type drift struct {
	id         string
	kind       kind
	fields     []versioning.Difference
	moreFields int
}

func (s *objectScan) storeDrifts(ctx context.Context, tx pgx.Tx, all []*drift) error {
	var ids, kinds []string
	var fields []json.RawMessage
	var more []int32
	for _, d := range all {
		text, err := json.Marshal(d.fields)
		if err != nil {
			return err
		}
		ids, kinds, fields, more = append(ids, d.id), append(kinds, string(d.kind)), append(fields, text),
			append(more, int32(d.moreFields))
	}
	_, err := tx.Exec(ctx, driftSQL, s.Lease.Run.ID, s.Source.Number, s.Params.Account, s.objectType, ids, kinds,
		fields, more)
	return err
}

// loadDrifts reads the rows of objects under their locks and lists the fields that differ from the
// API's response.
func (s *objectScan) loadDrifts(ctx context.Context, tx pgx.Tx, items []*item) ([]*drift, error) {
	var keys []versioning.Key
	var wanted []versioning.LoadRequest
	for _, it := range items {
		keys = append(keys, s.key(it.id))
		wanted = append(wanted, versioning.LoadRequest{Key: s.key(it.id), MinAt: math.MinInt64, MaxAt: math.MaxInt64})
	}
	if err := apply.LockObjects(ctx, tx, keys); err != nil {
		return nil, err
	}
	rows, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	if err != nil {
		return nil, err
	}
	all := make([]*drift, len(items))
	for i, it := range items {
		all[i] = &drift{id: it.id, kind: it.kind, fields: []versioning.Difference{}}
		if it.refetch == nil || !rows[i].Exists {
			continue
		}
		if err := all[i].addDifferences(&rows[i].Row, it); err != nil {
			return nil, fmt.Errorf("compare %s %s: %w", s.objectType, it.id, err)
		}
	}
	return all, nil
}

// addDifferences lists the fields in which a row differs from the API's response: before is the
// mirror's value, after the provider's.
func (d *drift) addDifferences(row *versioning.Row, it *item) error {
	if it.input.OwnVersion && row.Version.At != it.input.Version.At {
		here, _ := row.Version.MarshalJSON() // integers and a bool always marshal
		there, _ := it.input.Version.MarshalJSON()
		d.fields = append(d.fields, versioning.Difference{Path: "version", Before: here, After: there})
	}
	if row.State.Deleted != it.input.State.Deleted {
		d.fields = append(d.fields, versioning.Difference{Path: "deleted", Before: fmt.Append(nil, row.State.Deleted),
			After: fmt.Append(nil, it.input.State.Deleted)})
	}
	here, err := parseState(row.State.JSON)
	if err != nil {
		return err
	}
	there, err := parseState(it.input.State.JSON)
	if err != nil {
		return err
	}
	canonical.VisitDifferences("state", here, there, func(path string, here, there *canonical.Value) bool {
		switch {
		case isAbsent(here) && isAbsent(there), it.isIgnored(path):
		case len(d.fields) < maxDriftFields:
			d.fields = append(d.fields, versioning.Difference{Path: path, Before: truncated(here),
				After: truncated(there)})
		default:
			d.moreFields++
		}
		return true
	})
	return nil
}

func parseState(state []byte) (*canonical.Value, error) {
	if state == nil {
		return nil, nil
	}
	return canonical.Parse(state)
}

// isAbsent treats a member that is null like one that is absent.
func isAbsent(v *canonical.Value) bool {
	return v.Kind() == canonical.Missing || v.Kind() == canonical.Null
}

// arrayIndexes matches the indexes of arrays in a path. An ignored path applies to each element.
var arrayIndexes = regexp.MustCompile(`\[\d+\]`)

// isIgnored reports whether a field changes without a new version, so that its difference does not
// count.
func (it *item) isIgnored(path string) bool {
	path = arrayIndexes.ReplaceAllString(path, "")
	return slices.ContainsFunc(it.ignoredPaths, func(field string) bool {
		rest, found := strings.CutPrefix(path, "state."+field)
		return found && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// truncated returns a value as it is stored: a long one as a string with the beginning of its text.
func truncated(v *canonical.Value) json.RawMessage {
	switch raw := v.Raw(); {
	case len(raw) == 0:
		return json.RawMessage("null")
	case len(raw) > maxValueBytes:
		text, _ := json.Marshal(strings.ToValidUTF8(string(raw[:maxValueBytes]), "") + "…") // a string always marshals
		return text
	default:
		text, _ := v.Storable() // jsonb accepts it
		return text
	}
}
