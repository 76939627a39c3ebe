package processor_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An event waits for its outcome as long as it is in the log; one that retention has dropped waits for nothing.
func TestPending(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Processor(t, nil)
	sample := sim.Provider{}.Samples()[0]
	ids := l.Append(t, l.Source, []sim.Event{{Object: "obj_1", Body: sample.Body}, {Object: "obj_1", Body: sample.Body}})
	pending := func(want int64, ids ...int64) {
		t.Helper()
		if n, err := p.Pending(t.Context(), ids); err != nil || n != want {
			t.Errorf("%d of %d wait (%v), want %d", n, len(ids), err, want)
		}
	}
	awaited := func(want int64, because string, ids ...int64) {
		t.Helper()
		if id, reason, err := p.Awaited(t.Context(), ids); err != nil || id != want || reason != because {
			t.Errorf("%d is awaited since %q (%v), want %d since %q", id, reason, err, want, because)
		}
	}
	pending(2, ids[0], ids[1], 7) // 7 is in no partition
	awaited(min(ids[0], ids[1]), "", ids...)
	if _, err := p.Enter(t.Context(), ids[:1]); err != nil {
		t.Fatal(err)
	}
	pending(1, ids...)
	awaited(ids[1], "", ids...)
	l.DB.Exec(t, `UPDATE outcomes SET status = 'failed', reason = 'down', due = clock_now()`)
	pending(2, ids...)
	awaited(ids[0], "down", ids...)
	pending(0, 7)
	awaited(0, "", 7)
}
