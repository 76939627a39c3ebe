package stripe

import (
	"maps"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.TypeCatalog = Stripe{}

// ObjectTypes returns the types of the version rule and those that are read from the API. Types
// that Stripe has added since are mirrored too.
func (Stripe) ObjectTypes() []string {
	all := slices.Collect(maps.Keys(types))
	for _, objectType := range slices.Concat(slices.Collect(maps.Keys(gets)), slices.Collect(maps.Keys(lists))) {
		if readPath(objectType) != "" {
			all = append(all, objectType)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
