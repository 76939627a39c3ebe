package stripe

import (
	"maps"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Catalogued = Stripe{}

// ObjectTypes are those of the version rule, and those that the API is read for. What Stripe has added since is mirrored all the same.
func (Stripe) ObjectTypes() []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(types)), maps.Keys(gets))
	slices.Sort(all)
	return slices.Compact(all)
}
