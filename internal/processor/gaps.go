package processor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/versioning"
)

// A change-set that does not fit the row tells of an event that is late or lost. That the object is to be looked at, unless the event comes, is a hint, written with
// the outcome.

const readGapsSQL = `
SELECT d.n, h.gaps FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(source, account, object_type, object_id, n)
JOIN hints h ON h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id AND h.gaps IS NOT NULL`

// keepGapsSQL writes hints in the order of their keys, as who gathers others does. One that is being seen to, or is parked, is due again after the wait.
const keepGapsSQL = `
INSERT INTO hints AS h (source, account, object_type, object_id, reason, made_at, due, after, gaps)
SELECT d.source, d.account, d.object_type, d.object_id, d.reason, n.at, n.at + d.wait, 0, d.gaps
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::interval[], $7::text[]) AS d(source, account, object_type, object_id, gaps, wait, reason),
  (SELECT clock_now() AS at) n
ORDER BY d.source, d.account, d.object_type, d.object_id
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET gaps = excluded.gaps,
  reason = CASE WHEN excluded.gaps IS NOT NULL AND h.wanted_by = '' AND h.after = 0 THEN excluded.reason ELSE h.reason END,
  made_at = CASE WHEN excluded.gaps IS NULL THEN h.made_at ELSE greatest(excluded.made_at, h.made_at + interval '1 microsecond') END,
  due = CASE WHEN h.taken_by <> '' OR h.due = 'infinity' AND excluded.gaps IS NOT NULL THEN excluded.due ELSE h.due END`

// closedSQL drops those of these hints that are for nothing any more; keepGapsSQL has locked them. One that is being seen to is dropped by whoever does.
const closedSQL = `
DELETE FROM hints h USING unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account, object_type, object_id)
WHERE h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id
  AND h.gaps IS NULL AND h.wanted_by = '' AND h.after = 0 AND h.taken_by = ''`

// gaps are those of an object, and what a batch says of them.
type gaps struct {
	key  versioning.Key
	fits []versioning.Fit
	wait time.Duration
	// late is what an event that came late has done to the object, nil where none has.
	late *shift
	// stored are what a hint had before, and now what it is to have.
	stored, now versioning.Gaps
}

// reason is why the object is to be looked at.
func (g *gaps) reason() string {
	if g.now.HasLate() {
		return "an event came late"
	}
	return "a change does not fit"
}

// keepGaps keeps what the items of a batch that tell of it, in the order in which they were decided, say of changes that were not seen, and what came late.
func (p *Processor) keepGaps(ctx context.Context, tx pgx.Tx, telling []*item, shifts []*shift, all []*item) error {
	late, err := p.late(ctx, tx, shifts, all)
	if err != nil {
		return err
	}
	if owed := p.waiting(telling, late); len(owed) > 0 {
		return storeGaps(ctx, tx, owed)
	}
	return nil
}

// storeGaps changes hints by what a batch says of their objects.
func storeGaps(ctx context.Context, tx pgx.Tx, all []*gaps) error {
	if err := readGaps(ctx, tx, all); err != nil {
		return fmt.Errorf("read gaps of %d objects: %w", len(all), err)
	}
	all = slices.DeleteFunc(all, func(g *gaps) bool {
		g.now = g.stored
		for i := range g.fits {
			g.now = g.now.After(&g.fits[i])
		}
		if g.late != nil {
			g.now = g.now.Late(g.late.from)
		}
		return slices.Equal(g.now, g.stored)
	})
	if len(all) == 0 {
		return nil
	}
	if err := writeGaps(ctx, tx, all); err != nil {
		return fmt.Errorf("keep gaps of %d objects: %w", len(all), err)
	}
	return nil
}

// telling are the items that tell of gaps: those of live events.
func (to *Target) telling(items []*item) []*item {
	if !to.live() {
		return nil
	}
	return items
}

// waiting are the objects of which items tell something that matters, or that an event has reached late, where the source's API reads them, by their keys. What fits and is newer, as nearly all
// does, is nobody's concern: no hint need be read for it.
func (p *Processor) waiting(items []*item, late []*shift) []*gaps {
	byKey := map[versioning.Key]*gaps{}
	of := func(k versioning.Key) *gaps {
		if byKey[k] == nil {
			byKey[k] = &gaps{key: k}
		}
		return byKey[k]
	}
	for _, it := range items {
		if it.tells {
			g := of(it.key)
			g.fits = append(g.fits, it.fit)
		}
	}
	for _, c := range late {
		of(c.key).late = c
	}
	all := slices.Collect(maps.Values(byKey))
	all = slices.DeleteFunc(all, func(g *gaps) bool {
		src, _ := p.sources.source(p.sources.name(g.key.Source))
		g.wait = src.Stragglers
		return g.late == nil && (!slices.ContainsFunc(g.fits, func(f versioning.Fit) bool { return f.Matters() }) || g.wait == 0 || !p.minds(g))
	})
	slices.SortFunc(all, func(a, b *gaps) int {
		return cmp.Or(cmp.Compare(a.key.Source, b.key.Source), cmp.Compare(a.key.Account, b.key.Account), cmp.Compare(a.key.Type, b.key.Type), cmp.Compare(a.key.ID, b.key.ID))
	})
	return all
}

// minds says whether what a batch tells of an object is kept. Of one that is not read by its name only a late event owes a look, so that nothing but a look matters.
func (p *Processor) minds(g *gaps) bool {
	return p.reads(g.key) || p.locates(g.key) && slices.ContainsFunc(g.fits, func(f versioning.Fit) bool { return f.Looked() })
}

func columnsOf(all []*gaps) (sources []int32, accounts, types, ids []string) {
	for _, g := range all {
		sources, accounts, types, ids = append(sources, g.key.Source), append(accounts, g.key.Account), append(types, g.key.Type), append(ids, g.key.ID)
	}
	return sources, accounts, types, ids
}

func readGaps(ctx context.Context, tx pgx.Tx, all []*gaps) error {
	sources, accounts, types, ids := columnsOf(all)
	rows, err := tx.Query(ctx, readGapsSQL, sources, accounts, types, ids)
	if err != nil {
		return err
	}
	var n int
	var text []byte
	_, err = pgx.ForEachRow(rows, []any{&n, &text}, func() (err error) {
		all[n-1].stored, err = versioning.DecodeGaps(text)
		return err
	})
	return err
}

func writeGaps(ctx context.Context, tx pgx.Tx, all []*gaps) error {
	sources, accounts, types, ids := columnsOf(all)
	texts, waits, reasons := make([][]byte, len(all)), make([]time.Duration, len(all)), make([]string, len(all))
	for i, g := range all {
		var err error
		if texts[i], err = g.now.Encode(); err != nil {
			return err
		}
		waits[i], reasons[i] = g.wait, g.reason()
	}
	if _, err := tx.Exec(ctx, keepGapsSQL, sources, accounts, types, ids, texts, waits, reasons); err != nil {
		return err
	}
	if all = slices.DeleteFunc(all, func(g *gaps) bool { return g.now != nil }); len(all) == 0 {
		return nil
	}
	sources, accounts, types, ids = columnsOf(all)
	_, err := tx.Exec(ctx, closedSQL, sources, accounts, types, ids)
	return err
}
