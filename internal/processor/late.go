package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

// What a sweep has found to be equal keeps its version. So an event from before the sweep that comes after it may win over a state that was proven, and what has followed on it may be lost: the
// object is to be looked at.

// shift is what a batch has made of an object's state.
type shift struct {
	key     versioning.Key
	from    versioning.Hash
	version versioning.Version
	// end is until when what won may have happened, in microseconds of the provider's time.
	end int64
}

// shifts are those of objects whose state a batch has changed by events, not by looks. One that ends in doubt is among them: a later event may end the doubt, and tells nothing of what was proven.
func shifts(before map[versioning.Key]seen, dirty []*versioning.Object) (all []*shift) {
	for _, o := range dirty {
		was, gone := before[o.Key], o.State.Deleted
		switch {
		case o.Version == versioning.NoVersion, o.Version.Final, o.HasLook():
		case was.gone && gone, was.gone == gone && was.state == o.State.Hash:
		default:
			all = append(all, &shift{key: o.Key, from: was.state, version: o.Version, end: o.Hi})
		}
	}
	return all
}

// ownEnds sets until when what won may have happened where that is of a version of the object's own. A time tells it, also where it is not known to move with each change, so that windows reach to the receipt:
// what changes without moving it is late by it. Of a number that counts changes the event's time tells, else its receipt. items are those of the batch.
func ownEnds(all []*shift, items []*item) {
	won := make(map[versioning.Key]*shift, len(all))
	for _, s := range all {
		won[s.key] = s
	}
	met := map[versioning.Key]bool{}
	for _, it := range items {
		s := won[it.key]
		if s == nil || !it.input.Own || it.input.Version != s.version {
			continue
		}
		if end := it.ownEnd(); !met[it.key] || end < s.end {
			met[it.key], s.end = true, end
		}
	}
}

// ownEnd is when what an item with a version of its own tells happened, at the latest.
func (it *item) ownEnd() int64 {
	switch {
	case it.input.Version.Timed():
		return it.input.Version.At
	case !it.ev.OccurredAt.IsZero():
		return it.ev.OccurredAt.UnixMicro()
	}
	return it.input.Received
}

// provenTypesSQL is until when types of objects are proven, or will be once a sweep is done that has begun.
const provenTypesSQL = `
SELECT d.n, p.until FROM unnest($1::int[], $2::text[], $3::text[]) WITH ORDINALITY AS d(source, account, object_type, n) CROSS JOIN LATERAL (SELECT greatest(
  (SELECT max(m.until) FROM watermarks m WHERE m.source = d.source AND m.account = d.account AND m.what IN ('type ' || d.object_type, 'versions ' || d.object_type, 'changes ' || d.object_type)),
  (SELECT max(s.began) FROM runs r JOIN sweeps s ON s.run = r.run AND s.object_type = d.object_type
   WHERE r.job = 'reconcile' AND r.ended_at IS NULL AND s.source = d.source AND s.account = d.account AND s.phase <> 'done')) AS until) p
WHERE p.until IS NOT NULL`

// sameSecond: the times of most providers' events are whole seconds, in which what is proven may end.
const sameSecond = time.Second

// late are those shifts, by the items of a batch, that happened before what is proven of their type, where the source's API reads the object.
func (p *Processor) late(ctx context.Context, tx pgx.Tx, all []*shift, items []*item) (late []*shift, err error) {
	var sources []int32
	var accounts, types []string
	place := map[versioning.Key]int{} // from 1; 0: the source has no API
	for _, s := range all {
		k := s.kind()
		if _, met := place[k]; met {
			continue
		}
		place[k] = 0
		if src, _ := p.sources.source(p.sources.name(k.Source)); src.Reads != nil || src.Locates != nil {
			sources, accounts, types = append(sources, k.Source), append(accounts, k.Account), append(types, k.Type)
			place[k] = len(sources)
		}
	}
	if len(sources) == 0 {
		return nil, nil
	}
	proven := map[int]int64{}
	rows, err := tx.Query(ctx, provenTypesSQL, sources, accounts, types)
	if err == nil {
		var n int
		var until time.Time
		_, err = pgx.ForEachRow(rows, []any{&n, &until}, func() error { proven[n] = until.Add(sameSecond).UnixMicro(); return nil })
	}
	if err != nil {
		return nil, fmt.Errorf("read what is proven of %d types: %w", len(sources), err)
	}
	if len(proven) == 0 {
		return nil, nil
	}
	ownEnds(all, items)
	for _, s := range all {
		if until, ok := proven[place[s.kind()]]; ok && s.end < until && (p.reads(s.key) || p.locates(s.key)) {
			late = append(late, s)
		}
	}
	return late, nil
}

// kind is the type of the object in its account.
func (s *shift) kind() versioning.Key {
	return versioning.Key{Source: s.key.Source, Account: s.key.Account, Type: s.key.Type}
}

// locates says whether the source's API reads objects of a type by what is known of them.
func (p *Processor) locates(k versioning.Key) bool {
	src, _ := p.sources.source(p.sources.name(k.Source))
	return src.Locates != nil && src.Locates(k.Account, k.Type)
}

// reads says whether the source's API reads an object by its name.
func (p *Processor) reads(k versioning.Key) bool {
	src, _ := p.sources.source(p.sources.name(k.Source))
	return src.Reads != nil && src.Reads(k.Account, k.Type, k.ID)
}
