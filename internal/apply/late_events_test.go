package apply_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// stateEvent is event number n: it reports an object's state, or its deletion if the state is "",
// at a second after the simulation's start.
func stateEvent(n int, object, state string, second int64) stream.Event {
	at := sim.Start + second*1_000_000
	content := fmt.Sprintf(`"object":{"id":%q,"state":%q}`, object, state)
	if state == "" {
		content = `"deleted":true`
	}
	body := fmt.Appendf(nil, `{"id":"k%d","object_id":%q,"type":"thing.updated","unit":1000000,"rank":1,"time":%d,%s}`,
		n, object, at, content)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: fmt.Sprint("k", n),
		Type: "thing", Origin: events.OriginWebhook, ReceivedAt: time.UnixMicro(at).Add(time.Hour).UTC(), Body: body}}
}

const (
	// completeUntilSQL inserts a watermark of a type, as an object scan does.
	completeUntilSQL = `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
		VALUES ($1, '', $2, to_timestamp(0), provider_time($3), 1, now())`
	// openScanSQL inserts an object scan that is still running, or whose run has failed.
	openScanSQL = `WITH r AS (INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at,
		updated_at, ended_at)
		VALUES ('reconcile', '{}', 'test', '', CASE WHEN $3 THEN 'failed' ELSE 'running' END, '', '{}', now(), now(),
			CASE WHEN $3 THEN now() END) RETURNING run)
		INSERT INTO object_scans (run, source, account, object_type, started_at, updated_at) SELECT r.run, $1, '',
			'thing', provider_time($2), now() FROM r`
)

// A late event that changes a checked state requests a refetch of the object. Events after the
// check, events that change nothing and stale events request none.
func TestApply_lateEvent_requestsRefetch(t *testing.T) {
	t.Parallel()
	at := func(second int64) int64 { return sim.Start + second*1_000_000 }
	// The watermark is at second 100.
	event := func(object, state string, second int64) stream.Event { return stateEvent(2, object, state, second) }
	late, added, unread := event("obj_1", "B", 10), event("obj_2", "B", 10), event("obj_3", "B", 10)
	next := func(state string, second int64) []stream.Event {
		return []stream.Event{stateEvent(3, "obj_1", state, second)}
	}
	removal := []stream.Event{stateEvent(3, "obj_2", "", 20)}
	for name, c := range map[string]struct {
		// watermark is its subject, "" for the type. "scan": a scan that began then, "ended": a
		// scan whose run has failed.
		watermark string
		event     stream.Event
		// more events follow in the same batch, or separately in batches of their own.
		more       []stream.Event
		separately bool
		noAPI      bool
		// located says that the API finds objects of the type by their state.
		located bool
		want    int
	}{
		"late":                                    {event: late, want: 1},
		"late after changes":                      {watermark: "changes thing", event: late, want: 1},
		"late during a scan":                      {watermark: "scan", event: late, want: 1},
		"late after a failed run":                 {watermark: "ended", event: late},
		"of another type":                         {watermark: "type other", event: late},
		"watermark of events only":                {watermark: "events", event: late},
		"in the last second before the watermark": {event: event("obj_1", "B", 100), want: 1},
		"since":                               {event: event("obj_1", "B", 101)},
		"stale":                               {event: event("obj_1", "B", 3)},
		"unchanged":                           {event: event("obj_1", "A", 10)},
		"overtaken in its batch":              {event: late, more: next("C", 200)},
		"changed and back in one batch":       {event: late, more: next("A", 20)},
		"changed, and back in the next batch": {event: late, more: next("A", 20), separately: true, want: 1},
		"changed twice, and back in later batches": {event: late,
			more: append(next("C", 15), stateEvent(4, "obj_1", "A", 20)), separately: true, want: 1},
		"ends ambiguous":                         {event: late, more: next("C", 10), want: 1},
		"changed again in the next batch":        {event: late, more: next("C", 15), separately: true, want: 1},
		"deleted":                                {event: event("obj_1", "", 10), want: 1},
		"new object that was not listed":         {event: added, want: 1},
		"created and deleted in one batch":       {event: added, more: removal},
		"created, and deleted in the next batch": {event: added, more: removal, separately: true, want: 1},
		"located, not read by its id":            {event: unread, located: true, want: 1},
		"an object that the API cannot read":     {event: unread},
		"a source without an API":                {event: late, noAPI: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.Applier(t, nil)
			if !c.noAPI {
				sources := b.RefetchingSources(func(id string) bool { return id != "obj_3" })
				s := sources[applied.SourceName]
				s.Locates = func(_, objectType string) bool { return c.located && objectType == "thing" }
				p.Replace(map[string]apply.Source{applied.SourceName: s})
			}
			applyBatch(t, p, []stream.Event{stateEvent(1, "obj_1", "A", 5)})
			switch c.watermark {
			case "scan", "ended":
				b.DB.Exec(t, openScanSQL, b.Source, at(100), c.watermark == "ended")
			default:
				b.DB.Exec(t, completeUntilSQL, b.Source, cmp.Or(c.watermark, "type thing"), at(100)+500_000)
			}
			batch := map[bool]int{false: 9, true: 1}[c.separately]
			for some := range slices.Chunk(append([]stream.Event{c.event}, c.more...), batch) {
				applyBatch(t, p, some)
			}
			got := b.DB.QueryStrings(t, `SELECT object_id || ' ' || reason || ' ' || (due - requested_at)::text
				FROM refetch_requests`)
			if len(got) != c.want || c.want == 1 && got[0][5:] != " an event came late 00:01:00" {
				t.Errorf("requests %q, want %d", got, c.want)
			}
			if c.want == 0 {
				return
			}
			// A refetch after that ends the request, and events that arrive still later lose to it.
			for i, o := range []string{"obj_1", "obj_2", "obj_3"} {
				applyBatch(t, p, []stream.Event{refetchEvent(t, 50+i, o, "A", 110)})
				applyBatch(t, p, []stream.Event{stateEvent(60+i, o, "Z", 30)})
			}
			if left := b.DB.QueryStrings(t, `SELECT object_id FROM refetch_requests`); len(left) > 0 {
				t.Errorf("after a refetch %q remain", left)
			}
		})
	}
}

