package all_test

import (
	"slices"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
)

func TestProvidersAreSortedAndFoundByName(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range all.All() {
		names = append(names, p.Name())
		if found, ok := all.Named(p.Name()); !ok || found.Name() != p.Name() {
			t.Errorf("%s is not found by its name", p.Name())
		}
	}
	if !slices.IsSorted(names) || len(slices.Compact(names)) != len(all.All()) {
		t.Errorf("names %v are not sorted and distinct", names)
	}
	if p, ok := all.Named("nobody"); ok {
		t.Errorf("found %v", provider.Provider(p))
	}
}
