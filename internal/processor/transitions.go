package processor

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Rules of effects see one change after the other, each from what was certain of an object to what is certain now, in the order in which events were applied: how they were put
// into batches makes no difference. An ambiguous state is not certain; what was certain before it is held until there is something certain again.

// transitions gathers what the rules are to see of one transaction. A nil one gathers nothing.
type transitions struct {
	rules *effects.Rules
	// run is whose events they are; planned says that what changes has effects.
	run     int64
	planned bool
	objects map[versioning.Key]*followed
	// order is in which objects were met first.
	order    []*followed
	recalled []*item
	intents  []effects.Intent
}

// followed is an object that a rule is about.
type followed struct {
	key     versioning.Key
	source  string
	certain versioning.State
	// there: there was such an object.
	there bool
	// held: certain is in the table, where it stays while the object is ambiguous.
	held, ambiguous bool
	// moved: certain is another than was read, so that what is in the table is of before.
	moved bool
	// again: what it had met before is folded once more, so that only where this ends is a change.
	again bool
	last  *item
	state versioning.State
}

// ruling are the rules that see what is applied to a target; nil: none does. A transaction asks once, since they may be replaced at any time.
func (p *Processor) ruling(to Target) *effects.Rules {
	if to.Into != versioning.Mirror {
		return nil
	}
	return p.rules.Load()
}

// ruled says of which items rules may want to see the object's state.
func ruled(rules *effects.Rules) func(*item) bool {
	if rules == nil {
		return nil
	}
	return func(it *item) bool { return rules.Concern(it.ev.Source, it.key.Type) }
}

// watch begins to follow the objects that rules are about, as they were read. met are the items that are folded again.
func (p *Processor) watch(ctx context.Context, tx pgx.Tx, rules *effects.Rules, to Target, objs map[versioning.Key]*versioning.Object, met []*item) (*transitions, error) {
	if rules == nil {
		return nil, nil
	}
	w := &transitions{rules: rules, run: to.Run, planned: to.Run == events.LiveRun || to.Effects, recalled: met, objects: map[versioning.Key]*followed{}}
	var doubtful []*followed
	for key, o := range objs {
		source := p.sources.name(key.Source)
		if !rules.Concern(source, key.Type) {
			continue
		}
		f := &followed{key: key, source: source, certain: o.State, there: o.Version != versioning.NoVersion, ambiguous: o.Ambiguous}
		w.objects[key] = f
		if o.Ambiguous {
			doubtful = append(doubtful, f)
		}
	}
	return w, heldBefore(ctx, tx, doubtful)
}

// see notes what an item made of its object.
func (w *transitions) see(it *item, before *versioning.Row, o *versioning.Object) {
	f := w.of(it.key)
	if f == nil {
		return
	}
	if f.last == nil {
		w.order = append(w.order, f)
	}
	f.last, f.ambiguous, f.state = it, o.Ambiguous, o.State
	f.again = f.again || it.input.Settles > before.Settled || slices.Contains(w.recalled, it)
	if !f.again {
		w.pass(f, o.Version != versioning.NoVersion)
	}
}

func (w *transitions) of(key versioning.Key) *followed {
	if w == nil {
		return nil
	}
	return w.objects[key]
}

// pass makes a transition of what is certain now, if it is another than what was.
func (w *transitions) pass(f *followed, there bool) {
	if f.ambiguous || !there || f.there && f.certain.Exact == f.state.Exact {
		return
	}
	t := effects.Transition{Source: f.source, Number: f.key.Source, Account: f.key.Account, Type: f.key.Type, ID: f.key.ID, Old: f.certain.JSON, New: f.state.JSON, Deleted: f.state.Deleted,
		Event: eventOf(f.last.ev)}
	f.certain, f.there, f.moved = f.state, true, true
	if w.planned {
		w.intents = append(w.intents, w.rules.Intents(&t)...)
	}
}

func eventOf(ev *stream.Event) effects.Event {
	return effects.Event{ID: ev.ID, Key: ev.Key, Type: ev.Type, Origin: ev.Origin, OccurredAt: ev.OccurredAt, ReceivedAt: ev.ReceivedAt}
}

