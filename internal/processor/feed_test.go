package processor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// feedObject is an object as a consumer of the feed or a reader of the mirror sees it.
type feedObject struct {
	Type      string `json:"object_type"`
	ID        string `json:"object_id"`
	Revision  int64  `json:"revision"`
	Deleted   bool   `json:"deleted"`
	Ambiguous bool   `json:"ambiguous"`
	State     any    `json:"state"`
}

// follower is a consumer of postern.changes.> that keeps the highest revision of each object.
type follower struct {
	js    jetstream.JetStream
	known map[string]feedObject
	next  uint64
}

func (w *world) newFollower(t *testing.T) *follower {
	return &follower{js: w.jetStream(t), known: map[string]feedObject{}}
}

// read reads all messages of the stream of changes that it has not read before. A follower reads
// only one stream.
func (f *follower) read(t *testing.T) error {
	s, err := f.js.Stream(t.Context(), stream.ChangesStream)
	if err != nil {
		return err
	}
	state := s.CachedInfo().State
	for f.next = max(f.next, state.FirstSeq); f.next <= state.LastSeq && state.Msgs > 0; f.next++ {
		msg, err := s.GetMsg(t.Context(), f.next)
		if err != nil {
			return err
		}
		var c feedObject
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			return err
		}
		if c.Revision > f.known[c.ID].Revision {
			f.known[c.ID] = c
		}
	}
	return nil
}

// mirror returns the table of objects in the form of the feed.
func (w *world) mirror(t *testing.T) map[string]feedObject {
	t.Helper()
	rows, err := w.DB.Pool.Query(t.Context(), `SELECT object_type, object_id, revision, deleted, ambiguous,
		coalesce(state, 'null') FROM objects WHERE revision > 0`)
	must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[feedObject])
	must(t, err)
	objs := map[string]feedObject{}
	for _, o := range all {
		objs[o.ID] = o
	}
	return objs
}

// awaitMirror waits until the follower has seen the complete mirror.
func (f *follower) awaitMirror(t *testing.T, w *world) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		if err := f.read(t); err != nil {
			return err
		}
		want := w.mirror(t)
		for id, o := range want {
			if !reflect.DeepEqual(o, f.known[id]) {
				return fmt.Errorf("of %d objects %d are in the feed; %s is\n%+v in the mirror and\n%+v in the feed",
					len(want), len(f.known), id, o, f.known[id])
			}
		}
		if len(f.known) != len(want) || len(want) == 0 {
			return fmt.Errorf("%d objects in the mirror, %d in the feed", len(want), len(f.known))
		}
		return nil
	})
}

// awaitNumbers waits until each object of the mirror has the number of its last change.
func (w *world) awaitNumbers(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		feed, err := changes.ReadFeed(t.Context(), w.Pool)
		if err != nil {
			return err
		}
		page, _, err := changes.Read(t.Context(), w.Pool, 0, feed.Newest, changes.Filter{}, 1000)
		if err != nil {
			return err
		}
		want := w.mirror(t)
		for _, c := range page {
			delete(want, c.ID)
		}
		late := w.DB.QueryStrings(t, `SELECT k.id FROM outbox o CROSS JOIN
			unnest(o.sources, o.accounts, o.types, o.ids) AS k(source, account, object_type, id) JOIN changes c ON
			(c.source, c.account, c.object_type, c.object_id) = (k.source, k.account, k.object_type, k.id)
			WHERE NOT o.numbered OR c.changed_at < o.created_at`)
		if len(want)+len(late) > 0 {
			return fmt.Errorf("objects without a number: %v; with an old one: %v", want, late)
		}
		return nil
	})
}

// shuffled returns the events of a history in random order.
func shuffled(seed uint64, o sim.Options, objects int) []sim.Event {
	r := rand.New(rand.NewPCG(seed, 5))
	o.Objects = objects
	evs := sim.Generate(r, o).Events
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	return evs
}

