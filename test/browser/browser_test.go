package browser_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// tab is a page of a browser that shows an instance. It has its own cookies.
type tab struct {
	t   *testing.T
	ctx context.Context
	in  *running

	mu       sync.Mutex
	problems []string
	requests int
	bytes    float64
	// allowed are parts of problems that the test expects.
	allowed []string
}

// browserPath returns the program of the browser.
func browserPath() (string, error) {
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-headless-shell", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path, nil
		}
	}
	return "", errors.New("Chromium is not installed: run make prerequisites, or set CHROMIUM to a browser")
}

// browser is the process that all tabs share.
var browser struct {
	ctx    context.Context
	cancel []context.CancelFunc
}

// reboundName is a host name that leads to this machine, as after a rebinding of DNS.
const reboundName = "rebound.example"

func startBrowser() error {
	path, err := browserPath()
	if err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.Flag("host-resolver-rules", "MAP "+reboundName+" 127.0.0.1"))
	allocator, cancelBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancelTab := chromedp.NewContext(allocator)
	browser.ctx, browser.cancel = ctx, []context.CancelFunc{cancelTab, cancelBrowser}
	return chromedp.Do(ctx, chromedp.Navigate("about:blank"))
}

func closeBrowser() {
	for _, cancel := range browser.cancel {
		cancel()
	}
}

// open opens a tab that shows the instance without tokens.
func open(t *testing.T) *tab {
	t.Helper()
	return openOn(t, &instance)
}

// openOn opens a tab. The test fails for each error in its console, each exception, each report of
// the policy, each dialog and each request to another server.
func openOn(t *testing.T, in *running) *tab {
	t.Helper()
	b := &tab{t: t, in: in}
	ctx, cancelTab := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext())
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	b.ctx = ctx
	t.Cleanup(func() { cancel(); cancelTab() })
	must(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
	must(t, chromedp.Listen(ctx, b.heard))
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
		if !strings.HasPrefix(e.Request.URL, b.in.Console+"/") && !strings.HasPrefix(e.Request.URL, "data:") &&
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

// visit opens a page of the console, which must not show a secret.
func (b *tab) visit(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.in.Console + path))
	page := eval[string](b, `document.documentElement.outerHTML`)
	for _, secret := range []string{firstSecret, secondSecret, acmeSecret, stripefake.Key, stripefake.Secret} {
		if strings.Contains(page, secret) {
			b.t.Errorf("%s shows the secret %s", path, secret)
		}
	}
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
	var last error
	if !until(time.Minute, func() bool {
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+expression+")"))
		last = err
		return err == nil && is
	}) {
		b.t.Fatalf("%s is not true at %s: %v", expression, b.address(), last)
	}
}

// says waits until the page has all texts.
func (b *tab) says(texts ...string) {
	b.t.Helper()
	missing := ""
	if !until(time.Minute, func() bool {
		shown, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
		missing = shown
		absent := func(text string) bool { return !strings.Contains(shown, text) }
		return err == nil && !slices.ContainsFunc(texts, absent)
	}) {
		b.t.Fatalf("%s does not say %q:\n%s", b.address(), texts, missing)
	}
}

// saysNot fails if the content of the page has a text.
func (b *tab) saysNot(text string) {
	b.t.Helper()
	if shown := eval[string](b, `document.getElementById("main").innerText`); strings.Contains(shown, text) {
		b.t.Errorf("%s says %q:\n%s", b.address(), text, shown)
	}
}

// at waits until the page has an address that begins with a path.
func (b *tab) at(path string) {
	b.t.Helper()
	b.waitFor(`document.readyState === "complete" && (location.pathname + location.search).startsWith(` +
		quote(path) + `)`)
}

// quote returns a text as JavaScript.
func quote(text string) string {
	quoted, _ := json.Marshal(text) // a text is always valid
	return string(quoted)
}

// click clicks the first link or button in the content of the page whose text begins with a label.
func (b *tab) click(label string) {
	b.t.Helper()
	b.waitFor(`[...document.querySelectorAll("main a, main button, main summary")].some(e =>
		!e.disabled && e.innerText.trim().startsWith(` + quote(label) + `) && (e.click(), true))`)
}

// submit opens the form of a change, fills in its parameters, and sends it so many times at once.
func (b *tab) submit(times int, label string, namesAndValues ...string) {
	b.t.Helper()
	b.waitFor(fmt.Sprintf(`[...document.querySelectorAll("details.action")].some(d => {
		if (!d.querySelector("summary").innerText.startsWith(%s)) return false;
		d.open = true;
		const given = %s, form = d.querySelector("form");
		for (let i = 0; i < given.length; i += 2) {
			const input = form.querySelector('[name="' + given[i] + '"]');
			if (input) input.value = given[i + 1];
		}
		for (let i = 0; i < %d; i++) form.querySelector(":scope > button").click();
		return true;
	})`, quote(label), list(namesAndValues), times))
}

func list(texts []string) string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = quote(text)
	}
	return "[" + strings.Join(all, ", ") + "]"
}

// disabled returns the reason why a change is disabled; "" if it is not.
func (b *tab) disabled(label string) string {
	b.t.Helper()
	return eval[string](b, `[...document.querySelectorAll("span.disabled")].find(s =>
		s.innerText.startsWith(`+quote(label)+`))?.querySelector("small").innerText ?? ""`)
}

// find enters a text into the search field.
func (b *tab) find(text string) {
	b.t.Helper()
	b.visit("/console/help")
	b.do(chromedp.SendKeys(`header [name="q"]`, text+kb.Enter))
	b.waitFor(`document.readyState === "complete" && location.pathname !== "/console/help"`)
}

// login logs in to the guarded instance with a new token of a role.
func login(t *testing.T, name, role string) *tab {
	t.Helper()
	token, err := guarded.postern("token", "create", "--name", name, "--role", role)
	must(t, err)
	b := openOn(t, &guarded)
	b.visit("/console/login")
	b.enter(token)
	b.at("/console/")
	b.waitFor(`document.querySelector("details.who summary").innerText.includes(` + quote(name) + `)`)
	return b
}

// enter enters a token into the form of the login.
func (b *tab) enter(token string) {
	b.t.Helper()
	b.do(chromedp.SetValue(`[name="token"]`, token), chromedp.Click("main form button"))
}

// withoutScript turns the scripts of later pages off: they stay as they are read.
func (b *tab) withoutScript() {
	b.t.Helper()
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// get reads a path of an instance with a token; "" for none.
func get(t *testing.T, address, token string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(t, err)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %s", address, res.Status, body)
	}
	return string(body)
}

// items reads a list of the API of the instance without tokens.
func items[T any](t *testing.T, path string) []T {
	t.Helper()
	var page struct{ Items []T }
	must(t, json.Unmarshal([]byte(get(t, instance.Console+"/api/v1/"+path, "")), &page))
	return page.Items
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
