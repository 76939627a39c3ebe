package redaction

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// siblingsSQL: one body is all of a delivery's; its events were made in one millisecond.
	siblingsSQL = `
SELECT DISTINCT e.id FROM (SELECT DISTINCT d.delivery_id FROM events d WHERE d.id = ANY($1::bigint[])) d
CROSS JOIN LATERAL (SELECT e.id FROM events e WHERE e.id >= (d.delivery_id >> 20) << 20 AND e.id <= d.delivery_id | 1048575 AND e.delivery_id = d.delivery_id) e`

	ofObjectSQL = `SELECT DISTINCT event_id FROM outcomes WHERE object = $1 AND object <> 0 AND event_id > $2 AND event_id <= $3 ORDER BY event_id LIMIT $4`

	// atDoorSQL: what named an object when it came may have been applied to none: it failed, is dead, was ignored, or has no outcome yet.
	atDoorSQL = `
SELECT e.id FROM events e JOIN unnest($3::int[], $4::text[], $5::text[], $6::text[]) AS o(source, account, object_type, object_id) USING (source, account, object_type, object_id)
WHERE e.id > $1 AND e.id <= $2 ORDER BY e.id`
)

// siblings are the events and all others of their deliveries.
func siblings(ctx context.Context, pool *pgxpool.Pool, ids []int64) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	all, err := collect(ctx, pool, siblingsSQL, ids)
	if err != nil {
		return nil, err
	}
	all = append(all, ids...) // those that retention has dropped have none
	slices.Sort(all)
	return slices.Compact(all), nil
}

// eachOf gives the events that were applied to an object, up to a bound, some at a time; also those that retention has dropped.
func eachOf(ctx context.Context, pool *pgxpool.Pool, o Object, bound int64, do func(ids []int64) error) error {
	for after := int64(0); ; {
		ids, err := collect(ctx, pool, ofObjectSQL, o.hash(), after, bound, redactAtOnce)
		if err != nil || len(ids) == 0 {
			return err
		}
		if err := do(ids); err != nil {
			return err
		}
		after = ids[len(ids)-1]
	}
}

// atDoor are the events of a stretch of the log that named an object of the order when they came.
func (o *Order) atDoor(ctx context.Context, pool *pgxpool.Pool, after, end int64) ([]int64, error) {
	if len(o.Objects) == 0 {
		return nil, nil
	}
	var k keys
	for _, object := range o.Objects {
		k.add(object)
	}
	return collect(ctx, pool, atDoorSQL, after, end, k.sources, k.accounts, k.types, k.ids)
}

// keys are objects as four arrays, for the database.
type keys struct {
	sources              []int32
	accounts, types, ids []string
}

func (k *keys) add(o Object) {
	k.sources, k.accounts, k.types, k.ids = append(k.sources, o.Source), append(k.accounts, o.Account), append(k.types, o.Type), append(k.ids, o.ID)
}

// Preview is what a redaction would clear, as of now.
type Preview struct {
	// Events counts those of whole deliveries; Already, how many of them are redacted.
	Events  int64 `json:"events"`
	Already int64 `json:"already"`
	Objects int64 `json:"objects"`
	// Dropped are events that retention has dropped, of which only outcomes are left.
	Dropped int64 `json:"dropped"`
	// Shared: some deliveries carry more events than were asked for, and go whole.
	Shared bool `json:"shared"`
	// Requests are senders' requests that were found and nobody has answered: they are left until then, and go with their own answer.
	Requests int64 `json:"requests"`
	// Unread are events whose body is neither JSON nor a form: only for the value as it stands was looked there. FirstUnread is one of them.
	Unread      int64 `json:"unread"`
	FirstUnread int64 `json:"first_unread,string,omitempty"`
	// From and To are the times that the first and last id carry.
	From events.Instant `json:"from"`
	To   events.Instant `json:"to"`
	// Looked is how many events were looked at.
	Looked int64 `json:"looked_at"`
	// Types are what is chosen by the type of its object, and of the event where that is about none.
	Types []TypeCount `json:"types"`
	// SharedTypes are what names another person too: it is left unless its type is included.
	SharedTypes []TypeCount `json:"shared_types,omitempty"`
	// Rejections, Conflicts, Effects (with states that are held for them), Refetches and Differences count what has a value the
	// order looks for and is cleared beside the log and the objects. Conflicts of chosen events are cleared too.
	Rejections  int64 `json:"rejections,omitempty"`
	Conflicts   int64 `json:"conflicts,omitempty"`
	Effects     int64 `json:"effects,omitempty"`
	Refetches   int64 `json:"refetch_requests,omitempty"`
	Differences int64 `json:"differences,omitempty"`
	// Others are what mentions the id of an object that is to be redacted, and stays.
	Others []TypeCount `json:"others,omitempty"`
}

