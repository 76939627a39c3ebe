package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A reconciliation of events or of one object is queued for a processor.
func TestReconcile_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i, c := range []struct {
		source, body string
		want         map[string]any // members of the parameters besides the source; nil: not compared
	}{
		{"stripe", `"reason": "an outage", "idempotency_key": "k"`, map[string]any{"account": "", "scope": "events",
			"input": map[string]any{"source": "stripe"}}},
		{"stripe", `"account": "acct_1", "since": "2026-01-02", "until": "2026-01-03T04:05:06Z", "dry_run": true`,
			map[string]any{"account": "acct_1", "scope": "events", "since": "2026-01-02T00:00:00Z",
				"until": "2026-01-03T04:05:06Z", "dry_run": true,
				"input": map[string]any{"source": "stripe", "account": "acct_1", "since": "2026-01-02",
					"until": "2026-01-03T04:05:06Z", "dry_run": "true"}}},
		{"shop", `"object_type": "order", "object_id": "7"`, map[string]any{"account": "", "scope": "object",
			"type": "order", "id": "7",
			"input": map[string]any{"source": "shop", "object_type": "order", "object_id": "7"}}},
		{"stripe", `"since": "400d"`, nil},
		{"stripe", `"type": "customer", "full": true`, map[string]any{"account": "", "scope": "objects",
			"type": "customer", "full": true,
			"input": map[string]any{"source": "stripe", "type": "customer", "full": "true"}}},
		{"shop", `"objects": true, "since": "2026-01-02"`, map[string]any{"account": "", "scope": "objects",
			"since": "2026-01-02T00:00:00Z",
			"input": map[string]any{"source": "shop", "objects": "true", "since": "2026-01-02"}}},
	} {
		run := b.wantResponses(t, [][2]string{{
			fmt.Sprintf(`POST /reconciliations {"source": %q, %s}`, c.source, c.body),
			fmt.Sprintf(`200 {"run": %d, "job": "reconcile", "status": "queued", "actor": "admin API…"}`, i+1)}})
		if c.want != nil {
			c.want["source"] = float64(b.known.Number[c.source])
			testkit.Equal(t, c.body, any(c.want), run["params"])
		}
	}
	b.wantResponses(t, [][2]string{
		{`POST /reconciliations {"source": "stripe", "idempotency_key": "k"}`,
			`200 {"run": 1, "earlier": true, "reason": "an outage"}`},
		{`GET /runs?job=reconcile`, `200 {"items": [{}, {}, {}, {}, {}, {}]}`},
		{`POST /reconciliations {}`, "400 name the source to reconcile"},
		{`POST /reconciliations {"source": "nobody"}`, "400 is not known; the known sources are"},
		{`POST /reconciliations {"source": "stripe", "type": "customer", "objects": false}`, "400 give one of them"},
		{`POST /reconciliations {"source": "stripe", "type": "customer", "object_id": "cus_1", "objects": true}`,
			"400 give one of them"},
		{`POST /reconciliations {"source": "stripe", "objects": true, "full": true, "since": "1h"}`,
			"400 full lists everything"},
		{`POST /reconciliations {"source": "stripe", "object_id": "cus_1"}`, "400 name its type too"},
		{`POST /reconciliations {"source": "stripe", "type": "customer", "object_id": "cus_1", "since": "1h"}`,
			"400 since and until do not apply to one object"},
		{`POST /reconciliations {"source": "stripe", "since": "1h", "until": "2h"}`,
			`400 since "1h" is not before until "2h"`},
		{`POST /reconciliations {"source": "stripe", "since": "soon"}`, "400 write an RFC 3339 time"},
		{`POST /reconciliations {"source": "stripe", "dry_run": "perhaps"}`, "400 give true or false"},
		{`POST /reconciliations {"source": "stripe", "full": true}`, "400 name a type, or set objects"},
		{`POST /reconciliations {"source": "stripe", "whole": true}`, "400 does not exist"},
		{`POST /reconciliations {"source": "stripe", "dry_run": true, "idempotency_key": "k"}`,
			"400 which has other parameters (reconcile source=stripe)"},
	})
}

