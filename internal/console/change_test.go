package console

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/testkit"
)

// replayable returns an environment with a dead event, and the path of the event's page.
func replayable(t *testing.T, change ...func(*Options)) (*env, string) {
	t.Helper()
	e := newEnv(t, change...)
	return e, eventPath(e.add(t, thing{key: "evt_1", eventType: "customer.updated", objectType: "customer",
		objectID: "cus_1", body: `{"id": "evt_1"}`, state: `{"id": "cus_1"}`, status: "dead", reason: "no rule"}))
}

// A form changes something once, however often it is sent, in the name of the session's token.
func TestChange_sentTwice_isDoneOnce(t *testing.T) {
	t.Parallel()
	e, path := replayable(t, requireTokens)
	b := e.login(t, "ada", adminauth.Operator)
	p := b.get(t, path)
	for _, name := range []string{"first", "second"} {
		got := b.submit(t, p, "Retry", "p.reason", "a new rule")
		got.want(t, name, http.StatusSeeOther)
		testkit.Equal(t, name+" leads to", "/console/runs/1", got.header.Get("Location"))
	}
	testkit.Equal(t, "audit", []string{"ada console retry a new rule 1 t"}, e.db.QueryStrings(t, `SELECT concat_ws(' ',
		actor, via, action, reason, run, address ~ '^127') FROM audit WHERE action <> 'console login'`))
	b.submit(t, p, "Retry", "p.reason", "another").want(t, "the same form with another reason",
		http.StatusUnprocessableEntity)
	open, path := replayable(t)
	browser := open.browser()
	browser.submit(t, browser.get(t, path), "Retry").want(t, "without tokens", http.StatusSeeOther)
	testkit.Equal(t, "audit without tokens", []string{"loopback loopback"},
		open.db.QueryStrings(t, `SELECT concat_ws(' ', actor, via) FROM audit`))
}

// What an operator has entered survives an ended session and an error of the server. The page of an
// error leads back to the page of the form, or sends the form again.
func TestChange_notExecuted_losesNothing(t *testing.T) {
	t.Parallel()
	failures := 0
	var api http.Handler
	e, path := replayable(t, requireTokens, func(o *Options) {
		o.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if failures--; failures >= 0 {
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = w.Write([]byte(`{"title": "database unavailable", "status": 503}`))
				return
			}
			api.ServeHTTP(w, r)
		})
	})
	api = e.api
	secret := e.token(t, "ada", adminauth.Operator)
	b := e.browser()
	b.post(t, "/console/login", url.Values{"token": {secret}})
	p := b.get(t, path+"?source=stripe")
	e.db.Exec(t, `DELETE FROM console_sessions`)
	out := b.submit(t, p, "Retry", "p.reason", "a <new> rule")
	out.want(t, "without a session", http.StatusSeeOther)
	in := b.submit(t, b.get(t, out.header.Get("Location")), "Log in", "token", secret)
	p = b.get(t, in.header.Get("Location"))
	p.want(t, "after the login", http.StatusOK,
		"Not done: Retry. Your session had ended. The reason that you entered: a <new> rule")
	if !strings.HasSuffix(in.header.Get("Location"), path+"?source=stripe") {
		t.Fatalf("the login leads to %s", in.header.Get("Location"))
	}
	failures = 2
	failed := b.submit(t, p, "Retry", "p.reason", "a <new> rule")
	failed.want(t, "failed", http.StatusServiceUnavailable)
	again := b.submit(t, failed, "Retry")
	again.want(t, "failed again", http.StatusServiceUnavailable)
	if links := again.links(); !slices.Contains(links, path+"?source=stripe") || slices.Contains(links, changePath) {
		t.Errorf("the page of the error has the links %q", links)
	}
	done := b.submit(t, failed, "Retry")
	testkit.Equal(t, "the same form leads to", "/console/runs/1", done.header.Get("Location"))
	testkit.Equal(t, "audit", []string{"a <new> rule"},
		e.db.QueryStrings(t, `SELECT reason FROM audit WHERE action = 'retry'`))
}