// refetchEvent is event number n: a refetch that found a state at a second after the simulation's
// start.
func refetchEvent(t *testing.T, n int, object, state string, second int64) stream.Event {
	t.Helper()
	refetch := provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: object,
		Body: fmt.Appendf(nil, `{"unit":1000000,"object":{"id":%q,"state":%q}}`, object, state)},
		Date: time.UnixMicro(sim.Start + second*1_000_000).UTC()}
	body, err := refetch.Encode()
	must(t, err)
	return stream.Event{Source: "sim", StoredEvent: provider.StoredEvent{ID: int64(n), Key: fmt.Sprint("refetch", n),
		Type: provider.RefetchType, Origin: events.OriginReconcile, ReceivedAt: refetch.Date, Body: body}}
}

// versionedEvent is event number n: it reports an object's state with a version of the object
// itself.
type versionedEvent struct {
	n             int
	version       int64
	before, state string
	// mayNotAdvance says that the version may not advance with each change. occurredAt is the
	// event's own time, receivedAt its receipt, in seconds after the simulation's start.
	mayNotAdvance          bool
	occurredAt, receivedAt int64
}

func (o versionedEvent) event(object string) stream.Event {
	ev := stateEvent(o.n, object, o.state, o.receivedAt)
	before := ""
	if o.before != "" {
		before = fmt.Sprintf(`"previous":{"state":%q},`, o.before)
	}
	content := fmt.Sprintf(`"object":{"id":%q,"state":%q}`, object, o.state)
	if o.state == "" {
		content = `"deleted":true`
	}
	ev.Body = fmt.Appendf(nil,
		`{"id":"k%d","object_id":%q,"type":"thing.updated","unit":1,"own":true,"still":%t,"rank":1,"time":%d,%s%s}`,
		o.n, object, o.mayNotAdvance, o.version, before, content)
	ev.ReceivedAt = time.UnixMicro(sim.Start + o.receivedAt*1_000_000).UTC()
	if o.occurredAt != 0 {
		ev.OccurredAt = time.UnixMicro(sim.Start + o.occurredAt*1_000_000).UTC()
	}
	return ev
}

