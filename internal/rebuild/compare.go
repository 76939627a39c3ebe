package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Kind is the result of comparing a live object with the staged one.
type Kind string

// The kinds of a comparison. LiveNewer: the live object shows an event that the rebuild has not
// read yet.
const (
	Same       Kind = "same"
	Differing  Kind = "differing"
	OnlyLive   Kind = "only_live"
	OnlyStaged Kind = "only_staged"
	LiveNewer  Kind = "live_newer"
	// RefetchOnly counts objects that are the same except for their pending refetch. The pending
	// refetch may depend on the order of arrival.
	RefetchOnly Kind = "refetch_only"
)

// Page is a part of a comparison.
type Page struct {
	Run int64 `json:"run"`
	// Stage is the rebuild's current step. The comparison covers the log up to Cursor.
	Stage  string `json:"stage"`
	Cursor int64  `json:"cursor,string"`
	// Counts are the objects of this part by kind. The refetch_only ones are also counted as same.
	Counts map[Kind]int64 `json:"counts"`
	// Items are the objects that are not the same.
	Items []Difference `json:"items"`
	// Dead describes the events that are in the mirror and dead in the rebuild. It is null except
	// in the last part.
	Dead *DeadEvents `json:"dead"`
	// Next is the cursor of the next part, null after the last.
	Next *string `json:"next_cursor"`
}

// Difference is an object whose live and staged rows are not the same.
type Difference struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// Kind is never same or refetch_only, which are only counted.
	Kind Kind `json:"kind"`
	// Parts names the parts that differ: version, state, deleted, ambiguous, tied_states,
	// overwritten_at, rule_version. It may add refetch_after, which alone is no difference.
	Parts []string `json:"parts"`
	// Paths are the paths at which the states differ, at most 20.
	Paths []string `json:"paths"`
	// Reasons lists the known reasons.
	Reasons []string `json:"reasons"`
	// Live and Staged are the two rows, null if there is none.
	Live   *ObjectRow `json:"live"`
	Staged *ObjectRow `json:"staged"`
}

// ObjectRow is an object as it is in one of the two tables.
type ObjectRow struct {
	Version       versioning.Version `json:"version"`
	Deleted       bool               `json:"deleted"`
	Ambiguous     bool               `json:"ambiguous"`
	RefetchAfter  int64              `json:"refetch_after"`
	OverwrittenAt int64              `json:"overwritten_at"`
	RuleVersion   int                `json:"rule_version"`
	Revision      int64              `json:"revision"`
	// LastEventID is the event that decided the state.
	LastEventID int64 `json:"last_event_id,string"`
	state       json.RawMessage
	tooLarge    bool
}

const (
	// compareRows is how many rows of each table one part reads.
	compareRows = 10_000
	// swapRows is the same for a swap. A larger page uses the processors for long at once, and its
	// differences are older when they are swapped.
	swapRows = 1000
	// maxStateBytes is the largest state whose paths are compared.
	maxStateBytes = 256 << 10
	// detailRows is how many objects are read with their states at once.
	detailRows = 50
)

// pageEndSQL finds the last key of a part. Neither table has more than a given number of rows in
// the part.
const pageEndSQL = `
SELECT k.account, k.object_type, k.object_id FROM (
  (SELECT o.account, o.object_type, o.object_id FROM objects o WHERE o.source = $1
  	AND (o.account, o.object_type, o.object_id) > ($2, $3, $4)
   ORDER BY o.account, o.object_type, o.object_id OFFSET $5 LIMIT 1)
  UNION ALL
  (SELECT s.account, s.object_type, s.object_id FROM staged_objects s WHERE s.source = $1
  	AND (s.account, s.object_type, s.object_id) > ($2, $3, $4)
   ORDER BY s.account, s.object_type, s.object_id OFFSET $5 LIMIT 1)) k
ORDER BY k.account, k.object_type, k.object_id LIMIT 1`

// compareSQL compares the objects after one key and up to another, if that is given. It returns
// each object that is not the same, then the count of the same ones, and the count of those among
// them whose pending refetch differs. $10 is the rebuild's cursor, $11 the maximum number of rows
// of each table in the part. An index scan of PostgreSQL 15 ends at the last object of the end's
// account, not at the end, so LIMIT is necessary.
const compareSQL = `
WITH live AS (
  SELECT * FROM (SELECT * FROM objects o
    WHERE o.source = $1 AND (o.account, o.object_type, o.object_id) > ($2, $3, $4)
    ORDER BY o.account, o.object_type, o.object_id LIMIT $11) o
  WHERE ($9 = '' OR o.object_type = $9)
    AND ($5::text IS NULL OR (o.account, o.object_type, o.object_id) <= ($5, $6, $7))
), made AS (
  SELECT * FROM (SELECT * FROM staged_objects s
    WHERE s.source = $1 AND (s.account, s.object_type, s.object_id) > ($2, $3, $4)
    ORDER BY s.account, s.object_type, s.object_id LIMIT $11) s
  WHERE ($9 = '' OR s.object_type = $9)
    AND ($5::text IS NULL OR (s.account, s.object_type, s.object_id) <= ($5, $6, $7))
), compared AS MATERIALIZED (
  SELECT coalesce(o.account, s.account) AS account, coalesce(o.object_type, s.object_type) AS object_type,
  	coalesce(o.object_id, s.object_id) AS object_id,
    CASE WHEN s.source IS NULL AND ` + unknownObject + ` THEN 'same'
      WHEN s.source IS NOT NULL AND o.source IS NOT NULL AND NOT ` + differs + ` THEN 'same'
      WHEN o.last_event_id > greatest($10, s.last_event_id) THEN 'live_newer'
      WHEN o.source IS NULL THEN 'only_staged' WHEN s.source IS NULL THEN 'only_live' ELSE 'differing' END AS kind,
    o.refetch_after <> s.refetch_after AS look
  FROM live o FULL JOIN made s ON s.account = o.account AND s.object_type = o.object_type AND s.object_id = o.object_id
)
(SELECT c.kind, c.account, c.object_type, c.object_id, 1::bigint FROM compared c WHERE c.kind <> 'same'
 ORDER BY c.account, c.object_type, c.object_id LIMIT $8)
UNION ALL SELECT 'same', '', '', '', count(*) FROM compared c WHERE c.kind = 'same'
UNION ALL SELECT 'refetch_only', '', '', '', count(*) FROM compared c WHERE c.kind = 'same' AND c.look`

