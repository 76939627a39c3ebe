package redaction_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

const redactRequest = `{"shop_id": 1, "shop_domain": "x.myshopify.com", "customer": {"id": 7, "email": "` + email +
	`"}, "orders_to_redact": [8]}`

// shopFixture is a fixture with a Shopify source whose log is complete.
type shopFixture struct {
	*fixture
	shop int32
}

func setupShops(t *testing.T) *shopFixture {
	t.Helper()
	s := &shopFixture{fixture: setup(t)}
	known, err := events.RegisterSources(t.Context(), s.pool, map[string]string{"shop": "shopify", "other": "shopify"})
	must(t, err)
	s.shop = known.Number["shop"]
	return s
}

// deliver stores a delivery of the shop; the log is then complete up to it.
func (s *shopFixture) deliver(t *testing.T, origin, topic, body string) int64 {
	t.Helper()
	s.n++
	id := s.appendDelivery(t, events.Delivery{Source: s.shop, ReceivedAt: time.Now(), Origin: origin,
		Body: []byte(body), Events: []provider.Event{{Key: fmt.Sprint("shop", s.n), Type: topic,
			Account: "x.myshopify.com"}}})[0]
	s.moveRepublisher(t, id)
	return id
}

// moveRepublisher sets the republisher's cursor.
func (s *shopFixture) moveRepublisher(t *testing.T, to int64) {
	t.Helper()
	s.exec(t, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('republisher', 0, $1, '', now(), now())
		ON CONFLICT (job, run) DO UPDATE SET cursor = excluded.cursor`, to)
}

func (s *shopFixture) newAutoRedactor(t *testing.T) *redaction.AutoRedactor {
	t.Helper()
	a := &redaction.AutoRedactor{Pool: s.pool, Logger: testkit.Logger(t), Every: time.Millisecond}
	a.Replace([]string{"shop", "sim"})
	return a
}

// tick lets two processes check for requests at once, and then a third that knows only the ledger.
func (s *shopFixture) tick(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for range 2 {
		a := s.newAutoRedactor(t)
		wg.Go(func() {
			if err := a.Tick(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	s.exec(t, `DELETE FROM checkpoints WHERE job LIKE 'redact_on_request%'`)
	must(t, s.newAutoRedactor(t).Tick(t.Context()))
}

// wantPending checks which readable requests wait for a redaction.
func (s *shopFixture) wantPending(t *testing.T, want ...int64) {
	t.Helper()
	pending, err := redaction.PendingRequests(t.Context(), s.operator, time.Now().Add(-time.Hour))
	must(t, err)
	var got []int64
	for _, p := range pending {
		if got = append(got, p.Event); p.Problem != "" {
			t.Errorf("%+v", p)
		}
	}
	equal(t, "pending requests", want, got)
}

// requestedRuns returns the requests for which runs exist.
func (s *shopFixture) requestedRuns(t *testing.T) []string {
	t.Helper()
	return s.rows(t, `SELECT params->>'requested_by' FROM runs WHERE job = 'redact' ORDER BY run`)
}

// A request becomes one run, however many processes check, and whichever of them ends in between.
// Later data stays, and the audit names the requester.
func TestAutoRedactor_request_becomesOneRun(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
	later := s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 9, "email": "`+email+`"}`)
	s.tick(t)
	equal(t, "", []string{fmt.Sprint(id)}, s.requestedRuns(t))
	must(t, s.execute(t).End(t.Context(), runs.Done, ""))
	s.exec(t, `DELETE FROM runs`) // its run history is deleted; the audit stays
	s.tick(t)
	if again := s.requestedRuns(t); len(again) > 0 {
		t.Errorf("requested again: %v", again)
	}
	s.wantBodies(t, later)
	audit := s.rows(t, `SELECT actor || ': ' || reason || ', ' || events FROM redactions`)
	equal(t, "", []string{fmt.Sprintf(
		"postern: redact_on_request of source shop: requested by event %d (customers/redact), 2", id)}, audit)
}

