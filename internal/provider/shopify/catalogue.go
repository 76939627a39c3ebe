package shopify

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Catalogued = Shopify{}

// ObjectTypes are those of the version rule. What Shopify has added since is mirrored all the same.
func (Shopify) ObjectTypes() (all []string) {
	for i := range kinds {
		all = append(all, kinds[i].name)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
