package ingest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestReceipt_newEvent_hasDocumentedFields(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.invoice(t, 1)
	began := time.Now().Truncate(time.Millisecond)
	a := b.post(t, "stripe", d)
	r := a.receipt(t)
	var fields map[string]any
	testkit.Must(t, json.Unmarshal(a.body, &fields))
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, []string{"duplicate", "event_id", "id",
		"received_at"}) {
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
	if err != nil || r.ReceivedAt.UnixMilli() != id>>20 || r.ReceivedAt.Before(began) ||
		r.ReceivedAt.After(time.Now()) {
		t.Errorf("id %s was received at %s, %v", r.ID, r.ReceivedAt, err)
	}
	text, _ := fields["received_at"].(string)
	if want := r.ReceivedAt.UTC().Format("2006-01-02T15:04:05.000000Z"); text != want {
		t.Errorf("received_at %q, want microseconds in UTC: %q", text, want)
	}
	var stored []byte
	var verification string
	testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `SELECT body, verification->>'secret' FROM events WHERE id = $1`,
		id).Scan(&stored, &verification))
	if !bytes.Equal(stored, d.Body) || verification != "main" {
		t.Errorf("stored %q, verified by %q", stored, verification)
	}
	if e := <-b.published; e.ID != id || e.Source != "stripe" || !bytes.Equal(e.Body, d.Body) {
		t.Errorf("published %+v", e)
	}
}

func TestReceipt_conflict_isReportedAndStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	s := b.sample(t, "stripe", "invoice.paid", 1)
	first := b.post(t, "stripe", b.sign(t, "stripe", s)).receipt(t)
	other := s
	other.Body = bytes.Replace(s.Body, []byte(`"paid"`), []byte(`"void"`), 1)
	if bytes.Equal(other.Body, s.Body) {
		t.Fatal("the sample does not contain paid")
	}
	for range 2 { // the same conflict is stored once
		a := b.post(t, "stripe", b.sign(t, "stripe", other))
		want := first
		want.Duplicate, want.Conflict = true, true
		testkit.Equal(t, "receipt", want, a.receipt(t))
		if !bytes.Contains(a.body, []byte(`"conflict":true`)) {
			t.Errorf("receipt %s", a.body)
		}
	}
	// differences between deliveries of Stripe are no conflict
	same := s
	same.Body = bytes.Replace(s.Body, []byte(`"pending_webhooks": 1`), []byte(`"pending_webhooks": 2`), 1)
	if r := b.post(t, "stripe", b.sign(t, "stripe", same)).receipt(t); bytes.Equal(same.Body, s.Body) || !r.Duplicate ||
		r.Conflict {
		t.Errorf("receipt %+v", r)
	}
	var conflicting, stored []byte
	testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `SELECT c.body, e.body FROM event_conflicts c
		JOIN events e ON e.id = c.event`).Scan(&conflicting, &stored))
	if !bytes.Equal(conflicting, other.Body) || !bytes.Equal(stored, s.Body) || b.count(t, `SELECT count(*) FROM
		event_conflicts`) != 1 {
		t.Errorf("stored %q and %q", conflicting, stored)
	}
}

// A delivery with one key twice becomes one event, and the second gets a duplicate's receipt. A
// later delivery may have stored and new keys.
func TestReceipt_manyEvents_isList(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.line(t, "many", "one\ntwo\none\ntwo\nthree\n")
	list := b.post(t, "many", d).receipts(t)
	if len(list) != 5 {
		t.Fatalf("%d receipts: %+v", len(list), list)
	}
	for i, first := range []int{0, 1, 0, 1, 4} {
		r := list[i]
		if r.ID == "" || r.ID != list[first].ID || r.EventID != list[first].EventID || r.Duplicate != (i != first) ||
			r.Conflict {
			t.Errorf("receipt %d: %+v", i, r)
		}
	}
	for _, i := range []int{0, 1, 4} {
		if e := <-b.published; e.Key != list[i].EventID || e.Index != i || !bytes.Equal(e.Body, d.Body) {
			t.Errorf("published %+v", e)
		}
	}
	b.wantRows(t, 3, `events WHERE delivery_id = (SELECT id FROM events WHERE body = $1)`, d.Body)
	again := b.postLine(t, "many", "two\nfour\n").receipts(t)
	if !again[0].Duplicate || again[0].ID != list[1].ID || again[1].Duplicate {
		t.Errorf("again: %+v", again)
	}
	b.wantCounter(t, 4, "postern_events_total", "result=stored")
	b.wantCounter(t, 3, "postern_events_total", "result=duplicate")
}

