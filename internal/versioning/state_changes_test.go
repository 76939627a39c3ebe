package versioning_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

// The list and the count end at a limit, also where one long key is in the path of each change.
func TestListStateChanges_manyChanges_areTruncated(t *testing.T) {
	t.Parallel()
	object := func(key string, value, n int) *versioning.State {
		var members []string
		for i := range n {
			members = append(members, fmt.Sprintf(`"k%d": %d`, i, value))
		}
		return &versioning.State{JSON: fmt.Appendf(nil, `{%q: {%s}}`, key, strings.Join(members, ","))}
	}
	for _, c := range []struct{ keyBytes, members, want int }{{1, 2000, 2000}, {1, 2001, 2000}, {1 << 20, 60_000, 3}} {
		key := strings.Repeat("k", c.keyBytes)
		changes, truncated, err := versioning.ListStateChanges(object(key, 1, c.members), object(key, 2, c.members))
		testkit.Must(t, err)
		if len(changes) != c.want || truncated != (c.members > 2000) {
			t.Errorf("%d members: %d changes, truncated %t", c.members, len(changes), truncated)
		}
		size, err := versioning.CountStateChanges(object(key, 1, c.members), object(key, 2, c.members))
		testkit.Must(t, err)
		if want := (versioning.ChangeSize{Changed: 2000, Truncated: c.members > 2000}); size != want {
			t.Errorf("%d members: %+v", c.members, size)
		}
	}
	large := &versioning.State{JSON: []byte(`"` + strings.Repeat("x", 2<<20) + `"`)}
	_, _, err := versioning.ListStateChanges(nil, large)
	var tooLarge *versioning.StateTooLargeError
	if !errors.As(err, &tooLarge) {
		t.Error(err)
	}
}

func TestListStateChanges_longStrings_areShortened(t *testing.T) {
	t.Parallel()
	long, context := strings.Repeat("ä", 1000), strings.Repeat("ä", 64)
	for _, c := range []struct{ before, after, wantBefore, wantAfter string }{
		{long + "x", long + "y", "…" + context + "x", "…" + context + "y"},
		{"x" + long, "yz" + long, "x" + context + "…", "yz" + context + "…"},
		{long + "ä" + long, long + "å" + long,
			"…" + context + "ä" + context + "…", "…" + context + "å" + context + "…"},
		{long, "short", strings.Repeat("ä", 256) + "…" + strings.Repeat("ä", 256), "short"},
		{long + long, long, "…" + strings.Repeat("ä", 256) + "…" + strings.Repeat("ä", 256),
			"…" + context},
	} {
		text := func(s string) *versioning.State {
			b, err := json.Marshal(s)
			testkit.Must(t, err)
			return &versioning.State{JSON: b}
		}
		changes, _, err := versioning.ListStateChanges(text(c.before), text(c.after))
		testkit.Must(t, err)
		var before, after string
		testkit.Must(t, json.Unmarshal(changes[0].Before, &before))
		testkit.Must(t, json.Unmarshal(changes[0].After, &after))
		if before != c.wantBefore || after != c.wantAfter || !changes[0].Shortened {
			t.Errorf("%.20q, %d bytes: got\n%s\n%s\nwant\n%s\n%s", c.before, len(c.before), before, after, c.wantBefore,
				c.wantAfter)
		}
	}
}
