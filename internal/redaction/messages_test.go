package redaction_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// streamFixture is a server with the messages of some events.
type streamFixture struct {
	nats *testkit.Server
	conn *stream.Conn
	js   jetstream.JetStream
}

func newStreamFixture(t *testing.T) *streamFixture {
	t.Helper()
	f := &streamFixture{nats: testkit.JetStream(t)}
	var err error
	if f.conn, err = stream.Connect(stream.Options{URL: f.nats.URL, Name: t.Name(),
		Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.conn.Close)
	must(t, f.conn.Ensure(t.Context(), stream.DefaultLimits))
	nc, err := nats.Connect(f.nats.URL)
	must(t, err)
	t.Cleanup(nc.Close)
	if f.js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	return f
}

// event publishes an event to both event streams.
func (f *streamFixture) event(t *testing.T, id int64, text string) {
	t.Helper()
	evs := []stream.Event{{Source: "sim", StoredEvent: provider.StoredEvent{ID: id, Type: "thing",
		ReceivedAt: time.Now(), Body: []byte(text)}}}
	if acks := f.conn.PublishEvents(t.Context(), evs); acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
	must(t, f.conn.PublishReplays(t.Context(), 1, evs))
}

// change publishes the change of an event.
func (f *streamFixture) change(t *testing.T, id int64, object string, revision int, state string) {
	t.Helper()
	envelope := fmt.Appendf(nil,
		`{"schema":1,"event_id":"%d","source":"sim","account":"","object_type":"thing","object_id":%q,`+
			`"revision":%d,"state":%s}`, id, object, revision, state)
	if acks := f.conn.PublishChanges(t.Context(), []stream.Change{{Source: "sim", ObjectType: "thing", Batch: 1,
		Event: id, Envelope: envelope}}); acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
}

// remaining returns the messages that a stream still has.
func (f *streamFixture) remaining(t *testing.T, name string) (texts []string) {
	t.Helper()
	s, err := f.js.Stream(t.Context(), name)
	must(t, err)
	for i := range s.CachedInfo().State.LastSeq {
		if m, err := s.GetMsg(t.Context(), i+1); err == nil {
			texts = append(texts, string(m.Data))
		}
	}
	return texts
}

// Changes may be published long after the partition of their event was dropped.
func TestRedact_objectOfADroppedEvent_erasesItsChanges(t *testing.T) {
	t.Parallel()
	b, f := setup(t), newStreamFixture(t)
	b.putObject(t, "thing", "hers", `{"mail": "`+email+`"}`)
	b.putObject(t, "thing", "others", `{"mail": "somebody@else.org"}`)
	const before = 12 << 20 // the id of a day that is not in the log
	b.exec(t, `UPDATE objects SET last_event_id = $1`, before)
	f.change(t, before, "hers", 0, `{"mail": "`+email+`"}`)
	f.change(t, before, "others", 0, `{"mail": "somebody@else.org"}`)
	b.request(t, b.byMentions(t, nil, email))
	h, _, err := b.tryExecute(t, f.conn)
	must(t, err)
	changes := f.remaining(t, stream.ChangesStream)
	if len(changes) != 1 || !strings.Contains(changes[0], "somebody@else.org") {
		t.Errorf("the stream has %v", changes)
	}
	wantCounts(t, h, map[string]int64{redaction.CountMessages: 1})
	if files := f.nats.FilesContaining(t, email); len(files) > 0 {
		t.Errorf("the files %v still have the address", files)
	}
}

// The messages of a redacted event are deleted, and all of its changes except the newest. The run
// ends only after that.
func TestDeleteMessages_keepsNewestChange(t *testing.T) {
	t.Parallel()
	b, f := setup(t), newStreamFixture(t)
	must(t, f.conn.EnsureReplays(t.Context(), stream.DefaultLimits))
	redacted, other := b.event(t, "hers", 1, email), b.event(t, "other", 1, "somebody@else.org")
	f.event(t, redacted, email)
	f.event(t, other, "other")
	f.event(t, redacted, email) // by the republisher
	f.change(t, redacted, "hers", 1, `{"email": "`+email+`"}`)
	f.change(t, other, "other", 1, `{}`)
	f.change(t, redacted, "hers", 2, `null`) // by the redaction, if its change was published first
	b.request(t, b.byEmail(t, email))
	h := leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
	r := &redaction.Runner{Pool: b.pool, Applier: b.proc, Conn: f.conn}
	f.nats.Stop(t)
	if files := f.nats.FilesContaining(t, email); len(files) != 3 {
		t.Fatalf("the files %v have the address, want one of each stream", files)
	}
	if _, err := r.Execute(t.Context(), h, slog.New(slog.DiscardHandler)); err == nil {
		t.Fatal("the run ends although the streams are unavailable")
	}
	b.wantText(t, "false", `SELECT (ended_at IS NOT NULL)::text FROM redactions`)
	f.nats.Restart(t)
	testkit.Eventually(t, time.Minute, func() error {
		_, err := r.Execute(t.Context(), h, slog.New(slog.DiscardHandler))
		return err
	})
	if files := f.nats.FilesContaining(t, email); len(files) > 0 {
		t.Errorf("the files %v still have the address", files)
	}
	for _, name := range []string{stream.EventsStream, stream.ReplaysStream} {
		equal(t, name, []string{"other"}, f.remaining(t, name))
	}
	if changes := f.remaining(t, stream.ChangesStream); len(changes) != 2 {
		t.Errorf("changes %v, want that of another object and the newest", changes)
	}
	wantCounts(t, h, map[string]int64{redaction.CountMessages: 5})
}

// export returns the log as a file.
func (b *fixture) export(t *testing.T) (path string, done archive.ExportResult) {
	t.Helper()
	var out bytes.Buffer
	done, err := archive.ExportToWriter(t.Context(), archive.ExportParams{Pool: b.operator, Compression: archive.None},
		&out)
	must(t, err)
	path = filepath.Join(t.TempDir(), "log.ndjson")
	must(t, os.WriteFile(path, out.Bytes(), 0o600))
	return path, done
}

func (b *fixture) importFile(t *testing.T, path string) archive.ImportResult {
	t.Helper()
	im := archive.ImportParams{Pool: b.db.Role(t, "gateway"), Now: time.Now(),
		Sources: map[string]archive.Source{"sim": {Provider: sim.Provider{}, Config: &provider.Source{Name: "sim"}}}}
	im.Report = func(where string, why error) { t.Errorf("%s: %v", where, why) }
	done, err := archive.Import(t.Context(), im, path)
	must(t, err)
	return done
}

// An export leaves out redacted events, so that an import elsewhere does not have them. An older
// export does not bring them back into the same log.
func TestExport_redactedEvents_areLeftOut(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	b.event(t, "hers", 1, "somebody@else.org")
	ids := b.store(t, "hers", body("hers", 5, email), "one", "two")
	b.apply(t, 0, ids...)
	b.store(t, "hers", body("hers", 6, "new@else.org"), "three")
	older, done := b.export(t)
	if done.Events != 4 {
		t.Fatalf("%+v", done)
	}
	b.run(t, redaction.Params{Events: ids[1:]})
	newer, done := b.export(t)
	text, err := os.ReadFile(newer)
	if err != nil || bytes.Contains(text, []byte("lovelace")) || done.Events != 2 || done.Skipped != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if in := other.importFile(t, newer); in.Added != 2 || len(other.tablesWith(t, "lovelace")) > 0 {
		t.Errorf("elsewhere: %+v", in)
	}
	if in := b.importFile(t, older); in.Added != 0 || in.Duplicate != 4 {
		t.Errorf("the older one: %+v", in)
	}
	b.wantGone(t, "lovelace")
	var left []int64
	if _, err := events.Walk(t.Context(), b.operator, &events.Filter{}, 0, 1<<62, func(e *events.FullRecord) error {
		if e.Body == nil {
			left = append(left, e.ID)
		}
		return nil
	}); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}
