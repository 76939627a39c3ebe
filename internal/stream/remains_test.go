package stream_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Where the files of a deleted stream are still there, the server makes one of that name with the old messages in it, which answers nobody once the files go. It is made
// again without them, and no other is touched.
func TestRemainsOfADeletedStream(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false)
	publish := func() (ofEvent, ofChange stream.Ack) {
		t.Helper()
		ofEvent = b.conn.PublishEvents(t.Context(), []stream.Event{event(1)})[0]
		ofChange = b.conn.PublishChanges(t.Context(), []stream.Change{{Source: "s", ObjectType: "t", Envelope: []byte("{}")}})[0]
		return ofEvent, ofChange
	}
	if e, c := publish(); e.Sequence != 1 || c.Sequence != 1 {
		t.Fatalf("published as %+v and %+v", e, c)
	}
	b.nats.HalfDelete(t, stream.EventsStream)
	testkit.Eventually(t, patience, func() error { return b.conn.Ensure(t.Context(), b.limits) })
	if e, c := publish(); e.Sequence != 1 || c.Sequence != 2 {
		t.Errorf("published as %+v and %+v, want a stream of events that is new, and that of changes as it was", e, c)
	}
}