// Refetch requests and watermarks are listed by key, for all sources or one, page by page.
func TestRefetchesAndWatermarks_filters_selectRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stripe, shop := b.known.Number["stripe"], b.known.Number["shop"]
	b.db.Exec(t, `
		INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_by, requested_at,
			due, start_after, attempts, error, lease_owner, lease_until)
		SELECT source, account, object_type, object_id, reason, requested_by, '2026-01-02T03:04:05Z',
			'2026-01-02T03:04:06Z', start_after, attempts, error, lease_owner, lease_until::timestamptz FROM (VALUES
			($1::int, '', 'customer', 'b', 'ambiguous', '', 1790000000000001, 2, 'answered 500', 'p1',
				'2026-01-02T03:06:05Z'),
			($1, '', 'customer', 'a', 'asked for', 'ada@office', 0, 0, '', '', '-infinity'),
			($1, 'acct_1', 'customer', 'c', 'ambiguous', '', 1, 0, '', '', '-infinity'),
			($2::int, '', 'order', 'd', 'ambiguous', '', 1, 0, '', '', '-infinity')) AS v (source, account,
			object_type, object_id, reason, requested_by, start_after, attempts, error, lease_owner, lease_until)`,
		stripe, shop)
	b.db.Exec(t, `
		INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at) VALUES
		  ($1, '', 'events', '2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z', 7, '2026-01-02T00:00:31Z'),
		  	($1, 'acct_1', 'events', now(), now(), 8, now()), ($2, 'x', 'events', now(), now(), 9, now())`,
		stripe, shop)
	for path, want := range map[string]string{
		"/refetches?":               "object_id " + byNumber(stripe, shop, "a b c", "d"),
		"/refetches?source=stripe":  "object_id a b c",
		"/refetches?source=shop":    "object_id d",
		"/watermarks?":              "run " + byNumber(stripe, shop, "7 8", "9"),
		"/watermarks?source=shop":   "run 9",
		"/watermarks?source=stripe": "run 7 8",
	} {
		member, items, _ := strings.Cut(want, " ")
		for _, size := range []int{1, 2, 3, 100} {
			pages := b.pages(t, fmt.Sprint(path, "&limit=", size), member)
			tooLong := func(page string) bool { return len(strings.Fields(page)) > size }
			if strings.Join(pages, " ") != items || slices.ContainsFunc(pages, tooLong) {
				t.Errorf("%s by %d: %q, want %s", path, size, pages, items)
			}
		}
	}
	_, page := b.get(t, "/refetches?source=stripe")
	want := []any{
		map[string]any{"source": "stripe", "account": "", "object_type": "customer", "object_id": "a",
			"reason": "asked for", "requested_by": "ada@office",
			"requested_at": "2026-01-02T03:04:05.000000Z", "due": "2026-01-02T03:04:06.000000Z", "suspended": false,
			"after": nil, "attempts": 0.0, "error": "", "lease_owner": "", "lease_until": nil},
		map[string]any{"source": "stripe", "account": "", "object_type": "customer", "object_id": "b",
			"reason": "ambiguous", "requested_by": "",
			"requested_at": "2026-01-02T03:04:05.000000Z", "due": "2026-01-02T03:04:06.000000Z", "suspended": false,
			"after": "2026-09-21T14:13:20.000001Z", "attempts": 2.0, "error": "answered 500",
			"lease_owner": "p1", "lease_until": "2026-01-02T03:06:05.000000Z"},
	}
	testkit.Equal(t, "refetches", want, page["items"].([]any)[:2])
	_, page = b.get(t, "/watermarks?limit=1&source=stripe")
	watermark := map[string]any{"source": "stripe", "account": "", "subject": "events",
		"since": "2026-01-01T00:00:00.000000Z", "until": "2026-01-02T00:00:00.000000Z", "not_listable_since_run": 0.0,
		"not_listable": "", "disconnected_since": nil, "disconnected": "", "run": 7.0,
		"at": "2026-01-02T00:00:31.000000Z"}
	testkit.Equal(t, "watermark", any(watermark), page["items"].([]any)[0])
	b.wantResponses(t, [][2]string{
		{"GET /refetches?cursor=" + page["next_cursor"].(string), "400 next_cursor of the previous page"},
		{"GET /refetches?source=nobody", "400 known sources"},
	})
}

