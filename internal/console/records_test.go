package console

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// Each page says what is there. Without any data, a list says what would be here.
func TestRecordPages_noneAndMany_sayWhatIsThere(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	b.wantPages(t, map[string][]string{
		"objects":              {"No object matches the filter. An object appears here when"},
		"rejections":           {"No rejected delivery matches the filter. A delivery appears here if"},
		"conflicts":            {"No conflict matches the filter."},
		"outcomes?status=dead": {"No outcome matches the filter.", "postern outcomes list --status dead"},
		"refetches":            {"No object waits for a refetch."},
		"sources/stripe":       {"first0not in the last 30 days"},
	})
	e.fill(t, "")
	e.db.Exec(t, `UPDATE objects SET ambiguous = true, deleted = true, version_seen = 1790000001000000`)
	b.wantPages(t, map[string][]string{
		"objects": {"cus_0", "deletedambiguous, older rule", "2026-09-21 14:13:20seen 2026-09-21 14:13:21, rank 1"},
		"objects/stripe/customer/cus_0": {"the provider's state of 2026-09-21 14:13:20, which a refetch that began at",
			"The provider deleted this object. The mirror keeps its last state.",
			"Different states have the same version", "Version 1 of the rule wrote this state", "list [3]"},
		"rejections":   {"wrong signature"},
		"rejections/1": {"anyone can have written it", "The signature does not match any configured secret"},
		"conflicts":    {"evt_0"},
		"conflicts/1":  {"Only their form differs", "2026-06-30 of the stored event"},
		"outcomes":     {"because", "ambiguous", "live"},
		"refetches":    {"ambiguous", "Request a refetch"},
		"sources/stripe": {"The secret first verified no delivery in the last 24 hours, and others did. It can be " +
			"removed", "first 0 %0", "second 100 %9", "not configured here"},
	})
	for path, want := range map[string]string{
		"objects/stripe/customer/none": "object customer none of source stripe",
		"objects/none/customer/cus_0":  "known sources",
		"rejections/99":                "rejection 99",
		"rejections/x":                 "There is no rejection x. The number of a rejection has only digits.",
		"conflicts/99":                 "conflict 99",
	} {
		b.get(t, Prefix+path).want(t, path, http.StatusNotFound, want)
	}
}

// A conflict is shown value by value, unless the stored event cannot be compared any more.
func TestConflict_differentBodies_listsPlaces(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	event := e.add(t, thing{key: "evt_1", eventType: "customer.updated", body: `{"a": [1, {"b": "x"}], "same": 1}`})
	add := func(body string) {
		e.db.Exec(t, `INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint,
				received_at, headers, verification, body)
			VALUES ($1, $2, 'evt_1', 'customer.updated', '', decode(md5($3), 'hex'), now(), '{}',
				'{"secret": "second"}', convert_to($3, 'UTF8'))`, e.source, event, body)
	}
	add(`{"a": [1, {"b": "` + strings.Repeat("y", 5000) + `"}], "same": 1.0, "api_version": "2"}`)
	add(`no JSON`)
	b := e.browser()
	b.wantPages(t, map[string][]string{
		"conflicts/1": {"another version of its API", `body.a[1].b"x""yyy`, "5,002 bytes", `body.api_versionabsent"2"`,
			"the secret second"},
		"conflicts/2": {"One of the two bodies is not JSON"},
	})
	for _, path := range []string{"conflicts/1", "conflicts/2"} {
		if strings.Contains(b.get(t, Prefix+path).text(), "body.same") {
			t.Errorf("%s: equal values are listed", path)
		}
	}
	e.db.Exec(t, `INSERT INTO redacted_events (event, run, at) SELECT id, 1, now() FROM events`)
	b.wantPages(t, map[string][]string{"conflicts/1": {"The stored event was redacted, so its body"}})
}

