package rebuild

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"

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
	if status, err := w.missed(ctx); err != nil || status != runs.Running {
		return status, err
	}
	found := newKeySet(w.Settings.Keys)
	c := &comparison{pool: w.Pool, run: &w.hold.Run, order: w.order, limit: 2 * compareRows}
	for !found.over {
		page := &Page{}
		end, err := c.window(ctx)
		if err == nil {
			err = c.compare(ctx, page, end)
		}
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			found.put(versioning.Key{Account: page.Items[i].Account, Type: page.Items[i].ObjectType, ID: page.Items[i].ObjectID})
		}
		if end == nil {
			break
		}
		c.after = *end
	}
	w.differing = found
	return w.catchUp(ctx)
}
