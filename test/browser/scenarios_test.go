package browser_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// The provider has a new secret, and the source has not: the overview leads to the deliveries and
// their cause. With the secret they are valid, and become events.
func TestRejections_secretChangedOnOneSide_areReprocessed(t *testing.T) {
	b := open(t)
	if !until(30*time.Second, func() bool {
		b.visit("/console/")
		return eval[bool](b, `document.getElementById("attention").innerText.includes("had only rejected deliveries")`)
	}) {
		t.Fatal("the overview does not show that a source gets only rejected deliveries")
	}
	b.waitFor(`[...document.querySelectorAll("#attention p")].some(p => p.innerText.includes("only rejected") &&
		(p.querySelector("a").click(), true))`)
	b.says("every delivery of rotated is rejected (wrong_signature) and none is accepted: the secret was probably " +
		"changed on one side only")
	instance.reconfigure(t, "{name: first, value: "+firstSecret+"}", "{name: first, value: "+firstSecret+"}\n"+
		"      - {name: second, value: "+secondSecret+"}")
	b.visit("/console/rejections?source=rotated")
	b.click("verify again")
	b.says(fmt.Sprintf("Valid now: %d of %[1]d deliveries, with %[1]d events", rotatedDeliveries))
	b.submit(1, fmt.Sprintf("Reprocess %d deliveries", rotatedDeliveries), "p.reason", "the new secret was missing")
	b.at("/console/audit")
	b.says("Still rejected: 0", "the new secret was missing")
	if n := eval[int](b, `[...document.querySelectorAll("tbody tr")].filter(r =>
		r.innerText.includes("the new secret was missing")).length`); n != rotatedDeliveries {
		t.Errorf("the audit has %d entries for %d deliveries", n, rotatedDeliveries)
	}
	b.visit("/console/rejections?source=rotated")
	b.says("No rejected delivery matches the filter")
	b.visit("/console/events?source=rotated")
	b.waitFor(fmt.Sprintf(`document.querySelectorAll("tbody tr").length === %d`, rotatedDeliveries))
	b.do(chromedp.Click("tbody tr a"))
	b.says("verified with the secret \"second\"", "Reprocessed")
}

// Somebody without the secret sends deliveries while others are accepted: none becomes valid.
func TestRejections_forgedAmongAccepted_areNotOffered(t *testing.T) {
	b := open(t)
	b.visit("/console/rejections?source=stripe")
	b.says("Accepted deliveries continue, and all rejected ones come from 127.0.0.1: probably a forger")
	b.click("verify again")
	b.says("No delivery is valid now. Still rejected: 5 wrong signature.")
	b.saysNot("Reprocess")
}

// An event that arrives late changes nothing. Its page leads to the event that won, and the
// object's picture shows one crossing.
func TestEvent_late_leadsToTheEventThatWon(t *testing.T) {
	began := time.Now().Add(-time.Hour)
	for i, key := range []string{"evt_old", "evt_new", "evt_late"} {
		instance.accept(t, "stripe", stripeSecret, stripeEvent(key, "customer.updated", "cus_crossed",
			began.Add(time.Duration([]int{0, 20, 10}[i])*time.Minute)))
	}
	b := open(t)
	b.find("evt_late")
	b.says("The outcome is stale", "The stored version came with event")
	b.waitFor(`[...document.querySelectorAll("p.note a")].some(a => (a.click(), true))`)
	b.says("evt_new", "The outcome is applied")
	b.do(chromedp.Click(`#receipt a[href^="/console/objects/"]`))
	b.says("This is revision 2,")
	lines := eval[[][]int](b, `[...document.querySelectorAll("figure.orders line")].map(l =>
		[l.x1.baseVal.value, l.x2.baseVal.value].map(Math.round))`)
	crossings := 0
	for i, a := range lines {
		for _, c := range lines[:i] {
			if (a[0]-c[0])*(a[1]-c[1]) < 0 {
				crossings++
			}
		}
	}
	if len(lines) != 3 || crossings != 1 {
		t.Errorf("the lines %v have %d crossings", lines, crossings)
	}
}

