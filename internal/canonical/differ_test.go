package canonical_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
)

func TestDiffer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		before, after string
		want          []string
	}{
		{`{"a":1,"b":[1,2]}`, `{"b":[1.0,2],"a":1e0}`, nil},
		{`null`, `{"a":1}`, []string{`state: null -> {"a":1}`}},
		{`{"a":{"b":1,"c":2},"x y":"1"}`, `{"a":{"b":2,"d":null},"x y":1}`, []string{`state.a.b: 1 -> 2`, `state.a.c: 2 -> `, `state.a.d:  -> null`, `state["x y"]: "1" -> 1`}},
		{`[1,[2,3],{"q":[]}]`, `[1,[2],{"q":{}},4]`, []string{`state[1][1]: 3 -> `, `state[2].q: [] -> {}`, `state[3]:  -> 4`}},
		{`{"":1,"a":1,"a":2}`, `{"":2,"a":2}`, []string{`state[""]: 1 -> 2`}},
	} {
		before, err1 := canonical.Parse([]byte(c.before))
		after, err2 := canonical.Parse([]byte(c.after))
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		var got []string
		canonical.Differ("state", before, after, func(path string, before, after *canonical.Value) bool {
			got = append(got, fmt.Sprintf("%s: %s -> %s", path, before.Raw(), after.Raw()))
			return true
		})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s and %s: %s", c.before, c.after, diff)
		}
		n := 0
		canonical.Differ("", before, after, func(string, *canonical.Value, *canonical.Value) bool { n++; return false })
		if n != min(1, len(c.want)) {
			t.Errorf("visited %d times after it was ended", n)
		}
	}
}