// For any history and several processors, the feed ends equal to the mirror.
func TestFeed_anyHistory_endsEqualToMirror(t *testing.T) {
	t.Parallel()
	for name, options := range applied.ProviderKinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			f := w.newFollower(t)
			for i := range 3 {
				w.start(t, processorOptions{id: fmt.Sprint("/", i), tune: func(s *processor.Settings) { s.Batch = 7 }})
			}
			evs := w.append(t, shuffled(1, options, 30)...)
			w.publish(t, append(evs, evs[:len(evs)/2]...)...)
			w.awaitOutcomes(t, len(evs))
			f.awaitMirror(t, w)
			w.awaitNumbers(t)
		})
	}
}

// Changes that the stream acknowledged and lost are sent again: after a wipe or a restore,
// repeatedly, and also while other changes are sent during the reconnect.
func TestFeed_streamLosesAcknowledgedChanges_sendsThemAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, w *world, saved string){
		"wiped":       func(t *testing.T, w *world, _ string) { w.nats.Wipe(t) },
		"rolled back": func(t *testing.T, w *world, saved string) { w.nats.RestoreStore(t, saved) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(l *stream.Limits) { l.AckWait = time.Second }) // acknowledgements are lost too
			for i := range 2 {
				w.start(t, processorOptions{id: fmt.Sprint("/", i), tune: func(s *processor.Settings) { s.Batch = 5 }})
			}
			total := 0
			add := func(seed int) {
				evs := w.append(t, renameObjects(seed, shuffled(uint64(seed), applied.ProviderKinds["event time"],
					10))...)
				total += len(evs)
				w.conn.PublishEvents(t.Context(), evs) // the republisher publishes those that fail
			}
			add(1)
			w.newFollower(t).awaitMirror(t, w)
			saved := w.nats.SaveStore(t)
			for round := 2; round <= 3; round++ {
				add(round)
				w.awaitOutcomes(t, total)
				w.awaitAllSent(t)
				lose(t, w, saved)
				add(10 * round)
				w.awaitOutcomes(t, total)
				w.newFollower(t).awaitMirror(t, w)
			}
		})
	}
}

// renameObjects gives the objects of a round new names, so that no later change of the same object
// repairs a loss.
func renameObjects(round int, evs []sim.Event) []sim.Event {
	for i, e := range evs {
		evs[i].Body = bytes.ReplaceAll(e.Body, []byte(`"obj_`), fmt.Appendf(nil, `"round%d_`, round))
	}
	return evs
}

// awaitAllSent waits until every change is acknowledged.
func (w *world) awaitAllSent(t *testing.T) {
	t.Helper()
	w.awaitCount(t, `SELECT count(*) FROM outbox WHERE sent_at IS NULL`, 0)
}

// Changes that another process sent after a loss do not hide the loss from a process that checks
// later.
func TestFeed_laterChangesAfterLoss_lossIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.start(t, processorOptions{id: "/first"})
	evs := w.append(t, w.newObjects(300)...)
	for _, e := range evs { // many batches, so that the stream is long
		w.publish(t, e)
	}
	w.awaitOutcomes(t, len(evs))
	w.awaitAllSent(t)
	first.stop(t)
	w.nats.Wipe(t)
	w.awaitReconnect(t)
	// Another process, which checked before the loss, sends one more.
	acks := w.conn.PublishChanges(t.Context(),
		[]stream.Change{{Source: "sim", ObjectType: "thing", Batch: 1 << 40, Envelope: []byte(`{"object_id":"x"}`)}})
	if acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
	w.DB.Exec(t, `INSERT INTO outbox (batch, sources, accounts, types, ids, created_at, sent_at, sequence)
		OVERRIDING SYSTEM VALUE VALUES ($1, '{}', '{}', '{}', '{}', now(), now() + interval '1 s', $2)`, int64(1<<40),
		int64(acks[0].Sequence))
	w.start(t, processorOptions{id: "/second", tune: func(s *processor.Settings) { s.RepublishInterval = time.Hour }})
	f := w.newFollower(t)
	f.known["x"] = feedObject{}
	testkit.Eventually(t, maxWait, func() error {
		if err := f.read(t); err != nil {
			return err
		}
		if known, want := len(f.known)-1, len(w.mirror(t)); known != want {
			return fmt.Errorf("%d of %d objects are in the feed", known, want)
		}
		return nil
	})
}

