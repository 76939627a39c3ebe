package console

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/postern-gateway/postern/internal/events"
)

// hostileTexts are texts that anyone can send as an id, a type, a header or in a body. Browsers,
// templates, terminals, shells and spreadsheets give some of them a meaning.
var hostileTexts = []string{
	`<script>alert(1)</script>`, `"><svg onload=alert(1)>`, `'><img src=x onerror=alert(1)>`,
	`<img src=//evil.example/x>`, `</title><script>alert(1)</script>`, `</textarea><script>alert(1)</script>`,
	`</pre><script>alert(1)</script>`, `</script><script>alert(1)</script>`, `</select><b>x</b>`,
	`</code></td></tr></table><h1>x</h1>`, `<!--`, `-->`, `<!-- --><b>x</b>`, `<![CDATA[<b>x</b>]]>`,
	`<?xml version="1.0"?>`, `<math><mtext></form><form><mglyph><style></math>`,
	`<iframe srcdoc="<script>alert(1)</script>">`, `<object data=//evil.example>`,
	`<embed src=//evil.example>`, `<base href=//evil.example/>`,
	`<meta http-equiv=refresh content="0;url=//evil.example">`, `<link rel=stylesheet href=//e>`,
	`<form action=//evil.example><button>Log in</button></form>`, `<details open ontoggle=alert(1)>`,
	`<button hx-get="/console/logout" hx-trigger="load">x</button>`, `<div hx-on:load="alert(1)">`,
	`<p id="main">`, `javascript:alert(1)`, `JaVaScRiPt:alert(1)`, "java\nscript:alert(1)",
	`data:text/html,<script>alert(1)</script>`, `vbscript:x`, `//evil.example`, `https://evil.example/`,
	`\\evil.example\share`, `/\evil.example`, `../../api/v1/events`, `..`, `.`, `%2e%2e%2f`, `%00`, `%`,
	`?a=b#c`, `a/b`, `a;b`, `#main`, `" onmouseover="alert(1)`, `' onfocus='alert(1)' autofocus='`,
	"` onerror=alert(1)", `x style=display:none`, `{{.}}`, `{{template "page"}}`, `${alert(1)}`,
	`{"__proto__": {"x": 1}}`, `__proto__`, `constructor`, `[object Object]`, `@import url(//evil.example);`,
	`expression(alert(1))`, `*/}</style><script>alert(1)</script>`, `url(javascript:x)`, "evil\u202etxt.exe",
	"\u2066a\u2069b", "a\u2028b\u2029c", "zero\u200bwidth\u00ad\ufeff", "\x00", "a\x00b",
	"\x1b[2J\x1b]8;;x\x07", "a\r\nSet-Cookie: x=y", "tab\tline\nend", "\xff\xfe", "a\xc3", "\xed\xa0\x80",
	"\U000e0041\U000e007f", "e\u0301\u0327\u0323", strings.Repeat("\u0300", 500),
	`=HYPERLINK("http://evil.example")`, `+1+cmd|' /C calc'!A0`, `'; DROP TABLE events; --`, "$(reboot)",
	"'\\''; reboot; '", "`reboot`", `&lt;script&gt;`, `&#60;script&#62;`, `&quot;&gt;`, `1e999`, `NaN`, `-0`,
	strings.Repeat("x", 5000), strings.Repeat("<", 3000), strings.Repeat("&amp;", 2000), "مرحبا",
	"𝒳🏴󠁧󠁢󠁥󠁮󠁧󠁿👨‍👩‍👧",
}

// The bounds of every page: in bytes, and of the time in which it is made.
const (
	maxPageBytes = 2 << 20
	maxPageTime  = 10 * time.Second
)

// checkHostile fails the test for a page on which foreign texts are more than texts, are invisible,
// or are too many.
func checkHostile(t *testing.T, path string, p *response, took time.Duration) {
	t.Helper()
	if p.status >= http.StatusInternalServerError {
		t.Errorf("%.200s: %d", path, p.status)
	}
	checkPage(t, path, p)
	if len(p.body) > maxPageBytes || took > maxPageTime {
		t.Errorf("%.200s: %d bytes in %s", path, len(p.body), took)
	}
	if p.root == nil || p.header.Get("Location") != "" {
		return
	}
	if n := len(p.all("main")); n != 1 {
		t.Errorf("%.200s: %d parts are the main one", path, n)
	}
	for n := range p.root.Descendants() {
		if n.Type == html.TextNode && strings.ContainsFunc(n.Data, isHidden) {
			t.Errorf("%.200s: hidden characters in %.100q", path, n.Data)
		}
		for _, name := range []string{"title", "aria-label", "placeholder"} {
			if strings.ContainsFunc(attribute(n, name), isHidden) {
				t.Errorf("%.200s: hidden characters in %s=%.100q", path, name, attribute(n, name))
			}
		}
	}
}

