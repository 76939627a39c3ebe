package canonical_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/canonical"
)

func TestAppendOverlay_changes_areMerged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ state, changes, want string }{
		{`{"a":1,"b":2}`, `{"b":3}`, `{"a":1,"b":3}`},
		{`{"a":1}`, `{}`, `{"a":1}`},
		{`{"a":1}`, `{"b":{"c":null,"d":1}}`, `{"a":1,"b":{"d":1}}`},
		{`{"a":1,"b":2}`, `{"a":null,"x":null}`, `{"b":2}`},
		{`{"o":{"a":1,"b":{"c":2,"d":3}}}`, `{"o":{"b":{"c":null,"e":5}}}`, `{"o":{"a":1,"b":{"d":3,"e":5}}}`},
		{`{"l":[1,2,{"a":1}]}`, `{"l":[{"a":null}]}`, `{"l":[{"a":null}]}`},
		{`{"o":{"a":1}}`, `{"o":5}`, `{"o":5}`},
		{`{"o":5}`, `{"o":{"a":1}}`, `{"o":{"a":1}}`},
		{`{"a":1,"a":{"x":1}}`, `{"a":0,"a":{"y":2}}`, `{"a":{"x":1,"y":2}}`},
		{`{"\u0061":1}`, `{"a":2}`, `{"a":2}`},
		{`{"\ud800":1,"\ud801":1}`, `{"\ud800":2}`, `{"\ud800":2,"\ud801":1}`},
		{`{"a":1}`, `7`, `7`},
		{`{"a":1}`, `null`, `null`},
		{`7`, `{"a":1}`, `{"a":1}`},
	} {
		state, changes := parse(t, c.state), parse(t, c.changes)
		if got := overlay(state, changes); got != c.want {
			t.Errorf("%s over %s: %s, want %s", c.changes, c.state, got, c.want)
		}
		if string(state.Raw()) != c.state || string(changes.Raw()) != c.changes {
			t.Errorf("%s over %s changed an input", c.changes, c.state)
		}
	}
}

func TestAppendOverlay_missingValues_areHandled(t *testing.T) {
	t.Parallel()
	v := parse(t, `{"a":1,"b":null}`)
	if got := overlay(v, nil); got != `{"a":1,"b":null}` {
		t.Errorf("no changes give %s", got)
	}
	if got := overlay(nil, v); got != `{"a":1}` {
		t.Errorf("changes over a missing value give %s", got)
	}
	if got := overlay(nil, nil); got != "null" {
		t.Errorf("a missing value over a missing value is %s", got)
	}
}

func overlay(state, changes *canonical.Value) string {
	return string(canonical.AppendOverlay(nil, state, changes, canonical.Options{}))
}