// If the object's version is a time, this time decides whether an event is late. If it is a
// counter, the event's time decides. Normal events are not late.
func TestApply_objectVersion_isLateByItsTime(t *testing.T) {
	t.Parallel()
	at := func(second int64) int64 { return sim.Start + second*1_000_000 }
	for name, c := range map[string]struct {
		first, event versionedEvent
		want         int
	}{
		"counter, new": {event: versionedEvent{version: 3, state: "B", receivedAt: 5000}},
		"counter, late by the event's time": {
			event: versionedEvent{version: 3, state: "B", occurredAt: 10, receivedAt: 5000}, want: 1},
		"counter, not late by the event's time": {
			event: versionedEvent{version: 3, state: "B", occurredAt: 4000, receivedAt: 5000}},
		"counter, received before the watermark": {
			event: versionedEvent{version: 3, state: "B", receivedAt: 50}, want: 1},
		"counter, changed": {first: versionedEvent{version: 3, state: "A", receivedAt: 5},
			event: versionedEvent{version: 4, state: "B", receivedAt: 5000}},
		"time, new": {
			event: versionedEvent{version: at(10), state: "B", receivedAt: 5000}, want: 1},
		"time, new after the watermark": {event: versionedEvent{version: at(4000), state: "B", receivedAt: 5000}},
		"time that may not advance, new": {
			event: versionedEvent{version: at(10), state: "B", mayNotAdvance: true, receivedAt: 5000}, want: 1},
		"time, after a delete": {first: versionedEvent{version: at(5), receivedAt: 5},
			event: versionedEvent{version: at(10), state: "B", receivedAt: 5000}, want: 1},
		"time, changed after the watermark": {first: versionedEvent{version: at(5), state: "A", receivedAt: 5},
			event: versionedEvent{version: at(4000), state: "B", receivedAt: 5000}},
		"time that did not advance": {
			first: versionedEvent{version: at(5), before: "Z", state: "A", mayNotAdvance: true, receivedAt: 5},
			event: versionedEvent{version: at(5), before: "A", state: "B", mayNotAdvance: true, receivedAt: 5000},
			want:  1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.refetchingApplier(t, anyID)
			if c.first.version != 0 {
				c.first.n = 1
				applyBatch(t, p, []stream.Event{c.first.event("obj_1")})
			}
			b.DB.Exec(t, completeUntilSQL, b.Source, "type thing", at(100))
			c.event.n = 2
			applyBatch(t, p, []stream.Event{c.event.event("obj_1")})
			equal(t, "the object", []string{"B"}, b.DB.QueryStrings(t, `SELECT o.state ->> 'state' FROM objects o`))
			b.DB.WantRows(t, c.want, "refetch_requests")
		})
	}
}

// applierOfCompleteType returns an applier whose API reads all objects. An object has had a
// state, and its type is complete since.
func (b *testBundle) applierOfCompleteType(t *testing.T) *apply.Applier {
	t.Helper()
	p := b.refetchingApplier(t, anyID)
	applyBatch(t, p, []stream.Event{stateEvent(1, "obj_1", "A", 5)})
	b.DB.Exec(t, completeUntilSQL, b.Source, "type thing", sim.Start+100*1_000_000)
	return p
}

// A late event of the same version requests a refetch because of the ambiguity. A late event that
// ends the ambiguity does not end the request for the late event.
func TestApply_ambiguityEnds_keepsLateEventRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.applierOfCompleteType(t)
	applyBatch(t, p, []stream.Event{stateEvent(2, "obj_1", "B", 10), stateEvent(3, "obj_1", "C", 10)})
	shown := b.DB.QueryStrings(t, `SELECT state ->> 'state' FROM objects WHERE refetch_after <> 0`)
	if len(shown) != 1 {
		t.Fatal("no refetch is pending")
	}
	applyBatch(t, p, []stream.Event{stateEvent(4, "obj_1", shown[0], 12)})
	if pending := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE refetch_after <> 0`); len(pending) > 0 {
		t.Fatalf("%q are ambiguous", pending)
	}
	equal(t, "requests", []string{"an event came late"},
		b.DB.QueryStrings(t, `SELECT reason FROM refetch_requests WHERE missed_changes IS NOT NULL`))
}

// A suspended request becomes due again after a late event, with that reason.
func TestApply_lateEvent_resumesSuspendedRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.applierOfCompleteType(t)
	b.DB.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after, error)
		SELECT source, account, object_type, object_id, 'a change does not fit', now(), 'infinity', 0, 'not whole'
			FROM objects`)
	applyBatch(t, p, []stream.Event{stateEvent(2, "obj_1", "B", 10)})
	equal(t, "requests", []string{"an event came late"}, b.DB.QueryStrings(t,
		`SELECT reason FROM refetch_requests WHERE missed_changes IS NOT NULL AND due < 'infinity'`))
}

