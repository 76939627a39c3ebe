package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/mail"
)

// aMail is a valid rule with a mail. The following constants replace parts of it.
const aMail = `
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  post:
    smtp: {host: smtp.example.com, username: jo, password: {value: "pass word"}, from: Shop <shop@shop.example>}
  api:
    url: https://mail.example.com/v1
effects:
  receipt:
    source: shop
    type: invoice
    key: "email:receipt:{{ new.id }}"
    steps:
      - name: send
        to: post
        operator_resolves: true
        mail: {to: "{{ new.email }}", subject: "Receipt {{ new.id }}", text: "Thank you."}
      - {name: note, to: api, path: "/notes", json: {mail: "{{ steps.send.message_id }}"}}
`

func TestEffectMail_yaml_becomesRule(t *testing.T) {
	t.Parallel()
	c := parse(t, aMail)
	s := c.Rules()[0].Steps[0]
	if !s.NeverRepeat || s.Do.Mail == nil || s.Do.Mail.From.Name != "Shop" ||
		rules.MessageID("postern-k", s.Do.Mail.From.Address) != "postern-k@shop.example" {
		t.Errorf("%+v", s)
	}
	var to *mail.Server
	for _, d := range c.ResolveDestinations() {
		if d.Name == "post" {
			to = d.Mail
			if all := strings.Join(d.Secrets, " "); !strings.Contains(all, "pass word") ||
				!strings.Contains(all, "AGpvAHBhc3Mgd29yZA==") {
				t.Errorf("secrets %q", d.Secrets)
			}
		} else if d.Mail != nil {
			t.Errorf("%+v", d)
		}
	}
	if d := c.Destinations; d["post"].Timeout != 2*time.Minute || d["api"].Timeout != 30*time.Second ||
		s.Timeout != 2*time.Minute {
		t.Errorf("a mail server's timeout is %s, an API's %s, the step's %s", d["post"].Timeout, d["api"].Timeout,
			s.Timeout)
	}
	if to == nil || to.Port != 587 || to.Security != mail.Required || to.Password != "pass word" ||
		to.Hello != "shop.example" {
		t.Errorf("%+v", to)
	}
	if w := c.EffectWarnings(); len(w) != 2 ||
		!strings.Contains(w[1], "step send must not be sent twice and is not the last") {
		t.Error(w)
	}
	if text := c.String(); strings.Contains(text, "pass word") {
		t.Errorf("the password is shown:\n%s", text)
	}
	implicit, err := parseEffects(strings.Replace(aMail, "host: smtp", "tls: implicit, host: smtp", 1))
	if err != nil || implicit.Destinations["post"].SMTP.Port != 0 {
		t.Fatal(err)
	}
	for _, d := range implicit.ResolveDestinations() {
		if d.Mail != nil && d.Mail.Port != 465 {
			t.Errorf("%+v", d.Mail)
		}
	}
}

// Errors in a mail are reported with their line.
func TestEffectMail_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	checkMistakes(t, aMail, map[string]struct{ old, new, want string }{
		"no url and no server": {"url: https://mail.example.com/v1", "rate: 1",
			"destinations.api.url: is not set"},
		"both": {"    smtp:", "    url: https://x.example\n    smtp:",
			"8: destinations.post.smtp: a mail server has no url"},
		"no from": {", from: Shop <shop@shop.example>", "", "destinations.post.smtp.from: "},
		"two from": {"Shop <shop@shop.example>", `"a@x.example, b@x.example"`,
			"destinations.post.smtp.from: "},
		"a name without a password": {`, password: {value: "pass word"}`, "",
			"destinations.post.smtp.username: username and password belong together"},
		"a port in the host":    {"smtp.example.com", `"smtp.example.com:25"`, "destinations.post.smtp.host: "},
		"an unknown encryption": {"host:", "tls: perhaps, host:", "destinations.post.smtp.tls: "},
		"none to everybody": {"host:", "tls: none, host:",
			"destinations.post.smtp.tls: none is allowed only for addresses in"},
		"a password in the clear": {"    smtp: {", "    allow: [10.0.0.1]\n    smtp: {tls: none, ",
			"destinations.post.smtp.tls: without TLS everyone"},
		"a lost answer": {"        operator_resolves: true\n", "",
			"effects.receipt.steps.0.mail: this step must not be sent"},
		"a path": {"        operator_resolves: true",
			"        operator_resolves: true\n        path: /x", "effects.receipt.steps.0.mail: a step with mail"},
		"statuses of HTTP": {"        operator_resolves: true",
			"        operator_resolves: true\n        retry: {on: [450]}",
			"effects.receipt.steps.0.mail: a step with mail"},
		"a mail to an API": {"to: post", "to: api", "effects.receipt.steps.0.to: destination api is not a mail server"},
		"a call to a mail server": {"to: api", "to: post", "effects.receipt.steps.1.to: destination post is a " +
			"mail server"},
		"a server that is asked": {"operator_resolves: true", `check: {path: "/x", done: answer.status == 200}`,
			"effects.receipt.steps.0.check.to: a mail server cannot be queried"},
		"nobody is asked": {"operator_resolves: true",
			`check: {to: nobody, path: "/x", done: answer.status == 200}`,
			`effects.receipt.steps.0.check.to: destination "nobody" is not configured`},
		"nobody to send to": {`to: "{{ new.email }}", `, "", "effects.receipt.steps.0.mail.to: is not set"},
		"two where one is": {`to: "{{ new.email }}"`, `to: "a@x.example, b@x.example"`,
			"effects.receipt.steps.0.mail.to.0: "},
		"no text": {`, text: "Thank you."`, "",
			"effects.receipt.steps.0.mail: set both subject and"},
		"a header of the message": {`text: "Thank you."`, `text: x, headers: {Bcc: "a@x.example"}`,
			"effects.receipt.steps.0.mail.headers.Bcc: is a header that the message"},
		"a template that is not right": {"Receipt {{ new.id }}", "Receipt {{ nwe.id }}",
			"effects.receipt.steps.0.mail.subject: "},
		"what no mail captures": {"steps.send.message_id", "steps.send.id",
			"effects.receipt.steps.1.json.mail: "},
	})
}

