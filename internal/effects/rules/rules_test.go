package rules_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/timetable"
)

var change = rules.Scope{Change: true, Steps: map[string][]string{"customer": {"id"}}}

func templateData(t *testing.T, old, now string) *rules.TemplateData {
	t.Helper()
	f := &rules.TemplateData{Object: rules.Object{Source: "stripe", Type: "invoice", ID: "in_1"},
		Event: rules.Event{ID: "7", Key: "evt_1", Type: "invoice.paid"},
		Steps: map[string]map[string]any{"customer": {"id": "c 1/2"}}}
	var err error
	if f.Old, err = rules.Decode([]byte(old)); err != nil {
		t.Fatal(err)
	}
	if f.New, err = rules.Decode([]byte(now)); err != nil {
		t.Fatal(err)
	}
	return f
}

// eval evaluates a condition.
func eval(t *testing.T, text string, f *rules.TemplateData) (bool, error) {
	t.Helper()
	e, err := rules.Compile(text, change, true)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return e.EvalBool(f)
}

// Conditions see the change. An optional access to a missing value is not an error.
func TestExpressionEvalBool_conditions_seeTheChange(t *testing.T) {
	t.Parallel()
	f := templateData(t, `{"status":"open","lines":[{"amount":5}],"n":1.50}`,
		`{"status":"paid","lines":[{"amount":5},{"amount":7}],"n":1.5,"customer":null,"big":9007199254740993}`)
	for text, want := range map[string]bool{
		`new.status == "paid" && changed("status")`:   true,
		`old.status == new.status`:                    false,
		`changed("n")`:                                false,
		`changed("lines.0.amount")`:                   false,
		`changed("lines.1")`:                          true,
		`changed("lines.1.amount") && old != nil`:     true,
		`changed("customer")`:                         true,
		`new.customer?.email == nil`:                  true,
		`any(new.lines, .amount > 6)`:                 true,
		`sum(new.lines, .amount) == 12`:               true,
		`event.type == "invoice.paid"`:                true,
		`!object.deleted`:                             true,
		`new.big == 9007199254740993`:                 true,
		`any(new.lines, any(old.lines, #.amount==5))`: true,
	} {
		if got, err := eval(t, text, f); err != nil || got != want {
			t.Errorf("%s: %t, %v", text, got, err)
		}
	}
	wantTrue(t, `old == nil`, templateData(t, ``, `{}`)) // a created object
}

// Compile rejects an invalid expression and names its position.
func TestCompile_invalidExpressions_areRejectedWithPosition(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		``:                                  "is empty",
		`new.`:                              "column",
		`event.tpye == "x"`:                 "tpye",
		`nwe.status == "x"`:                 "nwe",
		`new.status == "x" ? 1 : 2`:         "bool",
		`steps.custmer.id == "1"`:           "custmer",
		`steps.customer.name == "1"`:        "name",
		`now() > date("2026-01-01")`:        "now",
		`window.start == ""`:                "window",
		`changed(1)`:                        "changed",
		strings.Repeat("1+", 400) + "1 > 0": "nodes",
	} {
		if _, err := rules.Compile(text, change, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want one about %s", text, err, want)
		}
	}
	if _, err := rules.Compile(`changed("x")`, rules.Scope{Window: true}, true); err == nil {
		t.Error("a schedule has no change")
	}
}

