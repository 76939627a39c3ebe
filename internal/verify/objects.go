package verify

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// objectRows is how many objects are checked together. appliedRows is how many outcomes of each
	// are read at once.
	objectRows  = 200
	appliedRows = 1000

	objectsSQL = `
SELECT o.source, o.account, o.object_type, o.object_id FROM objects o WHERE (o.source, o.account, o.object_type,
	o.object_id) > ($1, $2, $3, $4)
  AND ($6::bigint = 1 OR (hashtextextended(o.object_id, $5) & 9223372036854775807) % $6 = 0)
ORDER BY o.source, o.account, o.object_type, o.object_id LIMIT $7`

	// appliedCondition selects outcomes whose events may be part of the mirror. Those of a rebuild
	// are, if it was swapped.
	appliedCondition = `o.object <> 0 AND o.status NOT IN ('failed', 'ignored')
    AND (o.run = 0 OR NOT EXISTS (SELECT FROM runs r WHERE r.run = o.run AND ` + apply.UnswappedRebuild + `))`

	// appliedEventsSQL reads the events that were applied to objects, a page for each object. A
	// dead event was applied if it has a version; otherwise it may only have requested a refetch.
	// The rule version is the oldest that decided the event. Decisions before a rebuild do not
	// count, because the rebuild decided all events again.
	appliedEventsSQL = `
SELECT d.object, o.event_id, bool_or(o.status <> 'dead' OR o.version IS NOT NULL),
	coalesce(max(o.rule_version) FILTER (WHERE o.rebuilt), min(o.rule_version)), count(*)
FROM unnest($1::bigint[], $2::bigint[]) AS d(object, after) CROSS JOIN LATERAL (
  SELECT o.event_id, o.status, o.version, o.rule_version, o.run <> 0 AND EXISTS (SELECT FROM runs r WHERE r.run = o.run
  	AND r.job = 'rebuild') AS rebuilt FROM outcomes o WHERE o.object = d.object AND o.event_id > d.after
  	AND ` + appliedCondition + `
  ORDER BY o.event_id FETCH FIRST $3 ROWS WITH TIES) o
GROUP BY 1, 2 ORDER BY 2`

	// missingSQL finds objects that have applied events or a retained object but no row in the
	// mirror. The mirror never deletes rows.
	missingSQL = `
SELECT k.source, k.account, k.object_type, k.object_id, min(k.event) FROM (
  SELECT o.source, o.account, o.object_type, o.object_id, o.event_id AS event FROM outcomes o WHERE o.status <> 'dead'
  	AND ` + appliedCondition + `
  UNION ALL SELECT b.source, b.account, b.object_type, b.object_id, b.last_event_id FROM retained_objects b) k
WHERE NOT EXISTS (SELECT FROM objects m WHERE m.source = k.source AND m.account = k.account
	AND m.object_type = k.object_type AND m.object_id = k.object_id)
GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4`

	redactingSQL = `SELECT EXISTS (SELECT FROM runs r WHERE r.job = 'redact' AND r.ended_at IS NULL
		AND r.started_at IS NOT NULL)`

	swappingSQL = `SELECT DISTINCT (r.params ->> 'source')::int, coalesce(r.params ->> 'type', '') FROM runs r
		WHERE r.job = 'rebuild'
		AND r.status <> 'done' AND r.counts ? 'swapped' AND NOT EXISTS (SELECT FROM runs n WHERE n.job = 'rebuild'
		AND n.status = 'done' AND n.run > r.run AND n.params ->> 'source' = r.params ->> 'source'
		AND n.params ->> 'type' IN ('', r.params ->> 'type'))`
)

// swappedObjects are the objects of a rebuild: those of a source and a type, or of all types if the
// type is empty.
type swappedObjects struct {
	Source int32
	Type   string
}

// noteSwapping says that a rebuild has replaced only a part of the objects of an object's source.
// It reports whether that is so.
func (w *verification) noteSwapping(k versioning.Key) bool {
	if !slices.ContainsFunc(w.swapping, func(of swappedObjects) bool {
		return of.Source == k.Source && (of.Type == "" || of.Type == k.Type)
	}) {
		return false
	}
	w.results.note("%d objects of source "+w.sourceName(k.Source)+" differ from the result of "+
		"their events, because a rebuild was interrupted: finish a rebuild of the source, then verify again", 1)
	return true
}

