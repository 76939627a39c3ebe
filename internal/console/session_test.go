package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// cookieOf returns the session's cookie that a response sets, or nil.
func cookieOf(t *testing.T, p *response) *http.Cookie {
	t.Helper()
	for _, line := range p.header.Values("Set-Cookie") {
		c, err := http.ParseSetCookie(line)
		testkit.Must(t, err)
		if c.Name == secureCookie || c.Name == loopbackCookie {
			return c
		}
	}
	return nil
}

func withHost(o *Options) { o.RequireTokens, o.Hosts = true, []string{"console.example"} }

// The session's cookie is for this host only and for no script. Beyond loopback it is sent over
// HTTPS only. A login never takes over a session that the browser names.
func TestLogin_cookie_isForThisHostOnly(t *testing.T) {
	t.Parallel()
	e := newEnv(t, withHost)
	secret := e.token(t, "ada", adminauth.Reader)
	for _, c := range []struct {
		host, name string
		secure     bool
	}{
		{"", loopbackCookie, false},
		{"localhost:8081", loopbackCookie, false},
		{"console.example", secureCookie, true},
		{"CONSOLE.example:8443", secureCookie, true},
		{"192.0.2.7", secureCookie, true},
	} {
		b := e.browser()
		b.host, b.headers = c.host, http.Header{"Cookie": {c.name + "=planted"}, "Sec-Fetch-Site": {"same-origin"}}
		p := b.post(t, "/console/login", url.Values{"token": {" " + secret + "\n"},
			"next": {"/console/events?limit=25"}})
		got := cookieOf(t, p)
		if p.status != http.StatusSeeOther || p.header.Get("Location") != "/console/events?limit=25" || got == nil {
			t.Errorf("%s: %d to %s with %v", c.host, p.status, p.header.Get("Location"), got)
			continue
		}
		if got.Name != c.name || got.Secure != c.secure || !got.HttpOnly || got.SameSite != http.SameSiteStrictMode ||
			got.Path != "/" || got.Domain != "" || got.MaxAge != 0 || len(got.Value) != 52 {
			t.Errorf("%s: %s", c.host, got)
		}
		b.get(t, "/console/events").want(t, c.host+" with the planted session", http.StatusSeeOther)
		b.headers = http.Header{"Cookie": {c.name + "=" + got.Value}}
		b.get(t, "/console/events").want(t, c.host+" with the session", http.StatusOK, "ada reader")
		b = e.browser()
		b.host, b.headers = c.host, http.Header{"Authorization": {"Bearer " + secret}}
		b.get(t, "/console/events").want(t, c.host+" with the token as a program sends it", http.StatusSeeOther)
	}
	testkit.Equal(t, "audit", []string{"ada console console login"},
		e.db.QueryStrings(t, `SELECT DISTINCT concat_ws(' ', actor, via, action) FROM audit`))
	if stored := e.db.QueryStrings(t, `SELECT concat(token, encode(digest, 'escape')) FROM console_sessions`); strings.
		Contains(strings.Join(stored, ""), "planted") {
		t.Error("the planted session is stored")
	}
}

// After five wrong tokens in a minute, an address waits for the next one. A valid token is
// accepted.
func TestLogin_wrongTokens_areLimited(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 10, 0, 20, 0, time.UTC)
	registry := prometheus.NewRegistry()
	e := newEnv(t, requireTokens, func(o *Options) {
		o.Now = func() time.Time { return now }
		var err error
		o.DeniedRequests, err = admin.NewDeniedRequests(registry)
		testkit.Must(t, err)
	})
	secret := e.token(t, "ada", adminauth.Reader)
	wrong := "postern_" + strings.Repeat("A", 52)
	b := e.browser()
	for i, token := range []string{wrong, "", "x", secret + "A", strings.ToLower(secret)} {
		p := b.post(t, "/console/login", url.Values{"token": {token}})
		if p.status != http.StatusUnauthorized || cookieOf(t, p) != nil ||
			len(token) > 1 && strings.Contains(p.body, token) {
			t.Errorf("%d: %d %s", i, p.status, p.text())
		}
	}
	if p := b.post(t, "/console/login", url.Values{"token": {wrong}}); p.status != http.StatusTooManyRequests ||
		p.header.Get("Retry-After") != "41" || cookieOf(t, p) != nil {
		t.Errorf("%d, Retry-After %s", p.status, p.header.Get("Retry-After"))
	}
	// Others behind the same proxy must not lock out an operator.
	b.post(t, "/console/login", url.Values{"token": {secret}}).want(t, "a valid token", http.StatusSeeOther)
	now = now.Add(40 * time.Second)
	e.browser().post(t, "/console/login", url.Values{"token": {wrong}}).want(t, "a minute later",
		http.StatusUnauthorized)
	// one entry for each minute with a wrong token, and one for the login
	testkit.Equal(t, "audit", []string{"unknown console console login denied t", "ada console console login t",
		"unknown console console login denied t"}, e.db.QueryStrings(t, `SELECT concat_ws(' ', actor, via, action,
		address ~ '^127') FROM audit ORDER BY id`))
	families, err := registry.Gather()
	testkit.Must(t, err)
	denied := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		denied[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	if denied["token"] != 7 {
		t.Errorf("denied requests: %v", denied)
	}
}

