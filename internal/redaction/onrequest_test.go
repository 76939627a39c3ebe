package redaction_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

const hers = `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 7, "email": "` + email + `"}, "orders_to_redact": [8]}`

// shops is the world of setup with a source of Shopify's, which the auditor has passed.
type shops struct {
	*testBundle
	shop int32
}

func setupShops(t *testing.T) *shops {
	t.Helper()
	s := &shops{testBundle: setup(t)}
	known, err := events.RegisterSources(t.Context(), s.pool, map[string]string{"shop": "shopify", "other": "shopify"})
	if err != nil {
		t.Fatal(err)
	}
	s.shop = known.Number["shop"]
	return s
}

// deliver stores a delivery of the shop; the auditor has passed it.
func (s *shops) deliver(t *testing.T, origin, topic, body string) int64 {
	t.Helper()
	s.n++
	receipts, err := events.Append(t.Context(), s.db.Role(t, "gateway"), []events.Delivery{{Source: s.shop, ReceivedAt: time.Now(), Origin: origin, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: []byte(body), Events: []provider.Event{{Key: fmt.Sprint("shop", s.n), Type: topic, Account: "x.myshopify.com", Fingerprint: provider.BodyFingerprint([]byte(body))}}}})
	if err != nil {
		t.Fatal(err)
	}
	s.audited(t, receipts[0][0].ID)
	return receipts[0][0].ID
}

func (s *shops) audited(t *testing.T, to int64) {
	t.Helper()
	s.exec(t, `INSERT INTO checkpoints (job, run, cursor, leased_by, leased_until, updated_at) VALUES ('auditor', 0, $1, '', now(), now())
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`, to)
}

func (s *shops) answers(t *testing.T) *redaction.Answers {
	t.Helper()
	a := &redaction.Answers{Pool: s.pool, Logger: testkit.Logger(t), Every: time.Millisecond}
	a.Replace([]string{"shop", "sim"})
	return a
}

// tick has two processes look for requests at once, and then one that knows nothing of what they did but what is in the ledger.
func (s *shops) tick(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		a := s.answers(t)
		wg.Go(func() {
			if err := a.Tick(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.exec(t, `DELETE FROM checkpoints WHERE job LIKE 'redact_on_request%'`)
	if err := s.answers(t).Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// asked are the requests that runs were entered for.
func (s *shops) asked(t *testing.T) []string {
	t.Helper()
	return s.rows(t, `SELECT asked->>'requested_by' FROM runs WHERE job = 'redact' ORDER BY run`)
}

// A request is one run, however many look for it and whoever ends in between; it leaves alone what came after it, and the audit says who asked.
func TestRequestsAreCarriedOut(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	later := s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 9, "email": "`+email+`"}`)
	s.tick(t)
	if diff := cmp.Diff([]string{fmt.Sprint(id)}, s.asked(t)); diff != "" {
		t.Fatal(diff)
	}
	if err := s.carry(t).End(t.Context(), runs.Done, ""); err != nil {
		t.Fatal(err)
	}
	s.exec(t, `DELETE FROM runs`) // its history is forgotten; the audit stays
	s.tick(t)
	if again := s.asked(t); len(again) > 0 {
		t.Errorf("asked again: %v", again)
	}
	if left := s.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL`); len(left) != 1 || left[0] != fmt.Sprint(later) {
		t.Errorf("bodies are left of %v, want %d", left, later)
	}
	audit := s.rows(t, `SELECT who || ': ' || reason || ', ' || events FROM redactions`)
	if diff := cmp.Diff([]string{fmt.Sprintf("postern: redact_on_request of source shop: asked for by event %d (customers/redact), 2", id)}, audit); diff != "" {
		t.Error(diff)
	}
}

// What waits for a person: requests to tell, what proves nothing, what cannot be read, what a person is at already, and what the auditor has not passed.
func TestRequestsThatWait(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "customers/data_request", `{"shop_domain": "x.myshopify.com", "customer": {"id": 7}, "orders_requested": []}`)
	s.deliver(t, events.OriginWebhook, "shop/redact", hers) // the body of another topic
	s.deliver(t, events.OriginWebhook, "shop/redact", `{"shop_id": 2, "shop_domain": "y.myshopify.com"}`)
	s.deliver(t, events.OriginImport, "shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com"}`)
	mine := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	s.ask(t, redaction.Order{RequestedBy: mine})
	gone := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(hers, "7", "6", 1))
	s.exec(t, `INSERT INTO redacted (event, run, at) VALUES ($1, 99, now())`, gone)
	before := s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 1}`)
	young := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(hers, "7", "5", 1))
	s.audited(t, before)
	s.tick(t)
	if diff := cmp.Diff([]string{fmt.Sprint(mine)}, s.asked(t)); diff != "" {
		t.Error(diff)
	}
	s.audited(t, young)
	a := s.answers(t)
	a.Replace([]string{"other"})
	if err := a.Tick(t.Context()); err != nil || len(s.asked(t)) != 1 {
		t.Errorf("asked for a source that is not set so: %v, %v", s.asked(t), err)
	}
	s.tick(t)
	if diff := cmp.Diff([]string{fmt.Sprint(mine), fmt.Sprint(young)}, s.asked(t)); diff != "" {
		t.Error(diff)
	}
}