// Each form that a page offers is one that the API understands, and leads to a page.
func TestChange_everyForm_leadsToAPage(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "x")
	b := e.browser()
	for _, f := range changeForms(t, e) {
		f.Set("p.reason", "because")
		for name, value := range map[string]string{"p.source": "stripe", "p.type": "customerx",
			"p.object_id": "cus_1x"} {
			if f.Has(name) && f.Get(name) == "" {
				f.Set(name, value)
			}
		}
		p := b.post(t, "/console/do", f)
		if p.status != http.StatusSeeOther || strings.Contains(p.header.Get("Location"), "%7B") {
			t.Errorf("%s %v: %d to %s: %s", f.Get("path"), f.Encode(), p.status, p.header.Get("Location"), p.text())
		}
	}
}

// The form of a list changes the selected effects, all or none.
func TestChange_selectedEffects_allOrNone(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "x")
	e.db.Exec(t, `INSERT INTO effects OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(e,
		'{"effect": 7, "key": "other"}')).* FROM effects e WHERE effect = 1`)
	b := e.browser()
	var selectable []string
	for _, n := range b.get(t, Prefix+"effects").all("input") {
		if attribute(n, "form") == "selection" && attribute(n, "name") == "p.ids" {
			selectable = append(selectable, attribute(n, "value"))
		}
	}
	testkit.Equal(t, "selectable effects", []string{"7", "2", "1"}, selectable) // effect 3 is done
	for _, c := range []struct {
		ids    []string
		want   int
		states string
	}{
		{nil, 400, "1 awaiting_approval, 2 needs_review, 3 done, 7 awaiting_approval"},
		{[]string{"1", "2"}, 400, "1 awaiting_approval, 2 needs_review, 3 done, 7 awaiting_approval"},
		{[]string{"1", "7"}, 303, "1 planned, 2 needs_review, 3 done, 7 planned"},
	} {
		f := b.get(t, Prefix+"effects").forms()["Change the selected effects"].values
		f.Set("path", "/api/v1/effects/approve")
		f.Set("p.reason", "agreed")
		f["p.ids"] = c.ids
		b.post(t, Prefix+"do", f).want(t, fmt.Sprintf("%q", c.ids), c.want)
		testkit.Equal(t, fmt.Sprintf("states after %q", c.ids), c.states, e.db.QueryStrings(t,
			`SELECT string_agg(concat_ws(' ', effect, state), ', ' ORDER BY effect) FROM effects`)[0])
	}
	testkit.Equal(t, "audit", []string{"effects approve effect 1 agreed", "effects approve effect 7 agreed"},
		e.db.QueryStrings(t, `SELECT concat_ws(' ', action, target, reason) FROM audit WHERE action <> 'replay'
			ORDER BY id`))
}

// With approvals.separate, the page of a run disables the approval for its requester and says why,
// and a forged form is rejected. Another operator approves it, and the page has both names. An
// approver gets the decisions only.
func TestChange_ownRun_isNotApproved(t *testing.T) {
	t.Parallel()
	e := newEnv(t, requireTokens, func(o *Options) { o.SeparateApprovals = true })
	e.fill(t, "")
	ada, bob := e.login(t, "ada", adminauth.Operator), e.login(t, "bob", adminauth.Approver)
	started := ada.submit(t, ada.get(t, Prefix+"runs/new/replay?source=stripe&mode=force&since=1h"),
		"Start the replay", "typed", "6", "p.reason", "test")
	address := started.header.Get("Location")
	e.db.Exec(t, `UPDATE effects SET run = $1::bigint`, strings.TrimPrefix(address, Prefix+"runs/"))
	for path, label := range map[string]string{address: "Approve", Prefix + "effects/1": "Approve",
		Prefix + "effects/2": "Resolve"} {
		own, others := ada.get(t, path), bob.get(t, path)
		own.want(t, path+" of ada", http.StatusOK, "the token ada requested run")
		if _, offered := own.forms()[label]; offered {
			t.Errorf("%s offers ada: %s", path, label)
		}
		forged := others.forms()[label].values
		if forged == nil {
			t.Fatalf("%s of bob: %s", path, others.text())
		}
		forged.Set("form_token", ada.get(t, Prefix).forms()["Log out"].values.Get("form_token"))
		forged.Set("p.reason", "mine")
		if label == "Resolve" {
			forged.Set("p.done", "false")
			forged.Set("p.step", e.db.QueryStrings(t, `UPDATE effect_steps SET step = 'mail' WHERE effect = 2
				RETURNING step`)[0])
		}
		ada.post(t, Prefix+"do", forged).want(t, path+" forged by ada", http.StatusForbidden)
	}
	bob.submit(t, bob.get(t, address), "Approve", "p.reason", "agreed").want(t, "approved by bob", http.StatusSeeOther)
	bob.get(t, address).want(t, "the run", http.StatusOK, "token ada, from", "token bob, from",
		"This needs the role operator.")
	for _, n := range bob.get(t, Prefix+"effects").all("option") {
		if attribute(n, "value") == "/api/v1/effects/retry" {
			t.Error("an approver is offered a retry")
		}
	}
}

