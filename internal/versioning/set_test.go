package versioning_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestSetAsStored(t *testing.T) {
	t.Parallel()
	row := rule(t, change(10, "A", "B"), whole(10, "C"), gone(10, false), noisy(t, 10, "3"))
	text, err := versioning.EncodeSet(&row)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || strings.ContainsAny(string(text), " \n") {
		t.Errorf("not compact JSON: %s", text)
	}
	got := read(t, text, row)
	if diff := cmp.Diff(row.Set, got.Set); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSmallSetIsSmall(t *testing.T) {
	t.Parallel()
	before := versioning.NewState(letter("A"), false, nil).Hash
	for name, c := range map[string]struct {
		member versioning.Member
		want   string
	}{
		"state":            {versioning.Member{}, `[{}]`},
		"change":           {versioning.Member{Before: &before}, `[{"before":"` + base64.StdEncoding.EncodeToString(before[:]) + `"}]`},
		"look":             {versioning.Member{Look: true}, `[{"look":true}]`},
		"look at a change": {versioning.Member{Before: &before, Look: true}, `[{"before":"` + base64.StdEncoding.EncodeToString(before[:]) + `","look":true}]`},
	} {
		row := rule(t, whole(10, "B"))
		row.State.JSON = nil // as read
		c.member.State, c.member.Lo, c.member.Hi = row.State, row.Lo, row.Hi
		row.Set = []versioning.Member{c.member}
		text, err := versioning.EncodeSet(&row)
		if err != nil || string(text) != c.want {
			t.Errorf("%s: %s (%v), want %s", name, text, err, c.want)
		}
		if set := read(t, text, row).Set; !cmp.Equal(row.Set, set) {
			t.Errorf("%s: read as %v, want %v", name, set, row.Set)
		}
	}
	row := versioning.NewRow()
	if text, err := versioning.EncodeSet(&row); err != nil || string(text) != "[]" {
		t.Errorf("no member is %s (%v)", text, err)
	}
}

// read is a row as it is read from its columns and a stored set.
func read(t *testing.T, text []byte, row versioning.Row) versioning.Row {
	t.Helper()
	row.Set = nil
	if err := versioning.DecodeSet(text, &row); err != nil {
		t.Fatal(err)
	}
	return row
}

// A member that the row does not tell is written in full.
func TestMemberUnlikeItsRow(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*versioning.Row){
		"lo":       func(row *versioning.Row) { row.Lo-- },
		"hi":       func(row *versioning.Row) { row.Hi++ },
		"deleted":  func(row *versioning.Row) { row.State.Deleted = true },
		"repaired": func(row *versioning.Row) { row.State.Repaired = true },
		"hash":     func(row *versioning.Row) { row.State.Hash[0]++ },
		"exact":    func(row *versioning.Row) { row.State.Exact[0]++ },
	} {
		row := rule(t, whole(10, "A"))
		want := slices.Clone(row.Set)
		change(&row)
		text, err := versioning.EncodeSet(&row)
		if err != nil {
			t.Fatal(err)
		}
		set := read(t, text, row).Set
		if row.State.Exact == want[0].State.Exact { // else its JSON is in the set
			want[0].State.JSON = nil
		}
		if diff := cmp.Diff(want, set); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestBrokenSets(t *testing.T) {
	t.Parallel()
	hash, row := strings.Repeat("A", 43)+"=", versioning.NewRow()
	for _, text := range []string{
		"", "{}", `[{"hash":"AAAA","lo":0,"hi":0}]`, `[{},{}]`, `[{"hash":"","lo":0}]`, `[{"before":"AA=="}]`, `[{"hash":"` + hash + `","exact":"AA==","lo":0,"hi":0}]`,
		`[{"hash":"` + hash + `","before":"","lo":0,"hi":0}]`, `[{"hash":"` + hash + `","lo":0.5,"hi":0}]`,
	} {
		if err := versioning.DecodeSet([]byte(text), &row); err == nil {
			t.Errorf("%s was read as %v", text, row.Set)
		}
	}
	if err := versioning.DecodeSet([]byte(`[{"hash":"`+hash+`","lo":-9223372036854775808,"hi":9223372036854775807}]`), &row); err != nil {
		t.Error(err)
	}
}

// What is told of one version, "A>B" with a change-set and "B" without, and what is shown; "" is doubt.
func TestSettle(t *testing.T) {
	t.Parallel()
	for told, want := range map[string]string{
		"A":               "A",
		"A>B":             "B",
		"A>A":             "A",
		"X>A Y>A":         "A", // all that is told is one state, however it was reached
		"A X>A":           "A",
		"A>B B>C":         "C",
		"A>B B>C C":       "C",
		"A>B B>C C>C B>B": "C",
		"A B":             "",
		"A>B C":           "",
		"A>B B>C B":       "",
		"A A>B":           "", // nothing says that A came first
		"A>B C>D":         "",
		"A>B B>A":         "",
		"A>B B>C C>A":     "",
		"A>B A>C":         "",
		"A>B B>A A>C":     "", // two lead out of A
		"A>B B>C D>B":     "", // two lead into B
		"A>B B>C C>D D>B": "",
	} {
		// The letters stand for hashes in no particular order, so each case is tried with others too.
		for _, swap := range []string{"AABBCCDD", "ABBACCDD", "ACBBCADD", "ADBBCCDA", "AABCCBDD", "ABBCCDDA", "ADBACBDC"} {
			r := strings.NewReplacer(slices.Collect(pairs(swap))...)
			row := rule(t, tell(r.Replace(told))...)
			if want == "" {
				wantDoubt(t, row)
			} else {
				wantSure(t, row, r.Replace(want))
			}
			if t.Failed() {
				t.Fatalf("that was %q as %q", told, r.Replace(told))
			}
		}
	}
}

func pairs(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range s {
			if !yield(s[i : i+1]) {
				return
			}
		}
	}
}

func tell(told string) []provider.Observation {
	var all []provider.Observation
	for word := range strings.FieldsSeq(told) {
		if before, after, ok := strings.Cut(word, ">"); ok {
			all = append(all, change(10, before, after))
		} else {
			all = append(all, whole(10, word))
		}
	}
	return all
}

// What is shown in doubt: the greatest hash that no change-set leaves, of all if each is left.
func TestShownInDoubt(t *testing.T) {
	t.Parallel()
	for told, open := range map[string]string{
		"A B C":           "ABC",
		"A>B C>D":         "BD",
		"A>B B>C D B":     "CD",
		"A>B B>A":         "AB",
		"A>B B>C C>A":     "ABC",
		"A>B B>C D>B":     "C",
		"A>A B>B":         "AB",
		"A>A X>B":         "AB",
		"B>B X>A":         "AB",
		"A>B B>A C":       "C",
		"A>B B>A A>C C>D": "D",
	} {
		var want versioning.Hash
		for letter := range pairs(open) {
			if h := input(t, whole(10, letter)).State.Hash; h.Compare(want) > 0 {
				want = h
			}
		}
		if row := rule(t, tell(told)...); row.State.Hash != want || !row.Ambiguous {
			t.Errorf("%s: shows %s (ambiguous %v), want the greatest of %s", told, is(row.State), row.Ambiguous, open)
		}
	}
}

// A tie that is settled is applied, also where the state shown in doubt was the right one.
func TestSettlingIsApplied(t *testing.T) {
	t.Parallel()
	for _, told := range []string{"A>B C B>C", "A>C B C>B"} {
		trace := tell(told)
		row := rule(t, trace[:2]...)
		if d := versioning.Apply(&row, input(t, trace[2])); d.Status != versioning.Applied || row.Ambiguous {
			t.Errorf("%s: %+v", told, d)
		}
	}
}

// Among the states that compare as the one to show, the greatest exact one is shown.
func TestShownExactly(t *testing.T) {
	t.Parallel()
	var trace []provider.Observation
	var greatest versioning.State
	for i, before := range []string{"U", "V", "W", "X", "Y", "Z"} {
		o := noisy(t, 10, string('1'+rune(i)))
		o.Before = letter(before)
		trace = append(trace, o)
		if s := input(t, o).State; s.Exact.Compare(greatest.Exact) > 0 {
			greatest = s
		}
	}
	row := rule(t, trace...)
	if row.State.Exact != greatest.Exact || string(row.State.JSON) != string(greatest.JSON) || len(row.Set) != len(trace) {
		t.Errorf("of %d members %s is shown, want %s", len(row.Set), row.State.JSON, greatest.JSON)
	}
}