// Any id leads to its page, or to a choice; another text to a sentence.
func TestFind_anyID_leadsToItsPage(t *testing.T) {
	for _, source := range []string{"stripe", "rotated"} {
		secret := map[string]string{"stripe": stripeSecret, "rotated": firstSecret}[source]
		instance.accept(t, source, secret, stripeEvent("evt_twice", "customer.updated", "cus_of_"+source, time.Now()))
	}
	own := items[struct{ ID string }](t, "events?source=stripe&key=evt_twice")[0].ID
	b := open(t)
	b.visit("/console/runs/new/replay?ids=" + own)
	b.submit(1, "Start the replay", "p.reason", "to find it")
	b.at("/console/runs/")
	run := strings.TrimPrefix(eval[string](b, `location.pathname`), "/console/runs/")
	for text, path := range map[string]string{"cus_of_stripe": "/console/objects/stripe/customer/cus_of_stripe",
		own: "/console/events/" + own, "run " + run: "/console/runs/" + run, "rotated": "/console/sources/rotated"} {
		b.find("  " + text + " ")
		b.at(path)
	}
	b.find("evt_twice")
	b.says("Found: 2", "stripe", "rotated")
	b.find(`nonsense "%' <b>`)
	b.says(`Nothing has the id nonsense "%' <b>`)
}

// rowsOf returns the ids of the rows of the live list, the top one first.
const rowsOf = `[...document.querySelectorAll("#live tr:not([hidden]) td:first-child a")].map(a => a.pathname)`