// These wait for an operator: requests for a report, requests without verified content, unreadable
// requests, requests that an operator has started to execute, and requests beyond the republisher's
// checkpoint.
func TestAutoRedactor_unclearRequests_waitForOperator(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "customers/data_request",
		`{"shop_domain": "x.myshopify.com", "customer": {"id": 7}, "orders_requested": []}`)
	s.deliver(t, events.OriginWebhook, "shop/redact", redactRequest) // the body of another topic
	s.deliver(t, events.OriginWebhook, "shop/redact", `{"shop_id": 2, "shop_domain": "y.myshopify.com"}`)
	s.deliver(t, events.OriginImport, "shop/redact", `{"shop_id": 1, "shop_domain": "x.myshopify.com"}`)
	started := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
	s.request(t, redaction.Params{RequestedBy: started})
	redacted := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(redactRequest, "7", "6", 1))
	s.exec(t, `INSERT INTO redacted_events (event, run, at) VALUES ($1, 99, now())`, redacted)
	before := s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 1}`)
	recent := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(redactRequest, "7", "5", 1))
	s.moveRepublisher(t, before)
	s.tick(t)
	equal(t, "", []string{fmt.Sprint(started)}, s.requestedRuns(t))
	s.moveRepublisher(t, recent)
	a := s.newAutoRedactor(t)
	a.Replace([]string{"other"})
	if err := a.Tick(t.Context()); err != nil || len(s.requestedRuns(t)) != 1 {
		t.Errorf("started for a source that is not configured so: %v, %v", s.requestedRuns(t), err)
	}
	s.tick(t)
	equal(t, "", []string{fmt.Sprint(started), fmt.Sprint(recent)}, s.requestedRuns(t))
}

// Until a run is finished, its request can be read. A cancelled run leaves the request to an
// operator.
func TestFinish_cancelledRun_keepsTheRequest(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
	s.tick(t)
	s.exec(t, `CREATE FUNCTION stop_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		UPDATE runs SET status = 'cancelled', ended_at = now() WHERE run = NEW.run
			AND NEW.cursor > 1; RETURN NEW; END $$`)
	s.exec(t, `CREATE TRIGGER stop_it AFTER UPDATE ON checkpoints FOR EACH ROW
		WHEN (NEW.job = 'redact') EXECUTE FUNCTION stop_it()`)
	if _, status, err := s.tryExecute(t, nil); err != nil || status != runs.Cancelled {
		t.Fatal(status, err)
	}
	s.wantBodies(t, id)
	s.wantPending(t, id)
	s.tick(t)
	if runs := s.requestedRuns(t); len(runs) != 1 {
		t.Errorf("a redaction that an operator cancelled is started again: %v", runs)
	}
}

// A request does not clear other requests that it finds by value or by account. Each of them is
// read and cleared by its own redaction.
func TestRedact_otherRequests_stayUntilAnswered(t *testing.T) {
	t.Parallel()
	for _, wholly := range []bool{false, true} {
		s := setupShops(t)
		s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
		first := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
		second := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(redactRequest, "[8]", "[9]",
			1))
		tell := s.deliver(t, events.OriginWebhook, "customers/data_request",
			`{"shop_domain": "x.myshopify.com", "customer": {"id": 7, "email": "`+email+`"}, "orders_requested": []}`)
		old := s.deliver(t, events.OriginWebhook, "customers/redact", strings.Replace(redactRequest, "[8]", "[10]", 1))
		s.exec(t, `INSERT INTO redactions (run, actor, reason, params, requested_by, events, objects, conflicts,
			rejections, began_at, updated_at, ended_at) VALUES (99, '', '', '{}', $1, 0, 0, 0, 0, now(), now(), now())`,
			old)
		params, _, err := redaction.ParamsOfRequest(t.Context(), s.operator, first)
		must(t, err)
		if wholly {
			params.Matchers, params.Objects, params.All = nil, nil, true
		}
		if preview, err := redaction.BuildPreview(t.Context(), s.operator, params, nil); err != nil ||
			preview.Events != 3 || preview.Requests != 2 {
			t.Errorf("%+v, %v", preview, err)
		}
		wantCounts(t, s.run(t, *params), map[string]int64{redaction.CountEvents: 3, redaction.CountRequests: 2})
		s.wantPending(t, second, tell)
		params, _, err = redaction.ParamsOfRequest(t.Context(), s.operator, second)
		must(t, err)
		s.run(t, *params)
		s.wantBodies(t, tell)
	}
}

// A request that is named is cleared, answered or not.
func TestRedact_namedRequest_isCleared(t *testing.T) {
	t.Parallel()
	s := setupShops(t)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
	s.runWant(t, redaction.Params{Events: []int64{id}}, 1)
	s.wantGone(t, "lovelace")
}

// If a run is cancelled at its very end, the request can still be read. It is cleared in the
// transaction that ends the audit.
func TestFinish_cancelledAtTheEnd_keepsTheRequest(t *testing.T) {
	t.Parallel()
	s, f := setupShops(t), newStreamFixture(t)
	must(t, f.conn.EnsureReplays(t.Context(), stream.DefaultLimits))
	s.deliver(t, events.OriginWebhook, "orders/create", `{"id": 8, "email": "`+email+`"}`)
	id := s.deliver(t, events.OriginWebhook, "customers/redact", redactRequest)
	f.event(t, id, redactRequest)
	s.tick(t)
	h := leaseRun(t, s.pool, "test", time.Minute, redaction.Job)
	r := &redaction.Runner{Pool: s.pool, Applier: s.proc, Conn: f.conn}
	s.exec(t, `CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not yet'; END $$`)
	s.exec(t, `CREATE TRIGGER never BEFORE UPDATE ON redactions FOR EACH ROW
		WHEN (NEW.ended_at IS NOT NULL) EXECUTE FUNCTION never()`)
	if _, err := r.Execute(t.Context(), h, testkit.Logger(t)); err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Fatal(err)
	}
	if held := f.remaining(t, stream.EventsStream); len(held) > 0 {
		t.Errorf("the stream holds %v", held)
	}
	s.wantBodies(t, id)
	s.wantPending(t, id)
	s.exec(t, `DROP TRIGGER never ON redactions`)
	if status, err := r.Execute(t.Context(), h, testkit.Logger(t)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	s.wantGone(t, "lovelace")
	wantCounts(t, h, map[string]int64{redaction.CountEvents: 2})
}

