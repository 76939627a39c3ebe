package effects_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// entry is a line of the ledger: an effect, and one of its steps, if one was begun.
type entry struct {
	effect            int64
	rule, key         string
	version           int
	state, reason     string
	event, run        int64
	old, now          string
	step, is          string
	stepKey, captured string
}

func (w *world) ledger() (all []entry) {
	w.t.Helper()
	rows, err := w.log.DB.Pool.Query(w.t.Context(), `
SELECT e.effect, e.rule, e.key, e.rule_version, e.state, e.reason, e.event_id, e.run, (e.facts->'old')::text, (e.facts->'new')::text,
  coalesce(s.step, ''), coalesce(s.state, ''), coalesce(s.request->'headers'->>'Idempotency-Key', ''), coalesce(s.captured->>'id', '')
FROM effects e LEFT JOIN effect_steps s USING (effect) ORDER BY e.effect, s.place`)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e entry, err error) {
		return e, row.Scan(&e.effect, &e.rule, &e.key, &e.version, &e.state, &e.reason, &e.event, &e.run, &e.old, &e.now, &e.step, &e.is, &e.stepKey, &e.captured)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// settled waits until nothing is to be done any more without a person, and the other side does nothing.
func (w *world) settled() {
	w.t.Helper()
	testkit.Eventually(w.t, *patience, func() error {
		if n := w.log.DB.Rows(w.t, `SELECT state || ' ' || count(*) FROM effects WHERE state IN ('planned', 'running', 'failed') GROUP BY state`); len(n) > 0 {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
	w.other.idle(w.t)
}

// act is what the other side has done of a step: what it answered, or would have.
type act struct{ path, body, id string }

// acts are what the other side has done, by the step's key.
func (w *world) acts() map[string][]act {
	all := map[string][]act{}
	for n, c := range w.other.Calls() {
		all[c.Key] = append(all[c.Key], act{c.Path, c.Body, fmt.Sprintf("%s_%d", c.Path[1:], n+1)})
	}
	return all
}

// agrees says whether a person lets something happen that waits.
func agrees(key string) bool { return crc32.ChecksumIEEE([]byte(key))%4 != 0 }

// attended has a person see to all that waits for one, until nothing does.
func (w *world) attended() {
	w.t.Helper()
	for round := 0; ; round++ {
		w.settled()
		w.sound()
		w.reported()
		waits := w.log.DB.Rows(w.t, `SELECT effect::text FROM effects WHERE state IN ('waiting', 'review') ORDER BY effect`)
		if len(waits) == 0 {
			return
		}
		if round == 20 {
			w.t.Fatalf("these wait for a person again and again: %v", w.log.DB.Rows(w.t, `SELECT to_jsonb(e)::text FROM effects e WHERE state IN ('waiting', 'review')`))
		}
		for _, text := range waits {
			var id int64
			if _, err := fmt.Sscan(text, &id); err != nil {
				w.t.Fatal(err)
			}
			w.see(id)
		}
	}
}

// see has a person see to an effect, who looks at the other side where it is in doubt.
func (w *world) see(id int64) {
	w.t.Helper()
	all, err := effects.Show(w.t.Context(), w.log.Operator, id)
	if err != nil {
		w.t.Fatal(err)
	}
	v, done := all[0], w.acts()
	do := func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Retry(ctx, tx, id) }
	switch {
	case v.State == effects.Waiting && agrees(v.Key):
		do = func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Approve(ctx, tx, id) }
	case v.State == effects.Waiting, len(v.Steps) == 0:
		do = func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) { return effects.Reject(ctx, tx, "no", id) }
	}
	for _, s := range v.Steps {
		if s.State == effects.Unknown && s.Doubt == effects.DoubtPerson {
			do = w.word(id, s.Step, done)
		}
	}
	w.person(do)
}

// word is what a person says of a step who has looked.
func (w *world) word(id int64, step string, done map[string][]act) func(context.Context, pgx.Tx) ([]effects.View, error) {
	said := effects.Word{Step: step}
	for _, e := range w.ledger() {
		if e.effect == id && e.step == step && len(done[e.stepKey]) > 0 {
			said.Done = true
			said.Captured, _ = json.Marshal(map[string]string{"id": done[e.stepKey][0].id}) // a text can always be written
		}
	}
	return func(ctx context.Context, tx pgx.Tx) ([]effects.View, error) {
		return effects.Resolve(ctx, tx, id, said)
	}
}

func (w *world) person(do func(context.Context, pgx.Tx) ([]effects.View, error)) {
	w.t.Helper()
	err := postgres.InTx(w.t.Context(), w.log.Operator, "test", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := do(ctx, tx)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// violated fails a world once for each thing that is wrong, with its seed.
func (w *world) violated(format string, args ...any) {
	w.t.Helper()
	w.t.Errorf("seed %d: %s", w.seed, fmt.Sprintf(format, args...))
}
