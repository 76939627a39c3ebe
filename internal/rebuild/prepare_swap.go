package rebuild

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// keySet is a set of objects that may differ between live and staged. Above its limit it holds no
// keys, and any object may differ.
type keySet struct {
	mu       sync.Mutex
	limit    int
	keys     map[versioning.Key]struct{}
	overflow bool
}

func newKeySet(limit int) *keySet { return &keySet{limit: limit, keys: map[versioning.Key]struct{}{}} }

// add adds objects that were staged. A nil set, before the first comparison, ignores them.
func (s *keySet) add(objs []*versioning.Object) {
	if s == nil {
		return
	}
	for _, o := range objs {
		s.insert(versioning.Key{Account: o.Account, Type: o.Type, ID: o.ID})
	}
}

func (s *keySet) insert(k versioning.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[k] = struct{}{}; s.overflow || len(s.keys) > s.limit {
		s.keys, s.overflow = map[versioning.Key]struct{}{}, true
	}
}

// keyColumns are keys as the parameters of a statement.
type keyColumns struct{ accounts, types, ids []string }

// list returns the keys in the order of the rows. complete is false if there were more than the
// limit.
func (s *keySet) list() (c keyColumns, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = keyColumns{[]string{}, []string{}, []string{}}
	for _, k := range slices.SortedFunc(maps.Keys(s.keys), func(a, b versioning.Key) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	}) {
		c.accounts, c.types, c.ids = append(c.accounts, k.Account), append(c.types, k.Type), append(c.ids, k.ID)
	}
	return c, !s.overflow
}

// prepareSwap does the work that is possible before the lock. It catches up and compares all
// objects. Then it catches up again and adds the objects that this writes to the differing ones.
//
// An object that was the same at the comparison and was not staged since is still the same under
// the lock. An event that the rebuild has read is part of the staged row, so it does not change an
// equal live row. An event that the rebuild reads later and that does not change the staged row
// does not change an equal live row either.
func (w *work) prepareSwap(ctx context.Context) (runs.Status, error) {
	w.differing = nil
	if status, err := w.catchUp(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if status, err := w.stageMissed(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.beforeStep("compare"); err != nil {
		return "", err
	}
	found := newKeySet(w.Settings.MaxKeys)
	c := &comparison{pool: w.Pool, run: &w.lease.Run, params: w.params, limit: 2 * compareRows}
	for {
		page := &Page{}
		end, err := c.pageEnd(ctx)
		if err == nil {
			err = c.compare(ctx, page, end)
		}
		if err != nil {
			return "", err
		}
		if status, err := w.collectDifferences(ctx, found, page.Items); err != nil || status != runs.Running {
			return status, err
		}
		if end == nil {
			break
		}
		c.after = *end
	}
	w.differing = found
	return w.catchUp(ctx)
}

// updateChunk is how many objects are locked at once to update their rule version. Live events of
// other objects continue meanwhile.
const updateChunk = 500

// collectDifferences updates those of the items that differ only in the rule version, and adds the
// others to found.
func (w *work) collectDifferences(ctx context.Context, found *keySet, items []Difference) (runs.Status, error) {
	keys := make([]versioning.Key, len(items))
	for i := range items {
		keys[i] = versioning.Key{Source: w.params.Source, Account: items[i].Account, Type: items[i].ObjectType,
			ID: items[i].ObjectID}
	}
	for part := range slices.Chunk(keys, updateChunk) {
		same, err := w.updateRuleVersion(ctx, part)
		if err != nil {
			return "", err
		}
		for _, k := range part {
			if !same[k] {
				found.insert(versioning.Key{Account: k.Account, Type: k.Type, ID: k.ID})
			}
		}
		if status, err := w.lease.Advance(ctx, w.lease.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

const updateRuleVersionSQL = `
UPDATE objects o SET rule_version = s.rule_version, updated_at = clock_now()
FROM unnest($2::text[], $3::text[], $4::text[]) AS k(account, object_type, object_id)
	JOIN staged_objects s USING (account, object_type, object_id)
WHERE s.source = $1 AND o.source = $1 AND o.account = k.account AND o.object_type = k.object_type
	AND o.object_id = k.object_id
  AND o.rule_version <> s.rule_version AND NOT ` + differsExceptRule + `
RETURNING o.account, o.object_type, o.object_id`

// updateRuleVersion writes the staged rule version to live rows that differ in nothing else, under
// the locks that applying takes. It returns the keys of these rows. The swap, which blocks live
// events, then writes only real differences.
func (w *work) updateRuleVersion(ctx context.Context, keys []versioning.Key) (map[versioning.Key]bool, error) {
	same := map[versioning.Key]bool{}
	var c keyColumns
	for _, k := range keys {
		c.accounts, c.types, c.ids = append(c.accounts, k.Account), append(c.types, k.Type), append(c.ids, k.ID)
	}
	err := postgres.InTx(ctx, w.Pool, "update rule versions", stageTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			clear(same)
			if err := w.lease.Guard(ctx, tx); err != nil {
				return err
			}
			if err := apply.LockObjects(ctx, tx, keys); err != nil {
				return err
			}
			k := versioning.Key{Source: w.params.Source}
			err := postgres.ForEach(ctx, tx, updateRuleVersionSQL, []any{w.params.Source, c.accounts, c.types, c.ids},
				[]any{&k.Account, &k.Type, &k.ID}, func() error { same[k] = true; return nil })
			return err
		})
	return same, err
}
