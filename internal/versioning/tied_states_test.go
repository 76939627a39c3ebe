package versioning_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestEncodeTiedStates_differingStates_roundTrip(t *testing.T) {
	t.Parallel()
	row := playEvents(t, changeEvent(10, "A", "B"), stateEvent(10, "C"), deleteEvent(10, false),
		stateWithIgnoredPath(t, 10, "3"))
	text, err := versioning.EncodeTiedStates(&row)
	testkit.Must(t, err)
	if !json.Valid(text) || strings.ContainsAny(string(text), " \n") {
		t.Errorf("not compact JSON: %s", text)
	}
	testkit.Equal(t, "tied states", row.TiedStates, decodeRow(t, text, row).TiedStates)
}

func TestEncodeTiedStates_impliedState_isShort(t *testing.T) {
	t.Parallel()
	before := versioning.NewState(letterState("A"), false, nil).Hash
	for name, c := range map[string]struct {
		member versioning.TiedState
		want   string
	}{
		"state": {versioning.TiedState{}, `[{}]`},
		"change": {versioning.TiedState{Before: &before}, `[{"before":"` +
			base64.StdEncoding.EncodeToString(before[:]) + `"}]`},
		"refetch": {versioning.TiedState{FromRefetch: true}, `[{"from_refetch":true}]`},
		"refetch with a change-set": {versioning.TiedState{Before: &before, FromRefetch: true}, `[{"before":"` +
			base64.StdEncoding.EncodeToString(before[:]) + `","from_refetch":true}]`},
	} {
		row := playEvents(t, stateEvent(10, "B"))
		row.State.JSON = nil // as read from the store
		c.member.State, c.member.TimeFrom, c.member.TimeTo = row.State, row.TimeFrom, row.TimeTo
		row.TiedStates = []versioning.TiedState{c.member}
		text, err := versioning.EncodeTiedStates(&row)
		if err != nil || string(text) != c.want {
			t.Errorf("%s: %s (%v), want %s", name, text, err, c.want)
		}
		if set := decodeRow(t, text, row).TiedStates; !cmp.Equal(row.TiedStates, set) {
			t.Errorf("%s: read as %v, want %v", name, set, row.TiedStates)
		}
	}
	row := versioning.NewRow()
	if text, err := versioning.EncodeTiedStates(&row); err != nil || string(text) != "[]" {
		t.Errorf("no tied state is %s (%v)", text, err)
	}
}

// decodeRow decodes tied states as the store does.
func decodeRow(t failer, text []byte, row versioning.Row) versioning.Row {
	t.Helper()
	row.TiedStates = nil
	testkit.Must(t, versioning.DecodeTiedStates(text, &row))
	return row
}

// A tied state that differs from the row's columns is written in full.
func TestEncodeTiedStates_stateUnlikeRow_isWrittenInFull(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*versioning.Row){
		"time_from": func(row *versioning.Row) { row.TimeFrom-- },
		"time_to":   func(row *versioning.Row) { row.TimeTo++ },
		"deleted":   func(row *versioning.Row) { row.State.Deleted = true },
		"sanitized": func(row *versioning.Row) { row.State.Sanitized = true },
		"hash":      func(row *versioning.Row) { row.State.Hash[0]++ },
		"exact":     func(row *versioning.Row) { row.State.ExactHash[0]++ },
	} {
		row := playEvents(t, stateEvent(10, "A"))
		want := slices.Clone(row.TiedStates)
		change(&row)
		text, err := versioning.EncodeTiedStates(&row)
		testkit.Must(t, err)
		if row.State.ExactHash == want[0].State.ExactHash { // else the JSON is in the tied states
			want[0].State.JSON = nil
		}
		testkit.Equal(t, name, want, decodeRow(t, text, row).TiedStates)
	}
}

func TestDecodeTiedStates_malformedText_isRejected(t *testing.T) {
	t.Parallel()
	hash, row := strings.Repeat("A", 43)+"=", versioning.NewRow()
	for _, text := range []string{
		"", "{}", `[{"hash":"AAAA","time_from":0,"time_to":0}]`, `[{},{}]`, `[{"hash":"","time_from":0}]`,
		`[{"before":"AA=="}]`,
		`[{"hash":"` + hash + `","exact":"AA==","time_from":0,"time_to":0}]`,
		`[{"hash":"` + hash + `","before":"","time_from":0,"time_to":0}]`,
		`[{"hash":"` + hash + `","time_from":0.5,"time_to":0}]`,
	} {
		if err := versioning.DecodeTiedStates([]byte(text), &row); err == nil {
			t.Errorf("%s was read as %v", text, row.TiedStates)
		}
	}
	if err := versioning.DecodeTiedStates([]byte(`[{"hash":"`+hash+
		`","time_from":-9223372036854775808,"time_to":9223372036854775807}]`), &row); err != nil {
		t.Error(err)
	}
}

