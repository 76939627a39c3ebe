package github

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.TypeCatalog = GitHub{}

// ObjectTypes returns the types of the version rule. Objects of types that GitHub has added since
// are mirrored under the event's name.
func (GitHub) ObjectTypes() (all []string) {
	for i := range eventRules {
		all = append(all, eventRules[i].object)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