// An expression that would run without end, or use all memory, fails.
func TestExpressionEvalBool_endlessExpressions_fail(t *testing.T) {
	t.Parallel()
	f := templateData(t, `{}`, `{"a":[`+strings.Repeat("1,", 1999)+`1]}`)
	for _, text := range []string{`all(new.a, all(new.a, all(new.a, true)))`,
		`count(1..90000, count(1..90000, true) > 0) > 0`, `len(map(1..50000, 1..50000)) > 0`,
		`repeat("x", 1000000000) == ""`} {
		if _, err := eval(t, text, f); err == nil || !strings.Contains(err.Error(), "is too much work") &&
			!strings.Contains(err.Error(), "creates more than 100000 elements") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A template renders its values, and no value becomes a part of the surrounding text.
func TestTextRender_valuesStayWithinTheirPlace(t *testing.T) {
	t.Parallel()
	f := templateData(t, ``, `{"id":"in_1","total":12.30,"name":"\"}, {\"evil\": 1","lines":[1,2],"none":null,`+
		`"big":12345678901234567890.5,"free":0}`)
	for of, want := range map[string]string{
		`plain`: "plain", ``: "", `email:receipt:{{ new.id }}`: "email:receipt:in_1", `{{new.total}} EUR`: "12.3 EUR",
		`{{ {"a": {"b": 1}}.a.b }}`: "1", `{{ "}}" + new.id }}`: "}}in_1",
		`{{ new.lines }}`: "[1,2]", `{{ new.none ?? "-" }}`: "-", `{{ new.big }}`: "12345678901234567890.5",
		`{{new.free}}`: "0",
	} {
		if got, err := text(t, of).Render(f); err != nil || got != want {
			t.Errorf("%s: %q, %v", of, got, err)
		}
	}
	for text, want := range map[string]string{`a{{`: "has no }}", `{{ }}`: "is empty", `{{ "}} `: "has no }}",
		`{{ new.id + }}`: "column"} {
		if _, err := rules.CompileText(text, change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if got, err := text(t, "x{{ new.none }}").Render(f); err == nil {
		t.Errorf("null renders as %q", got)
	}
	at := text(t, `https://h/customers/{{ steps.customer.id }}?q={{ steps.customer.id }}`)
	if got, err := at.RenderURL(f); err != nil || got != "https://h/customers/c%201%2F2?q=c+1%2F2" {
		t.Errorf("address %q, %v", got, err)
	}
}

// No value changes the resource that a path addresses, neither to the collection nor to a parent.
func TestTextRenderURL_traversalInValues_isRejected(t *testing.T) {
	t.Parallel()
	for path, ids := range map[string][]string{
		"/customers/{{ new.id }}":             {"", ".", "..", "../x", "x/..", `..\x`},
		"/customers/{{ new.id }}/x?a=1":       {"", ".", ".."},
		"{{ new.id }}":                        {"", ".."},
		"/customers/{{ new.id }}{{ new.id }}": {"", "."},
		"/customers/.{{ new.id }}":            {"."},
		"/customers/%2e{{ new.id }}?b=/c":     {"."},
	} {
		for _, id := range ids {
			if got, err := text(t, path).RenderURL(&rules.TemplateData{New: map[string]any{"id": id}}); err == nil {
				t.Errorf("%s with %q: %q", path, id, got)
			}
		}
	}
	for path, want := range map[string]string{"/c/{{ new.id }}": "/c/...", "/c/v{{ new.id }}/": "/c/v.../",
		"/c/.{{ new.id }}.json?q={{ new.none ?? '' }}&p={{ '..' }}": "/c/.....json?q=&p=..",
		"/c/../d/{{ new.id }}": "/c/../d/...", "/c/{{ '%2e%2e' }}": "/c/%252e%252e"} {
		if got, err := text(t, path).RenderURL(&rules.TemplateData{New: map[string]any{"id": "..."}}); err != nil ||
			got != want {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
}

// A tree keeps its structure, whatever the values contain.
func TestTreeRender_keepsItsStructure(t *testing.T) {
	t.Parallel()
	f := templateData(t, ``, `{"id":"in_1","total":12.5,"name":"\"}, {\"evil\": 1","none":null}`)
	tree, err := rules.CompileTree(map[string]any{"to": "{{ new.name }}",
		"lines": []any{map[string]any{"amount": "{{ new.total }}", "fixed": 3, "n": "{{ new.none }}",
			"t": "a {{ new.id }}"}}}, change)
	must(t, err)
	got, err := tree.Render(f)
	must(t, err)
	b, err := json.Marshal(got)
	if err != nil || string(
		b) != `{"lines":[{"amount":12.5,"fixed":3,"n":null,"t":"a in_1"}],"to":"\"}, {\"evil\": 1"}` {
		t.Errorf("%s, %v", b, err)
	}
	if _, err := rules.CompileTree(map[string]any{"a": []any{"x", "{{ nwe }}"}}, change); err == nil ||
		!strings.HasPrefix(err.Error(), "a.1: ") {
		t.Errorf("the path of the wrong value: %v", err)
	}
}

// Null of a state is sent as null. Null of a captured value is an error, because a later step needs
// the value.
func TestRequestRender_nullOfCapturedValue_fails(t *testing.T) {
	t.Parallel()
	f := templateData(t, ``, `{"none":null}`)
	f.Steps["customer"]["id"] = nil
	for of, want := range map[string]string{`{{ new.none }}`: `{"a":null}`,
		`{{ steps.customer.id ?? "-" }}`: `{"a":"-"}`, `{{ steps.customer.id == nil }}`: `{"a":true}`,
		`{{ steps.customer.id }}`: "", `{{ steps["customer"].id }}`: "", `{{ true ? steps.customer.id : 1 }}`: ""} {
		tree, err := rules.CompileTree(map[string]any{"a": of}, change)
		must(t, err)
		r := rules.Request{Path: text(t, "/"), JSON: tree}
		got, err := r.Render(f, "k")
		if want == "" && (err == nil || !strings.Contains(err.Error(), "json: a: ") ||
			!strings.Contains(err.Error(), "is null")) || want != "" && (err != nil || got.Body != want) {
			t.Errorf("%s: %s, %v, want %q", of, got.Body, err, want)
		}
	}
}

// A decoded number prints as it was written.
func FuzzDecode_numbersPrintUnchanged(f *testing.F) {
	for _, n := range []string{"1", "-0", "1.50", "9007199254740993", "1e3", "0.1", "12345678901234567890", "1E-7",
		"100", "1.0"} {
		f.Add(n)
	}
	scope := rules.Scope{}
	c, err := rules.CompileText("{{ new.n }}", scope)
	must(f, err)
	f.Fuzz(func(t *testing.T, text string) {
		state, err := rules.Decode([]byte(`{"n":` + text + `}`))
		if _, ok := state["n"]; err != nil || !ok || len(state) != 1 || strings.ContainsAny(text, "\"[{tfn \n\t\r,:") {
			return
		}
		got, err := c.Render(&rules.TemplateData{New: state})
		want := text
		if strings.Contains(text, ".") && !strings.ContainsAny(text, "eE") {
			want = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
		}
		if err != nil || got != want && got != text && !(got == "0" && want == "-0") {
			t.Errorf("%s is printed as %s, %v", text, got, err)
		}
	})
}

// The waits that docs/reference/configuration.md documents.
func TestRetryWait_documentedSchedule(t *testing.T) {
	t.Parallel()
	retry := rules.Retry{FirstWait: 2 * time.Second, Factor: 2, MaxWait: 10 * time.Minute, MaxAttempts: 20}
	var waits []int
	total := 0
	for attempt := 1; attempt < retry.MaxAttempts; attempt++ {
		seconds := int(retry.Wait(attempt, 0.5).Round(time.Millisecond).Seconds())
		waits, total = append(waits, seconds), total+seconds
	}
	if want := append([]int{2, 4, 8, 16, 32, 64, 128, 256, 512}, slices.Repeat([]int{600}, 10)...); !slices.Equal(waits,
		want) || total/60 != 117 {
		t.Errorf("waits of %v, %d s in all, want %v", waits, total, want)
	}
	if least, most := retry.Wait(3, 0), retry.Wait(3, 1); least < 6*time.Second || most > 10*time.Second ||
		least == most {
		t.Errorf("the third is between %s and %s, want 8 s, a fifth more or less", least, most)
	}
}

// Windows depend on the schedule only. However often NextWindow is called, they are adjacent, also
// when clocks change.
func TestScheduleNextWindow_windowsAreAdjacent(t *testing.T) {
	t.Parallel()
	for _, cron := range []string{"0 * * * *", "30 2 * * *", "*/20 1-3 * * *", "0 9 * * 1", "0 0 29 2 *"} {
		for _, zone := range []string{"UTC", "Europe/Berlin", "America/New_York"} {
			times, err := timetable.Parse(cron, zone)
			must(t, err)
			s := &rules.Schedule{Times: times, CatchUp: 10_000}
			began := time.Date(2026, 3, 26, 11, 11, 0, 0, time.UTC)
			until, steps := began.AddDate(0, 0, 7), []time.Duration{7 * time.Minute, 26 * time.Hour, 7 * 24 * time.Hour}
			if cron == "0 0 29 2 *" {
				until, steps = began.AddDate(9, 0, 0), []time.Duration{300 * 24 * time.Hour}
			}
			for _, step := range steps {
				last, n := time.Time{}, 0
				doneUntil := began
				for now := began; !now.After(until); now = now.Add(step) {
					for {
						end, skipped := s.NextWindow(doneUntil, now)
						if end.IsZero() {
							break
						}
						start := s.WindowStart(end)
						if !skipped.IsZero() || end.After(now) || !start.Before(end) || !last.IsZero() &&
							!start.Equal(last) {
							t.Fatalf("%s in %s, at %s: from %s to %s, the one before ended %s, skipped from %s", cron,
								zone, now, start, end, last, skipped)
						}
						doneUntil, last, n = end, end, n+1
					}
				}
				if n == 0 {
					t.Errorf("%s in %s has no window", cron, zone)
				}
			}
		}
	}
}