// Each case lists events of one version: "A>B" has a change-set, "B" has none. The value is the
// state that must be shown, or "" for an ambiguous row.
func TestApply_tiedChangeSets_resolveToEnd(t *testing.T) {
	t.Parallel()
	for changes, want := range map[string]string{
		"A":               "A",
		"A>B":             "B",
		"A>A":             "A",
		"X>A Y>A":         "A", // all events have one state, however it was reached
		"A X>A":           "A",
		"A>B B>C":         "C",
		"A>B B>C C":       "C",
		"A>B B>C C>C B>B": "C",
		"A B":             "",
		"A>B C":           "",
		"A>B B>C B":       "",
		"A A>B":           "", // nothing shows that A came first
		"A>B C>D":         "",
		"A>B B>A":         "",
		"A>B B>C C>A":     "",
		"A>B A>C":         "",
		"A>B B>A A>C":     "", // two change-sets begin at A
		"A>B B>C D>B":     "", // two change-sets end at B
		"A>B B>C C>D D>B": "",
	} {
		// The order of the letters' hashes is arbitrary, so each case is also tried with the
		// letters exchanged.
		for _, swap := range []string{"AABBCCDD", "ABBACCDD", "ACBBCADD", "ADBBCCDA", "AABCCBDD", "ABBCCDDA",
			"ADBACBDC"} {
			r := strings.NewReplacer(slices.Collect(letters(swap))...)
			row := playEvents(t, eventsOf(r.Replace(changes))...)
			if want == "" {
				wantAmbiguous(t, row)
			} else {
				wantCertain(t, row, r.Replace(want))
			}
			if t.Failed() {
				t.Fatalf("case %q, tried as %q", changes, r.Replace(changes))
			}
		}
	}
}

func letters(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i := range s {
			if !yield(s[i : i+1]) {
				return
			}
		}
	}
}

func eventsOf(changes string) []provider.Observation {
	var all []provider.Observation
	for word := range strings.FieldsSeq(changes) {
		if before, after, ok := strings.Cut(word, ">"); ok {
			all = append(all, changeEvent(10, before, after))
		} else {
			all = append(all, stateEvent(10, word))
		}
	}
	return all
}

// An ambiguous row shows the state with the greatest hash from which no change-set leads to
// another. If there is no such state, it shows the greatest of all.
func TestApply_ambiguousTiedStates_showGreatestEnd(t *testing.T) {
	t.Parallel()
	for changes, ends := range map[string]string{
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
		for letter := range letters(ends) {
			if h := toInput(t, stateEvent(10, letter)).State.Hash; h.Compare(want) > 0 {
				want = h
			}
		}
		if row := playEvents(t, eventsOf(changes)...); row.State.Hash != want || !row.Ambiguous {
			t.Errorf("%s: shows %s (ambiguous %v), want the greatest of %s", changes, stateLetter(row.State),
				row.Ambiguous, ends)
		}
	}
}

// An event that resolves a tie is applied, even if the row already showed the right state.
func TestApply_tieResolved_isApplied(t *testing.T) {
	t.Parallel()
	for _, changes := range []string{"A>B C B>C", "A>C B C>B"} {
		trace := eventsOf(changes)
		row := playEvents(t, trace[:2]...)
		if d := versioning.Apply(&row, toInput(t, trace[2])); d.Status != versioning.Applied || row.Ambiguous {
			t.Errorf("%s: %+v", changes, d)
		}
	}
}

// Among the states that compare as equal, the one with the greatest exact hash is shown.
func TestApply_equalComparedStates_showGreatestExact(t *testing.T) {
	t.Parallel()
	var trace []provider.Observation
	var greatest versioning.State
	for i, before := range []string{"U", "V", "W", "X", "Y", "Z"} {
		o := stateWithIgnoredPath(t, 10, string('1'+rune(i)))
		o.Before = letterState(before)
		trace = append(trace, o)
		if s := toInput(t, o).State; s.ExactHash.Compare(greatest.ExactHash) > 0 {
			greatest = s
		}
	}
	row := playEvents(t, trace...)
	if row.State.ExactHash != greatest.ExactHash || string(row.State.JSON) != string(greatest.JSON) ||
		len(row.TiedStates) != len(trace) {
		t.Errorf("of %d tied states %s is shown, want %s", len(row.TiedStates), row.State.JSON, greatest.JSON)
	}
}