// A signed body that cannot be parsed is stored once, under a content key.
func TestHandler_signedUnreadableBody_isStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, body := range map[string]string{"broken JSON": `{"id": "evt_1", `,
		"invalid UTF-8": "{\"id\": \"evt_\xff\"}", "empty": "", "NUL": "\x00",
		"no id": `{"object": "event", "type": "invoice.paid"}`} {
		for _, source := range []string{"stripe", "shop"} {
			d := b.sign(t, source, provider.Sample{Type: "orders/create", Body: []byte(body)})
			d.Header.Del("X-Shopify-Webhook-Id") // the header has the event's name if the body does not need it
			first := b.post(t, source, d).receipt(t)
			if !strings.HasPrefix(first.EventID, "sha256:") || first.Duplicate {
				t.Errorf("%s to %s: %+v", name, source, first)
			}
			var stored []byte
			if err := b.db.Pool.QueryRow(t.Context(), `SELECT body FROM events WHERE id = $1::bigint`,
				first.ID).Scan(&stored); err != nil || string(stored) != body {
				t.Errorf("%s to %s: stored %q, %v", name, source, stored, err)
			}
			if again := b.post(t, source, d).receipt(t); !again.Duplicate || again.ID != first.ID || again.Conflict {
				t.Errorf("%s to %s again: %+v", name, source, again)
			}
		}
	}
	b.wantCounter(t, 20, "postern_content_keys_total")
}

// Batches contain deliveries of several sources; each delivery gets its own receipts.
func TestAppender_concurrentDeliveries_eachGetsItsReceipt(t *testing.T) {
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
				if err != nil || r.Duplicate || source == "shop" && r.EventID != s.ID || source == "stripe" &&
					!bytes.Contains(s.Body, []byte(r.EventID)) {
					t.Errorf("delivery %d: %d %s %v", n, a.status, a.body, err)
				}
			}
		})
	}
	group.Wait()
	b.wantRows(t, 320, `(SELECT DISTINCT source, event_id FROM events) e`)
	b.wantCounter(t, 320, "postern_events_total", "result=stored")
	b.wantCounter(t, 320, "postern_deliveries_total", "result=accepted")
}

// A large body of many events is not published with each of them. It is read from the log, which
// stores it once.
func TestAppender_largeSharedBody_isPublishedWithoutBody(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, c := range []struct {
		size, events int
		inLog        bool
	}{{16 << 10, 3, false}, {16<<10 + 1, 3, true}, {16<<10 + 1, 1, false}} {
		name := fmt.Sprintf("%d-%d", c.size, c.events)
		var body bytes.Buffer
		for n := range c.events - 1 {
			fmt.Fprintf(&body, "%s-%d\n", name, n)
		}
		fmt.Fprintf(&body, "%s%s", name, strings.Repeat(" ", c.size-body.Len()-len(name)))
		if a := b.postLine(t, "many", body.String()); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		var ids []int64
		for range c.events {
			e := <-b.published
			ids = append(ids, e.ID)
			if e.BodyInLog != c.inLog || bytes.Equal(e.Body, body.Bytes()) == c.inLog {
				t.Errorf("%s: event %s is published with %d bytes, BodyInLog %t", name, e.Key, len(e.Body), e.BodyInLog)
			}
		}
		recs, err := events.Read(t.Context(), b.db.Pool, ids, events.UnlimitedBody)
		if err != nil || len(recs) != c.events {
			t.Fatalf("%s: %d records, %v", name, len(recs), err)
		}
		for _, r := range recs {
			if !bytes.Equal(r.Body, body.Bytes()) {
				t.Errorf("%s: the log has for event %s a body of %d bytes", name, r.Key, len(r.Body))
			}
		}
	}
}

