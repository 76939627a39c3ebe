package config_test

import (
	"strings"
	"testing"
)

// A rule about objects of a type that its source is not known to have is told, with its line and the name that was meant; where nobody can say, nothing is.
func TestRulesAboutUnknownTypesAreTold(t *testing.T) {
	t.Parallel()
	const (
		stripe    = "provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]"
		shopify   = "provider: shopify, secrets: [{name: a, value: abcdefabcdef}], accounts: ['*']"
		described = "provider: hmac, secrets: [{name: a, value: abcdefabcdefabcdef}], scheme: {header: X-S}, events: {type: '{json:type}'}, objects: [{type: parcel, id: '{json:id}', events: [p.*]}, {type: '%', id: '{json:id}'}]"
	)
	for name, c := range map[string]struct{ source, about, want string }{
		"known":          {stripe, "invoice", ""},
		"misspelt":       {stripe, "invoise", `line 12: effects.receipt.type: source shop is not known to have objects of type "invoise", so that the rule may never fire; did you mean invoice?`},
		"unlike any":     {stripe, "spaceship", "postern objects list --source shop"},
		"another's":      {shopify, "Order", "did you mean order?"},
		"described":      {strings.Replace(described, "%", "label", 1), "parcell", "did you mean parcel?"},
		"described, all": {strings.Replace(described, "%", "label", 1), "label", ""},
		"told by events": {strings.Replace(described, "%", "{json:kind}", 1), "parcell", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, err := parseEffects(strings.Replace(strings.Replace(anEffect, stripe, c.source, 1), "type: invoice", "type: "+c.about, 1))
			if err != nil {
				t.Fatal(err)
			}
			told := ""
			for _, w := range cfg.EffectWarnings() {
				if strings.Contains(w, "is not known to have") {
					told = w
				}
			}
			if c.want == "" && told != "" || !strings.Contains(told, c.want) {
				t.Errorf("%q, want %q", told, c.want)
			}
		})
	}
}

// Contents of effects that are cleared while a replay may need them are told, with their line: in the section and in schedules.
func TestContentsClearedEarlyAreTold(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"retention: {effects: 3}":                                                             "line 2: retention.effects: what effects hold is cleared 3 days after they ended, and events are kept for ever: a replay with --mode force",
		"retention: {bodies: 400, effects: 3}":                                                "line 2: retention.effects: what effects hold is cleared 3 days after they ended, and events are kept for 400 days: ",
		"retention: {bodies: 3, effects: 3}":                                                  "",
		"retention: {bodies: 3, effects: 4}":                                                  "",
		"retention: {bodies: 3}":                                                              "",
		"retention: {bodies: 3, effect_keys: 4}":                                              "",
		schedule("retention", "{bodies: '400', effects: '3'}"):                                "line 2: schedules.forget.parameters.effects: what effects hold is cleared 3 days after they ended, and events are kept for 400 days: ",
		schedule("retention", "{bodies: '400', effects: '400'}"):                              "",
		schedule("retention", "{bodies: '400', effects: 'soon'}"):                             "",
		schedule("retry", "{bodies: '400', effects: '3'}"):                                    "",
		"retention: {bodies: 30}\n" + schedule("retention", "{effects: '30'}"):                "",
		"retention: {effects: 30}\n" + schedule("retention", "{bodies: '30'}"):                "",
		"retention: {bodies: 400}\n" + schedule("retention", "{bodies: '30', effects: '30'}"): "",
		"retention: {bodies: 30}\n" + schedule("retention", "{bodies: '400', effects: '30'}"): "",
		"retention: {bodies: 30}\n" + schedule("retention", "{effects: '3'}"):                 "line 3: schedules.forget.parameters.effects: what effects hold is cleared 3 days after they ended, and events are kept for 30 days: ",
		"retention: {effects: 3}\n" + schedule("retention", "{bodies: '30'}"):                 "line 2: retention.effects: what effects hold is cleared 3 days after they ended, and events are kept for 30 days: ",
	} {
		cfg, err := parseEffects("\n" + text + anEffect)
		if err != nil {
			t.Fatal(err)
		}
		told := ""
		for _, w := range cfg.EffectWarnings() {
			if strings.Contains(w, "is cleared") {
				told += w
			}
		}
		if want == "" && told != "" || !strings.HasPrefix(told, want) {
			t.Errorf("%s: %q, want %q", text, told, want)
		}
	}
}

// schedule is a configuration's line with one.
func schedule(job, parameters string) string {
	return "schedules: {forget: {job: " + job + ", cron: '@daily', parameters: " + parameters + "}}"
}

// A check that holds for an answer of 404 or 410 is told, with its line: nobody believes such a yes. What depends on more than the status nobody can say.
func TestChecksThatNobodyBelievesAreTold(t *testing.T) {
	t.Parallel()
	for done, want := range map[string]string{
		"answer.status == 200":                   "",
		"answer.status == 404":                   "line 21: effects.receipt.steps.0.check.done: holds for an answer of 404, and a yes is believed of 2xx alone",
		"answer.status == 410":                   "line 21: effects.receipt.steps.0.check.done: holds for an answer of 410",
		"answer.status < 500":                    "holds for an answer of 404",
		"answer.body == nil":                     "holds for an answer of 404",
		"len(answer.body.a) > 0":                 "",
		"answer.status == 404 && new.amount > 0": "",
		"answer.status in [200, 204] && answer.body?.deleted == nil": "",
	} {
		text := strings.Replace(anEffect, "done: answer.status == 200", "done: \""+done+"\"", 1)
		cfg, err := parseEffects(text)
		if err != nil {
			t.Fatal(err)
		}
		told := ""
		for _, w := range cfg.EffectWarnings() {
			if strings.Contains(w, "check.done") {
				told += w
			}
		}
		if want == "" && told != "" || !strings.Contains(told, want) {
			t.Errorf("%s: %q, want %q", done, told, want)
		}
	}
}
