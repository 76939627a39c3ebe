package rebuild

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// keySet are objects that may differ live and staged; above its limit it is not known which.
type keySet struct {
	mu    sync.Mutex
	limit int
	keys  map[versioning.Key]struct{}
	over  bool
}

func newKeySet(limit int) *keySet { return &keySet{limit: limit, keys: map[versioning.Key]struct{}{}} }

// add takes objects that were staged; nothing where nobody has compared yet.
func (s *keySet) add(objs []*versioning.Object) {
	if s == nil {
		return
	}
	for _, o := range objs {
		s.put(versioning.Key{Account: o.Account, Type: o.Type, ID: o.ID})
	}
}

func (s *keySet) put(k versioning.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[k] = struct{}{}; s.over || len(s.keys) > s.limit {
		s.keys, s.over = map[versioning.Key]struct{}{}, true
	}
}

// columnsOf are keys as the parameters of a statement.
type columnsOf struct{ accounts, types, ids []string }

// list are the keys in the order that rows lie in; known is false where they were too many.
func (s *keySet) list() (c columnsOf, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c = columnsOf{[]string{}, []string{}, []string{}}
	for _, k := range slices.SortedFunc(maps.Keys(s.keys), func(a, b versioning.Key) int {
		return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	}) {
		c.accounts, c.types, c.ids = append(c.accounts, k.Account), append(c.types, k.Type), append(c.ids, k.ID)
	}
	return c, !s.over
}

// ready does before the lock what can be done before: it catches up, compares everything, and catches up again, noting what that writes.
//
// What was the same then and was not written since is the same under the lock: an event that the rebuild has read changes no live row that
// equals the staged one, in which it is contained, and an event that it reads later and that does not change the staged row does not
// change an equal live one.
func (w *work) ready(ctx context.Context) (runs.Status, error) {
	w.differing = nil
	if status, err := w.catchUp(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.doubt(ctx); err != nil {
		return "", err
	}
	if status, err := w.missed(ctx, nil); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.at("compare"); err != nil {
		return "", err
	}
	found := newKeySet(w.Settings.Keys)
	c := &comparison{pool: w.Pool, run: &w.hold.Run, order: w.order, limit: 2 * compareRows}
	for {
		page := &Page{}
		end, err := c.window(ctx)
		if err == nil {
			err = c.compare(ctx, page, end)
		}
		if err != nil {
			return "", err
		}
		if status, err := w.note(ctx, found, page.Items); err != nil || status != runs.Running {
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

// stamped is how many objects are locked at once to be given the number of the rule; live events of others pass meanwhile.
const stamped = 500

// note gives the rows of some differing objects that only the rule's number tells apart the staged one, and notes the others.
func (w *work) note(ctx context.Context, found *keySet, items []Difference) (runs.Status, error) {
	keys := make([]versioning.Key, len(items))
	for i := range items {
		keys[i] = versioning.Key{Source: w.order.Source, Account: items[i].Account, Type: items[i].ObjectType, ID: items[i].ObjectID}
	}
	for part := range slices.Chunk(keys, stamped) {
		same, err := w.stamp(ctx, part)
		if err != nil {
			return "", err
		}
		for _, k := range part {
			if !same[k] {
				found.put(versioning.Key{Account: k.Account, Type: k.Type, ID: k.ID})
			}
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return status, err
		}
	}
	return runs.Running, nil
}

const stampSQL = `
UPDATE objects o SET rule_version = s.rule_version, updated_at = clock_now()
FROM unnest($2::text[], $3::text[], $4::text[]) AS k(account, object_type, object_id) JOIN staged s USING (account, object_type, object_id)
WHERE s.source = $1 AND o.source = $1 AND o.account = k.account AND o.object_type = k.object_type AND o.object_id = k.object_id
  AND o.rule_version <> s.rule_version AND NOT ` + differsBut + `
RETURNING o.account, o.object_type, o.object_id`

// stamp writes rows that are what the rule of now makes but for its number, under the locks that applying takes, and returns which these are. The swap,
// which holds up live events, is left with what really differs.
func (w *work) stamp(ctx context.Context, keys []versioning.Key) (map[versioning.Key]bool, error) {
	same := map[versioning.Key]bool{}
	var c columnsOf
	for _, k := range keys {
		c.accounts, c.types, c.ids = append(c.accounts, k.Account), append(c.types, k.Type), append(c.ids, k.ID)
	}
	err := postgres.InTx(ctx, w.Pool, "write the rule's number", stageTimeout, func(ctx context.Context, tx pgx.Tx) error {
		clear(same)
		if err := w.hold.Guard(ctx, tx); err != nil {
			return err
		}
		if err := processor.LockObjects(ctx, tx, keys); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, stampSQL, w.order.Source, c.accounts, c.types, c.ids)
		if err != nil {
			return err
		}
		k := versioning.Key{Source: w.order.Source}
		_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID}, func() error { same[k] = true; return nil })
		return err
	})
	return same, err
}