// Failed logins count by IPv4 address, and by the /64 network of an IPv6 address. The audit records
// only some addresses in a minute.
func TestLoginLimiter_networks_countTogether(t *testing.T) {
	t.Parallel()
	now := time.Now()
	l := newLoginLimiter(func() time.Time { return now })
	for i, x := range []struct {
		address string
		first   bool
	}{{"192.0.2.1:1", true}, {"192.0.2.2:1", true}, {"[::ffff:192.0.2.1]:9", false}, {"[2001:db8::1]:1", true},
		{"[2001:db8::ffff:1]:2", false}, {"[2001:db8:0:1::1]:1", true}, {"[fe80::1%eth0]:1", true}} {
		if wait, first := l.failed(networkOf(&http.Request{RemoteAddr: x.address})); wait != 0 || first != x.first {
			t.Errorf("%d: %s waits %s, first %v", i, x.address, wait, first)
		}
	}
	recorded := 0
	for i := range 1000 {
		if _, first := l.failed(fmt.Sprint("address ", i)); first {
			recorded++
		}
	}
	if recorded != maxRecordedAddresses-5 {
		t.Errorf("%d other addresses are recorded", recorded)
	}
}

// A session ends 12 hours after its login, an hour after its last request, when its token is
// revoked, and at the logout. Its secret is of no use then.
func TestSession_end_needsALogin(t *testing.T) {
	t.Parallel()
	e := newEnv(t, requireTokens)
	opens := func(b *browser) bool { return b.get(t, "/console/events").status == http.StatusOK }
	idle, used, revoked, out := e.login(t, "idle", adminauth.Reader), e.login(t, "used", adminauth.Reader),
		e.login(t, "revoked", adminauth.Reader), e.login(t, "out", adminauth.Reader)
	if _, err := adminauth.RevokeToken(t.Context(), e.pool, "revoked"); err != nil || opens(revoked) {
		t.Errorf("a revoked token has a session, %v", err)
	}
	p, session := out.get(t, "/console/events"), out.cookies(t)[0]
	foreign := out.post(t, "/console/logout", url.Values{"form_token": {"x"}})
	if foreign.status != http.StatusBadRequest || !opens(out) {
		t.Errorf("a foreign page can log out: %d", foreign.status)
	}
	if p := out.submit(t, p, "Log out"); p.status != http.StatusSeeOther || cookieOf(t, p).MaxAge >= 0 || opens(out) {
		t.Errorf("logout: %d", p.status)
	}
	out.headers.Set("Cookie", session.Name+"="+session.Value)
	if opens(out) {
		t.Error("the session is open after the logout")
	}
	e.advanceClock(t, "61 minutes")
	if !opens(e.login(t, "later", adminauth.Reader)) || opens(idle) {
		t.Error("an idle session is open after an hour")
	}
	if opens(used) {
		t.Error("the session was not used and is open")
	}
	used = e.login(t, "again", adminauth.Reader)
	for at := 120; at < 61+12*60; at += 59 {
		e.advanceClock(t, fmt.Sprint(at, " minutes"))
		if !opens(used) {
			t.Errorf("a used session ended %d minutes after 61", at)
		}
	}
	e.advanceClock(t, "782 minutes")
	if opens(used) {
		t.Error("a session is open after 12 hours")
	}
}

