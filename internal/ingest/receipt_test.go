package ingest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
)

func TestReceiptHasTheShapeOthersScriptAgainst(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.invoice(t, 1)
	began := time.Now().Truncate(time.Millisecond)
	a := b.post(t, "stripe", d)
	r := a.receipt(t)
	var fields map[string]any
	if err := json.Unmarshal(a.body, &fields); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, []string{"duplicate", "event_id", "id", "received_at"}) {
		t.Errorf("a new event's receipt has %v", got)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	var body struct{ ID string }
	if err := json.Unmarshal(d.Body, &body); err != nil || r.EventID != body.ID || r.Duplicate {
		t.Errorf("receipt %+v of event %s, %v", r, body.ID, err)
	}
	id, err := strconv.ParseInt(r.ID, 10, 64)
	if err != nil || r.ReceivedAt.UnixMilli() != id>>20 || r.ReceivedAt.Before(began) || r.ReceivedAt.After(time.Now()) {
		t.Errorf("id %s was received at %s, %v", r.ID, r.ReceivedAt, err)
	}
	text, _ := fields["received_at"].(string)
	if want := r.ReceivedAt.UTC().Format("2006-01-02T15:04:05.000000Z"); text != want {
		t.Errorf("received_at %q, want microseconds in UTC: %q", text, want)
	}
	var stored []byte
	var verification string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT body, verification->>'secret' FROM events WHERE id = $1`, id).Scan(&stored, &verification); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(stored, d.Body) || verification != "main" {
		t.Errorf("stored %q proven by %q", stored, verification)
	}
	if e := <-b.published; e.ID != id || e.Source != "stripe" || !bytes.Equal(e.Body, d.Body) {
		t.Errorf("published %+v", e)
	}
}

// Concurrent twins make one event and get equal receipts but for duplicate.
func TestTwinsMakeOneEvent(t *testing.T) {
	t.Parallel()
	// Many small batches at once, so that twins meet in the database and not only in one statement.
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.Deadline, o.Settings.StallAfter = 10, 2, 2*time.Minute, 2*time.Minute
	})
	d := b.invoice(t, 1)
	const twins = 200
	receipts := make([]receipt, twins)
	var group sync.WaitGroup
	start := make(chan struct{})
	for i := range twins {
		group.Go(func() {
			<-start
			a, err := b.try(t.Context(), "stripe", d)
			if err == nil {
				err = json.Unmarshal(a.body, &receipts[i])
			}
			if err != nil || a.status != 200 {
				t.Errorf("twin %d: %d %s %v", i, a.status, a.body, err)
			}
		})
	}
	close(start)
	group.Wait()
	first := 0
	for i := range receipts {
		if !receipts[i].Duplicate {
			first++
		}
		receipts[i].Duplicate = false
		if receipts[i] != receipts[0] || receipts[i].ID == "" {
			t.Errorf("receipt %d: %+v, receipt 0: %+v", i, receipts[i], receipts[0])
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events`); first != 1 || n != 1 {
		t.Errorf("%d first receipts, %d events; want 1 of each", first, n)
	}
	b.publishes(t, 1)
}

