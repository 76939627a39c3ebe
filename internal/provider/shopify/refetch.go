package shopify

import (
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// lag is how old a state from the REST API is assumed to be. Shopify documents none for the read of
// one object. A second costs at most one more refetch.
const lag = time.Second

// Lag returns a second.
func (Shopify) Lag() time.Duration { return lag }

// maxVariants is the maximum number of variants of a product in a REST response, which does not say
// whether there are more.
const maxVariants = 100

// Snapshot reads an object from REST's response.
func (Shopify) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	k, wrap := ruleOf(s.ObjectType), gets[s.ObjectType].wrap
	if k == nil { // a type that the source describes
		k, wrap = &objectRule{name: s.ObjectType, mayNotAdvance: true}, s.ObjectType
	}
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if wrap == "" {
		return o, newDead("an object of type %.64s is not read from Shopify's API", s.ObjectType)
	}
	o.Unit = k.resolution()
	if s.Missing {
		o.Deleted = true // never final: the refetch may have run before the object was created
		return o, nil
	}
	root, err := provider.ReadObject(s.Body)
	if err != nil {
		return o, err
	}
	object := root.Get(wrap)
	if list := object.Elements(); object.Kind() == canonical.Array && len(list) == 1 {
		object = list[0]
	}
	switch id := k.key("", object); {
	case object.Kind() != canonical.Object:
		return o, newDead("requested the %s %s, and the API returned something else", s.ObjectType, s.ObjectID)
	case id != s.ObjectID:
		return o, newDead("requested the %s %s, and the API returned %s", s.ObjectType, s.ObjectID, s.API.Quote(id, 64))
	case s.ObjectType == "product" && len(object.Get("variants").Elements()) >= maxVariants:
		return o, newDead("the product has %d variants or more, and the REST API returns no more of them: "+
			"it may be incomplete", maxVariants)
	}
	if k.readWhole(&o, object); o.Partial != "" {
		return o, newDead("the API returned an incomplete %s %s: %s", s.ObjectType, s.ObjectID, o.Partial)
	}
	return o, nil
}

// ruleOf returns the type's rule of the table, or nil.
func ruleOf(objectType string) *objectRule {
	for i := range objectRules {
		if objectRules[i].name == objectType && !objectRules[i].noObject {
			return &objectRules[i]
		}
	}
	return nil
}
