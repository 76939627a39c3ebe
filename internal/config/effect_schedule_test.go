package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// aSummary is a rule on a schedule.
const aSummary = `
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  mail: {url: "https://mail.example.com/v1"}
effects:
  summary:
    source: shop
    type: customer
    schedule: {cron: "0 9 * * 1", time_zone: Europe/Berlin}
    when: new.active == true && object.id != ""
    key: "summary:{{ new.id }}:{{ window.end }}"
    steps:
      - name: send
        to: mail
        path: "/messages"
        json: {to: "{{ new.email }}", from: "{{ window.start }}", until: "{{ window.end }}"}
        check: {path: "/messages?until={{ window.end }}", done: "answer.status == 200 && window.end != \"\""}
`

func TestEffectSchedule_yaml_becomesRule(t *testing.T) {
	t.Parallel()
	c := parse(t, aSummary)
	r := c.Rules()[0]
	s := r.Schedule
	if r.On != rules.OnSchedule || s.Cron != "0 9 * * 1" || s.TimeZone != "Europe/Berlin" || s.WindowLength != 0 ||
		s.CatchUp != 100 {
		t.Errorf("%+v, %+v", r, s)
	}
	end := s.Times.Next(time.Date(2026, 3, 25, 0, 0, 0, 0, time.UTC))
	if got := end.Sub(s.WindowStart(end)); got != 167*time.Hour { // clocks were put forward in between
		t.Errorf("from %s to %s: %s", s.WindowStart(end), end, got)
	}
	f := &rules.TemplateData{New: map[string]any{"id": "cus_1", "email": "a@b.example"},
		Window: rules.Window{Start: "s", End: "e"}}
	got, err := r.Steps[0].Do.Render(f, "k")
	if want := `{"from":"s","to":"a@b.example","until":"e"}`; err != nil || got.Body != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// Errors in a rule on a schedule are reported with their line. Such a rule has no change.
func TestEffectSchedule_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	const schedule = `{cron: "0 9 * * 1", time_zone: Europe/Berlin}`
	checkMistakes(t, aSummary, map[string]struct{ old, new, want string }{
		"the state before": {"new.active == true", "old == nil", "12: effects.summary.when: column 1: unknown name " +
			"old: a rule on a schedule can use new, object and window"},
		"the event": {"{{ window.end }}\"\n", "{{ event.id }}\"\n",
			"13: effects.summary.key: {{ event.id }}: column 1: unknown name event: a rule on a schedule can use"},
		"what changed": {"new.active == true", `changed("active")`,
			"unknown name changed: a rule on a schedule can use"},
		"an event to send": {`until: "{{ window.end }}"`, `until: "{{ event.id }}"`,
			"effects.summary.steps.0.json.until: {{ event.id }}: column 1: unknown name event: a rule on a schedule " +
				"can use"},
		"a key of all":      {"{{ new.id }}:", "", "13: effects.summary.key: does not contain the"},
		"a cron expression": {"0 9 * * 1", "0 9 * *", "11: effects.summary.schedule.cron: "},
		"a zone":            {"Europe/Berlin", "Europe/Berlinn", "11: effects.summary.schedule.time_zone: "},
		"a window alone":    {schedule, "{window: 3h}", "11: effects.summary.schedule.window: has an effect only"},
		"a zone alone": {schedule, "{time_zone: Europe/Berlin}",
			"11: effects.summary.schedule.time_zone: has an effect only"},
		"catching up alone": {schedule, "{catch_up: 1}", "11: effects.summary.schedule.catch_up: has an effect only"},
		"a short window":    {schedule, `{cron: "0 9 * * 1", window: 3s}`, "effects.summary.schedule.window: "},
		"no catching up":    {schedule, `{cron: "0 9 * * 1", catch_up: -1}`, "effects.summary.schedule.catch_up: "},
		"superseding": {"    type: customer\n", "    type: customer\n    supersede: true\n",
			"effects.summary.supersede: applies to rules about changes"},
		"a window's middle": {"{{ window.end }}\"\n", "{{ window.middle }}\"\n", "13: effects.summary.key: "},
	})
	both := strings.Replace(aSummary, "    type: customer\n", "    type: customer\n    each: event\n", 1)
	checkRejected(t, both, "effects.summary.each: does not apply to a rule on a")
	change := strings.Replace(aSummary, "    schedule: "+schedule+"\n", "", 1)
	// a rule about changes has no window
	checkRejected(t, change, "unknown name window: a rule about a change can use old, new, object, event and changed()")
}

