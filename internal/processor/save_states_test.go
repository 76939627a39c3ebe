package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Many objects that are written at once each get their own state, whatever the lengths: null ones between, text of several bytes
// a letter, one longer than a page.
func TestSaveGivesEachObjectItsState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	texts := []string{"", `{}`, `{"name": "Zoë 😀"}`, `{"long": "` + strings.Repeat("ü", 9000) + `"}`, "", `[1, 2]`, `"é"`, "", `{"a": null}`}
	rand.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	objs := make([]*versioning.Object, len(texts))
	want := map[string]string{}
	for i, text := range texts {
		id := fmt.Sprintf("obj_%d", i)
		objs[i] = b.object(t, id)
		var v *canonical.Value
		if text != "" {
			var err error
			if v, err = canonical.Parse([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		objs[i].Version, objs[i].State = versioning.Version{At: 1, Rank: 1}, versioning.NewState(v, text == "", nil)
		want[id] = text
	}
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := versioning.Save(t.Context(), tx, versioning.Mirror, objs); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for id := range want {
		got[id] = string(b.object(t, id).State.JSON)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}
