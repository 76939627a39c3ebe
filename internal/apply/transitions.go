package apply

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Rules of effects see changes one after the other, in the order in which events were applied. Each
// change goes from one certain state of an object to the next, however the events were batched. An
// ambiguous state is not certain. While an object is ambiguous, its last certain state is kept as
// its baseline.

// transitions collects what the rules see of one transaction. A nil pointer collects nothing.
type transitions struct {
	rules *effects.Rules
	// run is the run of the events. plansEffects says that changes plan effects.
	run          int64
	plansEffects bool
	objects      map[versioning.Key]*trackedObject
	// order is the order in which objects first changed.
	order          []*trackedObject
	reloaded       []*event
	plannedEffects []effects.PlannedEffect
}

// trackedObject is an object that a rule concerns.
type trackedObject struct {
	key     versioning.Key
	source  string
	certain versioning.State
	// existed says that the object had a version when certain was its state.
	existed bool
	// hasBaseline says that certain is stored in the table, where it stays while the object is
	// ambiguous.
	hasBaseline, ambiguous bool
	// changed says that certain has changed since the read, so that the stored baseline is
	// outdated.
	changed bool
	// reapplied says that the object's history is reduced again, so that only the final state is a
	// change.
	reapplied bool
	// last is the last event that was applied, state the object's state after it.
	last  *event
	state versioning.State
}

// stateNeededBy returns a function that reports whether an event needs the object's state for the
// rules. It returns nil without rules.
func stateNeededBy(rules *effects.Rules) func(*event) bool {
	if rules == nil {
		return nil
	}
	return func(e *event) bool { return rules.HasChangeRules(e.ev.Source, e.key.Type) }
}

// track starts the transitions of the objects that rules concern, as they were read. reloaded are
// the events that are reduced again.
func (a *Applier) track(ctx context.Context, tx pgx.Tx, rules *effects.Rules, to Target,
	objs map[versioning.Key]*versioning.Object, reloaded []*event) (*transitions, error) {
	if rules == nil {
		return nil, nil
	}
	w := &transitions{rules: rules, run: to.Run, plansEffects: to.plansEffects(),
		reloaded: reloaded, objects: map[versioning.Key]*trackedObject{}}
	var ambiguous []*trackedObject
	for key, o := range objs {
		source := a.sources.name(key.Source)
		if !rules.HasChangeRules(source, key.Type) {
			continue
		}
		f := &trackedObject{key: key, source: source, certain: o.State, existed: o.Version != versioning.NoVersion,
			ambiguous: o.Ambiguous}
		w.objects[key] = f
		if o.Ambiguous {
			ambiguous = append(ambiguous, f)
		}
	}
	return w, loadBaselines(ctx, tx, ambiguous)
}

// observe records how an event changed its object.
func (w *transitions) observe(e *event, before *versioning.Row, o *versioning.Object) {
	f := w.tracked(e.key)
	if f == nil {
		return
	}
	if f.last == nil {
		w.order = append(w.order, f)
	}
	f.last, f.ambiguous, f.state = e, o.Ambiguous, o.State
	f.reapplied = f.reapplied || e.input.OverwriteAt > before.OverwrittenAt || slices.Contains(w.reloaded, e)
	if !f.reapplied {
		w.emit(f, o.Version != versioning.NoVersion)
	}
}

// tracked returns the object with a key, nil if no rule concerns it.
func (w *transitions) tracked(key versioning.Key) *trackedObject {
	if w == nil {
		return nil
	}
	return w.objects[key]
}

// emit evaluates the rules for the transition from the previous certain state to the current state.
// It does nothing if the two are equal, if the current state is ambiguous, or if there is none.
func (w *transitions) emit(f *trackedObject, exists bool) {
	if f.ambiguous || !exists || f.existed && f.certain.ExactHash == f.state.ExactHash {
		return
	}
	t := effects.Transition{Source: f.source, Number: f.key.Source, Account: f.key.Account, Type: f.key.Type,
		ID: f.key.ID, Old: f.certain.JSON, New: f.state.JSON, Deleted: f.state.Deleted,
		Event: eventOf(f.last.ev)}
	f.certain, f.existed, f.changed = f.state, true, true
	if w.plansEffects {
		w.plannedEffects = append(w.plannedEffects, w.rules.Evaluate(&t)...)
	}
}

