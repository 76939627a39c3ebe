package browser_test

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// Typed text stays while the page refreshes. A form that another operator's change made obsolete
// gets an explanation.
func TestRun_typedReason_staysDuringRefreshes(t *testing.T) {
	b, colleague := open(t), open(t)
	colleague.allowed = []string{"400", "409"}
	colleague.withoutScript()
	b.visit("/console/runs/new/replay?source=stripe&rate=1")
	b.submit(1, "Start the replay", "p.reason", "slowly")
	b.at("/console/runs/")
	b.says("running")
	colleague.visit(eval[string](b, `location.pathname`))
	b.click("Cancel")
	b.do(chromedp.SendKeys(`details.action[open] [name="p.reason"]`, "typed slow"))
	shown := eval[string](b, `document.getElementById("progress").innerText`)
	for range 2 {
		b.waitFor(`document.getElementById("progress").innerText !== ` + quote(shown))
		shown = eval[string](b, `document.getElementById("progress").innerText`)
	}
	b.do(chromedp.KeyEvent("ly"))
	if got := eval[string](b, `document.querySelector('details.action[open] [name="p.reason"]')?.value ??
		"closed"`); got != "typed slowly" {
		t.Errorf("the reason is %q after the page was read again", got)
	}
	b.do(chromedp.Click("details.action[open] form > button"))
	b.says("Done: Cancel", "cancelled")
	colleague.submit(1, "Pause", "p.reason", "too late")
	colleague.says("The reason that you entered: too late", "Back to the page")
}

// A list that follows new events says that it does not, when the session has ended.
func TestTail_sessionEnds_saysSo(t *testing.T) {
	b := login(t, "nils", "reader")
	b.allowed = []string{"401"}
	b.visit("/console/events?live=1")
	b.says("New events appear on top.")
	_, err := guarded.postern("token", "revoke", "nils", "--reason", "a test")
	must(t, err)
	b.says("New events do not appear: your session has ended. Reload the page to log in.")
	b.saysNot("New events appear on top.")
}

// A page that cannot be refreshed says so, and keeps what the operator has entered.
func TestHealth_serverUnreachableOrSessionEnded_showsTimeOfContent(t *testing.T) {
	way, err := newLink("tcp", strings.TrimPrefix(guarded.Console, "http://"))
	must(t, err)
	defer func() { _ = way.Close() }()
	token, err := guarded.postern("token", "create", "--name", "olga", "--role", "operator")
	must(t, err)
	b := openOn(t, &running{Console: "http://" + way.Addr().String()})
	b.allowed = []string{"ERR_", "401"}
	b.visit("/console/login?next=/console/health")
	b.enter(token)
	b.at("/console/health")
	clock := `document.getElementById("clock").innerText`
	first := eval[string](b, clock)
	b.click("Republish now")
	b.do(chromedp.SendKeys(`details.action[open] [name="p.reason"]`, "entered"))
	b.waitFor(clock + " !== " + quote(first)) // the page was read again
	way.cut(true)
	b.says("The server does not respond.")
	b.waitFor(`document.querySelector("p.outdated").innerText.includes(` + clock + `)`)
	way.cut(false)
	b.waitFor(`!document.querySelector("p.outdated")`)
	_, err = guarded.postern("token", "revoke", "olga", "--reason", "a test")
	must(t, err)
	b.says("Your session has ended. The page shows the state of")
	reason := eval[string](b, `document.querySelector('details.action[open] [name="p.reason"]').value`)
	if reason != "entered" {
		t.Errorf("the reason is %q", reason)
	}
}

// A session that ends while the operator fills in a form loses nothing of what he entered.
func TestSession_endedBeforeAForm_keepsTheReason(t *testing.T) {
	guarded.accept(t, "stripe", stripeSecret, stripeEvent("evt_night", "invoice.paid", "in_night", time.Now()))
	b := login(t, "mia", "operator,approver")
	if !until(time.Minute, func() bool {
		b.visit("/console/find?q=receipt:in_night")
		return eval[bool](b, `location.pathname.startsWith("/console/effects/")`)
	}) {
		t.Fatal("the effect is not found")
	}
	page := eval[string](b, `location.pathname`)
	_, err := guarded.postern("token", "revoke", "mia", "--reason", "a test")
	must(t, err)
	b.submit(1, "Approve", "p.reason", "entered at night")
	b.at("/console/login")
	token, err := guarded.postern("token", "create", "--name", "mia2", "--role", "operator,approver")
	must(t, err)
	b.enter(token)
	b.at(page)
	b.says("Not done: Approve", "The reason that you entered: entered at night", "awaiting approval")

	second := openOn(t, &guarded)
	second.allowed = []string{"400", "409"}
	second.withoutScript()
	second.visit("/console/login")
	second.enter(token)
	second.at("/console/")
	second.visit(page)
	b.submit(1, "Approve", "p.reason", "first")
	b.says("Done: Approve")
	second.submit(1, "Approve", "p.reason", "second")
	second.says("The reason that you entered: second", "Back to the page")
	if sent := mails.received("in_night"); len(sent) > 1 {
		t.Errorf("the destination got %q", sent)
	}
}

// The command and the request below a list, executed by a shell as they are, return its rows.
func TestLists_copiedCommandAndRequest_returnTheRows(t *testing.T) {
	const object = `it's 5 "of" $HOME & more`
	instance.accept(t, "stripe", stripeSecret, fmt.Sprintf(`{"id": "evt_copied", "object": "event", "created": %d,
		"type": "customer.updated", "data": {"object": {"id": %q, "object": "customer"}}}`, time.Now().Unix(), object))
	b := open(t)
	b.find("evt_copied")
	b.says("The outcome is applied")
	for _, address := range []string{"events?" + url.Values{"object_id": {object}, "since": {"1h"}}.Encode(),
		"objects?deleted=false&" + url.Values{"id": {object}}.Encode(), "events?source=shopify",
		"events?body=" + url.QueryEscape("data.object.id="+object), "outcomes?status=applied&" +
			url.Values{"object_id": {object}}.Encode()} {
		b.visit("/console/" + address)
		rows := eval[int](b, `document.querySelectorAll("tbody tr").length`)
		lines := eval[[]string](b, `[...document.querySelectorAll("details.copy pre")].map(p => p.textContent)`)
		if rows == 0 || len(lines) != 2 {
			t.Errorf("%s: %d rows, %q", address, rows, lines)
			continue
		}
		lines[0] += " -o json --dir " + instance.dir
		for i, line := range lines {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
			cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"))
			out, err := cmd.Output()
			var of struct{ Items []json.RawMessage }
			if into := []any{&of.Items, &of}[i]; err == nil {
				err = json.Unmarshal(out, into)
			}
			if err != nil || len(of.Items) != rows {
				t.Errorf("%s returns %d of %d rows: %v", line, len(of.Items), rows, err)
			}
		}
	}
}
