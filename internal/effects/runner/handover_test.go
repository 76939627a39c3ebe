package runner_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// A step is sent where its rule says, also where the ledger has another destination: its rule may be another one by now.
func TestStepsGoWhereTheRuleSays(t *testing.T) {
	t.Parallel()
	b := setup(t, twoSteps)
	other := sink.New(t)
	elsewhere := b.reach[0]
	elsewhere.Name, elsewhere.URL = "elsewhere", other.URL
	b.reach = append(slices.Clone(b.reach), elsewhere)
	b.plan(t, 1, 5)
	b.db.Exec(t, `UPDATE effects SET destination = 'elsewhere'`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 5 {
		t.Fatal(got)
	}
	if here, there := len(b.sink.Calls()), len(other.Calls()); here != 10 || there != 0 {
		t.Errorf("%d calls where the rule says, %d elsewhere", here, there)
	}
}

// The ledger says of each step how a lost answer is cleared up, and whether it can be undone.
func TestTheLedgerSaysHowDoubtsAreCleared(t *testing.T) {
	t.Parallel()
	b := setup(t, `
      - {name: keyed, to: sink, path: "/keyed", json: {ref: "{{ object.id }}"}, compensate: {path: "/keyed/undo"}}
      - {name: checked, to: sink, path: "/checked", json: {ref: "{{ object.id }}"}, check: {path: "/did?key={{ step_key }}", done: "answer.status == 200"}}
      - {name: mail, to: sink, path: "/mail", json: {ref: "{{ object.id }}"}, once: true, person_resolves: true}`)
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got)
	}
	want := []string{"keyed key true", "checked check false", "mail person false"}
	if diff := cmp.Diff(want, b.db.Rows(t, `SELECT concat_ws(' ', step, doubt, undoable::text) FROM effect_steps ORDER BY place`)); diff != "" {
		t.Error(diff)
	}
}

// A step in doubt that its rule has under another name now is not done under that name, before a person says what happened.
func TestDoubtOutlivesTheNameOfAStep(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.plan(t, 1, 1)
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, attempts, reserved_at) VALUES (1, 'client', 0, 'unknown', 'sink', '', 1, now())`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 || len(b.sink.Calls()) != 0 {
		t.Fatal(got)
	}
	if err := b.resolve(t, effects.Word{Step: "client"}); err != nil {
		t.Fatal(err)
	}
	if got := b.settled(t); got["done"] != 1 || len(b.sink.Calls()) != 2 {
		t.Error(got)
	}
}