// Forms of other web sites, of other operators and of no page change nothing.
func TestChange_foreignForms_areRejected(t *testing.T) {
	t.Parallel()
	e, path := replayable(t, requireTokens, withHost)
	b, other := e.login(t, "ada", adminauth.Operator), e.login(t, "bob", adminauth.Operator)
	page := b.get(t, path)
	own := page.forms()["Retry"].values
	foreign := other.get(t, path).forms()["Retry"].values.Get("form_token")
	before := e.contents(t)
	for _, c := range []struct {
		name         string
		header       http.Header
		host         string
		field, value string
		want         int
	}{
		{"no form token", nil, "", "form_token", "", 400},
		{"another operator's form token", nil, "", "form_token", foreign, 400},
		{"a foreign page", http.Header{"Sec-Fetch-Site": {"cross-site"}}, "", "", "", 403},
		{"a page of another port", http.Header{"Sec-Fetch-Site": {"same-site"}}, "", "", "", 403},
		{"a foreign origin", http.Header{"Sec-Fetch-Site": nil, "Origin": {"https://evil.example"}}, "", "", "", 403},
		{"the origin of a sandbox", http.Header{"Sec-Fetch-Site": nil, "Origin": {"null"}}, "", "", "", 403},
		{"a foreign host", http.Header{"Sec-Fetch-Site": nil, "Origin": nil}, "rebound.example", "", "", 421},
		{"no path", nil, "", "path", "", 400},
		{"an absolute path", nil, "", "path", "http://evil/api/v1/replays", 400},
		{"a path of a host", nil, "", "path", "//evil/api/v1/replays", 400},
		{"a path elsewhere", nil, "", "path", "/metrics", 400},
		{"a path beside", nil, "", "path", "/api/v1x/replays", 400},
		{"a path up", nil, "", "path", "/api/v1/../../debug/pprof/", 400},
		{"an escaped path up", nil, "", "path", "/api/v1/%2e%2e/v1/replays", 400},
		{"an escaped slash", nil, "", "path", "/api/v1/runs%2f1/pause", 400},
		{"a backslash", nil, "", "path", `/api/v1/runs\1/pause`, 400},
		{"a query", nil, "", "path", "/api/v1/replays?source=stripe", 400},
		{"a fragment", nil, "", "path", "/api/v1/replays#x", 400},
		{"a line break", nil, "", "path", "/api/v1/replays\r\nX: y", 400},
		{"an unknown route", nil, "", "path", "/api/v1/unknown", 404},
		{"a route that reads", nil, "", "path", "/api/v1/events", 404},
		{"an unknown parameter", nil, "", "p.unknown", "x", 400},
		{"a large form", nil, "", "p.reason", strings.Repeat("x", 1<<20), 400},
		{"a bad key", nil, "", "key", strings.Repeat("\xff", 300), 400},
	} {
		values := maps.Clone(own)
		if c.field != "" {
			values.Set(c.field, c.value)
		}
		b.headers, b.host = c.header, c.host
		b.post(t, "/console/do", values).want(t, c.name, c.want)
	}
	b.headers, b.host = nil, "rebound.example"
	if p := b.get(t, path); p.status != http.StatusMisdirectedRequest || strings.Contains(p.text(), "customer") {
		t.Errorf("a page over a foreign host: %d", p.status)
	}
	e.checkUnchanged(t, before)
	open, _ := replayable(t)
	browser := open.browser()
	for _, host := range []string{"rebound.example", "192.0.2.7", "127.0.0.1.evil.example", "localhost.evil"} {
		browser.host = host
		browser.get(t, "/console/events").want(t, "without tokens, "+host, http.StatusMisdirectedRequest)
	}
}

