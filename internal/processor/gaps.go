package processor

import (
	"cmp"
	"context"
	"fmt"
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

// keepGapsSQL writes hints in the order of their keys, as who gathers others does. One that is being seen to is due again after the wait.
const keepGapsSQL = `
INSERT INTO hints AS h (source, account, object_type, object_id, reason, made_at, due, after, gaps)
SELECT d.source, d.account, d.object_type, d.object_id, 'a change does not fit', n.at, n.at + d.wait, 0, d.gaps
FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::interval[]) AS d(source, account, object_type, object_id, gaps, wait),
  (SELECT clock_now() AS at) n
ORDER BY d.source, d.account, d.object_type, d.object_id
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET gaps = excluded.gaps,
  made_at = CASE WHEN excluded.gaps IS NULL THEN h.made_at ELSE greatest(excluded.made_at, h.made_at + interval '1 microsecond') END,
  due = CASE WHEN h.taken_by <> '' THEN excluded.due ELSE h.due END`

// closedSQL drops those of these hints that are for nothing any more; keepGapsSQL has locked them. One that is being seen to is dropped by whoever does.
const closedSQL = `
DELETE FROM hints h USING unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account, object_type, object_id)
WHERE h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id
  AND h.gaps IS NULL AND h.wanted_by = '' AND h.after = 0 AND h.taken_by = ''`

// gaps are those of an object, and what a batch says of them.
type gaps struct {
	key    versioning.Key
	source string
	fits   []versioning.Fit
	wait   time.Duration
	// stored are what a hint had before, and now what it is to have.
	stored, now versioning.Gaps
}

// keepGaps keeps what the items of a batch, in the order in which they were decided, tell of changes that were not seen.
func (p *Processor) keepGaps(ctx context.Context, tx pgx.Tx, items []*item) error {
	all := p.telling(items)
	if len(all) == 0 {
		return nil
	}
	if err := readGaps(ctx, tx, all); err != nil {
		return fmt.Errorf("read gaps of %d objects: %w", len(all), err)
	}
	all = slices.DeleteFunc(all, func(g *gaps) bool {
		g.now = g.stored
		for i := range g.fits {
			g.now = g.now.After(&g.fits[i])
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

// telling are the objects of which items tell something that matters, where the source's API reads them, by their keys. What fits and is newer, as nearly all does,
// is nobody's concern: no hint need be read for it.
func (p *Processor) telling(items []*item) []*gaps {
	var all []*gaps
	byKey := map[versioning.Key]*gaps{}
	for _, it := range items {
		if !it.tells {
			continue
		}
		g, ok := byKey[it.key]
		if !ok {
			g = &gaps{key: it.key, source: it.ev.Source}
			byKey[it.key], all = g, append(all, g)
		}
		g.fits = append(g.fits, it.fit)
	}
	all = slices.DeleteFunc(all, func(g *gaps) bool {
		if !slices.ContainsFunc(g.fits, func(f versioning.Fit) bool { return f.Matters() }) {
			return true
		}
		src, _ := p.sources.source(g.source)
		g.wait = src.Stragglers
		return g.wait == 0 || src.Reads == nil || !src.Reads(g.key.Account, g.key.Type, g.key.ID)
	})
	slices.SortFunc(all, func(a, b *gaps) int {
		return cmp.Or(cmp.Compare(a.key.Source, b.key.Source), cmp.Compare(a.key.Account, b.key.Account), cmp.Compare(a.key.Type, b.key.Type), cmp.Compare(a.key.ID, b.key.ID))
	})
	return all
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
	texts, waits := make([][]byte, len(all)), make([]time.Duration, len(all))
	for i, g := range all {
		var err error
		if texts[i], err = g.now.Encode(); err != nil {
			return err
		}
		waits[i] = g.wait
	}
	if _, err := tx.Exec(ctx, keepGapsSQL, sources, accounts, types, ids, texts, waits); err != nil {
		return err
	}
	if all = slices.DeleteFunc(all, func(g *gaps) bool { return g.now != nil }); len(all) == 0 {
		return nil
	}
	sources, accounts, types, ids = columnsOf(all)
	_, err := tx.Exec(ctx, closedSQL, sources, accounts, types, ids)
	return err
}
