package browser_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

func TestConsole_clicks_leadFromEventsToAnObject(t *testing.T) {
	b := open(t)
	b.visit("/console/events?source=shopify")
	b.do(chromedp.Click("tbody tr a"), chromedp.WaitVisible("#receipt"))
	b.do(chromedp.Click(`#receipt a[href^="/console/objects/"]`))
	b.waitFor(`location.pathname.startsWith("/console/objects/shopify/") && document.querySelector("#state .document")`)
}

func TestConsole_keys_reachAnEvent(t *testing.T) {
	b := open(t)
	b.visit("/console/help")
	b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("e"))
	b.waitFor(`location.pathname === "/console/events" && document.readyState === "complete"`)
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent(kb.Enter))
	b.waitFor(`location.pathname.startsWith("/console/events/") && document.readyState === "complete"`)
	b.do(chromedp.KeyEvent("/"))
	b.waitFor(`document.activeElement.name === "q"`)
	eval[bool](b, `document.querySelector("details.who").open = true`)
	b.do(chromedp.SetValue(`select[name="keys"]`, "off"), chromedp.Click(`form[action="/console/settings"] button`))
	b.waitFor(`document.documentElement.dataset.keys === "off" && document.readyState === "complete"`)
	b.do(chromedp.KeyEvent("/"))
	if eval[bool](b, `document.activeElement.name === "q"`) {
		t.Error("a key works although keys are off")
	}
}

const foreignElements = "iframe, img, object, embed, [onload], [onerror], form[action^=http], #main ~ #main, " +
	"button[hx-get]"

// Hostile markup in ids, types, headers and bodies is text on each page that shows it. Rejections
// of different sources are stored in any order, so the list has only the five of one source.
func TestConsole_hostileEvents_areText(t *testing.T) {
	b := open(t)
	paths := []string{"/console/find?q=%3Cscript%3Ealert(1)%3C/script%3E"}
	for _, list := range []string{"/console/events?source=stripe", "/console/objects?source=stripe",
		"/console/rejections?source=stripe", "/console/outcomes"} {
		b.visit(list)
		for _, href := range eval[[]string](b, `[...document.querySelectorAll("tbody tr:nth-child(-n+6) a")]
			.map(a => a.getAttribute("href"))`) {
			if !slices.Contains(paths, href) {
				paths = append(paths, href)
			}
		}
		paths = append(paths, list)
	}
	var shown []string
	for _, path := range paths {
		b.visit(path)
		if title := eval[string](b, `document.title`); strings.Contains(title, "pwned") {
			t.Errorf("%s: a script ran", path)
		}
		if foreign := eval[int](b, "document.querySelectorAll(`"+foreignElements+"`).length"); foreign != 0 {
			t.Errorf("%s: %d foreign elements", path, foreign)
		}
		if eval[bool](b, `document.body.textContent.includes("<iframe src=")`) {
			shown = append(shown, path)
		}
	}
	if len(shown) < 2 { // providers read no such types and ids; the body is shown
		t.Errorf("%q of %q show the hostile texts", shown, paths)
	}
}

// Without scripts, lists can be filtered and read on, and changes can be made.
func TestConsole_withoutScript_works(t *testing.T) {
	b := open(t)
	b.withoutScript()
	b.visit("/console/events")
	b.do(chromedp.SetValue(`form.filter [name="type"]`, "customer.updated"), chromedp.Click("form.filter button"))
	b.waitFor(`location.search.includes("type=customer.updated")`)
	b.do(chromedp.Click(`a[rel="next"]`))
	b.waitFor(`location.search.includes("cursor=")`)
	b.do(chromedp.Click("tbody tr a"))
	b.waitFor(`document.querySelector("#receipt")`)
	b.do(chromedp.Click(`a.button[href*="runs/new/replay"]`))
	b.waitFor(`document.querySelector("#start")`)
	b.do(chromedp.SetValue(`#start [name="p.reason"]`, "a test"), chromedp.Click("#start form button"))
	b.waitFor(`/^\/console\/runs\/[0-9]+$/.test(location.pathname)`)
}

// A foreign page can neither change anything nor show the console in a frame.
func TestConsole_foreignPage_changesNothing(t *testing.T) {
	before := audit(t)
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<title>evil</title><iframe id="frame" src="%[1]s/console/events"></iframe>
			<form id="form" method="post" action="%[1]s/console/do" target="result">
			<input name="path" value="/api/v1/replays"><input name="then" value="/console/"></form>
			<iframe name="result"></iframe><img src="%[1]s/console/do">`,
			instance.Console)
	}))
	defer evil.Close()
	b := open(t)
	b.allowed = []string{evil.URL, "ERR_BLOCKED_BY_RESPONSE", "frame-ancestors", "X-Frame-Options", "403", "405",
		"415", "CORS", "refused to connect", "ERR_FAILED", "chrome-error"}
	b.do(chromedp.Navigate(evil.URL))
	for _, path := range []string{"/console/do", "/console/login", "/console/logout", "/console/settings",
		"/api/v1/replays"} {
		for _, request := range []string{`{method: "POST", mode: "no-cors", credentials: "include", body: new
			URLSearchParams({path: "/api/v1/replays"})}`, `{method: "POST", credentials: "include", headers:
			{"Content-Type": "application/json"}, body: "{}"}`} {
			got := eval[string](b, `fetch("`+instance.Console+path+`", `+request+`).then(r => r.type, () => "failed")`,
				chromedp.EvalAwaitPromise)
			if got != "opaque" && got != "failed" {
				t.Errorf("%s: the page reads a response of type %s", path, got)
			}
		}
	}
	eval[bool](b, `document.getElementById("form").submit(), true`)
	if frame := eval[bool](b, `(() => { try { return !!document.getElementById("frame").contentDocument.body.innerText }
		catch { return false } })()`); frame {
		t.Error("the console is readable in a frame")
	}
	if after := audit(t); after != before {
		t.Errorf("the audit was\n%s\nand is\n%s", before, after)
	}
}

func audit(t *testing.T) string {
	t.Helper()
	return get(t, instance.Console+"/api/v1/audit", "")
}
