package redaction_test

import (
	"errors"
	"fmt"
	"log/slog"
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
	must(t, err)
	s.shop = known.Number["shop"]
	return s
}

// deliver stores a delivery of the shop; the auditor has passed it.
func (s *shops) deliver(t *testing.T, origin, topic, body string) int64 {
	t.Helper()
	s.n++
	receipts, err := events.Append(t.Context(), s.db.Role(t, "gateway"), []events.Delivery{{Source: s.shop, ReceivedAt: time.Now(), Origin: origin, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: []byte(body), Events: []provider.Event{{Key: fmt.Sprint("shop", s.n), Type: topic, Account: "x.myshopify.com", Fingerprint: provider.BodyFingerprint([]byte(body))}}}})
	must(t, err)
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
	must(t, s.answers(t).Tick(t.Context()))
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
	must(t, s.carry(t).End(t.Context(), runs.Done, ""))
	s.exec(t, `DELETE FROM runs`) // its history is forgotten; the audit stays
	s.tick(t)
	if again := s.asked(t); len(again) > 0 {
		t.Errorf("asked again: %v", again)
	}
	if left := s.rows(t, `SELECT id::text FROM events WHERE body IS NOT NULL`); len(left) != 1 || left[0] != fmt.Sprint(later) {
		t.Errorf("bodies are left of %v, want %d", left, later)
	}
	audit := s.rows(t, `SELECT who || ': ' || reason || ', ' || events FROM redactions`)
	equal(t, "",
		[]string{fmt.Sprintf("postern: redact_on_request of source shop: asked for by event %d (customers/redact), 2",
			id)},
		audit)
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
	equal(t, "", []string{fmt.Sprint(mine)}, s.asked(t))
	s.audited(t, young)
	a := s.answers(t)
	a.Replace([]string{"other"})
	if err := a.Tick(t.Context()); err != nil || len(s.asked(t)) != 1 {
		t.Errorf("asked for a source that is not set so: %v, %v", s.asked(t), err)
	}
	s.tick(t)
	equal(t, "", []string{fmt.Sprint(mine), fmt.Sprint(young)}, s.asked(t))
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
	h := taken(t, s.pool, "test", time.Minute, redaction.Job)
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
		must(t, err)
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
	must(t, f.conn.EnsureReplays(t.Context(), stream.DefaultLimits))
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", hers)
	f.event(t, id, hers)
	s.tick(t)
	h := taken(t, s.pool, "test", time.Minute, redaction.Job)
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
	b.gone(t, "lovelace")
	last := b.store(t, "tied", body("tied", 5, email), "five")[0] // without an outcome
	if h := b.do(t, redaction.Order{RequestedBy: last, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "tied"}}}); h.Counts[redaction.CountEvents] != 2 || len(b.holding(t, "lovelace")) > 0 {
		t.Errorf("%v, left in %v", h.Counts, b.holding(t, "lovelace"))
	}
}

// What was received before a sender's request and came out of a spool after it is what the request asks for, found by value, by object, or by what an object shows; what was received after it is not,
// also where it was in the log first.
func TestRequestsMeanWhatWasReceivedBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := time.Now().UTC()
	at := func(after time.Duration, object string) int64 {
		t.Helper()
		b.n++
		ids := b.storeAt(t, asked.Add(after), object, body(object, 1, email), fmt.Sprint("k", b.n))
		b.apply(t, 0, ids...)
		return ids[0]
	}
	at(time.Minute, "early") // another gateway's, while the request was in a spool
	b.n++
	order := b.byEmail(t, email)
	shown, err := redaction.NewFind("$.customer.email", email)
	must(t, err)
	order.Finds = append(order.Finds, shown)
	order.Until = b.storeAt(t, asked, "asks", body("asks", 1, "nobody@else.org"), fmt.Sprint("k", b.n))[0]
	at(-time.Minute, "drained")
	at(-time.Minute, "named")
	at(time.Minute, "late")
	dropped := at(-time.Minute, "dropped")
	named := redaction.Order{Until: order.Until, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "named"}}}
	if h := b.do(t, named); h.Counts[redaction.CountEvents] != 1 {
		t.Errorf("by object: %v", h.Counts)
	}
	b.db.Exec(t, `ALTER TABLE events DISABLE TRIGGER USER`)
	b.db.Exec(t, `DELETE FROM events WHERE id = $1`, dropped)
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 1 || h.Counts[redaction.CountObjects] != 2 {
		t.Errorf("by value: %v", h.Counts)
	}
	for object, want := range map[string]string{"early": email, "drained": "nothing", "named": "nothing", "dropped": "nothing", "late": email} {
		if is := b.state(t, object); is != want {
			t.Errorf("%s has %s, want %s", object, is, want)
		}
	}
}

