package shopify

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.TypeCatalog = Shopify{}

// ObjectTypes returns the types of the version rule. Types that Shopify has added since are
// mirrored too.
func (Shopify) ObjectTypes() (all []string) {
	for i := range objectRules {
		all = append(all, objectRules[i].name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
