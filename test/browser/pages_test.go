package browser_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// axe returns the script that axe.txt names.
func axe(t *testing.T) string {
	t.Helper()
	list, err := os.ReadFile("axe.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		content, err := os.ReadFile("axe/" + fields[0] + "/" + fields[1])
		if err != nil {
			t.Fatalf("%v: run make prerequisites, which says why if it cannot fetch %s", err, fields[0])
		}
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != fields[2] {
			t.Fatalf("%s is not what axe.txt says: delete the folder axe and run make prerequisites", fields[1])
		}
		return string(content)
	}
	t.Fatal("axe.txt names no file")
	return ""
}

// axeRun is the expression for the violations in a page. Dark pages are checked for colours only,
// as they differ in nothing else.
func axeRun(coloursOnly bool) string {
	rules := `{type: "tag", values: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}`
	if coloursOnly {
		rules = `{type: "rule", values: ["color-contrast", "link-in-text-block"]}`
	}
	return `axe.run(document, {runOnly: ` + rules + `}).then(r => r.violations.map(v => v.id + ": " + v.help + " at " +
		v.nodes.slice(0, 3).map(n => n.target.join(" ") + " " + n.html.slice(0, 120)).join("; ")))`
}

// Every page of the menu, and one of each kind of thing, is accessible in both colours and on
// narrow screens, where only tables scroll sideways. The others are made of the same parts, and are
// checked once.
func TestPages_colourAndWidth_areAccessible(t *testing.T) {
	t.Parallel() // while others wait
	script := axe(t)
	b := open(t)
	paths := b.navigation()
	var object string
	for _, list := range []string{"/console/events?source=shopify", "/console/rejections",
		"/console/objects?source=stripe"} {
		b.visit(list)
		object = eval[string](b, `document.querySelector("tbody tr a").getAttribute("href")`)
		paths = append(paths, object)
	}
	object, _, _ = strings.Cut(object, "?")
	paths = append(paths, "/console/login", "/console/none", "/console/events?type=none.such")
	others := []string{object + "/diff", object + "/at?time=2026-01-01", "/console/sources/stripe",
		"/console/source-types", "/console/redactions", "/console/help", "/console/find?q=none.such",
		"/console/rejections/verify?source=stripe", "/console/effects/rules/none.such",
		"/console/runs/new/replay?source=stripe", "/console/runs/new/retry?source=stripe",
		"/console/runs/new/rebuild?source=stripe", "/console/runs/new/reconcile?source=stripe",
		"/console/events?since=yesterday"}
	b.allowed = []string{"404", "400"}
	call(b, page.SetBypassCSP, page.SetBypassCSPParams{Enabled: true}) // for the script of axe
	for _, width := range []int64{1280, 360} {
		for _, colours := range []string{"light", "dark"} {
			b.do(chromedp.EmulateViewport(width, 900))
			call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: colours},
				{Name: "prefers-reduced-motion", Value: "reduce"}}}) // no text that is just appearing
			checked := paths
			if width == 1280 && colours == "light" {
				checked = slices.Concat(paths, others)
			}
			for _, path := range checked {
				name := fmt.Sprintf("%s, %s, %d pixels", path, colours, width)
				b.visit(path)
				eval[bool](b, script+"\n;true")
				for _, violation := range eval[[]string](b, axeRun(colours == "dark"), chromedp.EvalAwaitPromise) {
					t.Errorf("%s: %s", name, violation)
				}
				if over := eval[int](b, `document.documentElement.scrollWidth - innerWidth`); over > 0 {
					t.Errorf("%s: the page is %d pixels too wide", name, over)
				}
			}
		}
	}
}

const (
	maxFirstBytes    = 60_000
	maxFirstRequests = 6
)

// The first visit loads little, and a later page loads itself only.
func TestPages_transfers_areSmall(t *testing.T) {
	b := open(t)
	call(b, network.ClearBrowserCache, struct{}{})
	for i, path := range []string{"/console/", "/console/events?limit=25", "/console/rejections"} {
		b.mu.Lock()
		b.requests, b.bytes = 0, 0
		b.mu.Unlock()
		b.visit(path)
		b.waitFor(`document.readyState === "complete"`)
		b.mu.Lock()
		t.Logf("%s: %d requests, %.0f bytes", path, b.requests, b.bytes)
		if b.requests > maxFirstRequests || b.bytes > maxFirstBytes || i > 0 && b.bytes > 25_000 {
			t.Errorf("%s: %d requests, %.0f bytes", path, b.requests, b.bytes)
		}
		b.mu.Unlock()
	}
}