// Whatever senders put into ids, types, headers and bodies, pages show it as text.
func TestPages_hostileTexts_stayTexts(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	filled := map[string]bool{}
	for i, s := range hostileTexts {
		stored := events.SanitizeText(s)
		e.add(t, thing{key: fmt.Sprint(i, s), eventType: s, account: s, objectType: s, objectID: s, body: s,
			headers: jsonText(stored), state: jsonText(stored), status: []string{"dead", "failed", "stale"}[i%3],
			reason: s})
		if !filled[stored] {
			filled[stored] = true
			e.fillOthers(t, stored)
		}
	}
	b, start := e.browser(), time.Now()
	visited := e.walkMany(t, b, len(hostileTexts)+20, func(path string, p *response) {
		checkHostile(t, path, p, time.Since(start))
		start = time.Now()
	})
	if n := visited["GET "+Prefix+"events/{id}"]; n < len(hostileTexts) {
		t.Errorf("%d events visited", n)
	}
	for _, s := range hostileTexts {
		for _, path := range []string{query("/console/events", "type", s), query("/console/find", "q", s),
			path("events", s), path("objects", "stripe", s, s), path(s), query("/console/login", "next", s),
			query("/console/none", s, s)} {
			start = time.Now()
			checkHostile(t, path, b.get(t, path), time.Since(start))
		}
	}
}

// hostileBodies are bodies that cost a reader time or memory, or that programs read differently.
func hostileBodies() map[string]string {
	var keys strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&keys, `"k%d":%d,`, i, i)
	}
	return map[string]string{
		"10 MB string": `{"a":"` + strings.Repeat("<&\u202e", 10<<20/5) + `"}`,
		"10 MB text":   strings.Repeat("<", 10<<20),
		"deep objects": strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000),
		"deep arrays":  strings.Repeat("[", 100_000), "100,000 keys": "{" + keys.String() + `"z":0}`,
		"1,000,000 elements": "[" + strings.Repeat("0,", 1_000_000) + "0]",
		"wide and deep":      strings.Repeat(`[[],`, 150) + "1",
		"double keys":        `{"a":1,"a":2,"a":"<b>"}`,
		"1e999":              `{"a":1e999,"b":-1e-999,"c":123456789012345678901234567890}`,
		"nul":                "{\"a\":\"\\u0000\",\"\\u0000\":\"\x00\"}",
		"surrogates":         `{"a":"\ud800","b":"\udc00\ud800"}`,
		"utf-8":              "{\"a\":\"\xff\xfe\xed\xa0\x80\"}", "binary": strings.Repeat("\x00\xff\x80", 100_000),
		"bom":           "\ufeff{}",
		"two documents": `{"a":1}{"b":2}`, "text after": `{"a":1} <script>alert(1)</script>`,
		"empty": "", "space": " \n",
		"null": "null", "long key": `{"` + strings.Repeat("k", 1<<20) + `":1}`,
		"long number":         strings.Repeat("9", 1<<20),
		"many nested strings": "[" + strings.Repeat(`"\u202e\u0000<",`, 60_000) + "0]",
	}
}

// A page of any body is bounded, and shows all of it or says that it does not.
func TestEvent_hostileBodies_areBounded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	for name, body := range hostileBodies() {
		path := eventPath(e.add(t, thing{key: name, eventType: "x", objectType: "x", objectID: name, body: body}))
		start := time.Now()
		p := b.get(t, path)
		checkHostile(t, name, p, time.Since(start))
		text := p.text()
		cut := strings.Contains(text, "The page shows the first")
		if len(body) > maxDocumentBytes && !cut {
			t.Errorf("%s: the page does not say that it does not show all", name)
		}
		for _, part := range []string{"<script>", `"b":2`} {
			if strings.Contains(body, part) && !strings.Contains(text, part) {
				t.Errorf("%s: the page hides %s", name, part)
			}
		}
		raw := b.get(t, path+"?download")
		if raw.body != body || raw.header.Get("Content-Security-Policy") != closedPolicy ||
			raw.header.Get("Content-Type") != "application/octet-stream" ||
			!strings.HasPrefix(raw.header.Get("Content-Disposition"), "attachment; ") {
			t.Errorf("%s: %d bytes downloaded, %v", name, len(raw.body), raw.header)
		}
	}
}