// If the redaction of a request also finds the request by an object, it clears the whole delivery
// at the end. The states of other events of the version stay.
func TestFinish_requestMatchesItself_isClearedLast(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "hers", 1, email)
	other := b.event(t, "tied", 5, "tied@else.org")
	ids := b.store(t, "tied", body("tied", 5, email), "one", "two")
	b.apply(t, 0, ids...)
	b.runWant(t, redaction.Params{RequestedBy: other, Events: ids, Objects: []redaction.Object{b.thing("hers")}}, 3)
	b.wantStates(t, map[string]string{"tied": "tied@else.org"})
	again := b.store(t, "tied", body("tied", 5, email), "three", "four")
	b.apply(t, 0, again...)
	byValue := b.byEmail(t, email)
	byValue.RequestedBy = again[0]
	b.runWant(t, byValue, 2)
	b.wantStates(t, map[string]string{"tied": "tied@else.org"})
	b.wantGone(t, "lovelace")
	last := b.store(t, "tied", body("tied", 5, email), "five")[0] // without an outcome
	b.runWant(t, redaction.Params{RequestedBy: last, Objects: []redaction.Object{b.thing("tied")}}, 2)
	b.wantGone(t, "lovelace")
}

// Data that was received before a sender's request is cleared even if it left a spool later. It is
// found by value, by object, or by a state. Data received after the request stays, even if it was
// in the log first.
func TestRedact_eventsReceivedAfterRequest_stay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	requestedAt := time.Now().UTC()
	at := func(after time.Duration, object string) int64 {
		t.Helper()
		b.n++
		ids := b.storeAt(t, requestedAt.Add(after), object, body(object, 1, email), fmt.Sprint("k", b.n))
		b.apply(t, 0, ids...)
		return ids[0]
	}
	at(time.Minute, "early") // from another gateway, while the request was in a spool
	b.n++
	params := b.byEmail(t, email)
	shown, err := redaction.NewValueMatcher("$.customer.email", email)
	must(t, err)
	params.Matchers = append(params.Matchers, shown)
	params.Until = b.storeAt(t, requestedAt, "asks", body("asks", 1, "nobody@else.org"), fmt.Sprint("k", b.n))[0]
	at(-time.Minute, "drained")
	at(-time.Minute, "named")
	at(time.Minute, "late")
	dropped := at(-time.Minute, "dropped")
	named := redaction.Params{Until: params.Until, Objects: []redaction.Object{b.thing("named")}}
	b.runWant(t, named, 1)
	b.db.Exec(t, `ALTER TABLE events DISABLE TRIGGER USER`)
	b.db.Exec(t, `DELETE FROM events WHERE id = $1`, dropped)
	wantCounts(t, b.run(t, params), map[string]int64{redaction.CountEvents: 1, redaction.CountObjects: 2})
	b.wantStates(t, map[string]string{"early": email, "drained": "nothing", "named": "nothing", "dropped": "nothing",
		"late": email})
}

