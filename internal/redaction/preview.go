package redaction

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// siblingsSQL finds the events of the same deliveries. One delivery has one body, and its
	// events have ids of one millisecond.
	siblingsSQL = `
SELECT DISTINCT e.id FROM (SELECT DISTINCT d.delivery_id FROM events d WHERE d.id = ANY($1::bigint[])) d
CROSS JOIN LATERAL (SELECT e.id FROM events e WHERE e.id >= (d.delivery_id >> 20) << 20
	AND e.id <= d.delivery_id | 1048575 AND e.delivery_id = d.delivery_id) e`

	ofObjectSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = $1 AND object <> 0 AND event_id > $2
		AND event_id <= $3 ORDER BY event_id LIMIT $4`

	// namedAtIngestSQL finds events that named an object at ingest. They may have been applied to
	// no object: they failed, are dead or ignored, or have no outcome yet.
	namedAtIngestSQL = `
SELECT e.id FROM events e JOIN unnest($3::int[], $4::text[], $5::text[], $6::text[]) AS o(source, account, object_type,
	object_id) USING (source, account, object_type, object_id)
WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id`
)

// siblings returns the events and all others of their deliveries.
func siblings(ctx context.Context, pool *pgxpool.Pool, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	all, err := collect(ctx, pool, siblingsSQL, ids)
	if err != nil {
		return nil, err
	}
	all = append(all, ids...) // events of dropped partitions have no siblings
	slices.Sort(all)
	return slices.Compact(all), nil
}

// eachEventOf calls do with batches of the events that were applied to an object, up to a bound. It
// includes events of dropped partitions.
func eachEventOf(ctx context.Context, pool *pgxpool.Pool, o Object, bound int64, do func(ids []int64) error) error {
	for after := int64(0); ; {
		ids, err := collect(ctx, pool, ofObjectSQL, o.hash(), after, bound, redactBatch)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := do(ids); err != nil {
			return err
		}
		after = ids[len(ids)-1]
	}
}

// namedAtIngest returns the events of a part of the log that named an object of the parameters at
// ingest.
func (o *Params) namedAtIngest(ctx context.Context, pool *pgxpool.Pool, after, end int64) ([]int64, error) {
	if len(o.Objects) == 0 {
		return nil, nil
	}
	var k keys
	for _, object := range o.Objects {
		k.add(object)
	}
	return collect(ctx, pool, namedAtIngestSQL, after, end, k.sources, k.accounts, k.types, k.ids)
}

// keys are objects as four arrays, for the database.
type keys struct {
	sources              []int32
	accounts, types, ids []string
}

func (k *keys) add(o Object) {
	k.sources, k.accounts, k.types, k.ids = append(k.sources, o.Source), append(k.accounts, o.Account),
		append(k.types, o.Type), append(k.ids, o.ID)
}

// Preview counts the data that a redaction would clear now.
type Preview struct {
	// Events counts the events of whole deliveries. AlreadyRedacted
	// counts those that are redacted already.
	Events          int64 `json:"events"`
	AlreadyRedacted int64 `json:"already"`
	Objects         int64 `json:"objects"`
	// Dropped counts events of dropped partitions, of which only outcomes remain.
	Dropped int64 `json:"dropped"`
	// WholeDeliveries reports that some deliveries have more events than were selected. A delivery
	// is cleared as a whole.
	WholeDeliveries bool `json:"shared"`
	// Requests counts senders' requests that were found and are not answered yet. They stay until
	// then, and are cleared by their own redaction.
	Requests int64 `json:"requests"`
	// Unread counts events whose body is neither JSON nor a form. Only the literal value was
	// searched there. FirstUnread is one of them.
	Unread      int64 `json:"unread"`
	FirstUnread int64 `json:"first_unread,string,omitempty"`
	// From and To are the times of the first and the last id.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
	// Examined is the number of examined events.
	Examined int64 `json:"searched"`
	// Types counts the selected data by object type, or by event type for events without an object.
	Types []TypeCount `json:"types"`
	// SharedTypes counts the data that names another person too. It stays unless its type is
	// included.
	SharedTypes []TypeCount `json:"shared_types,omitempty"`
	// Rejections, Conflicts, Effects (with baselines), Refetches and Differences count matches
	// outside of the log and the objects. They are cleared too. Conflicts of selected events are
	// cleared in addition.
	Rejections  int64 `json:"rejections,omitempty"`
	Conflicts   int64 `json:"conflicts,omitempty"`
	Effects     int64 `json:"effects,omitempty"`
	Refetches   int64 `json:"refetch_requests,omitempty"`
	Differences int64 `json:"differences,omitempty"`
	// Others counts the data that mentions the id of an object to redact, and stays.
	Others []TypeCount `json:"others,omitempty"`
}

// TypeCount counts events and mirrored objects of one type.
type TypeCount struct {
	Type    string `json:"type"`
	Objects int64  `json:"objects"`
	Events  int64  `json:"events"`
	// Example is one of the objects.
	Example string `json:"example,omitempty"`
}

const previewSQL = `
SELECT (SELECT count(*) FROM redacted_events r WHERE r.event = ANY($1::bigint[])), (SELECT count(*) FROM events e
	WHERE e.id = ANY($1::bigint[])),
  ARRAY(SELECT coalesce(nullif(e.object_type, ''), e.event_type) FROM events e WHERE e.id = ANY($1::bigint[]))`

const previewObjectsSQL = `
SELECT DISTINCT o.object, o.object_type, o.object_id FROM outcomes o JOIN objects b USING (source, account, object_type,
	object_id)