// An object that several accounts have leads to a choice. The actions of each name its
// account, even an empty one.
func TestObject_severalAccounts_choice(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for _, account := range []string{"", "acct_1"} {
		e.add(t, thing{key: "evt_" + account, eventType: "customer.updated", account: account, objectType: "customer",
			objectID: "cus_1", body: "{}", state: `{"of": "` + account + `"}`})
	}
	b := e.browser()
	const object = Prefix + "objects/stripe/customer/cus_1"
	p := b.get(t, object)
	p.want(t, "several accounts", http.StatusConflict, "choose one account")
	chosen := slices.DeleteFunc(p.links(), func(href string) bool { return !strings.Contains(href, "account=") })
	testkit.Equal(t, "choices", []string{object + "?account=", object + "?account=acct_1"}, chosen)
	e.db.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
		VALUES ($1, '', 0, now(), now(), 0, '{}')`, e.source)
	for i, href := range chosen {
		p := b.get(t, href)
		p.want(t, href, http.StatusOK)
		to := b.submit(t, p, "Request a refetch")
		to.want(t, "request", http.StatusSeeOther)
		testkit.Equal(t, "address after the request", href, to.header.Get("Location"))
		e.db.WantRows(t, i+1, "refetch_requests")
		b.submit(t, b.get(t, href), "Cancel the refetch").want(t, "cancel", http.StatusSeeOther)
		b.submit(t, b.get(t, href), "Request a refetch").want(t, "again", http.StatusSeeOther)
	}
	request := func(id string) *response {
		return b.submit(t, b.get(t, Prefix+"refetches"), "Request a refetch", "p.source", "stripe", "p.type",
			"customer", "p.object_id", id)
	}
	request("cus_2").want(t, "request of an absent object", http.StatusSeeOther)
	absent := b.get(t, Prefix+"objects/stripe/customer/cus_2")
	absent.want(t, "an absent object", http.StatusOK, "not in the mirror")
	if absent.forms()["Cancel the refetch"].action == "" {
		t.Errorf("its refetch cannot be cancelled: %s", absent.text())
	}
	p = request("cus_1")
	p.want(t, "request without the account", http.StatusConflict)
	if !slices.Contains(p.links(), object+"?account=acct_1") {
		t.Errorf("request without the account: %q", p.links())
	}
}

// Pages lead to what an operator does next: from filtered events to the preview of a run for them,
// from an event to what it changed or to what it waits for, from full rejections to a
// reconciliation, and from the overview to the runs in progress.
func TestPages_nextStep_isALink(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(o *Options) { o.RejectionsMaxCount = 1 })
	e.fill(t, "")
	e.db.Exec(t, `UPDATE runs SET status = 'running' WHERE run = 2`)
	b := e.browser()
	event := func(status string) string {
		return "events/" + e.db.QueryStrings(t, `SELECT e.id FROM events e LEFT JOIN outcomes o ON o.event_id = e.id
			WHERE coalesce(o.status, 'pending') = $1`, status)[0]
	}
	applied, pending := event("applied"), event("pending")
	const replay, retry = Prefix + "runs/new/replay", Prefix + "runs/new/retry"
	for _, c := range []struct{ page, link, text string }{
		{"events?source=stripe&limit=5", replay + "?source=stripe", "Replay these events…"},
		{"events?status=dead", retry + "?status=dead", "Retry these events…"},
		{applied, Prefix + "objects/stripe/customer/cus_0/diff?to=" + filepath.Base(applied),
			"what this event changed"},
		{applied, replay + "?ids=" + filepath.Base(applied), "Replay…"},
		{pending, Prefix + "health", "The event waits for a processor."},
		{"rejections", Prefix + "runs/new/reconcile?source=stripe",
			"The source stripe has reached its limit of 1 rejected deliveries"},
		{"", Prefix + "runs/2", "Runs in progress"},
	} {
		p := b.get(t, Prefix+c.page)
		p.want(t, c.page, http.StatusOK, c.text)
		if !slices.Contains(p.links(), c.link) {
			t.Errorf("%s: no link %s in %q", c.page, c.link, p.links())
		}
	}
	for page, absent := range map[string]string{"events?body=a=b": replay, "events?source=stripe": retry,
		pending: Prefix + "objects/stripe/customer/cus_1/diff"} {
		if slices.ContainsFunc(b.get(t, Prefix+page).links(), func(href string) bool {
			return strings.HasPrefix(href, absent)
		}) {
			t.Errorf("%s: has a link %s", page, absent)
		}
	}
}

// A parameter that a page does not have is an error, and not ignored: a misspelt filter would show
// too much.
func TestPages_unknownParameter_isRejected(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "")
	b := e.browser()
	event := "events/" + e.db.QueryStrings(t, `SELECT id FROM events`)[0]
	for _, page := range []string{"", "events", event, "find", "objects", "objects/stripe/customer/cus_0",
		"objects/stripe/customer/cus_0/diff", "objects/stripe/customer/cus_0/at", "rejections", "rejections/1",
		"conflicts", "conflicts/1", "outcomes", "refetches", "failures", "sources", "sources/stripe", "source-types",
		"runs", "runs/1", "runs/new/replay", "runs/new/retry", "runs/new/rebuild", "runs/new/reconcile", "schedules",
		"schedules/nightly", "effects", "effects/1", "effects/rules/receipt", "reconciliation", "audit", "redactions",
		"retention", "health", "help"} {
		b.get(t, Prefix+page+"?sorce=x").want(t, page, http.StatusBadRequest, "sorce", "does not exist")
	}
}

// Without its content, an event cannot be verified again. That says nothing about the secret.
func TestEvent_redactedOrDropped_isNotVerifiedAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	event := e.add(t, thing{key: "evt_1", eventType: "customer.updated", body: "{}", status: "applied"})
	page := Prefix + "events/" + id(event)
	b.get(t, page).want(t, "stored", http.StatusOK, "Signed bytes, verified again", "The secret or the configuration")
	e.db.Exec(t, `INSERT INTO redacted_events (event, run, at) VALUES ($1, 1, now())`, event)
	e.db.Exec(t, `INSERT INTO dropped_partitions (name, id_from, id_to, retained_to, events, bytes, run, ready_at,
		dropped_at, updated_at) VALUES ('old', 1000, 2000, 0, 0, 0, 1, now(), now(), now())`)
	e.db.Exec(t, `INSERT INTO outcomes SELECT (jsonb_populate_record(o, '{"event_id": 1500}')).* FROM outcomes o`)
	for path, texts := range map[string][]string{page: {"were redacted at", "Verification", "first"},
		Prefix + "events/1500": {"Retention dropped the day of this event"}} {
		p := b.get(t, path)
		p.want(t, path, http.StatusOK, texts...)
		for _, wrong := range []string{"verified again", "The secret or the configuration", "No signature"} {
			if strings.Contains(p.text(), wrong) {
				t.Errorf("%s says %q: %s", path, wrong, p.text())
			}
		}
	}
}

// An id that was copied with the quotation marks of a log or a chat is found without them.
func TestFind_quotedID_leadsToItsPage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	e.add(t, thing{key: "evt_1", eventType: "customer.updated", objectType: "customer", objectID: "it's", body: "{}",
		state: "{}", status: "applied"})
	event := e.add(t, thing{key: "'quoted'", eventType: "customer.updated", body: "{}", status: "applied"})
	for given, want := range map[string]string{
		`"evt_1",`:            query(path("find"), "q", "evt_1"),
		"\u200b`evt_1`\u00a0": query(path("find"), "q", "evt_1"),
		"it's":                path("objects", "stripe", "customer", "it's"),
		"'quoted'":            eventPath(event),
	} {
		p := b.get(t, query(path("find"), "q", given))
		if got := p.header.Get("Location"); p.status != http.StatusSeeOther || got != want {
			t.Errorf("%q: %d to %s, want %s", given, p.status, got, want)
		}
	}
	b.get(t, query(path("find"), "q", `"",`)).want(t, "only quotation marks", http.StatusOK, "Nothing has the id")
}

// The overview shows sources with silent types first, then those with the newest events, and the
// problem of a process with its configuration file while the process reports. It needs few
// statements.
func TestOverview_manySources_silentFirst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.db.Exec(t, `INSERT INTO sources (name, provider, api_reads) SELECT 'source_' || g, 'stripe', '{}'
		FROM generate_series(10, 40) g`)
	e.db.Exec(t, `INSERT INTO source_types SELECT number, 'a', now() - interval '9 days', now() -
		CASE name WHEN 'source_10' THEN interval '5 hours' ELSE number * interval '1 second' END, 20
		FROM sources WHERE name <> 'source_11'`)
	e.db.Exec(t, `INSERT INTO processes SELECT id, 'gateway', id, 7, '1', '', now(), now() - age, '', now(), '',
		'a typo in ' || id, true FROM (VALUES ('running', interval '0'), ('ended', interval '50 minutes')) v (id, age)`)
	before := e.pool.Stat().AcquireCount()
	p := e.browser().get(t, Prefix)
	// each statement of a page acquires a connection
	if n := e.pool.Stat().AcquireCount() - before; n > 10 {
		t.Errorf("the overview needed %d statements", n)
	}
	p.want(t, "overview", http.StatusOK, "12 other sources have had events", "1 source has had no event yet",
		"Gateway on running: a typo in running")
	if strings.Contains(p.text(), "a typo in ended") {
		t.Error("the problem of a process that ended is shown")
	}
	var shown []string
	for _, href := range p.links() {
		if name, ok := strings.CutPrefix(href, Prefix+"sources/"); ok {
			shown = append(shown, name)
		}
	}
	if len(shown) != shownSources || shown[0] != "source_10" || slices.Contains(shown, "source_40") {
		t.Errorf("the overview shows %q", shown)
	}
}
