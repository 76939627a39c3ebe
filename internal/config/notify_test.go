package config_test

import (
	"strings"
	"testing"
	"time"
)

const aNotify = `
database: {url: postgres://x/y}
destinations:
  post:
    smtp: {host: smtp.example.com, from: postern@shop.example}
  app:
    url: https://app.example.com
notify:
  oncall: {to: app, path: /alerts}
  ops: {to: post, mail: ops@example.com, about: [failed_runs]}
`

// What is wrong with who is told is said with its line.
func TestMistakesInNotify(t *testing.T) {
	t.Parallel()
	c, err := parseEffects(aNotify)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Notify["oncall"]; n.Every != time.Hour || n.After != 15*time.Minute || len(n.About) != 0 || c.Reach("app").Timeout != 30*time.Second || c.Reach("nobody") != nil {
		t.Errorf("%+v", n)
	}
	if all := c.Notify["ops"].Recipients(); len(all) != 1 || all[0].Address != "ops@example.com" {
		t.Errorf("%+v", all)
	}
	for name, tc := range map[string]struct{ old, new, want string }{
		"no destination":         {"to: app", "to: ap", `9: notify.oncall.to: destination "ap" is not configured`},
		"none at all":            {"to: app, ", "", "notify.oncall.to: "},
		"a mail to nobody":       {", mail: ops@example.com", "", "10: notify.ops.mail: destination post is a mail server: say whom"},
		"a mail to an API":       {"path: /alerts", "mail: ops@example.com", "notify.oncall.mail: destination app is no mail server"},
		"a path of mail":         {"to: post", "to: post, path: /x", "notify.ops.path: destination post is a mail server"},
		"a path without /":       {"/alerts", "alerts", `notify.oncall.path: "alerts": begin with /`},
		"no address":             {"ops@example.com", "ops", "notify.ops.mail.0: "},
		"what is never told":     {"failed_runs", "failed", "notify.ops.about.0: "},
		"a word twice":           {"failed_runs", "failed_runs, failed_runs", "notify.ops.about: "},
		"a flood":                {"path: /alerts", "every: 1s", "notify.oncall.every: "},
		"a setting there is not": {"path: /alerts", "often: 1s", "often"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := strings.Replace(aNotify, tc.old, tc.new, 1)
			if text == aNotify {
				t.Fatal("nothing is wrong")
			}
			if _, err := parseEffects(text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("told %v, want %q", err, tc.want)
			}
		})
	}
}
