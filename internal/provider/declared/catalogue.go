package declared

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Catalogued = (*Provider)(nil)

// ObjectTypes are those of the objects that are described; none where the type of some stands in what is sent.
func (p *Provider) ObjectTypes() (all []string) {
	for i := range p.spec.Objects {
		rule := &p.spec.Objects[i]
		if rule.Ignored != "" || len(rule.Type) == 0 {
			continue
		}
		if len(rule.Type[0].Refs()) > 0 {
			return nil
		}
		all = append(all, rule.Type[0].String()) // it is always complete, so that no other counts
	}
	slices.Sort(all)
	return slices.Compact(all)
}
