package rules_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// large are two states of about 1 MB: many items, a long text, and a deeply nested list.
func large(t *testing.T) *rules.TemplateData {
	t.Helper()
	state := func(shift int) string {
		var items []string
		for i := range 8000 {
			items = append(items, fmt.Sprintf(
				`{"id":"li_%d","amount":%d,"price":{"id":"p_%d","currency":"eur","unit":%d}}`, i, i+shift, i, i))
		}
		return `{"items":[` + strings.Join(items, ",") + `],"text":"` + strings.Repeat("a", 400_000) + `","deep":` +
			strings.Repeat("[", 5000) + strings.Repeat("1,", 9999) + "1" + strings.Repeat("]", 5000) + `}`
	}
	return templateData(t, state(0), state(1))
}

// The work of a loop's body is bounded. Without the bound, these expressions succeed after seconds
// or minutes, never end, or exhaust the memory. With it, each takes about a second or less. The
// test allows more time for a busy machine and the race detector.
func TestExpressionEvalBool_expensiveBodies_fail(t *testing.T) {
	t.Parallel()
	f := large(t)
	for _, text := range []string{
		`all(new.items, # not in old.items)`, `all(new.items, len(toJSON(new.items)) > 0)`,
		`all(1..90000, changed("items"))`, `all(1..90000, new.items != old.items)`,
		`all(1..90000, new.text + string(#) != old.text + string(#) + "b")`, `all(1..90000, len(new.text) > 1)`,
		`replace(new.text, "a", new.text) != ""`, `repeat(new.text, 900000) != ""`,
		`reduce(1..60, #acc + #acc, new.text) != ""`,
		`reduce(1..60, [#acc, #acc], 1) == reduce(1..60, [#acc, #acc], 1)`,
		`string(reduce(1..60, [#acc, #acc], 1)) == ""`, `len(uniq(new.items)) > 0`, `len(flatten(new.deep)) > 0`,
		`len(toJSON(new.deep)) > 0`, `median(new.deep) > 0`,
		`new.text matches "(a{1000}b|a{999}c)"`, `len(sortBy(1..90000, # % 2 == 0 ? old.text : new.text)) > 0`,
		`len(groupBy(1..90000, # % 2 == 0 ? old.text : new.text)) > 0`, `all(1..90000, new[new.text] == nil)`,
		`len(map(1..900, split(new.text, ""))) > 0`, `all(1..90000, upper(new.text) != "")`,
		`all(1..90000, not (new.text contains "aaaaaaaaab"))`, `let r = 1..50000; all(r, sum(r) > 0)`,
		`let r = 1..50000; all(r, # in r)`,
		`let r = 1..50000; len(uniq(r)) > 0`, `all(1..90000, join(["a", "b"], new.text) != "")`,
		`all(1..99000, reverse(new.items) != nil)`, `all(1..90000, ` + strings.Repeat("# + ", 230) + `# > 0)`,
		`all(1..90000, date("2026-01-02").Format(new.text) != "")`,
	} {
		at := time.Now()
		if _, err := eval(t, text, f); err == nil {
			t.Errorf("%s: succeeds", text)
		}
		if elapsed := time.Since(at); elapsed > 30*time.Second {
			t.Errorf("%s: took %s", text, elapsed)
		}
	}
}

