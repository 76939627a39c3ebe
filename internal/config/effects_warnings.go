package config

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/settings"
)

// EffectWarnings reports rules that work but are likely to cause trouble, and a retention that
// deletes data which a replay may need.
func (c *Config) EffectWarnings() (all []string) {
	all = slices.Concat(c.unknownTypeWarnings(), c.clearedEarlyWarnings(), c.untrustedCheckWarnings(),
		c.forwardWarnings())
	keys := map[string]string{}
	for _, name := range sortedKeys(c.Effects) {
		if other, ok := keys[c.Effects[name].Key]; ok {
			consequence := "the other has no effect"
			if c.Effects[name].Source != c.Effects[other].Source {
				consequence = "an operator must review the other"
			}
			all = append(all, fmt.Sprintf("effects.%s: has the same key as effects.%s: only the first of the two "+
				"is executed, and %s; give each a key of its own, for example with the rule's name", name, other,
				consequence))
		} else {
			keys[c.Effects[name].Key] = name
		}
		if src := c.Sources[c.Effects[name].Source]; src != nil && settings.IsZero(src.API) &&
			src.Provider != api.Name &&
			c.Effects[name].Trigger != string(rules.OnEvent) {
			all = append(all, fmt.Sprintf("effects.%s: rules need certain states, and source %s has no section "+
				"api: if two updates have the same time in the provider's clock, the effect waits for the "+
				"object's next event; add the section, and a refetch decides", name, c.Effects[name].Source))
		}
		all = append(all, c.Effects[name].Schedule.warnings(name, c.Effects[name].Key)...)
		all = append(all, c.orderWarnings(name)...)
	}
	return all
}

// clearedEarlyWarnings reports effect contents that are deleted before the events that a replay
// with --mode force may choose. It checks the section retention and schedules of that job. The
// shortest setting decides how long events are kept.
func (c *Config) clearedEarlyWarnings() (all []string) {
	type clearing struct {
		path string
		days int
	}
	found, bodies := []clearing{{"retention.effects", c.Retention.Effects}}, c.Retention.Bodies
	for _, name := range sortedKeys(c.Schedules) {
		if s := c.Schedules[name]; s != nil && s.Job == "retention" {
			effects, _ := strconv.Atoi(s.Parameters["effects"]) // the job reports a value that is not a number
			days, _ := strconv.Atoi(s.Parameters["bodies"])
			found = append(found, clearing{"schedules." + name + ".parameters.effects", effects})
			if days > 0 && (bodies == 0 || days < bodies) {
				bodies = days
			}
		}
	}
	period := fmt.Sprintf("for %d days", bodies)
	if bodies == 0 {
		period = "without limit"
	}
	for _, of := range found {
		if of.days > 0 && (bodies == 0 || bodies > of.days) {
			all = append(all, c.Locate(&settings.Problem{Path: of.path,
				Msg: fmt.Sprintf("the contents of effects are deleted %d "+
					"days after their end, and events are kept %s: a replay with --mode force of older events skips "+
					"their effects, and counts them as left; set it to at least as many days as events are kept, "+
					"unless this is intended", of.days, period)}).Error())
		}
	}
	return all
}

// untrustedCheckWarnings reports checks that are true for responses which Postern does not accept
// as confirmation. It would ask again until an operator must resolve the step.
func (c *Config) untrustedCheckWarnings() (all []string) {
	for _, name := range sortedKeys(c.Effects) {
		rule, err := c.Rule(name)
		if err != nil { // another check reports it
			continue
		}
		for i := range rule.Steps {
			check := rule.Steps[i].Check
			if check == nil {
				continue
			}
			for _, status := range []int{http.StatusNotFound, http.StatusGone} {
				// the response of a service that does not know the object
				if yes, err := check.Done.EvalBool(
					&rules.TemplateData{Response: rules.Response{Status: status}}); err != nil ||
					!yes {
					continue
				}
				all = append(all, c.Locate(&settings.Problem{Path: fmt.Sprintf("effects.%s.steps.%d.check.done", name,
					i),
					Msg: fmt.Sprintf("is true for a response with status %d, but Postern accepts true only from 2xx: "+
						"it would ask again and again, and then need an operator; write the condition that a 2xx "+
						"response fulfils after the step, e.g. answer.status == 200. A step that deletes needs no "+
						"check: it can be repeated, and success: [200, 204, 404] accepts an object that does not "+
						"exist any more", status)}).Error())
				break
			}
		}
	}
	return all
}

// unknownTypeWarnings reports rules about object types that the source's provider does not have. A
// misspelt type never triggers a rule.
func (c *Config) unknownTypeWarnings() (all []string) {
	for _, name := range sortedKeys(c.Effects) {
		e := c.Effects[name]
		src := c.Sources[e.Source]
		if src == nil {
			continue
		}
		p, _ := src.provider(e.Source)
		known := src.objectTypes(p)
		for _, of := range []struct{ path, objectType, effect string }{
			{".type", e.Type, "the rule may never be triggered"},
			{".summary.type", e.Summary.Type, "the summary may always be empty"},
		} {
			if len(known) == 0 || of.objectType == "" || slices.Contains(known, of.objectType) {
				continue
			}
			text := fmt.Sprintf("source %s has no known object type %q, so %s", e.Source, of.objectType, of.effect)
			if one := closestName(of.objectType, known); one != "" {
				text += fmt.Sprintf("; did you mean %s?", one)
			} else {
				text += "; list the existing ones with `postern objects list --source " + e.Source + "`"
			}
			all = append(all, c.Locate(&settings.Problem{Path: "effects." + name + of.path, Msg: text}).Error())
		}
	}
	return all
}

// objectTypes returns the object types of the source; none where they are unknown.
func (s *Source) objectTypes(p provider.Provider) []string {
	named, ok := p.(provider.TypeCatalog)
	if !ok {
		return nil
	}
	known := named.ObjectTypes()
	if len(known) == 0 {
		return nil
	}
	return slices.Concat(known, sortedKeys(s.API.Types), sortedKeys(s.API.Described.Objects))
}
