package console

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/postern-gateway/postern/internal/adminauth"
)

// pageHeaders are the headers of every page besides its policy.
var pageHeaders = map[string]string{
	"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
	"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
	"Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()", "Cache-Control": "no-store",
	"X-Robots-Tag": "noindex",
}

var wholePolicy = regexp.MustCompile(`^default-src 'none'; script-src 'self' 'nonce-([A-Z2-7]{26})'; ` +
	`style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; ` +
	`frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types htmx$`)

// checkPage fails the test for a page without the headers of all pages, or with markup that is not
// from the templates.
func checkPage(t *testing.T, path string, p *response) {
	t.Helper()
	for name, want := range pageHeaders {
		if got := p.header.Get(name); got != want {
			t.Errorf("%s: the header %s is %q", path, name, got)
		}
	}
	policy := p.header.Get("Content-Security-Policy")
	if p.header.Get("Location") != "" {
		return
	}
	if p.root == nil {
		if policy != closedPolicy {
			t.Errorf("%s: no page, and its policy is %q", path, policy)
		}
		return
	}
	match := wholePolicy.FindStringSubmatch(policy)
	if match == nil {
		t.Errorf("%s: the policy is %q", path, policy)
		return
	}
	if problem := foreignMarkup(p.root, match[1]); problem != "" {
		t.Errorf("%s: %s", path, problem)
	}
}

// ownElements are the elements that the templates use.
var ownElements = " html head meta title link script body a header svg path form input span time details summary " +
	"small div label select option button p nav ul ol li h1 h2 h3 main section dl dt dd table thead tbody tr th td " +
	"textarea datalist pre code b figure figcaption line g circle text rect fieldset legend strong "

// foreignMarkup returns what is not from the templates in a page.
func foreignMarkup(root *html.Node, nonce string) string {
	for n := range root.Descendants() {
		if n.Type == html.CommentNode {
			return "there is a comment: " + n.Data
		}
		if n.Type != html.ElementNode {
			continue
		}
		if !strings.Contains(ownElements, " "+n.Data+" ") {
			return "there is an element " + n.Data
		}
		if n.Data == "script" && (attribute(n, "nonce") != nonce || n.FirstChild != nil ||
			!strings.HasPrefix(attribute(n, "src"), Prefix+"assets/")) {
			return "there is a foreign script"
		}
		for _, a := range n.Attr {
			if problem := foreignAttribute(n.Data, a); problem != "" {
				return fmt.Sprintf("%s: <%s %s=%.200q>", problem, n.Data, a.Key, a.Val)
			}
		}
	}
	return ""
}

func foreignAttribute(element string, a html.Attribute) string {
	switch {
	case strings.HasPrefix(a.Key, "on"), strings.HasPrefix(a.Key, "hx-on"):
		return "an event handler"
	case a.Key == "style":
		return "a style"
	case a.Key == "href" || a.Key == "src" || a.Key == "action" || a.Key == "hx-get":
		local := strings.HasPrefix(a.Val, Prefix) && !strings.ContainsAny(a.Val, "\\\r\n\t ")
		if !local && !(element == "a" && strings.HasPrefix(a.Val, "#")) {
			return "an address elsewhere"
		}
	case a.Key == "class" && strings.ContainsAny(a.Val, `<>"'`):
		return "a text as a class"
	}
	return ""
}

// Every page has the headers that keep foreign scripts, frames and caches away.
func TestPages_all_haveTheHeadersAndOnlyOwnMarkup(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "x")
	before := e.contents(t)
	visited := e.walk(t, e.browser(), func(path string, p *response) { checkPage(t, path, p) })
	for path := range e.console.pages() {
		// The things of this test have no history.
		if visited["GET "+Prefix+path] == 0 && !strings.HasSuffix(path, "/diff") && !strings.HasSuffix(path, "/at") {
			t.Errorf("no link leads to %s", path)
		}
	}
	for _, path := range []string{"none", "events/none", "events?limit=x", "events?since=%ff", "login"} {
		checkPage(t, path, e.browser().get(t, Prefix+path))
	}
	e.checkUnchanged(t, before)
}

