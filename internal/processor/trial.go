package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Trial decides stored events as a run would that applies them, and writes nothing. It holds in memory what each object would become that would
// not stay as it is stored; what stays is read again where a later event needs it.
type Trial struct {
	p    *Processor
	kept map[versioning.Key]*tried
	// bytes is about what kept takes.
	bytes int
	// Objects and Bytes bound what is held in memory; beyond them events are refused with ErrTooMuch.
	Objects, Bytes int
}

// tried is an object as it is stored and as it would be.
type tried struct {
	stored, now versioning.Object
	bytes       int
}

// The bounds that a trial has at first.
const (
	TrialObjects = 100_000
	TrialBytes   = 256 << 20
)

// ErrTooMuch: more objects would change than a trial holds in memory.
var ErrTooMuch = errors.New("too many objects would change to show them")

// NewTrial returns a trial with sources by name, which decide as configured here. The pool only reads; known are all sources the log has events of.
func NewTrial(pool *pgxpool.Pool, sources map[string]Source, known events.Sources) (*Trial, error) {
	p, err := New(Options{Pool: pool, Sources: sources, Known: known, Settings: DefaultSettings, Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	if err != nil {
		return nil, err
	}
	return &Trial{p: p, kept: map[versioning.Key]*tried{}, Objects: TrialObjects, Bytes: TrialBytes}, nil
}

// Decide decides some events of the log, each given to it once, and returns how many would have which outcome. Errors: ErrTooMuch, events.ErrUnavailable.
func (t *Trial) Decide(ctx context.Context, ids []int64) (map[versioning.Status]int64, error) {
	recs, err := t.p.records(ctx, ids, smallBody)
	if err != nil {
		return nil, err
	}
	evs := make([]stream.Event, len(recs))
	for i := range recs {
		evs[i] = t.p.sourceEvent(&recs[i])
	}
	counts := map[versioning.Status]int64{}
	for len(evs) > 0 {
		n := atOnce(evs, t.p.Settings.Batch)
		items, err := t.p.items(ctx, t.p.Logger, evs[:n])
		if err != nil {
			return nil, err
		}
		if err := t.decide(ctx, items); err != nil {
			return nil, err
		}
		for _, it := range items {
			counts[it.outcome.status]++
		}
		evs = evs[n:]
	}
	return counts, nil
}

// someRun is what a trial decides for.
var someRun = Target{Run: events.LiveRun + 1}

// decide is what Processor.commit does, without locks and writes.
func (t *Trial) decide(ctx context.Context, items []*item) error {
	var objs map[versioning.Key]*versioning.Object
	var met []*item
	readOnly := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, t.p.Pool, readOnly, func(tx pgx.Tx) (err error) {
		if objs, err = t.load(ctx, tx, items); err != nil {
			return err
		}
		if met, err = t.p.recall(ctx, tx, events.LiveRun, false, items, objs); err != nil {
			return err
		}
		return someRun.meet(ctx, tx, items, objs)
	})
	if err != nil {
		return unavailable(fmt.Errorf("read objects: %w", err))
	}
	before := make(map[versioning.Key]versioning.Object, len(objs))
	for k, o := range objs {
		was := *o
		was.Set = slices.Clone(o.Set) // a set grows in place
		before[k] = was
	}
	for _, o := range fold(append(met, items...), objs, nil) {
		if err := t.keep(before[o.Key], o); err != nil {
			return err
		}
	}
	return nil
}

// load reads the objects of the items with their states, but for those that are held in memory.
func (t *Trial) load(ctx context.Context, tx pgx.Tx, items []*item) (map[versioning.Key]*versioning.Object, error) {
	objs := map[versioning.Key]*versioning.Object{}
	var wanted []versioning.Wanted
	for _, it := range items {
		if _, ok := objs[it.key]; ok || !it.open() {
			continue
		}
		if held, ok := t.kept[it.key]; ok {
			objs[it.key] = &held.now
			continue
		}
		objs[it.key] = nil
		wanted = append(wanted, versioning.Wanted{Key: it.key, Lo: math.MinInt64, Hi: math.MaxInt64})
	}
	if len(wanted) == 0 {
		return objs, nil
	}
	loaded, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}

// keep holds on to what an object would become.
func (t *Trial) keep(stored versioning.Object, now *versioning.Object) error {
	held, ok := t.kept[now.Key]
	if !ok {
		held = &tried{stored: stored, now: *now}
		t.kept[now.Key] = held
	}
	t.bytes -= held.bytes
	held.bytes = size(&held.stored) + size(&held.now)
	t.bytes += held.bytes
	if len(t.kept) > t.Objects || t.bytes > t.Bytes {
		return fmt.Errorf("%w: more than %d, or more than %d MiB of states; narrow the filter", ErrTooMuch, t.Objects, t.Bytes>>20)
	}
	return nil
}

// size is about what an object takes in memory.
func size(o *versioning.Object) int {
	n := 512 + len(o.State.JSON)
	for i := range o.Set {
		n += 192
		if m := &o.Set[i].State; m.Exact != o.State.Exact {
			n += len(m.JSON)
		}
	}
	return n
}

// Difference is what would change of an object.
type Difference struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// New: the object is not stored yet.
	New     bool                `json:"new"`
	Changes []versioning.Change `json:"changes"`
	// More is how many further places of the state would change.
	More int `json:"more"`
}

// Differences calls visit with what would change of each object, in the order of their keys, with at most so many places of a state.
func (t *Trial) Differences(most int, visit func(Difference) error) error {
	keys := slices.SortedFunc(maps.Keys(t.kept), func(a, b versioning.Key) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Account, b.Account), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID))
	})
	for _, k := range keys {
		held := t.kept[k]
		changes, more, err := held.now.Differ(&held.stored, most)
		if err != nil {
			return fmt.Errorf("compare %s %s: %w", k.Type, k.ID, err)
		}
		d := Difference{Source: t.p.sources.name(k.Source), Account: k.Account, ObjectType: k.Type, ObjectID: k.ID, New: !held.stored.Exists, Changes: changes, More: more}
		if err := visit(d); err != nil {
			return err
		}
	}
	return nil
}
