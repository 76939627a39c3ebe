package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// DryRun decides stored events as a run that applies them would, and writes nothing. It holds in
// memory each object that would change. Objects that would not change are read again when a later
// event needs them.
type DryRun struct {
	a         *Applier
	projected map[versioning.Key]*projectedObject
	// bytes is the approximate size of projected.
	bytes int
	// Objects and Bytes bound the memory. Beyond them Decide returns ErrTooManyChanges.
	Objects, Bytes int
}

// projectedObject is an object as it is stored and as it would become.
type projectedObject struct {
	stored, now versioning.Object
	bytes       int
}

// The default bounds of a dry run.
const (
	DryRunObjects = 100_000
	DryRunBytes   = 256 << 20
)

// ErrTooManyChanges means that more objects would change than a dry run holds in memory.
var ErrTooManyChanges = errors.New("more objects would change than a dry run can list")

// NewDryRun returns a dry run with these configured sources, by name. It only reads from the pool.
// known are all sources that the log has events of.
func NewDryRun(pool *pgxpool.Pool, sources map[string]Source, known events.Sources) (*DryRun, error) {
	a, err := New(Options{Pool: pool, Sources: sources, Known: known, Settings: DefaultSettings,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return &DryRun{a: a, projected: map[versioning.Key]*projectedObject{}, Objects: DryRunObjects, Bytes: DryRunBytes},
		nil
}

// Decide decides some events of the log and returns the counts of the outcomes they would get. Pass
// each event once. Errors: ErrTooManyChanges, events.ErrUnavailable.
func (t *DryRun) Decide(ctx context.Context, ids []int64) (map[versioning.Status]int64, error) {
	evs, err := t.a.Events(ctx, ids, maxInlineBody)
	if err != nil {
		return nil, err
	}
	counts := map[versioning.Status]int64{}
	for len(evs) > 0 {
		n := batchSize(evs, t.a.Settings.Batch)
		batch, err := t.a.readBatch(ctx, evs[:n])
		if err != nil {
			return nil, err
		}
		if err := t.decide(ctx, batch); err != nil {
			return nil, err
		}
		for _, e := range batch {
			counts[e.outcome.status]++
		}
		evs = evs[n:]
	}
	return counts, nil
}

// dryRunTarget stands for the run that would apply the events.
var dryRunTarget = Target{Run: events.LiveRun + 1}

// decide does the work of transaction.run without locks and writes.
func (t *DryRun) decide(ctx context.Context, batch []*event) error {
	var objs map[versioning.Key]*versioning.Object
	var reloaded []*event
	err := postgres.ReadSnapshot(ctx, t.a.Pool, func(tx pgx.Tx) (err error) {
		if objs, err = t.load(ctx, tx, batch); err != nil {
			return err
		}
		if reloaded, err = t.a.reloadHistory(ctx, tx, events.LiveRun, false, batch, objs); err != nil {
			return err
		}
		return dryRunTarget.loadLiveOutcomes(ctx, tx, batch, objs)
	})
	if err != nil {
		return unavailable(fmt.Errorf("read objects: %w", err))
	}
	before := make(map[versioning.Key]versioning.Object, len(objs))
	for k, o := range objs {
		was := *o
		was.TiedStates = slices.Clone(o.TiedStates) // the tied states grow in place
		before[k] = was
	}
	for _, o := range reduce(append(reloaded, batch...), objs, nil) {
		if err := t.project(before[o.Key], o); err != nil {
			return err
		}
	}
	return nil
}

// load reads the objects of the events with their states, except those held in memory.
func (t *DryRun) load(ctx context.Context, tx pgx.Tx, batch []*event) (map[versioning.Key]*versioning.Object, error) {
	objs := map[versioning.Key]*versioning.Object{}
	var requests []versioning.LoadRequest
	for _, e := range batch {
		if _, ok := objs[e.key]; ok || !e.isOpen() {
			continue
		}
		if p, ok := t.projected[e.key]; ok {
			objs[e.key] = &p.now
			continue
		}
		objs[e.key] = nil
		requests = append(requests, versioning.LoadRequest{Key: e.key, MinAt: math.MinInt64, MaxAt: math.MaxInt64})
	}
	if len(requests) == 0 {
		return objs, nil
	}
	loaded, err := versioning.Load(ctx, tx, versioning.Mirror, requests)
	for _, o := range loaded {
		objs[o.Key] = o
	}
	return objs, err
}

// project stores in memory what an object would become.
func (t *DryRun) project(stored versioning.Object, now *versioning.Object) error {
	p, ok := t.projected[now.Key]
	if !ok {
		p = &projectedObject{stored: stored, now: *now}
		t.projected[now.Key] = p
	}
	t.bytes -= p.bytes
	p.bytes = memorySize(&p.stored) + memorySize(&p.now)
	t.bytes += p.bytes
	if len(t.projected) > t.Objects || t.bytes > t.Bytes {
		return fmt.Errorf("%w: more than %d, or more than %d MiB of states; narrow the filter", ErrTooManyChanges,
			t.Objects, t.Bytes>>20)
	}
	return nil
}

// memorySize returns the approximate size of an object in memory.
func memorySize(o *versioning.Object) int {
	n := 512 + len(o.State.JSON)
	for i := range o.TiedStates {
		n += 192
		if m := &o.TiedStates[i].State; m.ExactHash != o.State.ExactHash {
			n += len(m.JSON)
		}
	}
	return n
}

// Difference describes how an object would change.
type Difference struct {
	Source     string `json:"source"`
	Account    string `json:"account"`
	ObjectType string `json:"object_type"`
	ObjectID   string `json:"object_id"`
	// New says that the object is not stored yet.
	New     bool                    `json:"new"`
	Changes []versioning.Difference `json:"changes"`
	// More is how many further paths of the state would change.
	More int `json:"more"`
}

// Differences calls visit with the changes of each object, in key order. It lists at most
// maxChanges paths of a state.
func (t *DryRun) Differences(maxChanges int, visit func(Difference) error) error {
	for _, k := range slices.SortedFunc(maps.Keys(t.projected), versioning.Key.Compare) {
		p := t.projected[k]
		changes, more, err := p.now.ListDifferences(&p.stored, maxChanges)
		if err != nil {
			return fmt.Errorf("compare %s %s: %w", k.Type, k.ID, err)
		}
		d := Difference{Source: t.a.sources.name(k.Source), Account: k.Account, ObjectType: k.Type, ObjectID: k.ID,
			New: !p.stored.Exists, Changes: changes, More: more}
		if err := visit(d); err != nil {
			return err
		}
	}
	return nil
}