// awaitReconnect waits until the publishing connection is connected, and creates missing streams.
func (w *world) awaitReconnect(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, maxWait, func() error {
		if !w.conn.Connected() {
			return errors.New("not connected")
		}
		return w.conn.Ensure(t.Context(), w.limits)
	})
}

// Changes that were made while the database's clock was ahead are sent as soon as it has gone back,
// not when it has caught up.
func TestFeed_databaseClockWentBack_sendsChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.start(t, processorOptions{id: "/first"})
	w.publish(t, w.append(t, w.newObjects(5)...)...)
	w.awaitOutcomes(t, 5)
	w.awaitAllSent(t)
	first.stop(t)
	w.DB.Exec(t, `UPDATE outbox SET sent_at = NULL, sequence = NULL, created_at = now() + interval '1 day'`)
	w.start(t, processorOptions{id: "/second"})
	w.awaitAllSent(t)
}

// firstMessage returns the complete first message of a stream: subject, sorted headers, body.
func (w *world) firstMessage(t *testing.T, name string) string {
	t.Helper()
	var msg *jetstream.RawStreamMsg
	js := w.jetStream(t)
	testkit.Eventually(t, maxWait, func() error {
		s, err := js.Stream(t.Context(), name)
		if err == nil {
			msg, err = s.GetMsg(t.Context(), 1)
		}
		return err
	})
	text := msg.Subject + "\n"
	for _, key := range slices.Sorted(maps.Keys(msg.Header)) {
		text += fmt.Sprintf("%s: %s\n", key, strings.Join(msg.Header[key], " | "))
	}
	return text + "\n" + string(msg.Data)
}

// The messages of both feeds are a contract that consumers program against, including names and
// byte order.
func TestFeeds_message_matchesContract(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	e := sim.Event{Object: "obj_1", ReceivedAt: time.Date(2026, 3, 1, 10, 0, 0, 123_456_000, time.UTC),
		Body: []byte(`{"object_id":"obj_1", "object":{"id":"obj_1","ünïcode":1.50},"rank":1,` +
			`"time":1700000000000000,"unit":1}`)}
	ev := w.append(t, e)[0]
	ev.Type, ev.Account, ev.APIVersion = "thing.updated é", "acct 1", "2026-01-01"
	w.publish(t, ev)
	w.start(t, processorOptions{})
	w.awaitOutcomes(t, 1)
	event := fmt.Sprintf(`postern.events.sim.thing.updated=20=C3=A9
Postern-Account: acct%%201
Postern-Api-Version: 2026-01-01
Postern-Event-Id: k1
Postern-Id: %d
Postern-Object-Id: obj_1
Postern-Object-Type: thing
Postern-Origin: webhook
Postern-Received-At: 2026-03-01T10:00:00.123456Z
Postern-Schema: 1
Postern-Source: sim
Postern-Type: thing.updated%%20%%C3%%A9

%s`, ev.ID, e.Body)
	equal(t, "message of the feed of events", event, w.firstMessage(t, stream.EventsStream))
	change := fmt.Sprintf(`postern.changes.sim.thing
Postern-Batch: 1
Postern-Id: %[1]d
Postern-Object-Type: thing
Postern-Schema: 1
Postern-Source: sim

{"schema":1,"event_id":"%[1]d","source":"sim","account":"","object_type":"thing","object_id":"obj_1",`+
		`"version":{"final":false,"at":1700000000000000,"seen":0,"rank":1},`+
		`"revision":1,"deleted":false,"ambiguous":false,`+
		`"state":{"id":"obj_1","ünïcode":1.50}}`, ev.ID)
	equal(t, "message of the feed of changes", change, w.firstMessage(t, stream.ChangesStream))
}

