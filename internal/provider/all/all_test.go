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

// No scheme of ours leaves what it relies on unsigned.
func TestEverySchemeIsSound(t *testing.T) {
	t.Parallel()
	for _, p := range all.All() {
		signed, ok := p.(provider.Signed)
		if !ok {
			t.Errorf("%s does not show how it signs", p.Name())
			continue
		}
		for _, s := range signed.Schemes() {
			if err := s.Check(); err != nil {
				t.Errorf("%s: scheme %s: %v", p.Name(), s.Name, err)
			}
		}
	}
}
