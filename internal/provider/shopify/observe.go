package shopify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says of its object.
func (Shopify) Observe(_ *provider.Source, e *provider.Stored) (provider.Observation, error) {
	root, err := provider.ReadObject(e.Body)
	if err != nil {
		return provider.Observation{}, err
	}
	o, err := read(e.Type, root)
	if err == nil && o.Ignored == "" {
		o.Account = e.Account
	}
	return o, err
}

// read says what a body under a topic means for its object. With an error the object's name is there if it could be told.
func read(eventType string, root *canonical.Value) (provider.Observation, error) {
	if eventType == "" || eventType == provider.UnknownType {
		return provider.Observation{}, dead("the delivery names no topic that can be read; a proxy may have dropped the header")
	}
	if inEvents(eventType) {
		return readEvents(eventType, root)
	}
	k, role := find(eventType)
	if role == unlisted {
		return readUnlisted(eventType, root), nil
	}
	if role == ignored {
		return provider.Observation{Ignored: k.why[eventType]}, nil
	}
	o := provider.Observation{ObjectType: k.name, Rank: 1, Unit: k.resolution()}
	o.ObjectID = k.key(eventType, root)
	if !provider.ValidName(o.ObjectID) || !k.named && !plainNumber(o.ObjectID) {
		return o, dead("a body under %s must name its %s, and this one does not", eventType, k.name)
	}
	if role == part {
		o.Partial = k.why[eventType]
		return o, nil
	}
	if err := k.plausible(eventType, root); err != nil {
		return o, err
	}
	if role == gone {
		return k.readDelete(o, eventType, root)
	}
	k.readWhole(&o, root)
	return o, nil
}

// plausible refuses a body that is not about an object of the topic's type: the topic comes unsigned, so a captured
// delivery can be sent again under another one.
func (k *kind) plausible(eventType string, root *canonical.Value) error {
	gid := textOf(root, "admin_graphql_api_id")
	if noun := gidNoun(gid); noun != "" && noun != k.gid && (k.gid != "" || listedNoun(noun)) {
		return dead("the topic %s carries objects of type %s, but the signed body is about %.100q: the topic is not signed, so it is not believed", eventType, k.name, gid)
	}
	return nil
}

// listedNoun tells whether some kind of the table has GraphQL ids of the noun.
func listedNoun(noun string) bool {
	return slices.ContainsFunc(kinds, func(k kind) bool { return k.gid == noun })
}

// readWhole reads a body that is the object itself. One that lacks a field (a subscription with include_fields leaves out
// what it does not name) is part of one, and one without a time has no place in the order.
func (k *kind) readWhole(o *provider.Observation, root *canonical.Value) {
	at, ok := readTime(textOf(root, k.version()))
	lacking := k.lacking(root)
	switch {
	case lacking != "":
		o.Partial = "the body has no " + lacking + "; a subscription with include_fields sends part of the object only"
	case !ok:
		o.Partial = "the body's " + k.version() + " is no time, so it has no place in the order"
	case k.cut(root):
		o.Partial = "the body lists more variants than it carries; Shopify cuts long lists"
	default:
		o.State, o.At, o.HasAt = root, at.UnixMicro(), true
		o.Own, o.Still = k.created == "", k.still
	}
}

// cut tells whether a product's list of variants is shorter than the list of their ids.
func (k *kind) cut(root *canonical.Value) bool {
	gids := root.Get("variant_gids")
	return k.name == "product" && gids.Kind() == canonical.Array && len(gids.Elements()) > len(root.Get("variants").Elements())
}

// readDelete believes a delete only from a body of a delete's shape: the id and at most the leftovers that the topic
// sends. Anything more is an object that was alive when it was signed, sent again under a topic that anyone can write.
// A subscription whose include_fields name nothing but the id sends bodies that look like deletes: such a one must not
// share a secret with a source that takes deletes.
func (k *kind) readDelete(o provider.Observation, eventType string, root *canonical.Value) (provider.Observation, error) {
	if extra := k.beyondDelete(root); extra != "" {
		return o, dead("a %s carries no %.64q: this body is of another topic, and the topic is not signed, so the delete is not believed", eventType, extra)
	}
	if k.returns {
		o.Partial = "the delete carries no time, and the same object can come back"
		return o, nil
	}
	o.Deleted, o.Final, o.State = true, true, root
	return o, nil
}

// readUnlisted is the safe reading of a topic that the table does not know: a reason to look where it names an object.
func readUnlisted(eventType string, root *canonical.Value) provider.Observation {
	noun := nounOf(eventType)
	o := provider.Observation{ObjectType: noun, ObjectID: unlistedID(noun, root), Rank: 1, Unit: second}
	if !provider.ValidName(o.ObjectType) || !provider.ValidName(o.ObjectID) {
		return provider.Observation{Ignored: fmt.Sprintf("the topic %s is not known here, and no object of the name %.100s is found in its body", eventType, noun)}
	}
	o.Partial = fmt.Sprintf("the topic %s is not known here, so its body may be part of an object", eventType)
	return o
}

// unlistedID is the id of an object in the body of a topic that the table does not know: order_id before id, since of
// orders/risk_assessment_changed the id is the assessment's; or in an object of that name, as of fulfillment_orders/cancelled.
func unlistedID(noun string, root *canonical.Value) string {
	return cmp.Or(idText(root.Get(noun+"_id")), anyID(root), anyID(root.Get(noun)))
}

func dead(format string, args ...any) error {
	return &provider.Dead{Reason: fmt.Sprintf(format, args...)}
}

// Resolutions of Shopify's clocks in microseconds.
const (
	millisecond = 1_000
	second      = 1_000_000
)

// readTime reads a time with its offset, between the years 1970 and 9999.
func readTime(s string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || at.Unix() <= 0 || at.UTC().Year() > 9999 {
		return time.Time{}, false
	}
	return at.UTC(), true
}
