package browser_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
)

// Without a login there is no page. A login replaces whatever session the browser had, and ends
// with its token.
func TestLogin_tokenRevoked_endsTheSession(t *testing.T) {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range open(t).navigation() {
		res, err := client.Get(guarded.Console + path)
		must(t, err)
		must(t, res.Body.Close())
		if to := res.Header.Get("Location"); !strings.HasPrefix(to, "/console/login") {
			t.Errorf("%s without a login: %s to %q", path, res.Status, to)
		}
	}
	token, err := guarded.postern("token", "create", "--name", "lena", "--role", "operator")
	must(t, err)
	b := openOn(t, &guarded)
	b.allowed = []string{"401", "429"}
	call(b, network.SetCookie, network.SetCookieParams{Name: "postern_console", Value: "planted", URL: guarded.Console})
	b.visit("/console/events?source=stripe&status=applied")
	b.at("/console/login")
	b.enter(token)
	b.at("/console/events?source=stripe&status=applied")
	cookies, err := chromedp.Call(b.ctx, network.GetCookies, network.GetCookiesParams{})
	must(t, err)
	found := false
	for _, c := range cookies.Cookies {
		if c.Name == "postern_console" {
			found = true
			if c.Value == "planted" || !c.HTTPOnly || c.SameSite != network.CookieSameSiteStrict || c.Path != "/" ||
				!c.Session || strings.Contains(token, c.Value) {
				t.Errorf("the session's cookie is %+v", c)
			}
		}
	}
	if !found {
		t.Error("the browser has no session")
	}
	_, err = guarded.postern("token", "revoke", "lena", "--reason", "she left")
	must(t, err)
	if !until(5*time.Second, func() bool {
		b.visit("/console/events")
		return eval[string](b, `location.pathname`) == "/console/login"
	}) {
		t.Error("the session lives for more than 5 seconds after its token was revoked")
	}
	for range 12 { // the limit counts by minute, and one may begin meanwhile
		b.enter("postern_wrong")
		b.waitFor(`document.readyState === "complete" && document.querySelector('[name="token"]').value === "" &&
			document.querySelector("[role=alert]")`)
		if strings.Contains(eval[string](b, `document.body.innerText`), "Too many attempts") {
			return
		}
	}
	t.Error("wrong tokens are never limited")
}

// forge sends a form of the console that no page offers, and returns the status.
func (b *tab) forge(path string, params map[string]string) int {
	b.t.Helper()
	body, _ := json.Marshal(params) // texts are always valid
	return eval[int](b, `fetch("/console/do", {method: "POST", redirect: "manual", body: new URLSearchParams({
		form_token: document.querySelector('[name="form_token"]').value, key: crypto.randomUUID(), label: "forged",
		path: `+quote(path)+`, ...`+string(body)+`})}).then(r => r.type === "opaqueredirect" ? 303 : r.status)`,
		chromedp.EvalAwaitPromise)
}

// An effect that needs an approval shows what is sent, and is sent once. Its repetition by force
// needs another person than the one who requests it.
func TestApprovals_effectAndForce_needTheRightPerson(t *testing.T) {
	guarded.accept(t, "stripe", stripeSecret, stripeEvent("evt_bill", "invoice.paid", "in_bill", time.Now()))
	anna, ben := login(t, "anna", "operator,approver"), login(t, "ben", "approver")
	vera := login(t, "vera", "reader")
	for _, b := range []*tab{anna, vera} {
		b.allowed = []string{"403"}
	}
	if !until(time.Minute, func() bool {
		ben.visit("/console/effects?state=awaiting_approval")
		return eval[bool](ben, `!!document.querySelector('nav a[href="/console/effects"] .badge')?.textContent
			.startsWith("1")`)
	}) {
		t.Fatal("the menu shows no effect that awaits an approval")
	}
	ben.do(chromedp.Click(`tbody a[href^="/console/effects/"]`))
	ben.says("awaiting approval", "POST", "/messages", `{"invoice":"in_bill","to":"ada@postern.example"}`)
	effect := eval[string](ben, `location.pathname.split("/").pop()`)
	vera.visit("/console/effects/" + effect)
	if why := vera.disabled("Approve"); !strings.Contains(why, "needs the role approver") {
		t.Errorf("a reader's approval is disabled because %q", why)
	}
	forged := map[string]string{"p.reason": "forged"}
	if status := vera.forge("/api/v1/effects/"+effect+"/approve", forged); status != 403 {
		t.Errorf("a reader's approval has the status %d", status)
	}
	ben.submit(2, "Approve", "p.reason", "the bill is right")
	ben.says("Done: Approve")
	ben.says("mail_1")
	if sent := mails.received("in_bill"); len(sent) != 1 {
		t.Errorf("the destination got %q", sent)
	}

	anna.visit("/console/runs/new/replay?source=stripe&mode=force")
	anna.says("would happen again")
	anna.submit(1, "Start the replay", "p.reason", "the mail was lost", "typed",
		eval[string](anna, `document.querySelector('[name="expected"]').value`))
	anna.at("/console/runs/")
	anna.says("starts after an approval")
	run := eval[string](anna, `location.pathname.split("/").pop()`)
	if why := anna.disabled("Approve"); !strings.Contains(why, "requested") {
		t.Errorf("her own approval is disabled because %q", why)
	}
	if status := anna.forge("/api/v1/runs/"+run+"/approve", forged); status != 403 {
		t.Errorf("her own approval has the status %d", status)
	}
	ben.visit("/console/runs/" + run)
	ben.submit(1, "Approve", "p.reason", "the customer asked")
	for _, b := range []*tab{ben, anna} { // hers follows without a reload
		b.says("anna", "ben", "the customer asked", "done")
	}
	anna.visit("/console/audit?run=" + run)
	anna.says("anna", "ben", "the mail was lost", "the customer asked")
	anna.saysNot("forged")
}