// unusualTexts are texts that JSON must escape or cannot contain, among others.
func unusualTexts() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", `"`, `\`, "\x00", "\x1f\t\n", "<&>\u2028", "\xff",
		"\xed\xa0\x80", "é\U0001F600", "\x7f"}),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }))
}

// The encoders write what encoding/json writes and reads.
func TestEncodeHeaders_unusualTexts_isValidJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := &provider.Delivery{Header: http.Header{}, Query: unusualTexts().Draw(t, "query")}
		want := map[string]string{}
		for _, name := range []string{"X-One", "X-Many", "X-Absent"} {
			values := rapid.SliceOfN(unusualTexts(), 0, 3).Draw(t, name)
			if d.Header[name] = values; len(values) > 0 {
				want[name] = events.SanitizeText(strings.Join(values, ", "))
			}
		}
		if d.Query != "" {
			want[":query"] = events.SanitizeText(d.Query)
		}
		var got map[string]string
		if text := ingest.EncodeHeaders([]string{"X-One", "X-Many", "X-Absent", ":query"}, d); json.Unmarshal(text,
			&got) != nil || !cmp.Equal(got, want) {
			t.Fatalf("%q, want %q", text, want)
		}
	})
}

func TestAppendVerification_unusualTexts_isValidJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.String()
		v := provider.Verification{Scheme: name.Draw(t, "scheme"), Secret: name.Draw(t, "secret")}
		if rapid.Bool().Draw(t, "signed") {
			v.SignedAt = time.Unix(rapid.Int64Range(0, 250_000_000_000).Draw(t, "at"),
				rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
		}
		var got provider.Verification
		if text := ingest.AppendVerification(nil, v); json.Unmarshal(text, &got) != nil || !cmp.Equal(got, v) {
			t.Fatalf("%s reads as %+v, want %+v", text, got, v)
		}
	})
}

func TestAppendReceipt_unusualTexts_isValidJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := events.Receipt{ID: rapid.Int64Range(0, 1<<62).Draw(t, "id"), Key: unusualTexts().Draw(t, "key"),
			Duplicate: rapid.Bool().Draw(t, "duplicate"), Conflict: rapid.Bool().Draw(t, "conflict")}
		want := map[string]any{"event_id": strings.ToValidUTF8(r.Key, "\ufffd"), "id": strconv.FormatInt(r.ID, 10),
			"duplicate": r.Duplicate, "received_at": events.Time(r.ID).Format("2006-01-02T15:04:05.000000Z07:00")}
		if r.Conflict {
			want["conflict"] = true
		}
		var got map[string]any
		if text := ingest.AppendReceipt(nil, r); json.Unmarshal(text, &got) != nil || !cmp.Equal(got, want) {
			t.Fatalf("%s, want %v", text, want)
		}
	})
}

// A failed commit acknowledges nothing, and one bad delivery does not fail the others of its batch.
func TestAppender_failedCommit_isNotAcknowledged(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *ingest.Options) { o.Settings.Writers = 1 })
	// The statement succeeds and returns its rows; only the commit fails.
	b.db.Exec(t, `
		CREATE TABLE trouble AS SELECT '53100' AS code;
		CREATE FUNCTION fail_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
		DECLARE code text := (SELECT t.code FROM postern.trouble t);
		BEGIN
		  IF code <> '' AND EXISTS (SELECT FROM postern.events WHERE id = NEW.id AND event_id LIKE 'bad%') THEN
		    RAISE EXCEPTION 'the test fails this commit' USING ERRCODE = code;
		  END IF;
		  RETURN NULL;
		END $$;
		CREATE CONSTRAINT TRIGGER fail_commit AFTER INSERT ON event_keys DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			EXECUTE FUNCTION fail_commit()`)
	bad := b.line(t, "many", "bad")
	b.post(t, "many", bad).wantProblem(t, 503, "unavailable")         // the disk is full
	b.failCommits(t, "XX001")                                         // not a temporary failure
	b.waitStatus(t, "many", bad, 500).wantProblem(t, 500, "internal") // a full disk counts as an outage for a moment
	b.wantEvents(t, 0)
	if len(b.published) != 0 {
		t.Errorf("%d events of failed commits are published", len(b.published))
	}
	b.postGoodAndBad(t)
	b.failCommits(t, "")
	if r := b.post(t, "many", bad).receipt(t); r.Duplicate {
		t.Errorf("after the failure: %+v", r)
	}
}

// failCommits makes commits of bad events fail with the SQLSTATE from now on; "" ends it.
func (b *testBundle) failCommits(t *testing.T, code string) {
	t.Helper()
	b.db.Exec(t, `UPDATE trouble SET code = $1`, code)
}

// postGoodAndBad sends good and bad deliveries together, so that batches contain both.
func (b *testBundle) postGoodAndBad(t *testing.T) {
	t.Helper()
	const clients, each = 16, 10
	var group sync.WaitGroup
	for client := range clients {
		group.Go(func() {
			for i := range each {
				key, want := fmt.Sprintf("good %d %d", client, i), 200
				if i%5 == 4 {
					key, want = fmt.Sprintf("bad %d %d", client, i), 500
				}
				a, err := b.try(t.Context(), "many", b.line(t, "many", key))
				if err != nil || a.status != want {
					t.Errorf("%s: status %d, want %d, %v", key, a.status, want, err)
				}
			}
		})
	}
	group.Wait()
	b.wantRows(t, clients*each*4/5, `events`)
}
