package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
)

// The example of docs/effects.md is a configuration, and its condition leaves out what the page says: objects that a first reconciliation or an import finds.
func TestTheExampleOfEffects(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/effects.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "## A rule\n\n```yaml\n")
	example, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("the page has no example")
	}
	c, err := config.Parse([]byte("database: {url: postgres://x/y}\nsources:\n  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}\n"+example), func(name string) string { return map[string]string{"MAIL_KEY": "key-of-mail"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	open, paid := map[string]any{"status": "open"}, map[string]any{"status": "paid"}
	for name, tc := range map[string]struct {
		old    map[string]any
		origin string
		want   bool
	}{
		"paid while it was known":             {open, "webhook", true},
		"paid, and reconciliation found that": {open, "reconcile", true},
		"paid before":                         {paid, "webhook", false},
		"its payment came first":              {nil, "webhook", true},
		"found by the first reconciliation":   {nil, "reconcile", false},
		"imported":                            {nil, "import", false},
	} {
		if got, err := c.Rules()[0].When.Holds(&rules.Facts{Old: tc.old, New: paid, Event: rules.Event{Origin: tc.origin}}); err != nil || got != tc.want {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

// The other examples of docs/effects.md are rules as well, and that of a schedule takes what was made within its window.
func TestFurtherExamplesOfEffects(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/effects.md")
	if err != nil {
		t.Fatal(err)
	}
	for heading, on := range map[string]rules.On{"## About each event": rules.OnEvent, "## On a schedule": rules.OnSchedule} {
		_, rest, _ := strings.Cut(string(page), heading+"\n\n```yaml\n")
		example, _, ok := strings.Cut(rest, "```")
		if !ok {
			t.Fatalf("%s has no example", heading)
		}
		c, err := parseEffects("database: {url: postgres://x/y}\nsources:\n  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}\ndestinations:\n  mail: {url: \"https://mail.example.com\"}\n" + example)
		if err != nil {
			t.Fatal(err)
		}
		r := c.Rules()[0]
		if r.On != on {
			t.Errorf("%s: %+v", heading, r)
		}
		for created, want := range map[int]bool{1793606400: true, 1793606399: false, 1793617200: false} {
			if on != rules.OnSchedule {
				continue
			}
			f := &rules.Facts{New: map[string]any{"id": "in_1", "created": created}, Window: rules.Window{Start: "2026-11-02T08:00:00Z", End: "2026-11-02T11:00:00Z"}}
			if got, err := r.When.Holds(f); err != nil || got != want {
				t.Errorf("created %d: %t, %v", created, got, err)
			}
		}
	}
}
