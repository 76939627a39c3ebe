package shopify

import (
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// lag is how old a state the REST API is taken to answer with. Shopify documents none for the read of one object; a second costs at most one look more.
const lag = time.Second

// Lag is a second.
func (Shopify) Lag() time.Duration { return lag }

// mostVariants is how many variants REST answers of a product at most; it does not say that there are more.
const mostVariants = 100

// Snapshot reads an object as REST answers it.
func (Shopify) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	k, wrap := kindOf(s.ObjectType), gets[s.ObjectType].wrap
	if k == nil { // a type that the source describes
		k, wrap = &kind{name: s.ObjectType, still: true}, s.ObjectType
	}
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if wrap == "" {
		return o, dead("an object of type %.64s is not read from Shopify's API", s.ObjectType)
	}
	o.Unit = k.resolution()
	if s.Missing {
		o.Deleted = true // never final: it may have been asked for before it was created
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
		return o, dead("asked for the %s %s, the API answered something else", s.ObjectType, s.ObjectID)
	case id != s.ObjectID:
		return o, dead("asked for the %s %s, the API answered %s", s.ObjectType, s.ObjectID, s.API.Quote(id, 64))
	case s.ObjectType == "product" && len(object.Get("variants").Elements()) >= mostVariants:
		return o, dead("the product has %d variants or more, and the REST API answers no more of them: it cannot be told whether these are all", mostVariants)
	}
	if k.readWhole(&o, object); o.Partial != "" {
		return o, dead("the API answered the %s %s, and not whole: %s", s.ObjectType, s.ObjectID, o.Partial)
	}
	return o, nil
}

// kindOf is the type's row of the table, nil where it has none.
func kindOf(objectType string) *kind {
	for i := range kinds {
		if kinds[i].name == objectType && !kinds[i].none {
			return &kinds[i]
		}
	}
	return nil
}
