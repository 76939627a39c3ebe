package declared

import (
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.TypeCatalog = (*Provider)(nil)

// ObjectTypes returns the types of the described objects. It returns none if the type of some is
// read from the event.
func (p *Provider) ObjectTypes() (all []string) {
	for i := range p.spec.Objects {
		rule := &p.spec.Objects[i]
		if rule.Ignored != "" || len(rule.Type) == 0 {
			continue
		}
		if len(rule.Type[0].Refs()) > 0 {
			return nil
		}
		// a constant template is always complete, so the next ones are never used
		all = append(all, rule.Type[0].String())
	}
	slices.Sort(all)
	return slices.Compact(all)
}
