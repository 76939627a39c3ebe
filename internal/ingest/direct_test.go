package ingest_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// pushed is a request of the user's own service, by its body and headers, "name: value" each.
func pushed(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{"Authorization": {"Bearer " + apiToken}}, Body: []byte(body)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		d.Header.Set(name, value)
	}
	return d
}

// event is a CloudEvent in the JSON format.
func event(id, data string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"com.example.order.updated","subject":"o1","data":` + data + `}`
}

const (
	ofOne  = "Content-Type: application/cloudevents+json"
	ofMany = "Content-Type: application/cloudevents-batch+json"
	ofJSON = "Content-Type: application/json"
)

// receipts are those of an answer that is a list.
func (a answer) receipts(t testing.TB) (all []receipt) {
	t.Helper()
	if err := json.Unmarshal(a.body, &all); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return all
}

// keeps fails unless the log has so many events, and no conflict.
func (b *testBundle) keeps(t *testing.T, events int) {
	t.Helper()
	if n, keys, conflicts := b.count(t, `SELECT count(*) FROM events`), b.count(t, `SELECT count(*) FROM event_keys`), b.count(t, `SELECT count(*) FROM event_conflicts`); n != events || keys != events || conflicts != 0 {
		t.Errorf("%d events, %d keys and %d conflicts, want %d and no conflict", n, keys, conflicts, events)
	}
}

// In each mode: the same again is answered the same receipt, and the same key with other content is refused and changes nothing.
func TestDirectKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, c := range map[string]struct{ first, again, other *provider.Delivery }{
		"structured": {pushed(event("a", `{"version":1}`), ofOne), pushed(" "+event("a", `{"version": 1.0}`), ofOne), pushed(event("a", `{"version":2}`), ofOne)},
		"binary": {pushed(`{"version":1}`, ofJSON, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s", "ce-type: t"),
			pushed(`{"specversion":"1.0","id":"b","source":"/s","type":"t","datacontenttype":"application/json","data":{"version":1}}`, ofOne),
			pushed(`{"version":1}`, ofJSON, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s", "ce-type: other")},
		"JSON": {pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: "c"`), pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: c`), pushed(`{"type":"u"}`, ofJSON, `Idempotency-Key: "c"`)},
	} {
		first, again := b.post(t, "api", c.first), b.post(t, "api", c.again)
		if r := first.receipt(t); r.Duplicate || r.ID == "" {
			t.Errorf("%s: %s", name, first.body)
		}
		if want := strings.Replace(string(first.body), `"duplicate":false`, `"duplicate":true`, 1); string(again.body) != want || again.status != first.status {
			t.Errorf("%s: %d %s, want %s", name, again.status, again.body, want)
		}
		other := b.post(t, "api", c.other)
		other.refused(t, 422, "key-reused")
		if key := first.receipt(t).EventID; !strings.Contains(string(other.body), key) {
			t.Errorf("%s: %s does not name %q", name, other.body, key)
		}
		if r := b.post(t, "api", c.first).receipt(t); !r.Duplicate || r.ID != first.receipt(t).ID {
			t.Errorf("%s: after the refusal %+v", name, r)
		}
	}
	b.post(t, "api", pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: "/s a"`)).refused(t, 422, "key-reused") // one space of names
	b.keeps(t, 3)
	b.publishes(t, 3)
	if n := b.counter(t, "postern_deliveries_total", "source=api", "result=conflict"); n != 4 {
		t.Errorf("%g refusals counted", n)
	}
}

