package github

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Catalogued = GitHub{}

// ObjectTypes are those of the version rule. What GitHub has added since is mirrored under its event's name.
func (GitHub) ObjectTypes() (all []string) {
	for i := range rows {
		all = append(all, rows[i].object)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