// What is acknowledged and in a gateway's spool is redacted as well: the run waits until it is in the log.
func TestRedactionWaitsForSpools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runner := &redaction.Runner{Pool: b.pool, Processor: b.proc}
	carry := func() (runs.Status, error) {
		t.Helper()
		h := taken(t, b.pool, "test", time.Minute, redaction.Job)
		status, err := runner.Carry(t.Context(), h, slog.New(slog.DiscardHandler))
		if err == nil {
			return status, h.End(t.Context(), runs.Done, "")
		}
		must(t, h.Release(t.Context()))
		return status, err
	}
	gateway := b.db.Role(t, "gateway")
	say := func(sql string) {
		t.Helper()
		execSQL(t, gateway, sql)
	}
	b.event(t, "a", 1_000_000, email)
	say(`INSERT INTO spools (spool, place, empty_at) VALUES ('one', 'here:/spool', clock_now()), ('two', 'there:/spool', '-infinity')`)
	b.ask(t, b.byEmail(t, email))
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'one'`)
	if _, err := carry(); err == nil || !strings.Contains(err.Error(), "the spool there:/spool says") || !strings.Contains(err.Error(), "postern spool forget two") {
		t.Fatalf("it does not wait: %v", err)
	}
	if left := b.rows(t, `SELECT count(*)::text FROM redacted`); left[0] != "0" {
		t.Errorf("%s events are redacted already", left[0])
	}
	b.event(t, "a", 2_000_000, email) // out of the spool
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'two'`)
	must(t, errOf(carry()))
	if found := b.holding(t, email); len(found) != 0 {
		t.Errorf("it is still in %v", found)
	}
	// A gateway that is gone for good is no reason to wait for ever; an operator says so.
	say(`UPDATE spools SET empty_at = '-infinity' WHERE spool = 'two'`)
	b.event(t, "b", 1_000_000, email)
	b.ask(t, b.byEmail(t, email))
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'one'`)
	must(t, errOf(redaction.ForgetSpool(t.Context(), b.operator, "two", true)))
	must(t, errOf(carry()))
}

// A spool is listed with what was told of it and who waits for it, and forgotten by name; one that a gateway told of a moment ago, or that one of an earlier version told of last, only by force.
func TestSpoolsAreForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes) VALUES
		('earlier', 'here:/spool', null, '-infinity', null, null, null),
		('back', 'there:/spool', '2026-01-01Z', now() - interval '1 h', now() - interval '2 h', 3, 100),
		('earlier full', 'here:/spool', '2026-01-01Z', now() - interval '1 h', null, null, null),
		('gone', 'there:/spool', '2026-01-01Z', '2026-01-02Z', now() - interval '6 min', 3, 100),
		('here', 'here:/spool', '2026-01-01Z', '-infinity', now(), 3, 100),
		('untold', 'there:/spool', '2026-01-01Z', now() + interval '1 h', null, null, null)`)
	before := b.ask(t, b.byEmail(t, email))
	said := func(s *redaction.Spool) string {
		told := "nothing"
		if s.Deliveries != nil && s.Bytes != nil {
			told = fmt.Sprint(*s.Deliveries, " ", *s.Bytes)
		}
		return fmt.Sprint(s.Name, " ", s.Place, " ", s.KnownSince, " ", !s.ToldAt.IsZero(), " ", !s.EmptyAt.IsZero(), " ", told, " ", s.Redactions)
	}
	var listed []string
	for cursor := ""; ; {
		page, err := redaction.Spools(t.Context(), b.operator, cursor, 3)
		must(t, err)
		for i := range page.Items {
			listed = append(listed, said(&page.Items[i]))
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	since := "2026-01-01T00:00:00.000000Z"
	if diff := cmp.Diff([]string{
		fmt.Sprintf("back there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("earlier here:/spool  false false nothing [%d]", before),
		fmt.Sprintf("earlier full here:/spool %s true true nothing [%d]", since, before),
		fmt.Sprintf("gone there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("here here:/spool %s true false 3 100 [%d]", since, before),
		fmt.Sprintf("untold there:/spool %s true true nothing []", since),
	}, listed); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		name  string
		force bool
		err   error
	}{{"none", true, events.ErrNotFound}, {"here", false, events.ErrInvalid}, {"untold", false, events.ErrInvalid}, {"here", true, nil}, {"here", true, events.ErrNotFound}, {"gone", false, nil},
		{"earlier", false, events.ErrInvalid}, {"earlier full", false, events.ErrInvalid}, {"back", false, events.ErrInvalid}, {"earlier", true, nil}, {"earlier full", true, nil}, {"back", true, nil}} {
		s, err := redaction.ForgetSpool(t.Context(), b.operator, c.name, c.force)
		if !errors.Is(err, c.err) || err == nil && (s.Name != c.name || len(s.Redactions) != 1) {
			t.Errorf("%s, force %t: %+v, %v", c.name, c.force, s, err)
		}
	}
	if left := b.rows(t, `SELECT spool FROM spools`); len(left) != 1 || left[0] != "untold" {
		t.Errorf("left are %v", left)
	}
}