// sampleFactor returns n if one of n items is checked; 1 means all.
func (w *verification) sampleFactor(what string) int64 {
	if w.Sample <= 0 {
		return 1
	}
	return max(1, w.estimates[what]/w.Sample)
}

// readObjectKeys passes the keys of all objects, or of a sample, to do, page by page.
func (w *verification) readObjectKeys(ctx context.Context, do func([]versioning.Key) error) error {
	k := versioning.Key{Source: math.MinInt32}
	for {
		keys, err := readPage(ctx, w.snapshot.txs[0], func(row pgx.CollectableRow) (k versioning.Key, err error) {
			return k, row.Scan(&k.Source, &k.Account, &k.Type, &k.ID)
		}, "objects", objectsSQL, k.Source, k.Account, k.Type, k.ID, w.seed, w.sampleFactor("objects"), objectRows)
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := do(keys); err != nil {
			return err
		}
		k = keys[len(keys)-1]
	}
}

// reportMissingObjects reports objects that are not in the mirror.
func (w *verification) reportMissingObjects(ctx context.Context) error {
	var k versioning.Key
	var event int64
	err := postgres.ForEach(ctx, w.snapshot.txs[0], missingSQL, nil, []any{&k.Source, &k.Account, &k.Type, &k.ID,
		&event}, func() error {
		if w.noteSwapping(k) {
			return nil
		}
		item := w.objectItem(k, fmt.Sprintf("event %d was applied to it", event))
		item.Event = event
		w.results.add(ObjectMissing, item)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read missing objects: %w", err)
	}
	return nil
}

// objectPair is an object as stored in the mirror and as computed from its retained object and its
// events.
type objectPair struct {
	stored, computed *versioning.Object
	// outdated is true if an older rule may have decided a part of it.
	outdated bool
	// anomaly is the first event that was applied and now has no state of the object.
	anomaly apply.Anomaly
}

// checkObjects compares some objects with the result of their events.
func (w *verification) checkObjects(ctx context.Context, tx pgx.Tx, keys []versioning.Key) error {
	keys = slices.DeleteFunc(slices.Clone(keys), func(k versioning.Key) bool {
		if w.reducer.CanRead(k.Source) {
			return false
		}
		w.results.note("%d objects of source "+w.sourceName(k.Source)+
			" were not compared with their events: the source is not in this configuration", 1)
		return true
	})
	pairs, err := loadPairs(ctx, tx, keys)
	if err != nil {
		return err
	}
	overwritten, all := []int64{}, []int64{}
	for object, p := range pairs {
		all = append(all, object)
		if p.stored.OverwrittenAt > p.computed.OverwrittenAt {
			overwritten = append(overwritten, object)
		}
	}
	if err := w.applyEvents(ctx, tx, pairs, overwritten, true); err != nil {
		return err
	}
	if err := w.applyEvents(ctx, tx, pairs, all, false); err != nil {
		return err
	}
	for _, p := range pairs {
		w.compareObject(p)
	}
	w.progress("objects", w.results.countChecked("objects", int64(len(keys))))
	return nil
}

// loadPairs reads objects with their retained objects, by the hashes of their keys.
func loadPairs(ctx context.Context, tx pgx.Tx, keys []versioning.Key) (map[int64]*objectPair, error) {
	wanted := make([]versioning.LoadRequest, len(keys))
	for i, k := range keys {
		wanted[i] = versioning.LoadRequest{Key: k, MinAt: math.MinInt64, MaxAt: math.MaxInt64}
	}
	have, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	if err != nil {
		return nil, err
	}
	made, err := versioning.Load(ctx, tx, versioning.RetainedObjects, wanted)
	if err != nil {
		return nil, err
	}
	pairs := make(map[int64]*objectPair, len(keys))
	for i := range keys {
		pairs[keys[i].Hash()] = &objectPair{stored: have[i], computed: made[i], outdated: have[i].Outdated() ||
			made[i].Outdated()}
	}
	return pairs, nil
}

// applyEvents applies the events of some objects to the computed rows, page by page. overwritesOnly
// selects refetches that overwrite.
func (w *verification) applyEvents(ctx context.Context, tx pgx.Tx, pairs map[int64]*objectPair, open []int64,
	overwritesOnly bool) error {
	objs := make(map[int64]*versioning.Object, len(pairs))
	for object, p := range pairs {
		objs[object] = p.computed
	}
	after := make([]int64, len(open))
	for len(open) > 0 {
		m, err := readApplied(ctx, tx, pairs, open, after)
		if err != nil {
			return err
		}
		anomalies, err := w.reducer.Reduce(ctx, tx, objs, m.complete, m.ids, overwritesOnly)
		if err != nil {
			return err
		}
		for _, o := range anomalies {
			if p := pairs[o.Object]; p.anomaly.Reason == "" || o.Unreadable && !p.anomaly.Unreadable {
				p.anomaly = o
			}
		}
		open, after = m.open, m.after
	}
	return nil
}

// appliedPage is a page of applied events. open are the objects that may have more, after the
// events in after.
type appliedPage struct {
	complete    map[apply.AppliedEvent]bool
	ids         []int64
	open, after []int64
}

func readApplied(ctx context.Context, tx pgx.Tx, pairs map[int64]*objectPair, open, after []int64) (*appliedPage,
	error) {
	page := &appliedPage{complete: map[apply.AppliedEvent]bool{}}
	counts, last := map[int64]int64{}, map[int64]int64{}
	var m apply.AppliedEvent
	var complete bool
	var rule int32
	var n int64
	if err := postgres.ForEach(ctx, tx, appliedEventsSQL, []any{open, after, appliedRows},
		[]any{&m.Object, &m.Event, &complete, &rule, &n}, func() error {
			page.complete[m] = complete
			page.ids = append(page.ids, m.Event)
			pairs[m.Object].outdated = pairs[m.Object].outdated || rule != versioning.RuleVersion
			counts[m.Object] += n
			last[m.Object] = m.Event
			return nil
		}); err != nil {
		return nil, fmt.Errorf("read the applied events of %d objects: %w", len(open), err)
	}
	page.ids = slices.Compact(page.ids)
	for object, n := range counts {
		if n >= appliedRows {
			page.open, page.after = append(page.open, object), append(page.after, last[object])
		}
	}
	return page, nil
}

// compareObject reports how an object differs from the result of its events. The time of a pending
// refetch may depend on their order, so it is ignored.
func (w *verification) compareObject(p *objectPair) {
	if p.stored.Outdated() {
		w.results.note("%d objects were decided by an older rule: postern rebuild decides them again", 1)
	}
	what := objectDifferences(&p.stored.Row, &p.computed.Row)
	switch {
	case len(what) == 0:
	case p.anomaly.Unreadable:
		w.results.note("%d objects were not compared, because some of their events cannot be read here: "+
			p.anomaly.Reason, 1)
	case p.outdated && p.anomaly.Reason == "":
		w.results.note("%d objects differ from the result of the current rule, but an older rule decided some of "+
			"their events: postern rebuild decides them again", 1)
	case w.redacting:
		w.results.note(
			"%d objects differ from the result of their events during a redaction: verify again when it has ended", 1)
	case w.noteSwapping(p.stored.Key):
	default:
		w.results.add(violationKind(p), w.objectItem(p.stored.Key, describeObject(p, what)))
	}
}

// violationKind classifies a difference as a kind of violation.
func violationKind(p *objectPair) Kind {
	switch have, made := &p.stored.Row, &p.computed.Row; {
	case made.Version.Final && made.State.Deleted && !have.State.Deleted:
		return TombstoneRevived
	case have.OverwrittenAt == made.OverwrittenAt && have.Version.Compare(made.Version) < 0:
		return ObjectOlder
	}
	return ObjectDiffers
}

func describeObject(p *objectPair, what []string) string {
	text := "differs from the result of its events: " + strings.Join(what, ", ")
	if have, made := p.stored.Version, p.computed.Version; have != made {
		text += fmt.Sprintf("; the mirror has %s, the result is %s", have, made)
	}
	if p.anomaly.Reason != "" {
		text += fmt.Sprintf("; event %d %s", p.anomaly.Event, p.anomaly.Reason)
	}
	return text
}

func (w *verification) objectItem(k versioning.Key, detail string) Item {
	source := w.sourceName(k.Source)
	return Item{Source: source, Account: k.Account, ObjectType: k.Type, ObjectID: k.ID, Detail: detail,
		Repair: "postern rebuild --source " + source + " --type " + k.Type}
}