WHERE o.event_id = ANY($1::bigint[]) AND o.object <> 0`

// typeCounts counts by type. Each object counts once.
type typeCounts map[string]*typeCounter

type typeCounter struct {
	events  int64
	objects map[int64]bool
	example string
}

func (t typeCounts) ofType(kind string) *typeCounter {
	if t[kind] == nil {
		t[kind] = &typeCounter{objects: map[int64]bool{}}
	}
	return t[kind]
}

func (t typeCounts) addObject(hash int64, kind, id string) {
	one := t.ofType(kind)
	one.objects[hash] = true
	if one.example == "" {
		one.example = id
	}
}

// list returns the counts as a list, ordered by type.
func (t typeCounts) list() []TypeCount {
	list := []TypeCount{}
	for _, kind := range slices.Sorted(maps.Keys(t)) {
		list = append(list, TypeCount{Type: kind, Objects: int64(len(t[kind].objects)), Events: t[kind].events,
			Example: t[kind].example})
	}
	return list
}

// previewer collects a preview.
type previewer struct {
	Preview
	pool    *pgxpool.Pool
	counted map[int64]bool
	// types counts selected data, shared counts data that stays because it names others, and
	// mentions counts data that mentions the id of a selected object.
	types, shared, mentions typeCounts
	report                  func(Preview)
	openRequests            *openRequests
	requestedBy             int64
}

// BuildPreview returns the preview of a redaction. It changes nothing. It calls report, if not nil,
// with the progress from time to time.
func BuildPreview(ctx context.Context, pool *pgxpool.Pool, o *Params, report func(Preview)) (*Preview, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	bound, err := events.NewestID(ctx, pool)
	if err != nil {
		return nil, err
	}
	l := &previewer{pool: pool, counted: map[int64]bool{}, types: typeCounts{}, shared: typeCounts{},
		mentions: typeCounts{}, report: report, requestedBy: o.RequestedBy}
	if l.openRequests, err = loadOpenRequests(ctx, pool); err != nil {
		return nil, err
	}
	add := func(ids []int64) error { return l.addFound(ctx, ids) }
	for _, object := range o.Objects {
		if err := l.addNamed(ctx, object); err != nil {
			return nil, err
		}
		if err := eachEventOf(ctx, pool, object, bound, add); err != nil {
			return nil, err
		}
	}
	if err := l.addEvents(ctx, o.Events); err != nil {
		return nil, err
	}
	if err := l.readLog(ctx, o, o.mentionsOfObjects(), bound); err != nil {
		return nil, err
	}
	for _, table := range tables() {
		if !o.searchesBodies() {
			break
		}
		if _, err := o.eachMatchingObject(ctx, pool, table, math.MaxInt64, nil, l.addObjects); err != nil {
			return nil, err
		}
	}
	if err := l.addOtherTables(ctx, o); err != nil {
		return nil, err
	}
	if mentions := o.mentionsOfObjects(); mentions != nil {
		if _, err := mentions.eachMatchingObject(ctx, pool, mirrorTable, math.MaxInt64, nil,
			l.addMentioningObjects); err != nil {
			return nil, err
		}
	}
	l.Types, l.SharedTypes, l.Others = l.types.list(), l.shared.list(), l.mentions.list()
	return &l.Preview, nil
}

// mentionsOfObjects returns parameters that find mentions of the ids of the named objects; nil if
// the parameters search for values themselves, or no id is long enough.
func (o *Params) mentionsOfObjects() *Params {
	if len(o.Objects) == 0 || o.searchesBodies() {
		return nil
	}
	mentions := &Params{Source: o.Objects[0].Source, Account: &o.Objects[0].Account}
	for _, object := range o.Objects {
		if f, err := NewMentionMatcher(object.ID); err == nil {
			mentions.Matchers = append(mentions.Matchers, f)
		}
	}
	if len(mentions.Matchers) == 0 {
		return nil
	}
	return mentions
}

// readLog adds the matches of the log to the preview.
func (l *previewer) readLog(ctx context.Context, o, mentions *Params, bound int64) error {
	for at := int64(0); o.readsLog() && at < bound; {
		ids, end, err := events.Match(ctx, l.pool, o.filter(), at, bound)
		if err != nil {
			return err
		}
		found, err := o.namedAtIngest(ctx, l.pool, at, end)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(ids, readBatch) {
			selected, err := o.selectEvents(ctx, l.pool, some)
			if err != nil {
				return err
			}
			l.addUnreadable(selected.unreadable)
			found = append(found, selected.found...)
			for i := range selected.shared {
				l.addRemaining(l.shared, &selected.shared[i])
			}
			l.Examined += int64(len(some))
		}
		slices.Sort(found)
		for some := range slices.Chunk(slices.Compact(found), readBatch) {
			if err := l.addFound(ctx, some); err != nil {
				return err
			}
		}
		if err := l.addMentions(ctx, mentions, ids); err != nil {
			return err
		}
		if at = end; l.report != nil {
			l.report(l.Preview)
		}
	}
	return nil
}

// addNamed adds an object if it exists; the name may be misspelt.
func (l *previewer) addNamed(ctx context.Context, o Object) error {
	found, err := versioning.FindObjects(ctx, l.pool, o.Source, &o.Account, o.Type, o.ID)
	if len(found) > 0 {
		l.addObject(o.hash(), o.Type, o.ID)
	}
	return err
}

// addMentions adds events that mention an object and are not selected.
func (l *previewer) addMentions(ctx context.Context, mentions *Params, ids []int64) error {
	if mentions == nil {
		return nil
	}
	for some := range slices.Chunk(ids, readBatch) {
		rest := slices.DeleteFunc(slices.Clone(some), func(id int64) bool { return l.counted[id] })
		selected, err := mentions.selectEvents(ctx, l.pool, rest)
		if err != nil {
			return err
		}
		recs, err := events.Read(ctx, l.pool, selected.found, 0)
		if err != nil {
			return err
		}
		for i := range recs {
			l.addRemaining(l.mentions, &recs[i])
		}
		l.Examined += int64(len(rest))
	}
	return nil
}

// addMentioningObjects adds objects that mention an object and are not selected.
func (l *previewer) addMentioningObjects(found []objectRow) (runs.Status, error) {
	for _, o := range found {
		if selected := l.types[o.Type]; selected == nil || !selected.objects[o.hash()] {
			l.mentions.addObject(o.hash(), o.Type, o.ID)
		}
	}
	return runs.Running, nil
}

// addRemaining adds an event that stays.
func (l *previewer) addRemaining(in typeCounts, e *events.Record) {
	one := in.ofType(subjectOf(e).kind)
	one.events++
	if one.example == "" {
		one.example = e.ObjectID
	}
}

// addObjects adds objects of a table.
func (l *previewer) addObjects(found []objectRow) (runs.Status, error) {
	for _, o := range found {
		if o.namesOthers {
			l.shared.addObject(o.hash(), o.Type, o.ID)
			continue
		}
		l.addObject(o.hash(), o.Type, o.ID)
	}
	return runs.Running, nil
}

// addObject adds a selected object, once.
func (l *previewer) addObject(hash int64, kind, id string) {
	if !l.types.ofType(kind).objects[hash] {
		l.Objects++
		l.types.addObject(hash, kind, id)
	}
}

// addUnreadable adds events whose body cannot be read.
func (l *previewer) addUnreadable(ids []int64) {
	if l.Unread == 0 && len(ids) > 0 {
		l.FirstUnread = ids[0]
	}
	l.Unread += int64(len(ids))
}

// addFound adds events that were found, without open requests.
func (l *previewer) addFound(ctx context.Context, ids []int64) error {
	ids, left, err := l.openRequests.exclude(ctx, l.pool, ids, l.requestedBy)
	if err != nil {
		return err
	}
	l.Requests += left
	return l.addEvents(ctx, ids)
}

// addEvents adds events, each once.
func (l *previewer) addEvents(ctx context.Context, ids []int64) error {
	all, err := siblings(ctx, l.pool, ids)
	if err != nil || len(all) == 0 {
		return err
	}
	l.WholeDeliveries = l.WholeDeliveries || len(all) > len(ids)
	all = slices.DeleteFunc(all, func(id int64) bool { return l.counted[id] })
	var already, stored int64
	var types []string
	if err := l.pool.QueryRow(ctx, previewSQL, all).Scan(&already, &stored, &types); err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	for _, kind := range types {
		l.types.ofType(kind).events++
	}
	var hash int64
	var kind, id string
	if err := postgres.ForEach(ctx, l.pool, previewObjectsSQL, []any{all}, []any{&hash, &kind, &id}, func() error {
		l.addObject(hash, kind, id)
		return nil
	}); err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	for _, id := range all {
		l.counted[id] = true
		at := events.Time(id)
		if l.From.IsZero() || at.Before(l.From.Time) {
			l.From.Time = at
		}
		if at.After(l.To.Time) {
			l.To.Time = at
		}
	}
	l.Events += stored
	l.AlreadyRedacted += already
	l.Dropped += int64(len(all)) - stored
	return nil
}
