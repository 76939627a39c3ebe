package config

import (
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
)

// EffectWarnings tells of rules that work and will trouble people.
func (c *Config) EffectWarnings() (all []string) {
	all = c.unknownTypes()
	keys := map[string]string{}
	for _, name := range sortedKeys(c.Effects) {
		if other, ok := keys[c.Effects[name].Key]; ok {
			loses := "the other has no effect of it"
			if c.Effects[name].Source != c.Effects[other].Source {
				loses = "a person must see the other"
			}
			all = append(all, fmt.Sprintf("effects.%s: has the key of effects.%s: what both want is done for the one that comes first, and %s; give each a key of its own, as by its name", name, other, loses))
		} else {
			keys[c.Effects[name].Key] = name
		}
		if src := c.Sources[c.Effects[name].Source]; src != nil && isZero(src.API) && src.Provider != api.Name && c.Effects[name].Each != string(rules.OnEvent) {
			all = append(all, fmt.Sprintf("effects.%s: rules act on what is certain, and source %s has no section api: where two updates come within one unit of the provider's clock, the effect waits for the object's next event; give it one, and a look decides", name, c.Effects[name].Source))
		}
		all = append(all, c.Effects[name].Schedule.warnings(name, c.Effects[name].Key)...)
		steps := c.Effects[name].Steps
		for i := range steps {
			if !steps[i].repeatable() && i < len(steps)-1 {
				all = append(all, fmt.Sprintf("effects.%s: step %s must not be repeated and is not the last: where a later one needs a person, nobody can begin again; move it to the end", name, steps[i].Name))
			}
		}
	}
	return all
}

// unknownTypes tells of rules about objects of types that the source's provider is not known to have: a misspelt one never fires.
func (c *Config) unknownTypes() (all []string) {
	for _, name := range sortedKeys(c.Effects) {
		e := c.Effects[name]
		src := c.Sources[e.Source]
		if src == nil {
			continue
		}
		p, _ := src.provider(e.Source)
		known := src.objectTypes(p)
		if len(known) == 0 || slices.Contains(known, e.Type) {
			continue
		}
		text := fmt.Sprintf("source %s is not known to have objects of type %q, so that the rule may never fire", e.Source, e.Type)
		if one := meant(e.Type, known); one != "" {
			text += fmt.Sprintf("; did you mean %s?", one)
		} else {
			text += "; `postern objects list --source " + e.Source + "` shows those that there are"
		}
		all = append(all, c.Locate(&Problem{Path: "effects." + name + ".type", Msg: text}).Error())
	}
	return all
}

// objectTypes are the types that objects of the source may have; none: nobody can say.
func (s *Source) objectTypes(p provider.Provider) []string {
	named, ok := p.(provider.Catalogued)
	if !ok {
		return nil
	}
	known := named.ObjectTypes()
	if len(known) == 0 {
		return nil
	}
	return slices.Concat(known, sortedKeys(s.API.Types), sortedKeys(s.API.Objects))
}