func TestConflictIsSaidAndKept(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	s := b.sample(t, "stripe", "invoice.paid", 1)
	first := b.post(t, "stripe", b.sign(t, "stripe", s)).receipt(t)
	other := s
	other.Body = bytes.Replace(s.Body, []byte(`"paid"`), []byte(`"void"`), 1)
	if bytes.Equal(other.Body, s.Body) {
		t.Fatal("the sample does not say paid")
	}
	for range 2 { // the same conflict twice is kept once
		a := b.post(t, "stripe", b.sign(t, "stripe", other))
		want := first
		want.Duplicate, want.Conflict = true, true
		if diff := cmp.Diff(want, a.receipt(t)); diff != "" {
			t.Error(diff)
		}
		if !bytes.Contains(a.body, []byte(`"conflict":true`)) {
			t.Errorf("receipt %s", a.body)
		}
	}
	// What Stripe itself lets differ is no conflict.
	same := s
	same.Body = bytes.Replace(s.Body, []byte(`"pending_webhooks": 1`), []byte(`"pending_webhooks": 2`), 1)
	if r := b.post(t, "stripe", b.sign(t, "stripe", same)).receipt(t); bytes.Equal(same.Body, s.Body) || !r.Duplicate || r.Conflict {
		t.Errorf("receipt %+v", r)
	}
	var kept, stored []byte
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT c.body, e.body FROM event_conflicts c JOIN events e ON e.id = c.event`).Scan(&kept, &stored); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, other.Body) || !bytes.Equal(stored, s.Body) || b.count(t, `SELECT count(*) FROM event_conflicts`) != 1 {
		t.Errorf("kept %q beside %q", kept, stored)
	}
}

func TestDeliveryOfManyEventsIsAnsweredWithAList(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.sign(t, "many", provider.Sample{Body: []byte("one\ntwo\nthree\n")})
	a := b.post(t, "many", d)
	var list []receipt
	if err := json.Unmarshal(a.body, &list); err != nil || a.status != 200 || len(list) != 3 {
		t.Fatalf("status %d, %s, %v", a.status, a.body, err)
	}
	for i, key := range []string{"one", "two", "three"} {
		if list[i].EventID != key || list[i].Duplicate || list[i].ID == "" {
			t.Errorf("receipt %d: %+v", i, list[i])
		}
		if e := <-b.published; e.Key != key || e.Index != i || !bytes.Equal(e.Body, d.Body) {
			t.Errorf("published %+v", e)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events WHERE delivery_id = (SELECT id FROM events WHERE body = $1)`, d.Body); n != 3 {
		t.Errorf("%d events point to the one that holds the body", n)
	}
	// A later delivery may carry some that are known and some that are not.
	a = b.post(t, "many", b.sign(t, "many", provider.Sample{Body: []byte("two\nfour\n")}))
	var again []receipt
	if err := json.Unmarshal(a.body, &again); err != nil || !again[0].Duplicate || again[0].ID != list[1].ID || again[1].Duplicate {
		t.Errorf("%s, %v", a.body, err)
	}
}

// What cannot be read but is rightly signed is stored under a content key, once.
func TestSignedBodiesThatCannotBeReadAreStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, body := range map[string]string{"broken JSON": `{"id": "evt_1", `, "invalid UTF-8": "{\"id\": \"evt_\xff\"}", "empty": "", "NUL": "\x00",
		"no id": `{"object": "event", "type": "invoice.paid"}`} {
		for _, source := range []string{"stripe", "shop"} {
			d := b.sign(t, source, provider.Sample{Type: "orders/create", Body: []byte(body)})
			d.Header.Del("X-Shopify-Webhook-Id") // what names the event where the body does not have to
			first := b.post(t, source, d).receipt(t)
			if !strings.HasPrefix(first.EventID, "sha256:") || first.Duplicate {
				t.Errorf("%s to %s: %+v", name, source, first)
			}
			var stored []byte
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT body FROM events WHERE id = $1::bigint`, first.ID).Scan(&stored); err != nil || string(stored) != body {
				t.Errorf("%s to %s: stored %q, %v", name, source, stored, err)
			}
			if again := b.post(t, source, d).receipt(t); !again.Duplicate || again.ID != first.ID || again.Conflict {
				t.Errorf("%s to %s again: %+v", name, source, again)
			}
		}
	}
	if n := b.counter(t, "postern_content_keys_total"); n != 20 {
		t.Errorf("%v content keys counted, want one for each of 20 deliveries", n)
	}
}

// Batches form by themselves and mix sources; each delivery gets its own receipt.
func TestEachOfManyGetsItsOwnReceipt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	var group sync.WaitGroup
	for client := range 16 {
		group.Go(func() {
			for i := range 20 {
				n := client*20 + i
				source, eventType := "stripe", "customer.updated"
				if n%2 == 1 {
					source, eventType = "shop", "orders/create"
				}
				s := b.sample(t, source, eventType, n+1)
				a, err := b.try(t.Context(), source, b.sign(t, source, s))
				var r receipt
				if err == nil {
					err = json.Unmarshal(a.body, &r)
				}
				if err != nil || r.Duplicate || source == "shop" && r.EventID != s.ID || source == "stripe" && !bytes.Contains(s.Body, []byte(r.EventID)) {
					t.Errorf("delivery %d: %d %s %v", n, a.status, a.body, err)
				}
			}
		})
	}
	group.Wait()
	if n := b.count(t, `SELECT count(DISTINCT (source, event_id)) FROM events`); n != 320 {
		t.Errorf("%d events, want 320", n)
	}
	if got := fmt.Sprint(b.counter(t, "postern_events_total", "result=stored"), b.counter(t, "postern_deliveries_total", "result=accepted")); got != "320 320" {
		t.Errorf("counted %s", got)
	}
}
