package apply_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An event without a final outcome is pending as long as it is in the log. An event that retention
// has dropped is not.
func TestCountPending_eventsWithoutFinalOutcome_areCounted(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Applier(t, nil)
	sample := sim.Provider{}.Samples()[0]
	ids := l.Append(t, l.Source, []sim.Event{{Object: "obj_1", Body: sample.Body},
		{Object: "obj_1", Body: sample.Body}})
	pending := func(want int64, ids ...int64) {
		t.Helper()
		if n, err := p.CountPending(t.Context(), ids); err != nil || n != want {
			t.Errorf("%d of %d are pending (%v), want %d", n, len(ids), err, want)
		}
	}
	awaited := func(want int64, because string, ids ...int64) {
		t.Helper()
		if id, reason, err := p.OldestPending(t.Context(), ids); err != nil || id != want || reason != because {
			t.Errorf("%d is the oldest pending, reason %q (%v), want %d, reason %q", id, reason, err, want, because)
		}
	}
	pending(2, ids[0], ids[1], 7) // 7 is in no partition
	awaited(min(ids[0], ids[1]), "", ids...)
	_, err := p.PublishAndApply(t.Context(), ids[:1])
	must(t, err)
	pending(1, ids...)
	awaited(ids[1], "", ids...)
	l.DB.Exec(t, `UPDATE outcomes SET status = 'failed', reason = 'down', due = clock_now()`)
	pending(2, ids...)
	awaited(ids[0], "down", ids...)
	pending(0, 7)
	awaited(0, "", 7)
}