// The example of docs/how-to/react-once-with-effects.md is valid, and its mail has the expected
// content.
func TestEffectMail_example_isAccepted(t *testing.T) {
	t.Parallel()
	c := parse(t, effectExample(t, "## Send a mail"), "SMTP_PASSWORD=secret")
	got, err := c.Rules()[0].Steps[0].Do.Render(
		&rules.TemplateData{New: map[string]any{"customer_email": "jo@example.com",
			"number": "R-7", "amount_paid": 12}, StepKey: "postern-k"}, "")
	if err != nil || got.To[0] != "jo@example.com" || !strings.Contains(got.Body, "\r\nSubject: Receipt R-7\r\n") ||
		!strings.Contains(got.Body, "\r\nMessage-ID: <postern-k@example.com>\r\n") {
		t.Errorf("%+v, %v", got, err)
	}
}

// The maximum timeout of a destination includes checks for mails, so that a response to a check is
// accepted.
func TestDestination_timeout_dependsOnKind(t *testing.T) {
	t.Parallel()
	asked := strings.Replace(aMail, "operator_resolves: true",
		`check: {to: api, path: "/sent?id={{ steps.send.message_id }}", done: answer.status == 200}`, 1)
	for name, tc := range map[string]struct {
		text string
		want time.Duration
	}{
		"nobody is asked": {strings.Replace(aMail, "operator_resolves", "timeout: 5m\n        operator_resolves", 1),
			30 * time.Second},
		"the step's":        {strings.Replace(asked, "check:", "timeout: 5m\n        check:", 1), 5 * time.Minute},
		"the mail server's": {strings.Replace(asked, "  post:\n", "  post:\n    timeout: 4m\n", 1), 4 * time.Minute},
		"a shorter one":     {strings.Replace(asked, "check:", "timeout: 1s\n        check:", 1), 30 * time.Second},
	} {
		c, err := parseEffects(tc.text)
		if err != nil {
			t.Fatal(name, err)
		}
		for _, d := range c.ResolveDestinations() {
			if d.Name == "api" && d.MaxTimeout != tc.want {
				t.Errorf("%s: %s, want %s", name, d.MaxTimeout, tc.want)
			}
		}
	}
}

const aNotify = `
database: {url: postgres://x/y}
destinations:
  post:
    smtp: {host: smtp.example.com, from: postern@shop.example}
  app:
    url: https://app.example.com
notify:
  oncall: {to: app, path: /alerts}
  ops: {to: post, mail: ops@example.com, conditions: [failed_runs]}
`

// Errors in alerts are reported with their line.
func TestNotify_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	c := parse(t, aNotify)
	if n := c.Notify["oncall"]; n.Interval != time.Hour || n.Delay != 15*time.Minute || len(n.Conditions) != 0 ||
		c.ResolveDestination("app").Timeout != 30*time.Second || c.ResolveDestination("nobody") != nil {
		t.Errorf("%+v", n)
	}
	if all := c.Notify["ops"].Recipients(); len(all) != 1 || all[0].Address != "ops@example.com" {
		t.Errorf("%+v", all)
	}
	checkMistakes(t, aNotify, map[string]struct{ old, new, want string }{
		"no destination": {"to: app", "to: ap", `9: notify.oncall.to: destination "ap" is not configured`},
		"none at all":    {"to: app, ", "", "notify.oncall.to: "},
		"a mail to nobody": {", mail: ops@example.com", "", "10: notify.ops.mail: destination post is a mail server: " +
			"write the recipient"},
		"a mail to an API": {"path: /alerts", "mail: ops@example.com",
			"notify.oncall.mail: destination app is not a mail"},
		"a path of mail": {"to: post", "to: post, path: /x",
			"notify.ops.path: destination post is a mail server"},
		"a path without /":       {"/alerts", "alerts", `notify.oncall.path: "alerts": begin with /`},
		"no address":             {"ops@example.com", "ops", "notify.ops.mail.0: "},
		"what is never told":     {"failed_runs", "failed", "notify.ops.conditions.0: "},
		"a word twice":           {"failed_runs", "failed_runs, failed_runs", "notify.ops.conditions: "},
		"a flood":                {"path: /alerts", "every: 1s", "notify.oncall.every: "},
		"a setting there is not": {"path: /alerts", "often: 1s", "often"},
	})
}