// A refetch of an object is requested, by its account where several have it, and cancelled.
func TestAddRefetch_object_isQueued(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const (
		add    = `POST /refetches {"source": "stripe", "type": "customer", "object_id": "cus_9", "reason": "why not"}`
		added  = `200 {"object_id": "cus_9", "reason": "why not", "requested_by": "admin API…"}`
		cancel = `POST /refetches/cancel {"source": "stripe", "object_type": "customer", "object_id": "cus_9"}`
	)
	b.wantResponses(t, [][2]string{{add, "400 no processor reads the API of source stripe"}})
	b.db.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
		VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	b.wantResponses(t, [][2]string{
		{add, added},
		{add, added},
		{"GET /refetches", `200 {"items": [{}]}`},
		{cancel, `200 {"reason": "why not"}`},
		{cancel, "404"},
		{`POST /refetches {"source": "stripe", "type": "customer"}`, "400 name the object: its source, type and id"},
		{`POST /refetches {"source": "nobody", "type": "customer", "object_id": "x"}`,
			"400 is not known; the known sources are"},
	})
}

// An overwrite needs a reason.
func TestOverwriteObject_reason_startsRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.wantResponses(t, [][2]string{
		{`POST /objects/overwrite {"source": "stripe", "type": "customer", "object_id": "cus_9"}`, "400 give a reason"},
		{`POST /objects/overwrite {"source": "stripe", "type": "customer", "reason": "ticket 12"}`,
			"400 name the object: its source, type and id"},
		{`POST /objects/overwrite {"source": "stripe", "type": "customer", "object_id": "cus_9", "reason": "why", ` +
			`"dry_run": true}`, "400 does not exist"},
		{`POST /objects/overwrite {"source": "stripe", "account": "acct_1", "object_type": "customer", ` +
			`"object_id": "cus_9", "reason": "ticket 12", "idempotency_key": "k"}`,
			`200 {"job": "reconcile", "reason": "ticket 12", "actor": "admin API…"}`},
	})
	want := map[string]any{"source": float64(b.known.Number["stripe"]), "account": "acct_1", "scope": "object",
		"type": "customer", "id": "cus_9", "overwrite": true,
		"input": map[string]any{"overwrite": "true", "source": "stripe", "account": "acct_1", "type": "customer",
			"object_id": "cus_9"}}
	testkit.Equal(t, "parameters", any(want), run["params"])
}

// byNumber returns the items of two sources sorted by number.
func byNumber(a, b int32, ofA, ofB string) string {
	if a < b {
		return ofA + " " + ofB
	}
	return ofB + " " + ofA
}

// A reconciliation that no processor's configuration allows is rejected immediately, with a line
// that makes a configuration valid. If no processor has reported yet, or one can read the source,
// the run is queued.
func TestReconcile_apiThatCannotBeRead_isRejectedWithTheLineToAdd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"code": "github", "own": "hmac"})
	testkit.Must(t, err)
	processor := b.role(t, "processor")
	const (
		stripe = "    provider: stripe\n    secrets: [{name: s, value: whsec_secret_of_a_test}]\n"
		github = "    provider: github\n    secrets: [{name: s, value: secret_of_a_test}]\n"
		hmac   = "    provider: hmac\n    secrets: [{name: s, value: secret_of_a_test}]\n    scheme: {header: " +
			"X-Signature}\n    events: {type: '{json:type}', key: '{json:id}'}\n"
	)
	for name, c := range map[string]struct {
		source string
		reads  []string
		asked  string // members of the request besides the source
		says   []string
		base   string // the source without the line in the error; empty: there is none
	}{
		"no section api": {"stripe", nil, `, "objects": true`, []string{"no section api for source stripe",
			"Add this line to sources.stripe"}, stripe},
		"no section api, events": {"stripe", nil, ``, []string{"no section api for source stripe"}, stripe},
		"no section api, one object": {"stripe", nil, `, "type": "customer", "object_id": "cus_1"`,
			[]string{"no section api for source stripe"}, stripe},
		"no section api, described": {"own", nil, `, "type": "thing"`,
			[]string{"Describe the API", "docs/how-to/describe-another-api.md"}, hmac},
		"no events": {"shop", []string{"object", "objects"}, ``,
			[]string{"lists no events", "postern reconcile shop --objects", `"objects": true`}, ""},
		"no events, described": {"own", []string{"object", "objects"}, ``,
			[]string{"lists no events", "postern reconcile own --objects", "sources.own.api.events"}, ""},
		"no webhooks named": {"code", []string{"object", "objects"}, ``,
			[]string{"lists no events", "postern reconcile code --objects"}, github},
		"nothing named": {"code", []string{"object"}, ``, []string{"lists no events, and no objects"}, github},
		"no repositories named": {"code", []string{"object", "events"}, `, "objects": true`,
			[]string{"repositories"}, github},
		"no list": {"own", []string{"object"}, `, "objects": true`,
			[]string{"lists no objects", "--type TYPE --object ID"}, ""},
	} {
		testkit.Must(t, reconcile.ReportReadable(t.Context(), processor,
			map[int32][]string{known.Number[c.source]: c.reads}))
		var detail string
		for _, says := range c.says {
			detail = b.wantResponses(t, [][2]string{{fmt.Sprintf(`POST /reconciliations {"source": %q%s}`, c.source,
				c.asked), "400 " + says}})["detail"].(string)
		}
		_, line, has := strings.Cut(detail, "once a processor has read it: ")
		if has != (c.base != "") {
			t.Errorf("%s: the error has a line: %t, want %t: %s", name, has, c.base != "", detail)
		} else if has {
			parses(t, name, c.source, c.base, line)
		}
	}
	b.db.WantRows(t, 0, "runs")
	testkit.Must(t, reconcile.ReportReadable(t.Context(), processor,
		map[int32][]string{known.Number["stripe"]: {"object", "objects", "events"}}))
	b.db.Exec(t, `UPDATE sources SET api_reads = NULL WHERE name = 'shop'`)
	b.wantResponses(t, [][2]string{{`POST /reconciliations {"source": "stripe"}`, "200"},
		{`POST /reconciliations {"source": "shop"}`, "200"}})
}