// Compare returns a part of the comparison of live and staged objects of a rebuild's source and
// type, in key order. cursor is where the part begins, "" for the first. A part may be empty and
// still be followed by another. Errors: events.ErrNotFound, events.ErrInvalid.
func Compare(ctx context.Context, pool *pgxpool.Pool, run int64, cursor string, limit int) (*Page, error) {
	limit, err := events.PageSize(limit)
	if err != nil {
		return nil, err
	}
	r, err := show(ctx, pool, run)
	if err != nil {
		return nil, err
	}
	if r.Status == runs.Cancelled || r.Status == runs.Failed {
		return nil, fmt.Errorf("%w: rebuild %d is %s, and its staged objects are cleared", events.ErrInvalid, run,
			r.Status)
	}
	if r.Status == runs.Done {
		return nil, fmt.Errorf("%w: rebuild %d is done: its staged objects are the mirror now; start another to "+
			"compare with", events.ErrInvalid, run)
	}
	c := &comparison{pool: pool, run: r, rows: compareRows, limit: limit}
	if err := json.Unmarshal(r.Params, &c.params); err != nil {
		return nil, fmt.Errorf("read the parameters of rebuild %d: %w", run, err)
	}
	if err := events.ReadCursor(cursor, &c.after.Account, &c.after.Type, &c.after.ID); err != nil {
		return nil, err
	}
	page, err := c.page(ctx)
	if err != nil {
		return nil, fmt.Errorf("compare rebuild %d: %w", run, err)
	}
	return page, nil
}

// comparison computes one part.
type comparison struct {
	pool   *pgxpool.Pool
	run    *runs.Run
	params Params
	after  versioning.Key
	// rows is how many rows of each table a part reads at most.
	rows, limit int
}

func (c *comparison) page(ctx context.Context) (*Page, error) {
	page := &Page{Run: c.run.ID, Stage: Stage(c.run), Cursor: c.run.Cursor}
	end, err := c.readPart(ctx, page)
	if err != nil {
		return nil, err
	}
	if end != nil {
		next := events.MakeCursor(end.Account, end.Type, end.ID)
		page.Next = &next
	} else {
		dead, err := countDead(ctx, c.pool, c.run.ID)
		if err != nil {
			return nil, err
		}
		page.Dead = &dead
	}
	return page, c.explain(ctx, page)
}

// readPart fills the page with the next objects. It returns the last key of the part, nil if the
// part contains all objects that follow.
func (c *comparison) readPart(ctx context.Context, page *Page) (end *versioning.Key, err error) {
	err = postgres.ReadSnapshot(ctx, c.pool, func(tx pgx.Tx) error {
		end, err = c.readPartInTx(ctx, tx, page)
		return err
	})
	return end, err
}

func (c *comparison) readPartInTx(ctx context.Context, tx pgx.Tx, page *Page) (*versioning.Key, error) {
	end, err := c.pageEnd(ctx, tx)
	if err != nil {
		return nil, err
	}
	if err := c.compare(ctx, tx, page, end); err != nil || len(page.Items) < c.limit {
		return end, err
	}
	last := page.Items[c.limit-1] // objects after it belong to the next part
	end = &versioning.Key{Account: last.Account, Type: last.ObjectType, ID: last.ObjectID}
	return end, c.compare(ctx, tx, page, end)
}

// pageEnd returns the last key of a part, nil if the part extends to the end.
func (c *comparison) pageEnd(ctx context.Context, tx pgx.Tx) (*versioning.Key, error) {
	end := new(versioning.Key)
	err := tx.QueryRow(ctx, pageEndSQL, c.params.Source, c.after.Account, c.after.Type, c.after.ID,
		c.rows-1).Scan(&end.Account, &end.Type, &end.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return end, err
}

// compare fills the page with the objects after the start and up to the end. A nil end means the
// last object.
func (c *comparison) compare(ctx context.Context, tx pgx.Tx, page *Page, end *versioning.Key) error {
	page.Counts = map[Kind]int64{Same: 0, Differing: 0, OnlyLive: 0, OnlyStaged: 0, LiveNewer: 0, RefetchOnly: 0}
	page.Items = []Difference{}
	var account, objectType, id *string
	if end != nil {
		account, objectType, id = &end.Account, &end.Type, &end.ID
	}
	var d Difference
	var n int64
	args := []any{c.params.Source, c.after.Account, c.after.Type, c.after.ID, account, objectType, id, c.limit,
		c.params.Type, c.run.Cursor, c.rows}
	return postgres.ForEach(ctx, tx, compareSQL, args, []any{&d.Kind, &d.Account, &d.ObjectType, &d.ObjectID, &n},
		func() error {
			page.Counts[d.Kind] += n
			if d.ObjectType != "" {
				page.Items = append(page.Items, d)
			}
			return nil
		})
}