// The result of an expression is written somewhere, so its size is bounded too.
func TestTextRender_largeResult_fails(t *testing.T) {
	t.Parallel()
	c := text(t, `{{ reduce(1..60, [#acc, #acc], 1) }}`)
	if got, err := c.Render(large(t)); err == nil || !strings.Contains(err.Error(), "too much work") {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// Realistic rules stay far below the bounds, also for large objects.
func TestExpressionEvalBool_largeObjects_areWithinBounds(t *testing.T) {
	t.Parallel()
	f := large(t)
	for _, text := range []string{`new != old`, `changed("items") && !changed("text")`,
		`len(toJSON(new.items)) > 400000`, `new.items[7] in new.items`,
		`all(new.items, .price.currency == "eur" && .amount > 0)`, `new.text matches "^a+$"`,
		`all(new.items[:90], # not in old.items)`, `len(uniq(map(new.items, .price.currency))) == 1`,
		`len(sortBy(new.items, .id)) == 8000`, `sum(map(new.items, .amount)) > 0`,
		`len(filter(new.items, .amount > 10)) > 0`} {
		wantTrue(t, text, f)
	}
}

// Counting the work does not change the result of an expression.
func TestCompile_instrumentation_keepsResults(t *testing.T) {
	t.Parallel()
	f := templateData(t, `{"status":"open","tags":["a","b"],"n":1,"f":1.0,"m":{"a":1}}`,
		`{"status":"paid","tags":["b","a","b"],"n":1.0,"f":1,"m":{"a":1},"i":1,"name":"Zoë","at":"2026-01-02"}`)
	for _, text := range []string{
		`new.n == old.n`, `new.m == old.m`, `new.tags != old.tags`, `new.tags[1:] == old.tags`,
		`new.status != old.status`, `not (new.status == old.status)`, `new.none == old.none`, `new.none?.x == old.none`,
		`[1, 2] == [1.0, 2.0]`,
		`new.tags[0] in old.tags`, `new.status not in old.tags`, `"m" in new`, `object.type in ["invoice", "charge"]`,
		`new.i in 1..3`, `new.i in [new.n, 7]`, `not ("a" in new.none)`, `new.status + "!" + old.status == "paid!open"`,
		`new[object.type] == nil`, `new.tags[new.i] == "a"`, `new?.tags?.[new.i] == "a"`, `{"a": new.i}.a == old.n`,
		`changed("sta" + "tus")`, `changed("m." + new.tags[1]) == false`, `new.at > "2026" && new.at < old.status`,
		`len(new.name) == 3`, `upper(new.status) startsWith "PA"`, `sort(new.tags) == ["a", "b", "b"]`,
		`uniq(new.tags) == ["b", "a"]`, `join(new.tags, "-") == "b-a-b"`, `join(new.tags) == "bab"`,
		`replace(new.status, "p", "r") == "raid"`, `repeat("ab", new.i + 1) == "abab"`,
		`replace(new.status, "", "-", 1) == "-paid"`, `new.tags | map(# + "x") | join(",") == "bx,ax,bx"`,
		`toJSON(new.m) contains "a"`, `fromJSON("[1]")[0] == new.i`, `flatten([[1], [2, [3]]]) == [1, 2, 3]`,
		`keys(new.m) == ["a"]`, `max(new.i, 3) == 3`, `first(new.tags) == "b"`,
		`date(new.at).Year() == 2026`, `new.name matches "^Z" && !(new.status matches "^x")`,
		`len(filter(new.tags, # == "b")) == 2`, `count(new.tags, # == old.tags[1]) == 2`, `sum([new.i, 2]) == 3`,
		`groupBy(new.tags, #)["b"] == ["b", "b"]`, `sortBy(new.tags, #)[0] == "a"`,
		`reduce(new.tags, #acc + #, "") == "bab"`, `let s = new.status; s == old.status ? false : s == "pa" + "id"`,
		`get(new.m, "a") == 1`, `split("a,b", ",") == old.tags`, `int("7") + new.i == 8`, `string(new.i) == "1"`,
		`any(new.tags, {let x = #; any(old.tags, # == x)})`, `concat(new.tags, old.tags)[4] == "b"`,
	} {
		wantTrue(t, text, f)
	}
	for text, want := range map[string]string{`new.status matches old.status`: "literal in quotes",
		`new.status matches "("`: "missing closing", `len(1) > 0`: "len", `"a" + 1 == "b"`: "mismatched"} {
		if _, err := rules.Compile(text, change, true); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want one about %s", text, err, want)
		}
	}
}

func wantTrue(t *testing.T, text string, f *rules.TemplateData) {
	t.Helper()
	if got, err := eval(t, text, f); err != nil || !got {
		t.Errorf("%s: %t, %v", text, got, err)
	}
}

func text(t *testing.T, s string) *rules.Text {
	t.Helper()
	c, err := rules.CompileText(s, change)
	must(t, err)
	return c
}

// A request that the ledger cannot store unchanged is not sent, because a repetition would differ.
func TestRequestRender_unstorableText_fails(t *testing.T) {
	t.Parallel()
	f := templateData(t, ``, `{"nul":"YQBi","name":"Zoë"}`)
	request := func() rules.Request { return rules.Request{Method: "POST", Path: text(t, "/x")} }
	for what, broken := range map[string]string{"NUL": `{{ fromBase64(new.nul) }}`, "UTF-8": `{{ new.name[:3] }}`} {
		tree, err := rules.CompileTree(map[string]any{"a": broken, "b": "x " + broken}, change)
		must(t, err)
		for part, set := range map[string]func(*rules.Request){
			"path":    func(r *rules.Request) { r.Path = text(t, "/x/"+broken) },
			"headers": func(r *rules.Request) { r.Headers = map[string]*rules.Text{"X-A": text(t, broken)} },
			"text":    func(r *rules.Request) { r.Text = text(t, "a"+broken) },
			"form":    func(r *rules.Request) { r.Form = map[string]*rules.Text{"a": text(t, broken)} },
			"json":    func(r *rules.Request) { r.JSON = tree },
		} {
			r := request()
			set(&r)
			if got, err := r.Render(f, "k"); err == nil || !strings.Contains(err.Error(), part) ||
				!strings.Contains(err.Error(), what) {
				t.Errorf("%s in %s: %+v, %v", what, part, got, err)
			}
		}
	}
	literal := request()
	literal.Text = text(t, "a\x00b")
	if got, err := literal.Render(f, "k"); err == nil {
		t.Errorf("literal NUL: %+v", got)
	}
	whole := request()
	whole.Text = text(t, "{{ new.name }}")
	if got, err := whole.Render(f, "k"); err != nil || got.Body != "Zoë" {
		t.Errorf("%+v, %v", got, err)
	}
}

// An error with a value in it is short and can be stored.
func TestTextRender_errors_areShortAndStorable(t *testing.T) {
	t.Parallel()
	f := templateData(t, ``, `{"nul":"YQBi","text":"`+strings.Repeat("é", 9000)+`"}`)
	for _, of := range []string{`{{ date(fromBase64(new.nul)) }}`, `{{ date(new.text) }}`, `{{ date(new.text[:3]) }}`} {
		_, err := text(t, of).Render(f)
		if err == nil || strings.ContainsRune(err.Error(), 0) || !utf8.ValidString(err.Error()) ||
			len(err.Error()) > 600 || !strings.Contains(err.Error(), "invalid date") {
			t.Errorf("%s: %.700q", of, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