// The live list shows new events of its filter on top, waits while the operator reads further down,
// and has each event once after the connection was lost.
func TestTail_filterScrollAndLostConnection_showsEachEventOnce(t *testing.T) {
	way, err := newLink("tcp", strings.TrimPrefix(instance.Console, "http://"))
	must(t, err)
	defer func() { _ = way.Close() }()
	b := openOn(t, &running{Console: "http://" + way.Addr().String()})
	b.allowed = []string{"ERR_CONNECTION", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING", "network error"}
	send := func(prefix string, n int) {
		for i := range n {
			for _, eventType := range []string{"invoice.updated", "customer.updated"} {
				instance.accept(t, "stripe", stripeSecret, stripeEvent(fmt.Sprintf("evt_%s_%d_%.3s", prefix, i,
					eventType), eventType, fmt.Sprintf("%.3s_%s_%d", eventType, prefix, i), time.Now()))
			}
		}
	}
	b.do(chromedp.EmulateViewport(1280, 300))
	b.visit("/console/events?source=stripe&type=invoice.*&live=1")
	before := len(eval[[]string](b, rowsOf))
	shows := func(more int) []string {
		t.Helper()
		b.waitFor(fmt.Sprintf(`%s.length >= %d`, rowsOf, before+more))
		all := eval[[]string](b, rowsOf)
		if sorted := slices.Sorted(slices.Values(all)); len(all) != before+more ||
			len(slices.Compact(sorted)) != len(all) || !slices.IsSortedFunc(all, func(a, c string) int {
			return strings.Compare(c, a)
		}) {
			t.Fatalf("the list shows %q, and had %d", all, before)
		}
		return all
	}
	send("live", 6)
	shows(6)
	eval[bool](b, `scrollTo(0, document.body.scrollHeight), true`)
	b.waitFor(`scrollY > 0`)
	send("further", 2)
	b.waitFor(`document.querySelector("p.live").innerText.includes("2 new events above")`)
	if n := len(eval[[]string](b, rowsOf)); n != before+6 {
		t.Errorf("%d rows moved while the operator reads", n-before-6)
	}
	b.do(chromedp.Click("p.live button"))
	shows(8)
	way.cut(true)
	send("offline", 3)
	b.says("New events do not appear: the connection is lost. The page tries again.")
	way.cut(false)
	shows(11)
	b.says("New events appear on top.")
}

// Events are dead because of the configuration. After its repair the operator retries them, with a
// double click, and sees the end of the run without a reload.
func TestFailures_repairedAndRetried_leaveNoFailure(t *testing.T) {
	for n := range 3 {
		instance.accept(t, "acme", acmeSecret, order(n, 1))
	}
	if !until(20*time.Second, func() bool { // their outcome is ignored; only other faults are dead
		n, err := instance.sql(`WITH d AS (UPDATE postern.outcomes SET status = 'dead', attempts = 9,
			reason = 'order ' || event_id || ' has no number' WHERE status = 'ignored' AND source = (SELECT number
			FROM postern.sources WHERE name = 'acme') RETURNING 1) SELECT count(*) FROM d`)
		must(t, err)
		return n == "3" || n != "0" && func() bool { t.Fatalf("%s events are ignored", n); return true }()
	}) {
		t.Fatal("no event is ignored")
	}
	instance.reconfigure(t, brokenID, rightID)
	b := open(t)
	b.visit("/console/failures?status=dead&source=acme")
	b.says("order … has no number")
	b.click("retry these")
	b.says("counted")
	b.submit(2, "Start the retry", "p.reason", "the configuration is repaired")
	b.at("/console/runs/")
	b.says("3 of about 3", "done")
	if runs := items[struct{ Job string }](t, "runs?job=retry"); len(runs) != 1 {
		t.Errorf("%d runs were started", len(runs))
	}
	b.visit("/console/failures?source=acme")
	b.says("No event has failed or is dead")
}

// order is an event of the source acme.
func order(n, second int) string {
	return fmt.Sprintf(`{"id": "o%d-%d", "type": "order.updated", "order": {"id": "o%[1]d",
		"at": "2026-11-01T10:00:%02[2]dZ", "detail": {"total": %d}, "note": "keep"}}`, n, second, 100*second)
}

// After a change of the configuration, the comparison of a rebuild shows what differs. Only there
// is the swap.
func TestRebuild_changedConfiguration_isComparedAndSwapped(t *testing.T) {
	instance.reconfigure(t, "state: order,", "state: order.detail,")
	_, err := instance.sql(`UPDATE postern.objects SET rule_version = rule_version - 1 WHERE source = (SELECT number
		FROM postern.sources WHERE name = 'acme')`)
	must(t, err)
	b := open(t)
	b.visit("/console/objects?source=acme&outdated=true")
	b.says("older rule")
	b.visit("/console/runs/new/rebuild?source=acme")
	b.submit(1, "Start the rebuild", "p.reason", "another state")
	b.at("/console/runs/")
	b.says("awaiting decision", "Comparison of the staged and the live objects", "note, total")
	b.submit(1, "Swap", "p.reason", "as compared")
	b.says("Done: Swap", "done")
	b.visit("/console/objects?source=acme&outdated=true")
	b.says("No object matches the filter")
}

// Webhooks are lost and objects change without one: a scan finds and repairs all.
func TestReconciliation_lostWebhooks_areFoundAndRepaired(t *testing.T) {
	f := billing()
	var ids []string
	for range 12 {
		ids = append(ids, f.Create("", "customer", nil))
	}
	f.SetWebhooks(stripefake.Webhooks{LostAcknowledged: 100})
	for range 5 {
		f.Create("", "customer", nil)
	}
	for _, id := range ids[:2] {
		f.SetWithoutEvent("", id, map[string]any{"description": "changed without an event"})
	}
	f.Advance(time.Since(f.Now()))
	deliverWebhooks(t, f)
	b := open(t)
	b.visit("/console/runs/new/reconcile?source=billing&object_type=customer")
	b.submit(1, "Start the reconciliation", "p.reason", "webhooks were lost")
	b.at("/console/runs/")
	b.waitFor(`document.querySelector("h1").innerText.includes("done") && document.querySelector("#drift tbody td")`)
	if got := eval[string](b, `(() => { const [head] = document.querySelectorAll("#drift thead tr"),
		row = document.querySelector("#drift tbody tr"); return [...head.cells].map((c, i) => c.innerText + " " +
		row.cells[i].innerText).filter(t => /^(Missing|Content differs|Mirror older|Repaired|Unrepaired)/i.test(t))
		.join(", ").toLowerCase() })()`); !strings.Contains(got, "missing 5") || !strings.Contains(got, "repaired 7") ||
		!strings.Contains(got, "unrepaired 0") {
		t.Errorf("the scan has %s", got)
	}
	b.do(chromedp.Click(`#differences tbody a[href^="/console/events/"]`))
	b.says("for billing by reconcile", "changed without an event")
	b.saysNot("Signed bytes")
	b.visit("/console/reconciliation?source=billing")
	b.says("customer")
}

// A type that came regularly and stops is on the overview and on the page of its source, until it
// comes again.
func TestSources_silentType_isShownUntilItComesAgain(t *testing.T) {
	b := open(t)
	if !until(30*time.Second, func() bool {
		changed, err := instance.sql(`WITH u AS (UPDATE postern.source_types SET count = 20, first_at = now() - interval
			'10 days', last_at = now() - interval '5 hours', longest_this_week = interval '1 hour'
			WHERE event_type = 'orders/create' RETURNING 1) SELECT count(*) FROM u`)
		must(t, err)
		return changed == "1"
	}) {
		t.Fatal("the type is not reported")
	}
	b.visit("/console/")
	b.says("An event type has become silent")
	b.visit("/console/sources/shopify")
	b.says("silent types: 1", "5 h")
	_, err := instance.postern("send", "shopify", "orders/create")
	must(t, err)
	t.Parallel() // goes on after the other tests: processes report types once a minute
	if !until(90*time.Second, func() bool {
		b.visit("/console/sources/shopify")
		return eval[bool](b, `!document.querySelector("h1").innerText.includes("silent")`)
	}) {
		t.Error("the type is silent after it came again")
	}
}

// During a rotation the page of the source shows the share of each secret, and afterwards which one
// can be removed.
func TestSources_rotation_showsSharesAndTheUnusedSecret(t *testing.T) {
	b := open(t)
	use := func(secret string, hours, verified int) {
		_, err := instance.sql(fmt.Sprintf(`DELETE FROM postern.activity_secrets WHERE secret = '%[1]s';
			INSERT INTO postern.activity_secrets (source, secret, hour, verified, last_at)
			SELECT number, '%[1]s', floor(extract(epoch FROM now()) / 3600)::int - %[2]d, %[3]d,
			now() - %[2]d * interval '1 hour' FROM postern.sources WHERE name = 'rotated'`, secret, hours, verified))
		must(t, err)
	}
	use("first", 3, 25)
	use("second", 2, 75)
	b.visit("/console/sources/rotated")
	b.says("25 %", "75 %")
	b.saysNot("It can be removed")
	use("first", 30, 25)
	b.visit("/console/sources/rotated")
	b.says("100 %", "The secret first verified no delivery in the last 24 hours, and others did. It can be removed")
}

// PostgreSQL is unavailable while pages are open: they say so, and a form that was sent meanwhile
// changes something once. Afterwards all are live without a reload.
func TestOutage_databaseReturns_pagesRecover(t *testing.T) {
	health, form, list := open(t), open(t), open(t)
	own := items[struct{ ID string }](t, "events?source=shopify&limit=1")[0].ID
	for _, b := range []*tab{health, form, list} {
		b.allowed = []string{"503", "500"}
	}
	health.visit("/console/health")
	list.visit("/console/")
	form.visit("/console/runs/new/replay?ids=" + own)
	before := len(items[struct{}](t, "runs?job=replay"))
	database.cut(true)
	defer database.cut(false)
	form.submit(1, "Start the replay", "p.reason", "during the outage")
	form.says("Error 503", "The reason that you entered: during the outage", "A change that was made already is not "+
		"made again")
	health.says("Spool", "Database unavailable")
	list.says("Error 503", "This page was requested at")
	instance.accept(t, "stripe", stripeSecret, stripeEvent("evt_outage", "customer.updated", "cus_outage", time.Now()))
	health.says("deliveries that wait for PostgreSQL: 1 (")
	database.cut(false)
	if !until(30*time.Second, instance.isReady) {
		t.Fatal("the instance is not ready after the outage")
	}
	list.says("Needs attention")
	health.says("Backlog", "Spools")
	health.waitFor(`![...document.querySelectorAll(".note.bad")].some(n => n.innerText.includes("unavailable"))`)
	form.submit(2, "Start the replay")
	form.at("/console/runs/")
	form.says("done")
	if after := len(items[struct{}](t, "runs?job=replay")); after != before+1 {
		t.Errorf("%d runs were started", after-before)
	}
	form.find("evt_outage")
	form.says("The outcome is applied")
}