// A delivery in a gateway's spool is redacted too: the run waits until it is in the log.
func TestRedact_nonEmptySpool_waits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gateway := b.db.Role(t, "gateway")
	say := func(sql string) {
		t.Helper()
		execSQL(t, gateway, sql)
	}
	b.event(t, "a", 1_000_000, email)
	say(`INSERT INTO spools (spool, location, drained_at) VALUES ('one', 'here:/spool', clock_now()),
		('two', 'there:/spool', '-infinity')`)
	b.request(t, b.byEmail(t, email))
	say(`UPDATE spools SET drained_at = clock_now() WHERE spool = 'one'`)
	h, _, err := b.tryExecute(t, nil)
	if err == nil || !strings.Contains(err.Error(), "the spool there:/spool reports") ||
		!strings.Contains(err.Error(), "postern spool remove two") {
		t.Fatalf("it does not wait: %v", err)
	}
	must(t, h.Release(t.Context()))
	b.db.WantRows(t, 0, "redacted_events")
	b.event(t, "a", 2_000_000, email) // out of the spool
	say(`UPDATE spools SET drained_at = clock_now() WHERE spool = 'two'`)
	must(t, b.execute(t).End(t.Context(), runs.Done, ""))
	b.wantGone(t, email)
	// An operator removes the spool of a lost gateway, so that the run does not wait forever.
	say(`UPDATE spools SET drained_at = '-infinity' WHERE spool = 'two'`)
	b.event(t, "b", 1_000_000, email)
	b.request(t, b.byEmail(t, email))
	say(`UPDATE spools SET drained_at = clock_now() WHERE spool = 'one'`)
	must(t, errOf(redaction.RemoveSpool(t.Context(), b.operator, "two", true)))
	must(t, b.execute(t).End(t.Context(), runs.Done, ""))
}

// The list of spools shows the last report and the waiting runs. A spool is removed by name. If a
// gateway reported it recently, or an earlier version reported it last, force is required.
func TestRemoveSpool_reportedRecently_needsForce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes) VALUES
		('earlier', 'here:/spool', null, '-infinity', null, null, null),
		('back', 'there:/spool', '2026-01-01Z', now() - interval '1 h', now() - interval '2 h', 3, 100),
		('earlier full', 'here:/spool', '2026-01-01Z', now() - interval '1 h', null, null, null),
		('gone', 'there:/spool', '2026-01-01Z', '2026-01-02Z', now() - interval '6 min', 3, 100),
		('here', 'here:/spool', '2026-01-01Z', '-infinity', now(), 3, 100),
		('unreported', 'there:/spool', '2026-01-01Z', now() + interval '1 h', null, null, null)`)
	before := b.request(t, b.byEmail(t, email))
	said := func(s *redaction.Spool) string {
		content := "nothing"
		if s.Deliveries != nil && s.Bytes != nil {
			content = fmt.Sprint(*s.Deliveries, " ", *s.Bytes)
		}
		return fmt.Sprint(s.Name, " ", s.Location, " ", s.RegisteredAt, " ", !s.ReportedAt.IsZero(), " ",
			!s.EmptyAt.IsZero(), " ", content, " ", s.Redactions)
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
	equal(t, "", []string{
		fmt.Sprintf("back there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("earlier here:/spool  false false nothing [%d]", before),
		fmt.Sprintf("earlier full here:/spool %s true true nothing [%d]", since, before),
		fmt.Sprintf("gone there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("here here:/spool %s true false 3 100 [%d]", since, before),
		fmt.Sprintf("unreported there:/spool %s true true nothing []", since),
	}, listed)
	for _, c := range []struct {
		name  string
		force bool
		err   error
	}{{"none", true, events.ErrNotFound}, {"here", false, events.ErrInvalid}, {"unreported", false, events.ErrInvalid},
		{"here", true, nil}, {"here", true, events.ErrNotFound}, {"gone", false, nil},
		{"earlier", false, events.ErrInvalid}, {"earlier full", false, events.ErrInvalid},
		{"back", false, events.ErrInvalid}, {"earlier", true, nil}, {"earlier full", true, nil}, {"back", true, nil}} {
		s, err := redaction.RemoveSpool(t.Context(), b.operator, c.name, c.force)
		if !errors.Is(err, c.err) || err == nil && (s.Name != c.name || len(s.Redactions) != 1) {
			t.Errorf("%s, force %t: %+v, %v", c.name, c.force, s, err)
		}
	}
	if left := b.rows(t, `SELECT spool FROM spools`); len(left) != 1 || left[0] != "unreported" {
		t.Errorf("remaining are %v", left)
	}
}