// plan enters what the rules want, and holds what was certain of objects that are ambiguous now. It comes behind all else that a transaction waits for.
func (w *transitions) plan(ctx context.Context, tx pgx.Tx) (n effects.Counted, err error) {
	if w == nil {
		return n, nil
	}
	var hold, release []*followed
	for _, f := range w.order {
		if f.again {
			w.pass(f, true)
		}
		switch {
		case f.ambiguous && (!f.held || f.moved):
			hold = append(hold, f)
		case !f.ambiguous && f.held:
			release = append(release, f)
		}
	}
	if err := changeHolds(ctx, tx, hold, release); err != nil {
		return n, err
	}
	return effects.Plan(ctx, tx, w.run, w.intents)
}

const heldSQL = `
SELECT d.n, h.state, h.deleted, h.there, h.exact_hash FROM unnest($1::int[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS d(source, account, object_type, object_id, n)
JOIN effect_holds h USING (source, account, object_type, object_id)`

// holdSQL holds what was certain of objects that become ambiguous. A row that is there is of an earlier doubt, which ended while no rule was about the object.
const holdSQL = `
INSERT INTO effect_holds (source, account, object_type, object_id, state, deleted, there, exact_hash, held_at)
SELECT d.*, clock_now() FROM unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::bool[], $7::bool[], $8::bytea[]) AS d
ON CONFLICT (source, account, object_type, object_id) DO UPDATE
SET state = excluded.state, deleted = excluded.deleted, there = excluded.there, exact_hash = excluded.exact_hash, held_at = excluded.held_at`

const releaseHeldSQL = `
DELETE FROM effect_holds h USING unnest($1::int[], $2::text[], $3::text[], $4::text[]) AS d(source, account, object_type, object_id)
WHERE h.source = d.source AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id`

// keysOf are the parts of objects' keys.
func keysOf(all []*followed) []any {
	n := len(all)
	sources, accounts, types, ids := make([]int32, n), make([]string, n), make([]string, n), make([]string, n)
	for i, f := range all {
		sources[i], accounts[i], types[i], ids[i] = f.key.Source, f.key.Account, f.key.Type, f.key.ID
	}
	return []any{sources, accounts, types, ids}
}

// heldBefore reads what was certain of ambiguous objects; one that nothing is held of, since there was no rule then, keeps what it shows.
func heldBefore(ctx context.Context, tx pgx.Tx, doubtful []*followed) error {
	if len(doubtful) == 0 {
		return nil
	}
	rows, err := tx.Query(ctx, heldSQL, keysOf(doubtful)...)
	if err != nil {
		return fmt.Errorf("read what was certain of %d objects: %w", len(doubtful), err)
	}
	var n int64
	var state, exact []byte
	var deleted, there bool
	_, err = pgx.ForEachRow(rows, []any{&n, &state, &deleted, &there, &exact}, func() error {
		f := doubtful[n-1]
		f.held, f.there = true, there
		f.certain = versioning.State{JSON: slices.Clone(state), Deleted: deleted}
		copy(f.certain.Exact[:], exact)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what was certain of %d objects: %w", len(doubtful), err)
	}
	return nil
}

func changeHolds(ctx context.Context, tx pgx.Tx, hold, release []*followed) error {
	if len(hold) > 0 {
		n := len(hold)
		states, exacts, deleted, there := make([][]byte, n), make([][]byte, n), make([]bool, n), make([]bool, n)
		for i, f := range hold {
			states[i], exacts[i], deleted[i], there[i] = f.certain.JSON, f.certain.Exact[:], f.certain.Deleted, f.there
		}
		if _, err := tx.Exec(ctx, holdSQL, append(keysOf(hold), states, deleted, there, exacts)...); err != nil {
			return fmt.Errorf("hold what was certain of %d objects: %w", n, err)
		}
	}
	if len(release) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, releaseHeldSQL, keysOf(release)...); err != nil {
		return fmt.Errorf("release what was certain of %d objects: %w", len(release), err)
	}
	return nil
}