// busyObjects change several times a second. Each event has the previous attributes and is received
// up to a second late.
var busyObjects = sim.Options{Objects: 1000, Changes: 8, Contents: 1000, Unit: 1000, Gap: 700_000, ChangeSets: 100,
	MaxDelay: 1_000_000}

// refetchingApplier is an applier whose API reads the objects with some ids.
func (b *testBundle) refetchingApplier(t *testing.T, canRead func(id string) bool) *apply.Applier {
	t.Helper()
	p := b.Applier(t, nil)
	p.Replace(b.RefetchingSources(canRead))
	return p
}

func anyID(string) bool { return true }

// refetchingAllButOne is an applier whose API reads all objects except one.
func (b *testBundle) refetchingAllButOne(t *testing.T) *apply.Applier {
	t.Helper()
	return b.refetchingApplier(t, func(id string) bool { return id != "obj_1000" })
}

// inOrderOfReceipt returns the events of a history in the order in which they were received.
func inOrderOfReceipt(h *sim.History) []stream.Event {
	all := messages(h)
	slices.SortStableFunc(all, func(a, b stream.Event) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
	return all
}

// applyBatch applies events in their order, in batches.
func applyBatch(t *testing.T, p *apply.Applier, all []stream.Event) {
	t.Helper()
	for some := range slices.Chunk(all, 37) {
		must(t, p.Apply(t.Context(), events.LiveRun, some))
	}
}

// Events that arrive in another order, without a loss, leave hardly any refetch requests.
func TestApply_reorderedEvents_requestFewRefetches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := inOrderOfReceipt(sim.Generate(rand.New(rand.NewPCG(1, 41)), busyObjects))
	applyBatch(t, b.refetchingAllButOne(t), all)
	var late, requests int
	b.Scan(t, `SELECT count(*) FROM outcomes WHERE status = 'stale'`, &late)
	b.Scan(t, `SELECT count(*) FROM refetch_requests`, &requests)
	if t.Logf("%d events of 1000 objects, %d of them after a newer one: %d requests remain", len(all), late,
		requests); late < 500 || requests > 10 {
		t.Errorf("%d late, %d requests", late, requests)
	}
}

// A lost event leaves a refetch request, if the API reads the object, and a refetch ends it.
func TestApply_lostEvent_requestsRefetch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h := sim.Generate(rand.New(rand.NewPCG(2, 41)), busyObjects)
	lost, gone := map[string]bool{}, map[int64]bool{} // objects and events
	for i, e := range h.Events {
		of := h.EventsOf(e.Object)
		if middle := len(of) / 2; len(of) >= 3 && of[middle].Key == e.Key &&
			(len(lost) < 100 || e.Object == "obj_1000") {
			lost[e.Object], gone[applied.Message(i, e).ID] = true, true
		}
	}
	p := b.refetchingAllButOne(t)
	applyBatch(t, p, slices.DeleteFunc(inOrderOfReceipt(h), func(e stream.Event) bool { return gone[e.ID] }))
	waiting := b.DB.QueryStrings(t, `SELECT object_id FROM refetch_requests WHERE missed_changes IS NOT NULL
		AND reason = 'a change does not fit'
		AND due > requested_at + interval '30 seconds' AND start_after = 0`)
	found := 0
	for _, id := range waiting {
		if lost[id] {
			found++
		}
	}
	t.Logf("%d objects lost an event, %d requests for them, %d for others", len(lost), found, len(waiting)-found)
	if found < 90 || len(waiting)-found > 10 || slices.Contains(waiting, "obj_1000") {
		t.Errorf("%d requests for %d objects that lost an event, %d in all", found, len(lost), len(waiting))
	}
	for i, id := range waiting {
		must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{refetchAt(t, h, id, time.Minute, 10_000+i)}))
	}
	if left := b.DB.QueryStrings(t, `SELECT object_id FROM refetch_requests`); len(left) > 0 {
		t.Errorf("after refetches %d requests remain", len(left))
	}
}