// TypeCount counts events, and objects of the mirror, of one type.
type TypeCount struct {
	Type    string `json:"type"`
	Objects int64  `json:"objects"`
	Events  int64  `json:"events"`
	// Example is one of the objects.
	Example string `json:"example,omitempty"`
}

const previewSQL = `
SELECT (SELECT count(*) FROM redacted r WHERE r.event = ANY($1::bigint[])), (SELECT count(*) FROM events e WHERE e.id = ANY($1::bigint[])),
  ARRAY(SELECT coalesce(nullif(e.object_type, ''), e.event_type) FROM events e WHERE e.id = ANY($1::bigint[]))`

const previewObjectsSQL = `
SELECT DISTINCT o.object, o.object_type, o.object_id FROM outcomes o JOIN objects b USING (source, account, object_type, object_id)
WHERE o.event_id = ANY($1::bigint[]) AND o.object <> 0`

// tally counts by type. Objects count once.
type tally map[string]*tallied

type tallied struct {
	events  int64
	objects map[int64]bool
	example string
}

func (t tally) of(kind string) *tallied {
	if t[kind] == nil {
		t[kind] = &tallied{objects: map[int64]bool{}}
	}
	return t[kind]
}

func (t tally) object(hash int64, kind, id string) {
	one := t.of(kind)
	one.objects[hash] = true
	if one.example == "" {
		one.example = id
	}
}

// counts are the tally as a list, by type.
func (t tally) counts() []TypeCount {
	list := []TypeCount{}
	for _, kind := range slices.Sorted(maps.Keys(t)) {
		list = append(list, TypeCount{Type: kind, Objects: int64(len(t[kind].objects)), Events: t[kind].events, Example: t[kind].example})
	}
	return list
}

// look gathers a preview.
type look struct {
	Preview
	pool *pgxpool.Pool
	seen map[int64]bool
	// types tally what is chosen, shared what is left, mentions what mentions the id of an object of the order.
	types, shared, mentions tally
	tell                    func(Preview)
	others                  *others
	own                     int64
}

// Look says what an order would clear, without clearing anything. tell, if not nil, hears now and then how far it is.
func Look(ctx context.Context, pool *pgxpool.Pool, o *Order, tell func(Preview)) (*Preview, error) {
	if err := o.read(); err != nil {
		return nil, err
	}
	bound, err := events.Newest(ctx, pool)
	if err != nil {
		return nil, err
	}
	l := &look{pool: pool, seen: map[int64]bool{}, types: tally{}, shared: tally{}, mentions: tally{}, tell: tell, own: o.RequestedBy}
	if l.others, err = requestsOfOthers(ctx, pool); err != nil {
		return nil, err
	}
	add := func(ids []int64) error { return l.found(ctx, ids) }
	for _, object := range o.Objects {
		if err := l.named(ctx, object); err != nil {
			return nil, err
		}
		if err := eachOf(ctx, pool, object, bound, add); err != nil {
			return nil, err
		}
	}
	if err := l.add(ctx, o.Events); err != nil {
		return nil, err
	}
	if err := l.walk(ctx, o, o.ofObjects(), bound); err != nil {
		return nil, err
	}
	for _, table := range tables() {
		if !o.scans() {
			break
		}
		if _, err := o.eachShown(ctx, pool, table, math.MaxInt64, nil, l.shown); err != nil {
			return nil, err
		}
	}
	if err := l.kept(ctx, o); err != nil {
		return nil, err
	}
	if others := o.ofObjects(); others != nil {
		if _, err := others.eachShown(ctx, pool, mirror, math.MaxInt64, nil, l.mentioning); err != nil {
			return nil, err
		}
	}
	l.Types, l.SharedTypes, l.Others = l.types.counts(), l.shared.counts(), l.mentions.counts()
	return &l.Preview, nil
}

// ofObjects is the order that finds what mentions the ids of the objects that this one names; nil where it looks for values
// itself, or no id is long enough.
func (o *Order) ofObjects() *Order {
	if len(o.Objects) == 0 || o.scans() {
		return nil
	}
	others := &Order{Source: o.Objects[0].Source, Account: &o.Objects[0].Account}
	for _, object := range o.Objects {
		if f, err := NewMention(object.ID); err == nil {
			others.Finds = append(others.Finds, f)
		}
	}
	if len(others.Finds) == 0 {
		return nil
	}
	return others
}

