package redaction_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// feeds is a server with what was published of some events.
type feeds struct {
	nats *testkit.Server
	conn *stream.Conn
	js   jetstream.JetStream
}

func newFeeds(t *testing.T) *feeds {
	t.Helper()
	f := &feeds{nats: testkit.JetStream(t)}
	var err error
	if f.conn, err = stream.Connect(stream.Options{URL: f.nats.URL, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.conn.Close)
	if err := f.conn.Ensure(t.Context(), stream.DefaultLimits); err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(f.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	if f.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return f
}

// event publishes an event to both of the streams that have events.
func (f *feeds) event(t *testing.T, id int64, text string) {
	t.Helper()
	evs := []stream.Event{{Source: "sim", Stored: provider.Stored{ID: id, Type: "thing", ReceivedAt: time.Now(), Body: []byte(text)}}}
	if acks := f.conn.PublishEvents(t.Context(), evs); acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
	if err := f.conn.PublishReplays(t.Context(), 1, evs); err != nil {
		t.Fatal(err)
	}
}

// change publishes what an event made of an object.
func (f *feeds) change(t *testing.T, id int64, object string, revision int, state string) {
	t.Helper()
	envelope := fmt.Appendf(nil, `{"schema":1,"event_id":"%d","source":"sim","account":"","object_type":"thing","object_id":%q,"revision":%d,"state":%s}`, id, object, revision, state)
	if acks := f.conn.PublishChanges(t.Context(), []stream.Change{{Source: "sim", ObjectType: "thing", Batch: 1, Event: id, Envelope: envelope}}); acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
}

// held are the messages that a stream still has.
func (f *feeds) held(t *testing.T, name string) (texts []string) {
	t.Helper()
	s, err := f.js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.CachedInfo().State.LastSeq {
		if m, err := s.GetMsg(t.Context(), i+1); err == nil {
			texts = append(texts, string(m.Data))
		}
	}
	return texts
}

// TestRedact_objectOfADroppedEvent_erasesItsChanges: objects may be announced long after retention has dropped what made them.
func TestRedact_objectOfADroppedEvent_erasesItsChanges(t *testing.T) {
	t.Parallel()
	b, f := setup(t), newFeeds(t)
	b.object(t, "thing", "hers", `{"mail": "`+email+`"}`)
	b.object(t, "thing", "others", `{"mail": "somebody@else.org"}`)
	const before = 12 << 20 // an id of a day that is not in the log
	b.exec(t, `UPDATE objects SET last_event_id = $1`, before)
	f.change(t, before, "hers", 0, `{"mail": "`+email+`"}`)
	f.change(t, before, "others", 0, `{"mail": "somebody@else.org"}`)
	b.ask(t, b.byMentions(t, nil, email))
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if _, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc, Conn: f.conn}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	changes := f.held(t, stream.ChangesStream)
	if len(changes) != 1 || !strings.Contains(changes[0], "somebody@else.org") || h.Counts[redaction.CountMessages] != 1 {
		t.Errorf("the stream has %v, counts %v", changes, h.Counts)
	}
	if files := f.nats.FilesWith(t, email); len(files) > 0 {
		t.Errorf("the files %v still have the address", files)
	}
}

// What the streams hold of a redacted event goes, and of what it made all but the newest; the run ends only after that.
func TestFeedsForget(t *testing.T) {
	t.Parallel()
	b, f := setup(t), newFeeds(t)
	if err := f.conn.EnsureReplays(t.Context(), stream.DefaultLimits); err != nil {
		t.Fatal(err)
	}
	hers, other := b.event(t, "hers", 1, email), b.event(t, "other", 1, "somebody@else.org")
	f.event(t, hers, email)
	f.event(t, other, "other")
	f.event(t, hers, email) // the auditor's
	f.change(t, hers, "hers", 1, `{"email": "`+email+`"}`)
	f.change(t, other, "other", 1, `{}`)
	f.change(t, hers, "hers", 2, `null`) // of the redaction; it was fast
	b.ask(t, b.byEmail(t, email))
	h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	r := &redaction.Runner{Pool: b.pool, Processor: b.proc, Conn: f.conn}
	f.nats.Stop(t)
	if files := f.nats.FilesWith(t, email); len(files) != 3 {
		t.Fatalf("the files %v have the address, want one of each stream", files)
	}
	if _, err := r.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("the run ends though the streams are away")
	}
	if ended := b.rows(t, `SELECT (ended_at IS NOT NULL)::text FROM redactions`)[0]; ended != "false" {
		t.Error("the audit says that it has ended")
	}
	f.nats.Restart(t)
	testkit.Eventually(t, time.Minute, func() error {
		_, err := r.Carry(t.Context(), h, slog.New(slog.DiscardHandler))
		return err
	})
	if files := f.nats.FilesWith(t, email); len(files) > 0 {
		t.Errorf("the files %v still have the address", files)
	}
	for _, name := range []string{stream.EventsStream, stream.ReplaysStream} {
		if diff := cmp.Diff([]string{"other"}, f.held(t, name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if changes := f.held(t, stream.ChangesStream); len(changes) != 2 {
		t.Errorf("changes %v, want that of another object and the newest", changes)
	}
	if n := h.Counts[redaction.CountMessages]; n != 5 {
		t.Errorf("%d messages are counted", n)
	}
}
