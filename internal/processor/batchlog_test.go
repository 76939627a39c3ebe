package processor_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/stream"
)

// warned are the warnings of a log, each with its message, its run, how many it is about, and the first of them.
func (w *watched) warned(t *testing.T) (all []string) {
	t.Helper()
	for line := range strings.Lines(w.log.String()) {
		var said struct {
			Level, Msg           string
			Run, Events, Effects int
			First                []string
		}
		if err := json.Unmarshal([]byte(line), &said); err != nil {
			t.Fatal(err)
		}
		if said.Level == slog.LevelWarn.String() {
			all = append(all, fmt.Sprintf("%s: run %d, %d, %q", said.Msg, said.Run, said.Events+said.Effects, said.First))
		}
	}
	return all
}

// A batch with dead events warns of them in one line, with the first ids and reasons and the command that lists them; whoever meets them again, or an event that is tried again, does not.
func TestDeadEventsAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, moody{}, slog.LevelInfo)
	batch := []stream.Event{thing(1, "good"), thing(2, "fails")}
	for n := range 7 {
		batch = append(batch, thing(3+n, "dead"))
	}
	late := thing(10, "dead")
	for _, batch := range [][]stream.Event{batch, batch, append(batch[:len(batch):len(batch)], late)} {
		if err := w.Apply(t.Context(), events.LiveRun, batch); err != nil {
			t.Fatal(err)
		}
	}
	first := make([]string, 5)
	for n := range first {
		first[n] = fmt.Sprintf("%d: cannot be read", batch[2+n].ID)
	}
	const dead = "events are dead: they were not applied, and will not be by themselves (postern outcomes list --status dead --run 0): run 0, "
	want := []string{dead + fmt.Sprintf("7, %q", first), dead + fmt.Sprintf(`1, ["%d: cannot be read"]`, late.ID)}
	if diff := cmp.Diff(want, w.warned(t)); diff != "" {
		t.Error(diff)
	}
	if body := string(batch[2].Body); body == "" || strings.Contains(w.log.String(), body) {
		t.Errorf("a body is in the log: %s", w.log)
	}
}

// An effect that waits for a person from the start, as its rule cannot say what is to follow, is warned of.
func TestEffectsThatWaitForAPersonFromTheStartAreLogged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	w := b.watched(t, moody{}, slog.LevelInfo)
	rule := everyChange(t)
	var err error
	if rule.When, err = rules.Compile(`date(new.none) == nil`, rules.Scope{Change: true}, true); err != nil {
		t.Fatal(err)
	}
	healthy := everyChange(t)
	healthy.Name = "healthy"
	w.ReplaceRules(effects.NewRules([]*rules.Rule{rule, healthy}))
	if err := w.Apply(t.Context(), events.LiveRun, []stream.Event{thing(1, "good"), thing(2, "better")}); err != nil {
		t.Fatal(err)
	}
	states := b.db.Rows(t, `SELECT state FROM effects ORDER BY state`)
	if !slices.Equal(states, []string{"planned", "planned", "review", "review"}) {
		t.Fatal(states)
	}
	want := []string{"rules could not say what is to follow: a person must see to it (postern effects list --state review): run 0, 2, []"}
	if diff := cmp.Diff(want, w.warned(t)); diff != "" {
		t.Error(diff)
	}
}
