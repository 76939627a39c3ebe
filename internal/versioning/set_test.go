package versioning_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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