// Whoever cannot be stored is told why, and nobody but who shows a token.
func TestDirectRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.post(t, "api", pushed(`{}`, ofJSON)).refused(t, 400, "invalid")
	b.post(t, "api", pushed(`a=1`, "Content-Type: application/x-www-form-urlencoded", "Idempotency-Key: a")).refused(t, 415, "invalid")
	b.post(t, "api", pushed(`[`+strings.Repeat("1,", 1000)+`1]`, ofMany)).refused(t, 413, "invalid")
	for _, d := range []*provider.Delivery{pushed(`{}`, ofJSON, "Authorization: Bearer wrong"), pushed(`{}`, ofJSON, "Authorization: Basic x")} {
		a := b.post(t, "api", d)
		a.refused(t, 401, "unauthenticated")
		if got := a.header.Get("WWW-Authenticate"); got != "Bearer" {
			t.Errorf("WWW-Authenticate %q", got)
		}
	}
	if a := b.post(t, "stripe", pushed(`{}`)); a.header.Get("WWW-Authenticate") != "" {
		t.Error("a provider's webhook is asked for a token")
	}
	b.post(t, "api", pushed(`{}`, ofJSON, "Idempotency-Key: a")).receipt(t)
	b.keeps(t, 1)
	b.publishes(t, 1)
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM rejections WHERE source = $1`, b.endpoints["api"].Number); n != 2 {
			return fmt.Errorf("%d rejections", n)
		}
		return nil
	})
	for _, table := range []string{"events", "rejections"} {
		if n := b.count(t, `SELECT count(*) FROM `+table+` x WHERE x::text ILIKE '%bearer wrong%' OR x::text LIKE '%`+apiToken+`%' OR headers ? 'Authorization'`); n != 0 {
			t.Errorf("%d rows of %s hold a token", n, table)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events WHERE verification->>'secret' = 'main' AND verification->>'scheme' = 'bearer'`); n != 1 {
		t.Error("what proved the event is not told")
	}
}

// Of a batch all are stored or none, and each is told of.
func TestDirectBatch(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two, three, four := event("1", "1"), event("2", "2"), event("3", "3"), event("4", "4")
	first := b.post(t, "api", pushed("["+one+","+two+"]", ofMany)).receipts(t)
	if len(first) != 2 || first[0].EventID != "/s 1" || first[1].EventID != "/s 2" || first[0].Duplicate || first[1].Duplicate {
		t.Errorf("receipts %+v", first)
	}
	again := b.post(t, "api", pushed("["+three+","+one+","+three+"]", ofMany)).receipts(t)
	if len(again) != 3 || again[0].Duplicate || !again[1].Duplicate || again[1].ID != first[0].ID || !again[2].Duplicate || again[2].ID != again[0].ID {
		t.Errorf("receipts %+v", again)
	}
	if r := b.post(t, "api", pushed("["+two+"]", ofMany)).receipts(t); len(r) != 1 || !r[0].Duplicate || r[0].ID != first[1].ID {
		t.Errorf("receipts of a batch of one: %+v", r)
	}
	b.keeps(t, 3)
	for name, batch := range map[string]string{
		"one of three differs": "[" + four + "," + event("2", "0") + "," + event("5", "5") + "]",
		"two of one key":       "[" + four + "," + event("6", "6") + "," + event("6", "7") + "]",
		"the only one":         "[" + event("1", "0") + "]",
	} {
		a := b.post(t, "api", pushed(batch, ofMany))
		a.refused(t, 422, "key-reused")
		if strings.Contains(string(a.body), "/s 4") || strings.Contains(string(a.body), "/s 5") {
			t.Errorf("%s: named what is new: %s", name, a.body)
		}
	}
	if a := b.post(t, "api", pushed("[]", ofMany)); a.status != 200 || strings.TrimSpace(string(a.body)) != "[]" {
		t.Errorf("an empty batch: %d %s", a.status, a.body)
	}
	b.keeps(t, 3)
	b.publishes(t, 3)
	if r := b.post(t, "api", pushed("["+four+"]", ofMany)).receipts(t); r[0].Duplicate {
		t.Error("what was refused took a key")
	}
}

// What is on its way is told so, also where it is one of many, and is free again once that is decided.
func TestDirectInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	release := b.hold(t)
	first := b.send(t, t.Context(), "api", pushed(event("1", "1"), ofOne))
	b.blocked(t, 1)
	for _, d := range []*provider.Delivery{pushed(event("1", "1"), ofOne), pushed(event("1", "0"), ofOne), pushed("["+event("2", "2")+","+event("1", "1")+"]", ofMany)} {
		b.post(t, "api", d).refused(t, 409, "in-flight")
	}
	other := b.send(t, t.Context(), "api", pushed(event("2", "2"), ofOne)) // the refused batch has left no mark
	release()
	r := (<-first).receipt(t)
	if r.Duplicate || (<-other).receipt(t).Duplicate {
		t.Error("what came first is a duplicate")
	}
	if again := b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t); !again.Duplicate || again.ID != r.ID {
		t.Errorf("again: %+v, first %+v", again, r)
	}
	b.keeps(t, 2)
}