// walk takes what the log has into the preview.
func (l *look) walk(ctx context.Context, o, others *Order, bound int64) error {
	for at := int64(0); o.walks() && at < bound; {
		ids, end, err := events.Match(ctx, l.pool, o.filter(), at, bound)
		if err != nil {
			return err
		}
		found, err := o.atDoor(ctx, l.pool, at, end)
		if err != nil {
			return err
		}
		for some := range slices.Chunk(ids, lookAtOnce) {
			chosen, err := o.choose(ctx, l.pool, some)
			if err != nil {
				return err
			}
			l.blind(chosen.unread)
			found = append(found, chosen.found...)
			for i := range chosen.shared {
				l.left(l.shared, &chosen.shared[i])
			}
			l.Looked += int64(len(some))
		}
		slices.Sort(found)
		for some := range slices.Chunk(slices.Compact(found), lookAtOnce) {
			if err := l.found(ctx, some); err != nil {
				return err
			}
		}
		if err := l.mention(ctx, others, ids); err != nil {
			return err
		}
		if at = end; l.tell != nil {
			l.tell(l.Preview)
		}
	}
	return nil
}

// named takes an object into the preview, if there is one of this name: a name may be misspelt.
func (l *look) named(ctx context.Context, o Object) error {
	found, err := versioning.FindObjects(ctx, l.pool, o.Source, &o.Account, o.Type, o.ID)
	if len(found) > 0 {
		l.object(o.hash(), o.Type, o.ID)
	}
	return err
}

// mention takes events into the preview that mention an object and are not chosen.
func (l *look) mention(ctx context.Context, others *Order, ids []int64) error {
	if others == nil {
		return nil
	}
	for some := range slices.Chunk(ids, lookAtOnce) {
		rest := slices.DeleteFunc(slices.Clone(some), func(id int64) bool { return l.seen[id] })
		chosen, err := others.choose(ctx, l.pool, rest)
		if err != nil {
			return err
		}
		recs, err := events.Read(ctx, l.pool, chosen.found, 0)
		if err != nil {
			return err
		}
		for i := range recs {
			l.left(l.mentions, &recs[i])
		}
		l.Looked += int64(len(rest))
	}
	return nil
}

// mentioning takes objects into the preview that mention an object and are not chosen.
func (l *look) mentioning(found []row) (runs.Status, error) {
	for _, o := range found {
		if chosen := l.types[o.Type]; chosen == nil || !chosen.objects[o.hash()] {
			l.mentions.object(o.hash(), o.Type, o.ID)
		}
	}
	return runs.Running, nil
}

// left takes an event into the preview that stays.
func (l *look) left(in tally, e *events.Record) {
	one := in.of(subjectOf(e).kind)
	one.events++
	if one.example == "" {
		one.example = e.ObjectID
	}
}

// shown takes objects into the preview.
func (l *look) shown(found []row) (runs.Status, error) {
	for _, o := range found {
		if o.shared {
			l.shared.object(o.hash(), o.Type, o.ID)
			continue
		}
		l.object(o.hash(), o.Type, o.ID)
	}
	return runs.Running, nil
}

// object takes an object that is chosen into the preview, once.
func (l *look) object(hash int64, kind, id string) {
	if !l.types.of(kind).objects[hash] {
		l.Objects++
		l.types.object(hash, kind, id)
	}
}

// blind takes events that cannot be read into the preview.
func (l *look) blind(ids []int64) {
	if l.Unread == 0 && len(ids) > 0 {
		l.FirstUnread = ids[0]
	}
	l.Unread += int64(len(ids))
}

// found takes events that were found into the preview, without requests that are left.
func (l *look) found(ctx context.Context, ids []int64) error {
	ids, left, err := l.others.spare(ctx, l.pool, ids, l.own)
	if err != nil {
		return err
	}
	l.Requests += left
	return l.add(ctx, ids)
}

// add takes events into the preview, each once.
func (l *look) add(ctx context.Context, ids []int64) error {
	all, err := siblings(ctx, l.pool, ids)
	if err != nil || len(all) == 0 {
		return err
	}
	l.Shared = l.Shared || len(all) > len(ids)
	all = slices.DeleteFunc(all, func(id int64) bool { return l.seen[id] })
	var already, stored int64
	var types []string
	if err := l.pool.QueryRow(ctx, previewSQL, all).Scan(&already, &stored, &types); err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	for _, kind := range types {
		l.types.of(kind).events++
	}
	rows, err := l.pool.Query(ctx, previewObjectsSQL, all)
	if err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	var hash int64
	var kind, id string
	if _, err := pgx.ForEachRow(rows, []any{&hash, &kind, &id}, func() error {
		l.object(hash, kind, id)
		return nil
	}); err != nil {
		return fmt.Errorf("preview a redaction: %w", err)
	}
	for _, id := range all {
		l.seen[id] = true
		at := events.Time(id)
		if l.From.IsZero() || at.Before(l.From.Time) {
			l.From.Time = at
		}
		if at.After(l.To.Time) {
			l.To.Time = at
		}
	}
	l.Events += stored
	l.Already += already
	l.Dropped += int64(len(all)) - stored
	return nil
}