// Overlapping windows with a key that names the window are reported, because a change in two
// windows has two effects.
func TestEffectWarnings_overlappingWindows_areReported(t *testing.T) {
	t.Parallel()
	const schedule, key = `{cron: "0 9 * * 1", time_zone: Europe/Berlin}`, "summary:{{ new.id }}:{{ window.end }}"
	const overlap = "the windows overlap and the key contains the window"
	for _, tc := range []struct{ schedule, key, want string }{
		{schedule, key, ""},
		{`{cron: "0 9 * * 1", window: 168h}`, key, ""},
		{`{cron: "0 9 * * 1", window: 169h}`, key, overlap},
		{`{cron: "0 9 * * 1", window: 169h}`, "summary:{{ new.id }}", ""},
		{`{cron: "0 9,17 * * 1", window: 8h}`, key, ""},
		{`{cron: "0 9,17 * * 1", window: 9h}`, key, overlap},
	} {
		text := strings.NewReplacer(schedule, tc.schedule, key, tc.key).Replace(aSummary)
		checkWarning(t, tc.schedule+", "+tc.key, text, overlap, tc.want)
	}
}

// A key with the start of the window is reported, because windows of another schedule may begin at
// the same time.
func TestEffectWarnings_keyOfWindowStart_isReported(t *testing.T) {
	t.Parallel()
	const start = "effects.summary: the key contains the start of the window but not its end"
	for key, want := range map[string]string{"{{ window.start }}": start, "{{ window.start }}-{{ window.end }}": "",
		"{{ window.end }}": "", "x": ""} {
		text := strings.Replace(aSummary, "new.id }}:{{ window.end }}", "new.id }}:"+key, 1)
		checkWarning(t, key, text, start, want)
	}
}

// anEventRule is a rule that is evaluated for each event.
var anEventRule = strings.NewReplacer("    schedule: {cron: \"0 9 * * 1\", time_zone: Europe/Berlin}\n",
	"    each: event\n", `new.active == true && object.id != ""`, `event.type == "customer.updated"`,
	"summary:{{ new.id }}:{{ window.end }}", "told:{{ event.id }}", "{{ window.start }}", "{{ event.key }}",
	"{{ window.end }}", "{{ object.id }}", `window.end != \"\"`, `event.id != \"\"`).Replace(aSummary)

// A rule for each event uses the event's content, and its key names the event.
func TestEffect_eachEvent_becomesRule(t *testing.T) {
	t.Parallel()
	c := parse(t, anEventRule)
	if r := c.Rules()[0]; r.On != rules.OnEvent || r.Schedule != nil {
		t.Errorf("%+v", r)
	}
	if _, err := parseEffects(strings.Replace(anEventRule, "{{ event.id }}", "{{ event.key }}", 1)); err != nil {
		t.Errorf("the sender's key does not name the event: %v", err)
	}
	checkMistakes(t, anEventRule, map[string]struct{ old, new, want string }{
		"the state before": {`event.type ==`, `old.type ==`, "effects.summary.when: column 1: unknown name " +
			"old: a rule about each event can use new, object and event"},
		"what changed": {`event.type == "customer.updated"`, `changed("email")`,
			"unknown name changed: a rule about each event can use"},
		"a window": {`{{ event.key }}`, `{{ window.start }}`,
			"unknown name window: a rule about each event can use"},
		"a key without the event": {"{{ event.id }}", "{{ object.id }}",
			"effects.summary.key: does not contain the event"},
		"another part of it": {"{{ event.id }}", "{{ event.type }}",
			"effects.summary.key: does not contain the event"},
		"superseding": {"    each: event\n", "    each: event\n    supersede: true\n",
			"effects.summary.supersede: applies to rules about changes"},
		"each of what": {"    each: event\n", "    each: day\n", "effects.summary.each: "},
	})
}
