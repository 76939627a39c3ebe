package browser_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is a page of a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	problems []string
	requests int
	bytes    float64
	// allowed are parts of problems that the test expects.
	allowed []string
}

// program returns the browser.
func program(t *testing.T) string {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-headless-shell", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	t.Fatal("Chromium is not installed: run make prerequisites, or set CHROMIUM to a browser")
	return ""
}

// open starts a browser. The test fails for each error in its console, each exception, each report
// of the policy, each dialog and each request to another server.
func open(t *testing.T) *tab {
	t.Helper()
	b := &tab{t: t}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program(t)), chromedp.NoSandbox,
		chromedp.DisableGPU)
	ctx, cancelBrowser := chromedp.NewExecAllocator(t.Context(), options...)
	ctx, cancelTab := chromedp.NewContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	b.ctx = ctx
	t.Cleanup(func() { cancel(); cancelTab(); cancelBrowser() })
	if err := chromedp.Do(ctx, chromedp.Navigate("about:blank")); err != nil { // starts the browser
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, p := range b.problems {
			t.Error(p)
		}
	})
	return b
}

func (b *tab) heard(ev any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := ev.(type) {
	case *runtime.EventExceptionThrown:
		b.problem("exception: %s %v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception)
	case *cdplog.EventEntryAdded:
		b.problem("console: %s %s", e.Entry.Text, e.Entry.URL)
	case *page.EventJavascriptDialogOpening:
		b.problem("dialog: %s", e.Message)
	case *network.EventRequestWillBeSent:
		b.requests++
		if !strings.HasPrefix(e.Request.URL, instance.Console+"/") && !strings.HasPrefix(e.Request.URL, "data:") &&
			!strings.HasPrefix(e.Request.URL, "about:") {
			b.problem("request to %s", e.Request.URL)
		}
	case *network.EventLoadingFinished:
		b.bytes += e.EncodedDataLength
	}
}

func (b *tab) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, allowed := range b.allowed {
		if strings.Contains(text, allowed) {
			return
		}
	}
	b.problems = append(b.problems, text)
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		b.t.Fatalf("%v at %s", err, b.address())
	}
}

func (b *tab) address() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	at, _ := chromedp.Run(ctx, chromedp.Location()) // only for a message
	return at
}

// visit opens a page of the console.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(instance.Console + path))
}

// eval returns the value of an expression in the page.
func eval[T any](b *tab, expression string, options ...chromedp.EvaluateOption) T {
	b.t.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, options...))
	if err != nil {
		b.t.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// waitFor waits until an expression in the page is true.
func (b *tab) waitFor(expression string) {
	b.t.Helper()
	began := time.Now()
	for range time.Tick(50 * time.Millisecond) {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		if err == nil && is {
			return
		}
		if time.Since(began) > 20*time.Second {
			b.t.Fatalf("%s is not true at %s: %v", expression, b.address(), err)
		}
	}
}

// call sends a command to the browser.
func call[P any](b *tab, command cdp.Command[P, cdp.Empty], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// navigation returns the paths of the pages in the menu.
func (b *tab) navigation() (paths []string) {
	b.t.Helper()
	b.visit("/console/")
	paths = eval[[]string](b, `[...document.querySelectorAll("nav.side a")].map(a => a.getAttribute("href"))`)
	if len(paths) < 5 {
		b.t.Fatalf("the menu has %q", paths)
	}
	return paths
}