// Two gateways that are sent one key at once, with two contents: one content is stored, once, and all who are told a receipt are told the same.
func TestDirectRace(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	gateways := []*testBundle{setupOn(t, db, nil), setupOn(t, db, nil)}
	const rounds, senders = 8, 8
	for round := range rounds {
		answers := make([]answer, senders)
		var all sync.WaitGroup
		for i := range senders {
			body := "[" + event(fmt.Sprint("own ", round, i), "1") + "," + event(fmt.Sprint("shared ", round), fmt.Sprint(i/2%2)) + "]"
			all.Go(func() { answers[i] = gateways[i%2].post(t, "api", pushed(body, ofMany)) })
		}
		all.Wait()
		ids, kinds := map[string]bool{}, map[string]bool{}
		stored := 0
		for i, a := range answers {
			switch a.status {
			case 409:
				a.refused(t, 409, "in-flight")
			case 422:
				a.refused(t, 422, "key-reused")
			default:
				r := a.receipts(t)
				ids[r[1].ID], kinds[fmt.Sprint(i/2%2)] = true, true
				stored++
			}
		}
		if len(ids) != 1 || len(kinds) != 1 {
			t.Fatalf("round %d: events %v of contents %v", round, ids, kinds)
		}
		if n := gateways[0].count(t, `SELECT count(*) FROM events WHERE event_id LIKE '%own `+fmt.Sprint(round)+`%'`); n != stored {
			t.Errorf("round %d: %d deliveries acknowledged, and the own events of %d stored", round, stored, n)
		}
	}
	if n := gateways[0].count(t, `SELECT count(*) FROM events WHERE event_id LIKE '%shared%'`); n != rounds {
		t.Errorf("%d events, want %d", n, rounds)
	}
}

// A commit whose answer nobody has heard: whoever sends again, here or to another gateway, gets its receipt, and there is one event.
func TestDirectAnswerLost(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := through(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		tune(o)
		o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
	})
	b.taken(t, pushed(event("0", "0"), ofOne)) // its statement is prepared
	t.Cleanup(proxy.Restore)
	proxy.StallAnswers()
	batch := pushed("["+event("1", "1")+","+event("2", "2")+"]", ofMany)
	single := pushed(event("3", "3"), ofOne)
	b.post(t, "api", single).refused(t, 503, "unavailable")
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 2 {
			return fmt.Errorf("%d events", n)
		}
		return nil
	})
	other := setupOn(t, db, nil) // as the gateway after a crash, or beside it
	if r := other.post(t, "api", single).receipt(t); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	if r := other.post(t, "api", batch).receipts(t); r[0].Duplicate || r[1].Duplicate {
		t.Errorf("receipts %+v", r)
	}
	proxy.Restore()
	if r := b.taken(t, single); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	b.keeps(t, 4)
}

// taken sends until a receipt comes.
func (b *testBundle) taken(t *testing.T, d *provider.Delivery) (r receipt) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		a, err := b.try(t.Context(), "api", d)
		if err != nil || a.status != 200 {
			return fmt.Errorf("%d %s %w", a.status, a.body, err)
		}
		r = a.receipt(t)
		return nil
	})
	return r
}

// While the store is away nothing is acknowledged, unless the source says so; what is then, and conflicts, is kept like any sender's.
func TestDirectWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	strict := setupSpool(t, nil)
	strict.store.Cut()
	strict.post(t, "api", pushed(event("1", "1"), ofOne)).refused(t, 503, "unavailable")
	b := setupSpool(t, func(o *ingest.Options) {
		loose := o.Endpoints["api"]
		loose.FinalReceipts = false
		o.Endpoints["api"] = loose
	})
	b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t)
	b.store.Cut()
	b.post(t, "api", pushed(event("1", "0"), ofOne)).kept(t, "/s 1")
	if a := b.post(t, "api", pushed("["+event("2", "2")+"]", ofMany)); a.status != 200 || !strings.HasPrefix(string(a.body), `[{"event_id":"/s 2","spooled":true}`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	b.store.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		if n, c := b.count(t, `SELECT count(*) FROM events`), b.count(t, `SELECT count(*) FROM event_conflicts`); n != 2 || c != 1 || b.spool.Stats().Records != 0 {
			return fmt.Errorf("%d events, %d conflicts, kept %+v", n, c, b.spool.Stats())
		}
		return nil
	})
}

