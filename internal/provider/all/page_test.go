package all_test

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider/all"
)

var update = flag.Bool("update", false, "write docs/providers.md")

func TestPageIsCurrent(t *testing.T) {
	t.Parallel()
	const page = "../../../docs/providers.md"
	want := all.Page()
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(have), want); diff != "" {
		t.Errorf("docs/providers.md is not current: run go test ./internal/provider/all -update\n%s", diff)
	}
}

// What a person must know of a provider is told for each.
func TestEveryProviderIsDocumented(t *testing.T) {
	t.Parallel()
	for _, p := range all.All() {
		d := all.Docs(p)
		if d.Title == p.Name() || d.Setup == "" || d.Signature == "" || d.Key == "" || d.Objects == "" || len(d.Links) == 0 {
			t.Errorf("%s: documents %+v", p.Name(), d)
		}
	}
}