func eventOf(ev *stream.Event) effects.Event {
	return effects.Event{ID: ev.ID, Key: ev.Key, Type: ev.Type, Origin: ev.Origin, OccurredAt: ev.OccurredAt,
		ReceivedAt: ev.ReceivedAt}
}

// plan inserts the planned effects, and saves the baselines of objects that are ambiguous now. It
// runs last, after all other waits of the transaction.
func (w *transitions) plan(ctx context.Context, tx pgx.Tx) (n effects.PlanResult, err error) {
	if w == nil {
		return n, nil
	}
	var save, drop []*trackedObject
	for _, f := range w.order {
		if f.reapplied {
			w.emit(f, true)
		}
		switch {
		case f.ambiguous && (!f.hasBaseline || f.changed):
			save = append(save, f)
		case !f.ambiguous && f.hasBaseline:
			drop = append(drop, f)
		}
	}
	if err := updateBaselines(ctx, tx, save, drop); err != nil {
		return n, err
	}
	return effects.Plan(ctx, tx, w.run, w.plannedEffects)
}

const baselinesSQL = `
SELECT d.n, h.state, h.deleted, h.existed, h.exact_hash FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH
	ORDINALITY AS d(source, account, object_type, object_id, n)
JOIN effect_baselines h USING (source, account, object_type, object_id)`

// saveBaselinesSQL saves the last certain state of objects that become ambiguous. An existing row
// belongs to an earlier ambiguity that ended while no rule concerned the object.
const saveBaselinesSQL = `
INSERT INTO effect_baselines (source, account, object_type, object_id, state, deleted, existed, exact_hash, recorded_at)
SELECT d.*, clock_now() FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::bool[], $7::bool[],
	$8::bytea[]) AS d
ON CONFLICT (source, account, object_type, object_id) DO UPDATE
SET state = excluded.state, deleted = excluded.deleted, existed = excluded.existed, exact_hash = excluded.exact_hash,
	recorded_at = excluded.recorded_at`

const deleteBaselinesSQL = `
DELETE FROM effect_baselines h USING unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account,
	object_type, object_id)
WHERE h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id`

// keyArgs returns the parts of objects' keys as columns.
func keyArgs(all []*trackedObject) []any {
	return versioning.KeyArgs(all, func(f *trackedObject) versioning.Key { return f.key })
}

// loadBaselines reads the baselines of ambiguous objects. An object without one, because no rule
// concerned it then, keeps its current state.
func loadBaselines(ctx context.Context, tx pgx.Tx, ambiguous []*trackedObject) error {
	if len(ambiguous) == 0 {
		return nil
	}
	var n int64
	var state, exact []byte
	var deleted, existed bool
	err := postgres.ForEach(ctx, tx, baselinesSQL, keyArgs(ambiguous), []any{&n, &state, &deleted, &existed, &exact},
		func() error {
			f := ambiguous[n-1]
			f.hasBaseline, f.existed = true, existed
			f.certain = versioning.State{JSON: slices.Clone(state), Deleted: deleted}
			copy(f.certain.ExactHash[:], exact)
			return nil
		})
	if err != nil {
		return fmt.Errorf("read baselines of %d objects: %w", len(ambiguous), err)
	}
	return nil
}

func updateBaselines(ctx context.Context, tx pgx.Tx, save, drop []*trackedObject) error {
	if len(save) > 0 {
		n := len(save)
		states, exacts, deleted, existed := make([][]byte, n), make([][]byte, n), make([]bool, n), make([]bool, n)
		for i, f := range save {
			states[i], exacts[i], deleted[i], existed[i] = f.certain.JSON, f.certain.ExactHash[:], f.certain.Deleted,
				f.existed
		}
		if _, err := tx.Exec(ctx, saveBaselinesSQL, append(keyArgs(save), states, deleted, existed,
			exacts)...); err != nil {
			return fmt.Errorf("save baselines of %d objects: %w", n, err)
		}
	}
	if len(drop) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, deleteBaselinesSQL, keyArgs(drop)...); err != nil {
		return fmt.Errorf("delete baselines of %d objects: %w", len(drop), err)
	}
	return nil
}