// contents returns a digest of each table.
func (e *env) contents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, table := range e.db.QueryStrings(t, `SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid =
		c.relnamespace WHERE n.nspname = 'postern' AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1`) {
		all[table] = e.db.QueryStrings(t, `SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), ''))
			FROM postern.`+table+` t`)[0]
	}
	return all
}

// checkUnchanged fails the test if a table has other contents than before. A request that is not
// executed may leave its idempotency key.
func (e *env) checkUnchanged(t *testing.T, before map[string]string) {
	t.Helper()
	for table, now := range e.contents(t) {
		if now != before[table] && table != "idempotency_keys" {
			t.Errorf("the table %s has changed", table)
		}
	}
}

// A link on another web site opens no page that costs work, also where no token is required. The
// operator can open the page from there.
func TestPages_linkOfAnotherSite_asksFirst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "x")
	paths := map[string]int{"": 200, "login": 200, "events?mentions=x": 403, "health": 403, "events/tail": 403,
		"runs/new/replay?source=stripe&dry_run=true": 403, "rejections/verify?source=stripe": 403, "assets/none": 404}
	for site, refused := range map[string]bool{"cross-site": true, "same-site": true, "same-origin": false,
		"none": false, "": false} {
		b := e.browser()
		for path, want := range paths {
			if path == "events/tail" && !refused {
				continue
			}
			b.headers = http.Header{"Sec-Fetch-Site": {site}}
			p := b.get(t, Prefix+path)
			if (p.status == http.StatusForbidden) != (refused && want == http.StatusForbidden) {
				t.Errorf("%s from %q: %d", path, site, p.status)
			}
			if p.status == http.StatusForbidden && !slices.Contains(p.links(), Prefix+path) {
				t.Errorf("%s from %q has no link to the page: %q", path, site, p.links())
			}
		}
	}
}

// Where tokens are required, a browser without a session gets the login and the files of pages.
// With a session, no page contains a secret of the configuration, of a session or of a token.
func TestPages_tokensRequired_needTheLoginAndShowNoSecret(t *testing.T) {
	t.Parallel()
	e := newEnv(t, requireTokens)
	e.fill(t, "x")
	b := e.login(t, "ada", adminauth.Operator)
	secrets := append(e.db.QueryStrings(t, `SELECT encode(digest, 'hex') FROM console_sessions
		UNION ALL SELECT encode(digest, 'hex') FROM tokens`), secretCanary, "canaryOfThe", b.cookies(t)[0].Value)
	e.walk(t, b, func(path string, p *response) {
		if p.status != http.StatusOK && p.status != http.StatusSeeOther && p.status != http.StatusNotFound {
			t.Errorf("%s: %d with a session", path, p.status)
		}
		for _, secret := range secrets {
			if strings.Contains(p.body+fmt.Sprint(p.header), secret) {
				t.Errorf("%s contains %s", path, secret)
			}
		}
		got := e.browser().get(t, path)
		want := Prefix + "login?" + url.Values{"next": {path}}.Encode()
		if got.status != http.StatusSeeOther || got.header.Get("Location") != want || len(got.body) > 200 {
			t.Errorf("%s: %d to %s", path, got.status, got.header.Get("Location"))
		}
	})
	for _, path := range []string{"do", "logout"} {
		got := e.browser().post(t, Prefix+path, url.Values{"path": {"/api/v1/replays"}})
		if got.status != http.StatusSeeOther || !strings.HasPrefix(got.header.Get("Location"), Prefix+"login?") {
			t.Errorf("POST %s: %d to %s", path, got.status, got.header.Get("Location"))
		}
	}
	login := e.browser().get(t, Prefix+"login")
	checkPage(t, "login", login)
	for _, script := range login.all("script") {
		e.browser().get(t, attribute(script, "src")).want(t, attribute(script, "src"), http.StatusOK)
	}
	if text := login.body; strings.Contains(text, "Postern v0") || strings.Contains(text, "<nav") {
		t.Error("the login shows more than a form")
	}
}
