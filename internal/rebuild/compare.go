package rebuild

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Kind is how a live and a staged object stand to each other.
type Kind string

// The kinds of a comparison. Ahead: the live object shows an event that the rebuild has not reached yet.
const (
	Same       Kind = "same"
	Differing  Kind = "differing"
	OnlyLive   Kind = "only_live"
	OnlyStaged Kind = "only_staged"
	Ahead      Kind = "ahead"
	// LookOnly counts objects that are the same but for the look they are owed, which may depend on the order of arrival.
	LookOnly Kind = "look_only"
)

// Page is a part of a comparison.
type Page struct {
	Run int64 `json:"run"`
	// Stage is what the rebuild does now; what is compared is the log up to Cursor.
	Stage  string `json:"stage"`
	Cursor int64  `json:"cursor,string"`
	// Counts are the objects of this part by kind; look_only ones are among the same.
	Counts map[Kind]int64 `json:"counts"`
	// Items are the objects that are not the same.
	Items []Difference `json:"items"`
	// Dead are the events that are in the mirror and dead in the rebuild; null but in the last part.
	Dead *DeadEvents `json:"dead"`
	// Next is where the next part begins, null behind the last.
	Next *string `json:"next_cursor"`
}

// Difference is an object that is not the same live and staged.
type Difference struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	Kind       Kind   `json:"kind"`
	// What names the parts that differ: version, state, deleted, ambiguous, tie_set, window, settled, rule_version; and look_after, which alone
	// would be no difference.
	What []string `json:"what"`
	// Paths are where the states differ, at most 20.
	Paths []string `json:"paths"`
	// Why says what is known of the reason.
	Why []string `json:"why"`
	// Live and Staged are the two; null where there is none.
	Live   *Side `json:"live"`
	Staged *Side `json:"staged"`
}

// Side is an object as one of the two tables has it.
type Side struct {
	Version     versioning.Version `json:"version"`
	Deleted     bool               `json:"deleted"`
	Ambiguous   bool               `json:"ambiguous"`
	LookAfter   int64              `json:"look_after"`
	Settled     int64              `json:"settled"`
	RuleVersion int                `json:"rule_version"`
	Revision    int64              `json:"revision"`
	// LastEventID is the event that decided.
	LastEventID int64 `json:"last_event_id,string"`
	state       json.RawMessage
	large       bool
}

const (
	// compareRows is how many rows of either table one part looks at.
	compareRows = 10_000
	// stateBytes is how large a state may be for its paths to be compared.
	stateBytes = 256 << 10
	// detailRows is how many objects are read with their states at once.
	detailRows = 50
)

// windowSQL finds the last key of a part: both tables have at most so many rows up to it.
const windowSQL = `
SELECT k.account, k.object_type, k.object_id FROM (
  (SELECT o.account, o.object_type, o.object_id FROM objects o WHERE o.source = $1 AND (o.account, o.object_type, o.object_id) > ($2, $3, $4)
   ORDER BY o.account, o.object_type, o.object_id OFFSET $5 LIMIT 1)
  UNION ALL
  (SELECT s.account, s.object_type, s.object_id FROM staged s WHERE s.source = $1 AND (s.account, s.object_type, s.object_id) > ($2, $3, $4)
   ORDER BY s.account, s.object_type, s.object_id OFFSET $5 LIMIT 1)) k
ORDER BY k.account, k.object_type, k.object_id LIMIT 1`