// at returns an event whose body has another time of change.
func at(e stream.Event, micros int64) stream.Event {
	e.Body = []byte(fmt.Sprintf(
		`{"id":%q,"type":"thing.updated","object_id":"obj_%s","unit":1,"rank":1,"time":%d,`+
			`"object":{"id":"obj_%s","name":"later"}}`,
		e.Key, e.Key, micros, e.Key))
	return e
}

// outcomesByObject returns the statuses of an object's outcomes, newest first, found by the
// object's hash.
func (b *testBundle) outcomesByObject(t *testing.T, id string) (statuses []string) {
	t.Helper()
	page, err := apply.ListOutcomes(t.Context(), b.DB.Pool,
		apply.OutcomeFilter{Objects: []int64{versioning.ObjectKey(b.Source, "", "thing", id)}}, "", 10)
	must(t, err)
	for _, o := range page.Items {
		statuses = append(statuses, o.Status)
	}
	return statuses
}

// An event too far in the future is dead and is found by its object, and the object needs a
// refetch. Nothing else of the object changes.
func TestApply_eventTooFarInFuture_isDeadAndRequestsRefetch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.Applier(t, nil)
	for name, first := range map[string]bool{"known": true, "new": false} {
		id := "obj_" + name
		want := []string{"dead"}
		if first {
			e := applied.ThingEvent(0, name)
			want = append(want, "applied")
			must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{e}))
		}
		before := b.Object(t, id)
		ahead := at(applied.ThingEvent(len(name), name), time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro())
		must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{ahead}))
		after := b.Object(t, id)
		if got := b.outcomesByObject(t, id); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s object: outcomes found by it %v, want %v", name, got, want)
		}
		if after.RefetchAfter != ahead.ReceivedAt.UnixMicro() || !after.Exists {
			t.Errorf("%s object: a refetch is pending after %d, want %d", name, after.RefetchAfter,
				ahead.ReceivedAt.UnixMicro())
		}
		if after.Version != before.Version || after.Revision != before.Revision ||
			after.LastEventID != before.LastEventID || after.State.ExactHash != before.State.ExactHash {
			t.Errorf("%s object changed from %+v to %+v", name, before, after)
		}
	}
}

// An event that failed or became dead after its object was known is found by the object.
func TestListOutcomes_failedAfterObjectKnown_foundByObject(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.DB.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	p := b.Applier(t, nil)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{applied.ThingEvent(0, "refused"),
		applied.ThingEvent(1, "good")}))
	if got := b.outcomesByObject(t, "obj_refused"); fmt.Sprint(got) != "[failed]" {
		t.Errorf("outcomes of the rejected object: %v", got)
	}
	impossible := at(applied.ThingEvent(2, "good"), math.MinInt64)
	must(t, p.Apply(t.Context(), events.LiveRun, []stream.Event{impossible}))
	if got := b.outcomesByObject(t, "obj_good"); fmt.Sprint(got) != "[dead applied]" {
		t.Errorf("outcomes of the good object: %v", got)
	}
	if o := b.Object(t, "obj_good"); o.RefetchAfter != 0 {
		t.Errorf("an event without a usable version requests a refetch after %d", o.RefetchAfter)
	}
}

// An operator's refetch request stays although the late event of a missed change arrives.
func TestMissedChanges_closedDuringManualRefetch_keepsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.refetchingAllButOne(t)
	change := func(n int, before, state string, second int64) stream.Event {
		ev := stateEvent(n, "obj_1", state, second)
		previous := fmt.Appendf(nil, `"previous":{"state":%q},"object":`, before)
		ev.Body = bytes.Replace(ev.Body, []byte(`"object":`), previous, 1)
		return ev
	}
	for _, ev := range []stream.Event{stateEvent(1, "obj_1", "A", 5), change(3, "B", "C", 30)} {
		applyBatch(t, p, []stream.Event{ev})
	}
	if requests := b.DB.QueryStrings(t, `SELECT object_id FROM refetch_requests WHERE missed_changes IS NOT NULL`); len(
		requests) != 1 {
		t.Fatalf("a missed change leaves %q", requests)
	}
	b.DB.Exec(t, `UPDATE refetch_requests SET requested_by = 'ada', reason = 'a customer complains'`)
	applyBatch(t, p, []stream.Event{change(2, "A", "B", 20)})
	equal(t, "requests", []string{"ada true"},
		b.DB.QueryStrings(t, `SELECT requested_by || ' ' || (missed_changes IS NULL) FROM refetch_requests`))
}
