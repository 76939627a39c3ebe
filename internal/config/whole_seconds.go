package config

import (
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// secondPrecisionTypes returns the object types whose version times are read from more than one
// field. It includes all types of a described API, because its reader always truncates versions to
// seconds.
func (s *Source) secondPrecisionTypes(p provider.Provider) map[string]bool {
	types := map[string]bool{}
	for name, o := range s.API.Described.Objects {
		if o.Version != nil && o.Version.Path != "" {
			types[name] = true
		}
	}
	of, ok := p.(interface{ Spec() declared.Spec })
	if !ok {
		return types
	}
	// clocks are the fields of a type's version times.
	clocks := map[string]declared.Time{}
	spec := of.Spec()
	for i := range spec.Objects {
		rule := &spec.Objects[i]
		var clock declared.Time
		switch {
		case rule.Version != nil && rule.Version.Unit != declared.Integer:
			clock = declared.Time{From: rule.Version.From, Unit: rule.Version.Unit}
		case rule.Version == nil && spec.Events.OccurredAt != nil:
			clock = *spec.Events.OccurredAt
		default:
			continue
		}
		for _, template := range rule.Type {
			name := template.String()
			if before, ok := clocks[name]; ok && before != clock {
				if strings.Contains(name, "{") {
					name = "*"
				}
				types[name] = true
			}
			clocks[name] = clock
		}
	}
	return types
}