// comparedSQL compares what lies behind a key, and up to another where there is one: each object that is not the same, and then a row of
// how many are, and of how many of those owe different looks. $10 is how far the rebuild has read.
const comparedSQL = `
WITH live AS (
  SELECT * FROM objects o WHERE o.source = $1 AND (o.account, o.object_type, o.object_id) > ($2, $3, $4) AND ($9 = '' OR o.object_type = $9)
    AND ($5::text IS NULL OR (o.account, o.object_type, o.object_id) <= ($5, $6, $7))
), made AS (
  SELECT * FROM staged s WHERE s.source = $1 AND (s.account, s.object_type, s.object_id) > ($2, $3, $4) AND ($9 = '' OR s.object_type = $9)
    AND ($5::text IS NULL OR (s.account, s.object_type, s.object_id) <= ($5, $6, $7))
), compared AS MATERIALIZED (
  SELECT coalesce(o.account, s.account) AS account, coalesce(o.object_type, s.object_type) AS object_type, coalesce(o.object_id, s.object_id) AS object_id,
    CASE WHEN s.source IS NULL AND ` + empty + ` THEN 'same'
      WHEN s.source IS NOT NULL AND o.source IS NOT NULL AND NOT ` + differs + ` THEN 'same'
      WHEN o.last_event_id > $10 THEN 'ahead'
      WHEN o.source IS NULL THEN 'only_staged' WHEN s.source IS NULL THEN 'only_live' ELSE 'differing' END AS kind,
    o.look_after <> s.look_after AS look
  FROM live o FULL JOIN made s ON s.account = o.account AND s.object_type = o.object_type AND s.object_id = o.object_id
)
(SELECT c.kind, c.account, c.object_type, c.object_id, 1::bigint FROM compared c WHERE c.kind <> 'same'
 ORDER BY c.account, c.object_type, c.object_id LIMIT $8)
UNION ALL SELECT 'same', '', '', '', count(*) FROM compared c WHERE c.kind = 'same'
UNION ALL SELECT 'look_only', '', '', '', count(*) FROM compared c WHERE c.kind = 'same' AND c.look`

// Compare is a part of the comparison of the live objects of a rebuild's source and type with the staged ones, in the order of their keys;
// cursor is where it begins, "" at the first. A part may have no item and still be followed by another. Errors: events.ErrNotFound,
// events.ErrInvalid.
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
		return nil, fmt.Errorf("%w: rebuild %d is %s, and what it staged is cleared", events.ErrInvalid, run, r.Status)
	}
	if r.Status == runs.Done {
		return nil, fmt.Errorf("%w: rebuild %d is done: what it staged is the mirror now; start another to compare with", events.ErrInvalid, run)
	}
	c := &comparison{pool: pool, run: r, limit: limit}
	if err := json.Unmarshal(r.Asked, &c.order); err != nil {
		return nil, fmt.Errorf("read what rebuild %d was asked for: %w", run, err)
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

// comparison is one part under way.
type comparison struct {
	pool  *pgxpool.Pool
	run   *runs.Run
	order Order
	after versioning.Key
	limit int
}

func (c *comparison) page(ctx context.Context) (*Page, error) {
	end, err := c.window(ctx)
	if err != nil {
		return nil, err
	}
	page := &Page{Run: c.run.Run, Stage: Stage(c.run), Cursor: c.run.Cursor}
	if err := c.compare(ctx, page, end); err != nil {
		return nil, err
	}
	if len(page.Items) == c.limit { // what is the same behind the last item is the next part's
		last := page.Items[c.limit-1]
		end = &versioning.Key{Account: last.Account, Type: last.ObjectType, ID: last.ObjectID}
		if err := c.compare(ctx, page, end); err != nil {
			return nil, err
		}
	}
	if end != nil {
		next := events.MakeCursor(end.Account, end.Type, end.ID)
		page.Next = &next
	} else {
		dead, err := deadIn(ctx, c.pool, deadSQL, c.run.Run)
		if err != nil {
			return nil, err
		}
		page.Dead = &dead
	}
	return page, c.explain(ctx, page)
}

// window is the last key of a part; nil: it goes to the end.
func (c *comparison) window(ctx context.Context) (*versioning.Key, error) {
	end := new(versioning.Key)
	err := c.pool.QueryRow(ctx, windowSQL, c.order.Source, c.after.Account, c.after.Type, c.after.ID, compareRows-1).Scan(&end.Account, &end.Type, &end.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return end, err
}

// compare fills the page with what lies behind the start and up to the end; nil: to the last.
func (c *comparison) compare(ctx context.Context, page *Page, end *versioning.Key) error {
	page.Counts, page.Items = map[Kind]int64{Same: 0, Differing: 0, OnlyLive: 0, OnlyStaged: 0, Ahead: 0, LookOnly: 0}, []Difference{}
	var account, objectType, id *string
	if end != nil {
		account, objectType, id = &end.Account, &end.Type, &end.ID
	}
	rows, err := c.pool.Query(ctx, comparedSQL, c.order.Source, c.after.Account, c.after.Type, c.after.ID, account, objectType, id, c.limit, c.order.Type, c.run.Cursor)
	if err != nil {
		return err
	}
	var d Difference
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&d.Kind, &d.Account, &d.ObjectType, &d.ObjectID, &n}, func() error {
		page.Counts[d.Kind] += n
		if d.ObjectType != "" {
			page.Items = append(page.Items, d)
		}
		return nil
	})
	return err
}
