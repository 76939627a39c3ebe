package config

import (
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// wholeSeconds returns the types of objects whose versions are times that are read from more than one field. The reader
// of a described API cuts its own versions always, so its types are among them.
func (s *Source) wholeSeconds(p provider.Provider) map[string]bool {
	types := map[string]bool{}
	for name, o := range s.API.Objects {
		if o.Version.Path != "" {
			types[name] = true
		}
	}
	of, ok := p.(interface{ Spec() declared.Spec })
	if !ok {
		return types
	}
	// clocks are the fields that tell a type's versions.
	clocks := map[string]declared.Time{}
	spec := of.Spec()
	for i := range spec.Objects {
		rule := &spec.Objects[i]
		var clock declared.Time
		switch {
		case rule.Version != nil && rule.Version.Unit != declared.Integer:
			clock = declared.Time{From: rule.Version.From, Unit: rule.Version.Unit}
		case rule.Version == nil && spec.Events.Occurred != nil:
			clock = *spec.Events.Occurred
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
