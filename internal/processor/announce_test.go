package processor_test

import (
	"fmt"
	"testing"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func TestAnnounceNamesEveryObjectOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	var batch []stream.Event
	for i := range 450 {
		batch = append(batch, thing(i, fmt.Sprint("n", i)))
	}
	if err := p.Apply(t.Context(), events.LiveRun, batch); err != nil {
		t.Fatal(err)
	}
	if _, err := b.db.Pool.Exec(t.Context(), `TRUNCATE outbox`); err != nil {
		t.Fatal(err)
	}
	operator := b.db.Role(t, "operator")
	for source, want := range map[int32]int{0: 450, b.source: 450, b.source + 1: 0} {
		if n, err := processor.Announce(t.Context(), operator, source, "thing"); err != nil || n != want {
			t.Errorf("source %d: announced %d, %v, want %d", source, n, err, want)
		}
	}
	if n, err := processor.Announce(t.Context(), operator, 0, "other"); err != nil || n != 0 {
		t.Errorf("announced %d of another type, %v", n, err)
	}
	var rows, names int
	b.scan(t, `SELECT count(DISTINCT id), count(*) FROM outbox, unnest(ids) id WHERE sent_at IS NULL`, &rows, &names)
	if rows != 450 || names != 900 {
		t.Errorf("%d objects named %d times, want 450 twice", rows, names)
	}
}