// An event that is too large for a message is sent without its body and is applied from the log:
// one with a large body, and one with names that fit no header line.
func TestApply_bodyInLog_readsItFromTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	big := func(object string) sim.Event {
		body, err := json.Marshal(map[string]any{"object_id": object, "object": map[string]any{"id": object,
			"text": strings.Repeat("x", 300<<10)},
			"rank": 1, "time": sim.Start, "unit": 1})
		must(t, err)
		return sim.Event{Object: object, ReceivedAt: time.UnixMicro(sim.Start).UTC(), Body: body}
	}
	evs := w.append(t, big("obj_1"), big("obj_2"))
	evs = append(evs, w.append(t, renameObjects(1, w.newObjects(1))...)...)
	evs[2].Type = strings.Repeat("long", 300_000)
	w.publish(t, evs[0], evs[2]) // the republisher publishes the second large one
	w.start(t, processorOptions{})
	w.awaitOutcomes(t, 3)
	var applied, long int
	w.Scan(t, `SELECT (SELECT count(*) FROM outcomes WHERE status IN ('applied', 'unchanged', 'stale', 'ambiguous')),
		(SELECT count(*) FROM objects WHERE length(state->>'text') = 307200)`, &applied, &long)
	if applied != 3 || long != 2 {
		t.Errorf("%d of 3 events applied, %d of 2 large states in the mirror", applied, long)
	}
	message := w.firstMessage(t, stream.EventsStream)
	if !strings.Contains(message, "\nPostern-Body: log\n") || !strings.HasSuffix(message, "\n\n") {
		t.Errorf("the large event was sent as %.200q", message)
	}
	change := w.firstMessage(t, stream.ChangesStream)
	if len(change) > 300<<10 {
		t.Errorf("a change of %d bytes was sent", len(change))
	}
}

// jsonText generates JSON with space between any two tokens, and with escapes and quotes in
// strings.
func jsonText() *rapid.Generator[string] {
	space := rapid.SampledFrom([]string{"", " ", "\n\t", "\r\n    "})
	text := rapid.SampledFrom([]string{`""`, `" "`, `"a b\n\t"`, `"\""`, `"\\"`, `"\\\" \\"`, `"é <&> \u0020"`,
		"\"\u2028\"", `"[ { , : "`, `"eight bytes at a time, \\\" or seven \\\\"`, `"12345678"`, `"1234567\""`,
		`"1234567\\"`})
	leaf := rapid.OneOf(text, rapid.SampledFrom([]string{"0", "-1.50e+10", "true", "false", "null"}))
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		if depth == 0 {
			return leaf
		}
		return rapid.Custom(func(t *rapid.T) string {
			s := func() string { return space.Draw(t, "space") }
			object := rapid.Bool().Draw(t, "object")
			b := "["
			if object {
				b = "{"
			}
			for i := range rapid.IntRange(0, 3).Draw(t, "items") {
				if i > 0 {
					b += s() + ","
				}
				if object {
					b += s() + text.Draw(t, "key") + s() + ":"
				}
				b += s() + value(depth-1).Draw(t, "value")
			}
			if object {
				return b + s() + "}"
			}
			return b + s() + "]"
		})
	}
	return value(3)
}

// The envelope equals the output of encoding/json, byte for byte, because it is a contract.
func TestEnvelope_encode_equalsEncodingJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var state json.RawMessage
		if rapid.Bool().Draw(t, "state") {
			state = json.RawMessage(jsonText().Draw(t, "text"))
		}
		got, want, err := processor.Envelopes(state, rapid.Bool().Draw(t, "omitted") && state == nil,
			rapid.SampledFrom([]string{"cus_1", "<é> \" \\ null}"}).Draw(t, "id"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("wrote  %s\nwanted %s", got, want)
		}
	})
}
