package processor_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// at is an event whose body says another time of change.
func at(e stream.Event, micros int64) stream.Event {
	e.Body = []byte(fmt.Sprintf(`{"id":%q,"type":"thing.updated","object_id":"obj_%s","unit":1,"rank":1,"time":%d,"object":{"id":"obj_%s","name":"later"}}`,
		e.Key, e.Key, micros, e.Key))
	return e
}

// found are the statuses of an object's outcomes, newest first, as whoever asks by object sees them.
func (b *testBundle) found(t *testing.T, id string) (statuses []string) {
	t.Helper()
	page, err := processor.ListOutcomes(t.Context(), b.db.Pool, processor.OutcomeFilter{Objects: []int64{versioning.ObjectKey(b.source, "", "thing", id)}}, "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range page.Items {
		statuses = append(statuses, o.Status)
	}
	return statuses
}

// What came too far ahead is dead for itself, found by its object, and the object owes a look; nothing else of the object moves.
func TestTooFarAheadOwesALook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	for name, first := range map[string]bool{"known": true, "new": false} {
		id := "obj_" + name
		want := []string{"dead"}
		if first {
			e := thing(0, name)
			want = append(want, "applied")
			if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		before := b.object(t, id)
		ahead := at(thing(len(name), name), time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{ahead}); err != nil {
			t.Fatal(err)
		}
		after := b.object(t, id)
		if got := b.found(t, id); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s object: outcomes found by it %v, want %v", name, got, want)
		}
		if after.LookAfter != ahead.ReceivedAt.UnixMicro() || !after.Exists {
			t.Errorf("%s object: a look is owed after %d, want %d", name, after.LookAfter, ahead.ReceivedAt.UnixMicro())
		}
		if after.Version != before.Version || after.Revision != before.Revision || after.LastEvent != before.LastEvent || after.State.Exact != before.State.Exact {
			t.Errorf("%s object moved from %+v to %+v", name, before, after)
		}
	}
}

// An event that failed or died after its object was known is found by the object.
func TestTroubleIsFoundByObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.db.Pool.Exec(t.Context(), `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`); err != nil {
		t.Fatal(err)
	}
	p := b.processor(t, sim.Provider{}, nil)
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{thing(0, "refused"), thing(1, "good")}); err != nil {
		t.Fatal(err)
	}
	if got := b.found(t, "obj_refused"); fmt.Sprint(got) != "[failed]" {
		t.Errorf("outcomes of the refused object: %v", got)
	}
	impossible := at(thing(2, "good"), math.MinInt64)
	if err := p.Apply(t.Context(), events.LiveRun, []stream.Event{impossible}); err != nil {
		t.Fatal(err)
	}
	if got := b.found(t, "obj_good"); fmt.Sprint(got) != "[dead applied]" {
		t.Errorf("outcomes of the good object: %v", got)
	}
	if o := b.object(t, "obj_good"); o.LookAfter != 0 {
		t.Errorf("a version that says nothing owes a look after %d", o.LookAfter)
	}
}
