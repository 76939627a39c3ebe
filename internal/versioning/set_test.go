package versioning_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/versioning"
)

func TestSetAsStored(t *testing.T) {
	t.Parallel()
	row := rule(t, change(10, "A", "B"), whole(10, "C"), gone(10, false), noisy(t, 10, "3"))
	text, err := versioning.EncodeSet(row.Set, row.State)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || strings.ContainsAny(string(text), " \n") {
		t.Errorf("not compact JSON: %s", text)
	}
	set, err := versioning.DecodeSet(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(row.Set, set); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSmallSetIsSmall(t *testing.T) {
	t.Parallel()
	row := rule(t, whole(10, "A"))
	text, err := versioning.EncodeSet(row.Set, row.State)
	if err != nil || len(text) > 100 {
		t.Errorf("one member takes %d bytes (%v): %s", len(text), err, text)
	}
	if text, err := versioning.EncodeSet(nil, row.State); err != nil || string(text) != "[]" {
		t.Errorf("no member is %s (%v)", text, err)
	}
}

func TestBrokenSets(t *testing.T) {
	t.Parallel()
	hash := strings.Repeat("A", 43) + "="
	for _, text := range []string{
		"", "{}", `[{"hash":"AAAA","lo":0,"hi":0}]`, `[{}]`, `[{"hash":"` + hash + `","exact":"AA==","lo":0,"hi":0}]`,
		`[{"hash":"` + hash + `","before":"","lo":0,"hi":0}]`, `[{"hash":"` + hash + `","lo":0.5,"hi":0}]`,
	} {
		if set, err := versioning.DecodeSet([]byte(text)); err == nil {
			t.Errorf("%s was read as %v", text, set)
		}
	}
	if _, err := versioning.DecodeSet([]byte(`[{"hash":"` + hash + `","lo":-9223372036854775808,"hi":9223372036854775807}]`)); err != nil {
		t.Error(err)
	}
}