// While the database is unavailable, a session that was valid a short time ago reads pages that
// need no database. It changes nothing, and other browsers stay outside.
func TestSession_databaseUnavailable_readsPages(t *testing.T) {
	t.Parallel()
	var proxy *testkit.FaultProxy
	now := time.Now()
	e := newEnv(t, requireTokens, func(o *Options) {
		proxy = testkit.Proxy(t, o.Pages.Config().ConnString())
		sessions, err := postgres.Connect(t.Context(), postgres.Options{URL: proxy.URL, Role: "postern_operator"})
		testkit.Must(t, err)
		t.Cleanup(sessions.Close)
		o.Sessions, o.Now = sessions, func() time.Time { return now }
	})
	recent, other := e.login(t, "recent", adminauth.Operator), e.login(t, "other", adminauth.Operator)
	form, session := recent.get(t, "/console/refetches"), recent.cookies(t)[0]
	late := e.login(t, "late", adminauth.Operator)
	late.get(t, "/console/help")
	out := e.login(t, "out", adminauth.Operator)
	out.get(t, "/console/help")
	_, err := adminauth.RevokeToken(t.Context(), e.pool, "out")
	testkit.Must(t, err)
	out.get(t, "/console/help").want(t, "a revoked token", http.StatusSeeOther)
	proxy.Cut()
	for _, row := range []struct {
		name    string
		browser *browser
		want    int
	}{{"a recent session", recent, 200}, {"a session without a request", other, 503}, {"a revoked token", out, 503}} {
		row.browser.get(t, "/console/help").want(t, row.name, row.want)
	}
	recent.submit(t, form, "Request a refetch", "p.source", "stripe", "p.type", "customer", "p.object_id", "cus_1").
		want(t, "a change", http.StatusServiceUnavailable)
	e.db.WantRows(t, 0, "refetch_requests")
	leaves := recent.post(t, "/console/logout", url.Values{"form_token": form.forms()["Log out"].values["form_token"]})
	leaves.want(t, "a logout", http.StatusServiceUnavailable)
	if c := cookieOf(t, leaves); c == nil || c.MaxAge >= 0 {
		t.Errorf("the browser keeps the session after the logout: %v", c)
	}
	recent.headers.Set("Cookie", session.Name+"="+session.Value)
	recent.get(t, "/console/help").want(t, "after the logout", http.StatusServiceUnavailable)
	late.get(t, "/console/help").want(t, "another recent session", http.StatusOK)
	now = now.Add(recentFor)
	late.get(t, "/console/help").want(t, "later", http.StatusServiceUnavailable)
}

// Only paths of the console are places to go to after a login or a change.
func TestOwnPath_otherAddresses_areReplaced(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"/console/", "/console/events?type=a%2Fb&x=//evil", "/console/objects/s/t/a%2Fb%20c",
		"/console/events?since=..", "/console/objects/s/t/..a"} {
		if got := ownPath(own); got != own {
			t.Errorf("%s leads to %s", own, got)
		}
	}
	for _, foreign := range []string{"", "//evil", "///evil", "https://evil/console/", "//evil/console/", "/console",
		"\\\\evil", "/\\evil", "/console/\\..\\..\\", "/console/../api/v1/events", "/console/%2e%2e/api",
		"/console/./x", "/console/..",
		"/api/v1/events", "javascript:alert(1)", "javascript:/console/", "data:,/console/", " /console/", "/console/\n",
		"\t/console/",
		"http:/console/", "http:console/", "/Console/", "console/", "?x", "#x", "@evil", "/console@evil"} {
		if got := ownPath(foreign); got != Prefix {
			t.Errorf("%q leads to %s", foreign, got)
		}
	}
}

// A page that is read again, or that follows events, does not get the login in place of its
// content.
func TestPages_readAgainWithoutSession_areUnauthorized(t *testing.T) {
	t.Parallel()
	b := newEnv(t, requireTokens).browser()
	b.headers.Set("HX-Request", "true")
	for _, page := range []string{"", "health", "events/tail"} {
		p := b.get(t, Prefix+page)
		if p.status != http.StatusUnauthorized || p.body != "" {
			t.Errorf("%s: %d to %q with %q", page, p.status, p.header.Get("Location"), p.body)
		}
	}
}
