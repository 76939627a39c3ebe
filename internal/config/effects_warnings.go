package config

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
)

// EffectWarnings tells of rules that work and will trouble people, and of a retention that takes from effects what a replay may need.
func (c *Config) EffectWarnings() (all []string) {
	all = slices.Concat(c.unknownTypes(), c.clearedEarly(), c.unbelieved())
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

// clearedEarly tells of contents of effects that go before the events which a replay with --mode force may choose: of the section retention, and of schedules of that job. Events are kept as long as the shortest of these keeps them.
func (c *Config) clearedEarly() (all []string) {
	type clearing struct {
		path string
		days int
	}
	found, bodies := []clearing{{"retention.effects", c.Retention.Effects}}, c.Retention.Bodies
	for _, name := range sortedKeys(c.Schedules) {
		if s := c.Schedules[name]; s != nil && s.Job == "retention" {
			effects, _ := strconv.Atoi(s.Parameters["effects"]) // the job says what is no number
			own, _ := strconv.Atoi(s.Parameters["bodies"])
			found = append(found, clearing{"schedules." + name + ".parameters.effects", effects})
			if own > 0 && (bodies == 0 || own < bodies) {
				bodies = own
			}
		}
	}
	kept := fmt.Sprintf("for %d days", bodies)
	if bodies == 0 {
		kept = "for ever"
	}
	for _, of := range found {
		if of.days > 0 && (bodies == 0 || bodies > of.days) {
			all = append(all, c.Locate(&Problem{Path: of.path, Msg: fmt.Sprintf("what effects hold is cleared %d days after they ended, and events are kept %s: a replay with --mode force of older ones leaves their effects out, and counts them as left; set it to at least as many days as events are kept, unless that is meant", of.days, kept)}).Error())
		}
	}
	return all
}

// unbelieved tells of checks that hold for answers whose yes nobody believes: the other side would be asked until a person must say what happened.
func (c *Config) unbelieved() (all []string) {
	for _, name := range sortedKeys(c.Effects) {
		rule, err := c.Rule(name)
		if err != nil { // which is told where it is checked
			continue
		}
		for i := range rule.Steps {
			check := rule.Steps[i].Check
			if check == nil {
				continue
			}
			for _, status := range []int{http.StatusNotFound, http.StatusGone} {
				if yes, err := check.Done.Holds(&rules.Facts{Answer: rules.Answer{Status: status}}); err != nil || !yes { // what it says of an object nobody knows here
					continue
				}
				all = append(all, c.Locate(&Problem{Path: fmt.Sprintf("effects.%s.steps.%d.check.done", name, i), Msg: fmt.Sprintf("holds for an answer of %d, and a yes is believed of 2xx alone: the other side would be asked again and again, and then a person; "+
					"write what an answer of 2xx says where the step was done, e.g. answer.status == 200. A step that deletes needs no check: sent again it does the same, and success: [200, 204, 404] takes what is gone for deleted", status)}).Error())
				break
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