// parses fails the test unless a configuration with the line of an error is valid.
func parses(t *testing.T, name, source, base, line string) {
	t.Helper()
	if !strings.HasPrefix(line, "api:") {
		line = "api:\n      key: {env: CODE_API_KEY}\n      " + strings.ReplaceAll(line, "hooks/ID", "hooks/1")
	}
	text := "database: {url: 'postgres://postern@localhost/postern'}\nnats: {url: " +
		"'nats://127.0.0.1:4222'}\nsources:\n  " + source + ":\n" + base + "    " + line + "\n"
	env := func(variable string) string {
		return map[string]string{"STRIPE_API_KEY": "rk_test_1", "CODE_API_KEY": "github_pat_1",
			"OWN_API_KEY": "key"}[variable]
	}
	if _, err := config.Parse([]byte(text), env); err != nil {
		t.Errorf("%s: %v in\n%s", name, err, text)
	}
}

// Spools are listed and shown. Removing one needs a reason, and fails while its gateway reports it.
func TestSpools_removal_isAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO spools (spool, location, drained_at, reported_at, deliveries, bytes, oldest_at)
		VALUES ('gone', 'there:/spool', '-infinity', now() - interval '1 h', 3, 100, '2026-01-01Z'),
			('here', 'here:/spool', now(), now(), 0, 0, null)`)
	b.wantResponses(t, [][2]string{
		{"GET /spools?limit=1", `200 {"items": [{"spool": "gone"}], "next_cursor": "…"}`},
		{"GET /spools/gone", `200 {"location": "there:/spool", "deliveries": 3, "bytes": 100,
			"oldest_at": "2026-01-01T00:00:00.000000Z", "drained_at": null, "reported_at": "…",
			"registered_at": "…", "redactions": []}`},
		{`POST /spools/gone/remove {}`, "400 give a reason"},
		{`POST /spools/gone/remove {"reason": " "}`, "400 give a reason"},
		{`POST /spools/gone/remove {"reason": "why", "force": "perhaps"}`, "400 perhaps"},
		{`POST /spools/nobody/remove {"reason": "why"}`, "404 nobody"},
		{`POST /spools/here/remove {"reason": "why", "force": false}`, "400 was reported at"},
		{`POST /spools/gone/remove {"reason": "why"}`, "200"},
		{`POST /spools/gone/remove {"reason": "why"}`, "404 has no spool of this name"},
		{`POST /spools/here/remove {"reason": "why", "force": true}`, "200"},
		{`GET /spools`, "200 items:[]"},
		{`GET /spools/gone`, "404"},
	})
}