// A reader sees every page and no form, and every change is forbidden for him. The same holds for
// everybody where the console is read-only.
func TestChange_withoutTheRight_isForbidden(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Options)
		role   adminauth.Role
	}{"reader": {func(*Options) {}, adminauth.Reader}, "read-only": {readOnly, adminauth.Operator}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, requireTokens, c.change)
			e.fill(t, "x")
			b := e.login(t, "eve", c.role)
			var token string
			disabled := 0
			e.walk(t, b, func(path string, p *response) {
				if p.status >= 400 && p.status != http.StatusNotFound {
					t.Errorf("%s: %d", path, p.status)
				}
				for label, f := range p.forms() {
					if f.action != "/console/settings" && f.action != "/console/logout" {
						t.Errorf("%s offers %s", path, label)
					}
					token = f.values.Get("form_token") + token
				}
				for _, n := range p.all("button") {
					if slices.ContainsFunc(n.Attr, func(a html.Attribute) bool { return a.Key == "disabled" }) {
						disabled++
					}
				}
			})
			if disabled == 0 {
				t.Error("no page shows what is not allowed")
			}
			before := e.contents(t)
			for _, f := range changeForms(t, e.open(t)) {
				f.Set("form_token", token[:64])
				b.post(t, "/console/do", f).want(t, f.Get("path"), http.StatusForbidden)
			}
			e.checkUnchanged(t, before)
		})
	}
}

// A read-only console says what may still be changed elsewhere, and by whom.
func TestConsole_readOnlyWithoutTokens_warnsOfTheAPI(t *testing.T) {
	t.Parallel()
	newEnv(t, readOnly).browser().get(t, Prefix).want(t, "overview", http.StatusOK, "This console is read-only",
		"through the API, which requires no token on this machine")
}

// The link to the audit searches an id in the form in which targets have it.
func TestAuditLink_specialCharacters_findsTarget(t *testing.T) {
	t.Parallel()
	target := encode(map[string]string{"source": "github", "object_id": "owner/repo é"})
	found, err := url.Parse(auditLink("owner/repo é").Href)
	testkit.Must(t, err)
	if q := found.Query().Get("target"); q == "" || !strings.Contains(target, q) {
		t.Errorf("%q is not in %q", q, target)
	}
}

// open returns the same environment with a console that needs no login and allows changes.
func (e *env) open(t *testing.T) *env {
	t.Helper()
	o := e.console.Options
	o.ReadOnly, o.RequireTokens = false, false
	c, err := New(o)
	testkit.Must(t, err)
	return &env{console: c, url: serve(t, c)}
}

// changeForms returns the forms for changes of all pages.
func changeForms(t *testing.T, e *env) (all []url.Values) {
	t.Helper()
	e.walk(t, e.browser(), func(_ string, p *response) {
		for _, f := range p.forms() {
			if f.action == "/console/do" && f.values.Has("path") { // otherwise it changes selected things
				all = append(all, f.values)
			}
		}
	})
	if len(all) == 0 {
		t.Error("no page has a form")
	}
	// A resolved effect can be retried, and nothing can be done with what is cancelled.
	first, last := regexp.MustCompile(`/resolve$`), regexp.MustCompile(`/(cancel|discard|reject)$`)
	slices.SortStableFunc(all, func(a, b url.Values) int {
		return cmp.Or(len(first.FindString(b.Get("path")))-len(first.FindString(a.Get("path"))),
			len(last.FindString(a.Get("path")))-len(last.FindString(b.Get("path"))))
	})
	return all
}
