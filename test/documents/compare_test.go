package documents_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// anyLines is a shown line that stands for any number of lines, and a shown token at the end of a
// line that stands for any tokens.
const anyLines = "..."

// variable matches what differs from run to run. The first group is an id. Ids of a page must
// belong to each other: where a page shows an id twice, the command must print one id twice.
var variable = regexp.MustCompile(`\b(evt_[0-9A-Za-z]+|\d{19})\b` +
	`|\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?` +
	`|\b\d\d:\d\d(:\d\d(\.\d+)?)?\b` +
	`|\b1[789]\d{8}\b` + // seconds since 1970
	`|\b(127\.0\.0\.1|localhost|\[::1\]):\d+` +
	`|\b(\d+(\.\d+)?(ns|[µu]s|ms|s|m|h|d))+\b` +
	`|\b\d+(\.\d+)?( (ms|s|h|seconds?|minutes?|hours?|days?)\b|%)` +
	`|\b[0-9a-f]{64}\b` +
	`|\bpid=\d+`)

// plain returns the tokens of a line with everything variable replaced, and the ids in it.
func plain(line string) (tokens, ids []string) {
	line = variable.ReplaceAllStringFunc(line, func(found string) string {
		if m := variable.FindStringSubmatch(found); m[1] != "" {
			ids = append(ids, m[1])
			return "(id)"
		}
		return "(varies)"
	})
	return strings.Fields(line), ids
}

// comparison compares shown lines with printed ones.
type comparison struct {
	// ids has the printed id for each shown one.
	ids map[string]string
	// far is the last shown line that was reached, and what was printed there: for messages.
	far            int
	shown, printed string
}

// compareOutput returns an error if an output is not what a page shows. It adds the ids in it to a
// map from shown to printed ids.
func compareOutput(shown []string, printed string, ids map[string]string) error {
	filled := func(line string) bool { return strings.TrimSpace(line) != "" }
	c := comparison{ids: ids, far: -1}
	lines := slices.DeleteFunc(strings.Split(printed, "\n"), func(line string) bool { return !filled(line) })
	shown = slices.DeleteFunc(slices.Clone(shown), func(line string) bool { return !filled(line) })
	matched, ok := c.match(shown, lines, 0, maps.Clone(ids))
	if !ok {
		return fmt.Errorf("the page shows\n  %s\nand the output has\n  %s\nin:\n%s", c.shown, c.printed, printed)
	}
	maps.Copy(ids, matched)
	return nil
}

// match matches the shown lines from number i on with lines.
func (c *comparison) match(shown, lines []string, i int, ids map[string]string) (map[string]string, bool) {
	if i == len(shown) {
		if len(lines) > 0 {
			c.note(i, "nothing more", lines[0])
		}
		return ids, len(lines) == 0
	}
	if strings.TrimSpace(shown[i]) == anyLines {
		for skip := range len(lines) + 1 {
			if matched, ok := c.match(shown, lines[skip:], i+1, ids); ok {
				return matched, true
			}
		}
		return nil, false
	}
	if len(lines) == 0 {
		c.note(i, shown[i], "nothing more")
		return nil, false
	}
	ids = maps.Clone(ids)
	if !matchLine(shown[i], lines[0], ids) {
		c.note(i, shown[i], lines[0])
		return nil, false
	}
	return c.match(shown, lines[1:], i+1, ids)
}

// note keeps the first difference at the last shown line that is reached.
func (c *comparison) note(i int, shown, printed string) {
	if i > c.far {
		c.far, c.shown, c.printed = i, shown, printed
	}
}

// matchLine compares a line token by token, and adds its ids to a map.
func matchLine(shown, printed string, ids map[string]string) bool {
	want, wantIDs := plain(shown)
	got, gotIDs := plain(printed)
	if n := len(want) - 1; n >= 0 && want[n] == anyLines && len(got) >= n {
		want, got = want[:n], got[:n]
		gotIDs = gotIDs[:min(len(wantIDs), len(gotIDs))]
	}
	if !slices.Equal(want, got) || len(wantIDs) != len(gotIDs) {
		return false
	}
	for i, id := range wantIDs {
		if known, ok := ids[id]; ok && known != gotIDs[i] {
			return false
		}
		ids[id] = gotIDs[i]
	}
	return true
}

func TestCompareOutput_shownAndPrinted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shown, printed string
		equal          bool
	}{
		"equal":            {"a b\nc", "a b\nc\n", true},
		"other spaces":     {"a  b\n\nc", "a b\nc\n", true},
		"other word":       {"a b\nc", "a x\nc\n", false},
		"other number":     {"3 missing", "4 missing", false},
		"more printed":     {"a", "a\nb", false},
		"less printed":     {"a\nb", "a", false},
		"nothing printed":  {"a", "", false},
		"skipped start":    {"...\nc", "a\nb\nc", true},
		"skipped middle":   {"a\n...\nd", "a\nb\nc\nd", true},
		"skipped nothing":  {"a\n...\nb", "a\nb", true},
		"skipped end":      {"a\n...", "a\nb\nc", true},
		"missing at skip":  {"a\n...\nx", "a\nb\nc", false},
		"wrong order":      {"...\nb\n...\na\n...", "a\nb", false},
		"rest of line":     {"a b ...", "a b c d", true},
		"rest, other word": {"a b ...", "a c d", false},
		"time": {"at 2026-11-27T09:01:49.787521Z, 09:01, 2026-11-27",
			"at 2027-01-02T01:02:03Z, 10:11, 2027-01-02", true},
		"duration":         {"took 3.2s, 1m30s, 5 s, 12.5%", "took 640ms, 2h0m1s, 6 s, 9%", true},
		"address":          {"http://127.0.0.1:8080/webhooks", "http://127.0.0.1:33071/webhooks", true},
		"address and path": {"http://127.0.0.1:8080/webhooks", "http://127.0.0.1:33071/hooks", false},
		"ids":              {"evt_1a 1883001438667276289", "evt_2b 1883001438667276290", true},
		"same id twice":    {"evt_1a\nevt_1a", "evt_2b\nevt_2b", true},
		"id becomes two":   {"evt_1a\nevt_1a", "evt_2b\nevt_2c", false},
		"two ids, one":     {"evt_1a\nevt_1b", "evt_2b\nevt_2b", true},
		"id and word":      {"evt_1a", "evt", false},
		"object id":        {"cus_Fake000001", "cus_Fake000002", false},
	} {
		ids := map[string]string{}
		err := compareOutput(strings.Split(c.shown, "\n"), c.printed, ids)
		if (err == nil) != c.equal {
			t.Errorf("%s: %q and %q: %v, want equal %t", name, c.shown, c.printed, err, c.equal)
		}
		if name == "same id twice" && ids["evt_1a"] != "evt_2b" {
			t.Errorf("%s: the ids are %v", name, ids)
		}
	}
}