func TestAppendOverlay_without_leavesOutPaths(t *testing.T) {
	t.Parallel()
	state := parse(t, `{"n":null,"o":{"n":null,"v":1,"w":2},"u":{"v":1},"v":{"x":1}}`)
	changes := parse(t, `{"o":{"v":3,"x":[null,{"n":null}]},"p":{"v":4,"w":5},"v":{"y":{"n":null,"z":1}}}`)
	got := string(canonical.AppendOverlay([]byte("+"), state, changes,
		canonical.Options{DropNull: true, Without: []string{"o.v", "p.w", "u", "v.x"}}))
	if want := `+{"o":{"w":2,"x":[null,{}]},"p":{"v":4},"v":{"y":{"z":1}}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// merge does the same with the trees of encoding/json.
func merge(state, changes any) any {
	over, ok := changes.(map[string]any)
	if !ok {
		return changes
	}
	result := map[string]any{}
	under, _ := state.(map[string]any)
	for k, x := range under {
		result[k] = x
	}
	for k, x := range over {
		if x == nil {
			delete(result, k)
			continue
		}
		result[k] = merge(under[k], x)
	}
	return result
}

func TestAppendOverlay_randomTrees_equalReference(t *testing.T) {
	t.Parallel()
	// encoding/json cannot distinguish lone surrogates, so this test does not use them.
	documents := document().Filter(func(s string) bool { return !strings.Contains(s, `\ud`) })
	rapid.Check(t, func(t *rapid.T) {
		a, b := documents.Draw(t, "state"), documents.Draw(t, "changes")
		if b == "null" {
			b = "{}"
		}
		va, _ := canonical.Parse([]byte(a))
		vb, _ := canonical.Parse([]byte(b))
		got := overlay(va, vb)
		if diff := cmp.Diff(exact(merge(tree(t, a), tree(t, b))), exact(tree(t, got))); diff != "" {
			t.Fatalf("%s over %s (-want +got):\n%s", b, a, diff)
		}
		whole, err := canonical.Parse([]byte(got))
		if err != nil || text(whole) != got {
			t.Fatalf("%s over %s is not canonical: %s (%v)", b, a, got, err)
		}
		// The overlay leaves out the same paths as the merged value.
		o := canonical.Options{DropNull: true,
			Without: rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "a.b", "b.a", "a.a.b"}), 0, 3).Draw(t,
				"without")}
		if left, want := canonical.AppendOverlay(nil, va, vb, o),
			whole.AppendCanonical(nil, o); string(left) != string(want) {
			t.Fatalf("%s over %s without %v: %s, want %s", b, a, o.Without, left, want)
		}
	})
}

func tree(t *rapid.T, text string) (v any) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("decode %s: %v", text, err)
	}
	return v
}

func TestStorable_values_areSanitized(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("7", 1001)
	for _, c := range []struct {
		in, want  string
		sanitized bool
	}{
		{` {"a": [1, "x\ud83d\ude00"]} `, `{"a": [1, "x\ud83d\ude00"]}`, false},
		{`{"a":"x\u0000y"}`, `{"a":"x` + "\uFFFD" + `y"}`, true},
		{`{"\u0000k":"\ud800", "b" : {"c": 1.50}}`, `{"` + "\uFFFD" + `k":"` + "\uFFFD" + `","b":{"c": 1.50}}`, true},
		{`["\\u0000"]`, `["\\u0000"]`, false},
		{`["\udc00\ud800"]`, `["` + "\uFFFD\uFFFD" + `"]`, true},
		{`[1e300,1E-300,1e+0300]`, `[1e300,1E-300,1e+0300]`, false},
		{`[1e301, -2.5E-99999999999999999999]`, `["1e301","-2.5E-99999999999999999999"]`, true},
		{long[1:], long[1:], false},
		{long, `"` + long + `"`, true},
		{`0.` + long, `"0.` + long + `"`, true},
		{`[{"a":"\u0000","b":[]},2]`, `[{"a":"` + "\uFFFD" + `","b":[]},2]`, true},
	} {
		got, sanitized := parse(t, c.in).Storable()
		if string(got) != c.want || sanitized != c.sanitized {
			t.Errorf("%.60s: %.60s (sanitized %v), want %.60s (%v)", c.in, got, sanitized, c.want, c.sanitized)
		}
	}
	if got, sanitized := (*canonical.Value)(nil).Storable(); string(got) != "null" || sanitized {
		t.Errorf("a missing value is stored as %s", got)
	}
}

func TestVisitDifferences_values_listsPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after string
		want          []string
	}{
		{`{"a":1,"b":[1,2]}`, `{"b":[1.0,2],"a":1e0}`, nil},
		{`null`, `{"a":1}`, []string{`state: null -> {"a":1}`}},
		{`{"a":{"b":1,"c":2},"x y":"1"}`, `{"a":{"b":2,"d":null},"x y":1}`,
			[]string{`state.a.b: 1 -> 2`, `state.a.c: 2 -> `, `state.a.d:  -> null`, `state["x y"]: "1" -> 1`}},
		{`[1,[2,3],{"q":[]}]`, `[1,[2],{"q":{}},4]`, []string{`state[1][1]: 3 -> `, `state[2].q: [] -> {}`,
			`state[3]:  -> 4`}},
		{`{"":1,"a":1,"a":2}`, `{"":2,"a":2}`, []string{`state[""]: 1 -> 2`}},
	} {
		before, err1 := canonical.Parse([]byte(c.before))
		after, err2 := canonical.Parse([]byte(c.after))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		var got []string
		canonical.VisitDifferences("state", before, after, func(path string, before, after *canonical.Value) bool {
			got = append(got, fmt.Sprintf("%s: %s -> %s", path, before.Raw(), after.Raw()))
			return true
		})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s and %s: %s", c.before, c.after, diff)
		}
		n := 0
		canonical.VisitDifferences("", before, after,
			func(string, *canonical.Value, *canonical.Value) bool { n++; return false })
		if n != min(1, len(c.want)) {
			t.Errorf("visited %d times after visit returned false", n)
		}
	}
}
