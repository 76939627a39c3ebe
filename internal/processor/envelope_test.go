package processor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

func replaceAll(body []byte, old, new string) []byte {
	return bytes.ReplaceAll(body, []byte(old), []byte(new))
}

// first is the first message of a stream in full: subject, headers in order, body.
func (w *world) first(t *testing.T, name string) string {
	t.Helper()
	var msg *jetstream.RawStreamMsg
	js := w.jetStream(t)
	testkit.Eventually(t, patience, func() error {
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

// The messages of both feeds are a contract that others program against, names and order of bytes included.
func TestMessagesOfBothFeeds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	e := sim.Event{Object: "obj_1", ReceivedAt: time.Date(2026, 3, 1, 10, 0, 0, 123_456_000, time.UTC),
		Body: []byte(`{"object_id":"obj_1", "object":{"id":"obj_1","ünïcode":1.50},"rank":1,"time":1700000000000000,"unit":1}`)}
	ev := w.append(t, e)[0]
	ev.Type, ev.Account, ev.APIVersion = "thing.updated é", "acct 1", "2026-01-01"
	w.publish(t, ev)
	w.start(t, setting{})
	w.outcomes(t, 1)
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
	if diff := cmp.Diff(event, w.first(t, stream.EventsStream)); diff != "" {
		t.Errorf("message of the feed of events (-want +got):\n%s", diff)
	}
	change := fmt.Sprintf(`postern.changes.sim.thing
Postern-Batch: 1
Postern-Id: %[1]d
Postern-Object-Type: thing
Postern-Schema: 1
Postern-Source: sim

{"schema":1,"event_id":"%[1]d","source":"sim","account":"","object_type":"thing","object_id":"obj_1",`+
		`"version":{"final":false,"at":1700000000000000,"seen":0,"rank":1},"revision":1,"deleted":false,"ambiguous":false,`+
		`"state":{"id":"obj_1","ünïcode":1.50}}`, ev.ID)
	if diff := cmp.Diff(change, w.first(t, stream.ChangesStream)); diff != "" {
		t.Errorf("message of the feed of changes (-want +got):\n%s", diff)
	}
}

// What is too large to travel is a claim check, and is applied from the log: a large body, and names no header line takes.
func TestClaimCheckIsAppliedFromTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	big := func(object string) sim.Event {
		body, err := json.Marshal(map[string]any{"object_id": object, "object": map[string]any{"id": object, "text": strings.Repeat("x", 300<<10)},
			"rank": 1, "time": sim.Start, "unit": 1})
		if err != nil {
			t.Fatal(err)
		}
		return sim.Event{Object: object, ReceivedAt: time.UnixMicro(sim.Start).UTC(), Body: body}
	}
	evs := w.append(t, big("obj_1"), big("obj_2"))
	evs = append(evs, w.append(t, renamed(1, w.simple(1))...)...)
	evs[2].Type = strings.Repeat("long", 300_000)
	w.publish(t, evs[0], evs[2]) // the second large one is the auditor's
	w.start(t, setting{})
	w.outcomes(t, 3)
	var applied, long int
	w.scan(t, `SELECT (SELECT count(*) FROM outcomes WHERE status IN ('applied', 'unchanged', 'stale', 'ambiguous')),
		(SELECT count(*) FROM objects WHERE length(state->>'text') = 307200)`, &applied, &long)
	if applied != 3 || long != 2 {
		t.Errorf("%d of 3 events applied, %d of 2 large states in the mirror", applied, long)
	}
	message := w.first(t, stream.EventsStream)
	if !strings.Contains(message, "\nPostern-Body: log\n") || !strings.HasSuffix(message, "\n\n") {
		t.Errorf("the large event travelled as %.200q", message)
	}
	change := w.first(t, stream.ChangesStream)
	if len(change) > 300<<10 {
		t.Errorf("a change of %d bytes travelled", len(change))
	}
}