// A reader sees every page, and can change nothing.
func TestReader_everyPage_offersNoChange(t *testing.T) {
	b := login(t, "rita", "reader")
	b.allowed = []string{"403"}
	for _, path := range append(b.navigation(), "/console/runs/new/replay?source=stripe", "/console/sources/stripe") {
		b.visit(path)
		if n := eval[int](b, `document.querySelectorAll("main details.action").length`); n > 0 {
			t.Errorf("%s offers %d changes", path, n)
		}
	}
	for _, path := range changes(t) {
		if status := b.forge(path, nil); status != 403 {
			t.Errorf("%s has the status %d for a reader", path, status)
		}
	}
}

// changes are the paths of the API that change something, with 1 for each name in them.
func changes(t *testing.T) (paths []string) {
	t.Helper()
	var api struct {
		Paths map[string]map[string]json.RawMessage
	}
	must(t, json.Unmarshal([]byte(get(t, instance.Console+"/api/v1/openapi.json", "")), &api))
	for path, methods := range api.Paths {
		if _, ok := methods["post"]; ok {
			for strings.Contains(path, "{") {
				before, rest, _ := strings.Cut(path, "{")
				_, after, _ := strings.Cut(rest, "}")
				path = before + "1" + after
			}
			paths = append(paths, path)
		}
	}
	if len(paths) < 20 {
		t.Fatalf("the API has the changes %q", paths)
	}
	return paths
}

// A page of another host name or origin changes nothing, whatever route it tries.
func TestConsole_foreignOrigin_reachesNoChange(t *testing.T) {
	before := audit(t)
	b := open(t)
	b.in = &running{Console: strings.Replace(instance.Console, "127.0.0.1", reboundName, 1)}
	b.allowed = []string{"421", "403", "405", "415", "CORS", "ERR_FAILED", "Cross-Origin", "MIME type",
		instance.Console}
	b.do(chromedp.Navigate(b.in.Console + "/console/events"))
	b.says("Error 421", "does not accept the host name "+reboundName)
	for _, path := range append(changes(t), "/console/do", "/console/login", "/console/logout", "/console/settings") {
		for _, base := range []string{"", instance.Console} {
			for _, kind := range []string{"application/json", "text/plain", "application/x-www-form-urlencoded"} {
				got := eval[string](b, fmt.Sprintf(`fetch(%s, {method: "POST", mode: %s, headers: {"Content-Type": %s},
					body: "{}"}).then(r => r.ok ? "ok" : "error", () => "failed")`, quote(base+path),
					quote(map[bool]string{true: "same-origin", false: "no-cors"}[base == ""]), quote(kind)),
					chromedp.EvalAwaitPromise)
				if got == "ok" {
					t.Errorf("%s %s as %s succeeds", base, path, kind)
				}
			}
		}
	}
	if after := audit(t); after != before {
		t.Errorf("the audit was\n%s\nand is\n%s", before, after)
	}
}