// An event of a batch is stored, published and read as if it had come alone: who forgets one forgets no other.
func TestDirectBatchIsStoredApart(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two := event("1", `{"version": 1}`), event("2", `{"version": 2}`)
	receipts := b.post(t, "api", pushed("["+one+" ,\n"+two+"]", ofMany)).receipts(t)
	for i, want := range []string{one, two} {
		if n := b.count(t, `SELECT count(*) FROM events WHERE id = $1::bigint AND body = $2 AND delivery_id = id AND delivery_index = 0 AND headers->>'Content-Type' = 'application/cloudevents+json'`, receipts[i].ID, []byte(want)); n != 1 {
			t.Errorf("event %d is not stored by itself", i)
		}
	}
	b.publishes(t, 2)
	for range 2 {
		e := <-b.published
		ep := b.endpoints["api"]
		o, err := ep.Provider.Observe(ep.Config, &e.Stored)
		if err != nil || e.Key[3:] != fmt.Sprint(o.At) || e.BodyInLog || e.Index != 0 || string(e.Body) != map[string]string{"/s 1": one, "/s 2": two}[e.Key] {
			t.Errorf("published %+v, observed %+v, %v", e, o, err)
		}
	}
}

// What is kept of an event is a CloudEvent in the JSON format whatever mode it came in, so that it is read again from its body alone.
func TestDirectIsReadFromItsBody(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.post(t, "api", pushed(`{"version": 7, "status": "paid"}`, ofJSON, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s", "ce-type: com.example.order.updated", "ce-subject: o%20%E2%82%AC", "ce-ext: x", "Idempotency-Key: k")).receipt(t)
	var body []byte
	var headers, objectID string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT body, headers::text, object_id FROM events`).Scan(&body, &headers, &objectID); err != nil {
		t.Fatal(err)
	}
	want := `{"ext":"x","id":"b","source":"/s","specversion":"1.0","subject":"o €","type":"com.example.order.updated","datacontenttype":"application/json","data":{"version": 7, "status": "paid"}}`
	if string(body) != want || objectID != "o €" || !strings.Contains(headers, "application/cloudevents+json") || strings.Contains(headers, "Idempotency") {
		t.Errorf("stored %s of object %q under %s", body, objectID, headers)
	}
	ep := b.endpoints["api"]
	o, err := ep.Provider.Observe(ep.Config, &provider.Stored{Key: "/s b", Type: "com.example.order.updated", APIVersion: "1.0", Body: body})
	if err != nil || o.ObjectID != objectID || o.At != 7 || o.State.Get("status").Kind() == 0 {
		t.Errorf("observed %+v, %v", o, err)
	}
}

// The headers of a batch are kept with each of its events, so they are short; alone an event has them whole.
func TestDirectBatchMultipliesNoHeaders(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	agent := "User-Agent: " + strings.Repeat("a", 255) + strings.Repeat("é", 4000)
	b.post(t, "api", pushed("["+event("1", "1")+","+event("2", "2")+"]", ofMany, agent)).receipts(t)
	b.post(t, "api", pushed(event("3", "3"), ofOne, agent)).receipt(t)
	kept := b.db.Rows(t, `SELECT event_id || ' ' || octet_length(headers->>'User-Agent') || ' ' || (headers->>'Content-Type') FROM events ORDER BY event_id`)
	of := " application/cloudevents+json"
	if want := []string{"/s 1 258" + of, "/s 2 258" + of, "/s 3 8255" + of}; !slices.Equal(kept, want) { // the half of a letter is a replacement character
		t.Errorf("kept %q, want %q", kept, want)
	}
}
