package replay_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// publisher executes runs with a connection to a stream, until the test ends.
func (b *testBundle) publisher(t *testing.T, server *testkit.Server, chunk int) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	conn, err := stream.Connect(stream.Options{URL: server.URL, Name: t.Name(), Logger: log})
	must(t, err)
	t.Cleanup(conn.Close)
	limits := stream.DefaultLimits
	limits.MaxBytes = 64 << 20
	proc, err := apply.New(apply.Options{Pool: b.pool, Conn: conn, Limits: limits,
		Settings: apply.DefaultSettings, Logger: log, Metrics: prometheus.NewRegistry()})
	must(t, err)
	b.startRunner(t, t.Name(), &replay.Runner{Pool: b.pool, Applier: proc, Chunk: chunk,
		RetryPause: 10 * time.Millisecond})
}

// publishedMessages returns the messages of a subject in the order of the stream.
func publishedMessages(t *testing.T, server *testkit.Server, subject string, n int) (msgs []*nats.Msg) {
	t.Helper()
	nc, err := nats.Connect(server.URL)
	must(t, err)
	defer nc.Close()
	js, err := nc.JetStream()
	must(t, err)
	sub, err := js.SubscribeSync(subject, nats.OrderedConsumer(), nats.BindStream(stream.ReplaysStream))
	must(t, err)
	for {
		m, err := sub.NextMsg(30 * time.Second)
		if err != nil {
			t.Fatalf("%d of %d messages: %v", len(msgs), n, err)
		}
		msgs = append(msgs, m)
		meta, err := m.Metadata()
		must(t, err)
		if meta.NumPending == 0 && len(msgs) >= n {
			return msgs
		}
	}
}

// A run that publishes sends each selected event to the stream, in the form of the feed of events,
// and applies nothing. It waits for an unavailable stream. Some events may be published again, and
// none is missing.
func TestReplay_publish_publishesEachEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, 23, 30)
	server := testkit.JetStream(t)
	if _, err := b.db.Pool.Exec(t.Context(), `INSERT INTO events SELECT id - 1, source, 'redacted', event_type, account,
		object_type, object_id, occurred_at, received_at, origin,
  api_version, headers, verification, fingerprint, id - 1, 0, NULL FROM events ORDER BY id LIMIT 1`); err != nil {
		t.Fatal(err) // the state after a redaction: this event is not published
	}
	b.publisher(t, server, 40)
	before := b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o ORDER BY event_id, run`)
	run := b.request(t, replay.Params{Publish: true, Rate: 400})
	b.awaitRun(t, run, func(r *runs.Run) bool { return r.Counts[replay.Published] >= 40 })
	server.Stop(t)
	stopped, err := runs.Show(t.Context(), b.operator, run)
	must(t, err)
	if stopped.Status != runs.Running || int(stopped.Counts[replay.Published]) >= len(b.ids) {
		t.Fatalf("%+v", stopped)
	}
	// changed while the stream is unavailable
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Paused))
	b.awaitRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.LeaseOwner == "" })
	must(t, runs.ChangeStatus(t.Context(), b.operator, run, runs.Queued))
	server.Restart(t)
	ended := b.awaitRun(t, run, done)
	if int(ended.Counts[replay.Published]) != len(b.ids) ||
		ended.Counts[replay.Processed] != ended.Counts[replay.Published] || len(ended.Counts) != 2 {
		t.Errorf("counts %v of %d events", ended.Counts, len(b.ids))
	}
	recs, err := events.Read(t.Context(), b.pool, b.ids, events.UnlimitedBody)
	must(t, err)
	want := map[string][]byte{}
	for i := range recs {
		want[strconv.FormatInt(recs[i].ID, 10)] = recs[i].Body
	}
	got := map[string]bool{}
	for _, m := range publishedMessages(t, server, fmt.Sprintf("postern.replays.%d.>", run), len(b.ids)) {
		id := m.Header.Get("Postern-Id")
		body, known := want[id]
		if got[id] = true; !known || !bytes.Equal(body, m.Data) ||
			m.Subject != fmt.Sprintf("postern.replays.%d.sim.thing", run) ||
			m.Header.Get("Postern-Run") != fmt.Sprint(run) || m.Header.Get("Postern-Source") != "sim" ||
			m.Header.Get("Postern-Schema") != "1" {
			t.Fatalf("%s %v", m.Subject, m.Header)
		}
	}
	if len(got) != len(b.ids) {
		t.Errorf("%d of %d events were published", len(got), len(b.ids))
	}
	if after := b.rows(t, `SELECT to_jsonb(o)::text FROM outcomes o ORDER BY event_id, run`); len(after) != len(
		before) {
		t.Errorf("%d outcomes, before %d", len(after), len(before))
	}
}