// As long as a run is not done, its request can be read: one that is cancelled leaves it to a person.
func TestRequestIsClearedLast(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	s.tick(t)
	s.exec(t, `CREATE FUNCTION stop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE runs SET status = 'cancelled', ended_at = now() WHERE run = NEW.run AND NEW.cursor > 1; RETURN NEW; END $$`)
	s.exec(t, `CREATE TRIGGER stop_it AFTER UPDATE ON checkpoints FOR EACH ROW WHEN (NEW.job = 'redact') EXECUTE FUNCTION stop_it()`)
	h, err := runs.Take(t.Context(), s.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if status, err := (&redaction.Runner{Pool: s.pool, Processor: s.proc}).Carry(t.Context(), h, testkit.Logger(t)); err != nil || status != runs.Cancelled {
		t.Fatal(status, err)
	}
	if left := s.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL`); len(left) != 1 || left[0] != fmt.Sprint(id) {
		t.Errorf("bodies are left of %v, want that of the request %d", left, id)
	}
	pending, err := redaction.Pending(t.Context(), s.operator, time.Now().Add(-time.Hour))
	if err != nil || len(pending) != 1 || pending[0].Problem != "" {
		t.Errorf("%+v, %v", pending, err)
	}
	s.tick(t)
	if asked := s.asked(t); len(asked) != 1 {
		t.Errorf("what a person has cancelled is asked for again: %v", asked)
	}
}

// One request leaves the others as they are, found by value or with all of their shop: each is read and cleared with its own answer.
func TestRequestsOfOthersStay(t *testing.T) {
	t.Parallel()
	for _, wholly := range []bool{false, true} {
		s := setupShops(t)
		s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
		first := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
		second := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(hers, "[8]", "[9]", 1))
		tell := s.deliver(t, events.OriginWebhook, "customers/data_request", `{"shop_domain": "x.myshopify.com", "customer": {"id": 7, "email": "`+email+`"}, "orders_requested": []}`)
		old := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(hers, "[8]", "[10]", 1))
		s.exec(t, `INSERT INTO redactions (run, who, reason, asked, requested_by, events, objects, conflicts, rejections, began_at, updated_at, ended_at) VALUES (99, '', '', '{}', $1, 0, 0, 0, 0, now(), now(), now())`, old)
		order, _, err := redaction.FromRequest(t.Context(), s.operator, first)
		if err != nil {
			t.Fatal(err)
		}
		if wholly {
			order.Finds, order.Objects, order.All = nil, nil, true
		}
		if look, err := redaction.Look(t.Context(), s.operator, order, nil); err != nil || look.Events != 3 || look.Requests != 2 {
			t.Errorf("%+v, %v", look, err)
		}
		if h := s.do(t, *order); h.Counts[redaction.CountEvents] != 3 || h.Counts[redaction.CountRequests] != 2 {
			t.Errorf("%v", h.Counts)
		}
		pending, err := redaction.Pending(t.Context(), s.operator, time.Now().Add(-time.Hour))
		if err != nil || len(pending) != 2 || pending[0].Event != second || pending[1].Event != tell || pending[0].Problem+pending[1].Problem != "" {
			t.Errorf("%+v, %v", pending, err)
		}
		if order, _, err = redaction.FromRequest(t.Context(), s.operator, second); err != nil {
			t.Fatal(err)
		}
		s.do(t, *order)
		if left := s.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL`); len(left) != 1 || left[0] != fmt.Sprint(tell) {
			t.Errorf("bodies are left of %v, want that of the request to be told %d", left, tell)
		}
	}
}

// A request that is named is cleared, answered or not.
func TestRequestThatIsNamed(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	if h := s.do(t, redaction.Order{Events: []int64{id}}); h.Counts[redaction.CountEvents] != 1 || len(s.holding(t, "lovelace")) > 0 {
		t.Errorf("%v, left in %v", h.Counts, s.holding(t, "lovelace"))
	}
}

// Whoever cancels a run at its very end can still read what was asked for: the request is cleared as the audit ends, and not before.
func TestRequestIsClearedAsTheAuditEnds(t *testing.T) {
	t.Parallel()
	s, f := setupShops(t), newFeeds(t)
	if err := f.conn.EnsureReplays(t.Context(), stream.DefaultLimits); err != nil {
		t.Fatal(err)
	}
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	f.event(t, id, hers)
	s.tick(t)
	h, err := runs.Take(t.Context(), s.pool, "test", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	r := &redaction.Runner{Pool: s.pool, Processor: s.proc, Conn: f.conn}
	s.exec(t, `CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not yet'; END $$`)
	s.exec(t, `CREATE TRIGGER never BEFORE UPDATE ON redactions FOR EACH ROW WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION never()`)
	if _, err := r.Carry(t.Context(), h, testkit.Logger(t)); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Fatal(err)
	}
	if held := f.held(t, stream.EventsStream); len(held) > 0 {
		t.Errorf("the stream holds %v", held)
	}
	if left := s.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL`); len(left) != 1 || left[0] != fmt.Sprint(id) {
		t.Errorf("bodies are left of %v, want that of the request %d", left, id)
	}
	pending, err := redaction.Pending(t.Context(), s.operator, time.Now().Add(-time.Hour))
	if err != nil || len(pending) != 1 || pending[0].Problem != "" {
		t.Errorf("%+v, %v", pending, err)
	}
	s.exec(t, `DROP TRIGGER never ON redactions`)
	if status, err := r.Carry(t.Context(), h, testkit.Logger(t)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	if left := s.holding(t, "lovelace"); len(left) > 0 || h.Counts[redaction.CountEvents] != 2 {
		t.Errorf("left in %v, %v", left, h.Counts)
	}
}

// What answers a request that it also finds by an object clears it, with all of its delivery, at the end; what others of its version said stays.
func TestAnswerThatFindsItsRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	other := b.event(t, "tied", 5, "tied@else.org")
	ids := b.store(t, "tied", body("tied", 5, email), "one", "two")
	b.apply(t, 0, ids...)
	if h := b.do(t, redaction.Order{RequestedBy: other, Events: ids, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "hers"}}}); h.Counts[redaction.CountEvents] != 3 || b.state(t, "tied") != "tied@else.org" {
		t.Errorf("%v, tied %s", h.Counts, b.state(t, "tied"))
	}
	again := b.store(t, "tied", body("tied", 5, email), "three", "four")
	b.apply(t, 0, again...)
	if h := b.do(t, func() redaction.Order { o := b.byEmail(t, email); o.RequestedBy = again[0]; return o }()); h.Counts[redaction.CountEvents] != 2 || b.state(t, "tied") != "tied@else.org" {
		t.Errorf("%v, tied %s", h.Counts, b.state(t, "tied"))
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	last := b.store(t, "tied", body("tied", 5, email), "five")[0] // without an outcome
	if h := b.do(t, redaction.Order{RequestedBy: last, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "tied"}}}); h.Counts[redaction.CountEvents] != 2 || len(b.holding(t, "lovelace")) > 0 {
		t.Errorf("%v, left in %v", h.Counts, b.holding(t, "lovelace"))
	}
}
