package shopify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Observe reads what an event says about its object.
func (Shopify) Observe(_ *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
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

// read says what a body of a topic means for its object. With an error it still names the object if
// possible.
func read(eventType string, root *canonical.Value) (provider.Observation, error) {
	if eventType == "" || eventType == provider.UnknownType {
		return provider.Observation{}, newDead("the delivery has no readable topic; a proxy may have dropped " +
			"the header")
	}
	if inEvents(eventType) {
		return readEvents(eventType, root)
	}
	k, role := find(eventType)
	if role == roleUnknown {
		return readUnknown(eventType, root), nil
	}
	if role == roleIgnored {
		return provider.Observation{Ignored: k.partialReasons[eventType]}, nil
	}
	o := provider.Observation{ObjectType: k.name, Rank: 1, Unit: k.resolution()}
	o.ObjectID = k.key(eventType, root)
	if !provider.ValidName(o.ObjectID) || !k.textIDs && !plainNumber(o.ObjectID) {
		return o, newDead("a body of %s must contain the id of its %s, and this one does not", eventType, k.name)
	}
	if role == rolePartial {
		o.Partial = k.partialReasons[eventType]
		return o, nil
	}
	if err := k.checkBody(eventType, root); err != nil {
		return o, err
	}
	if role == roleDeleted {
		return k.readDelete(o, eventType, root)
	}
	k.readWhole(&o, root)
	return o, nil
}

// checkBody rejects a body that is not about an object of the topic's type. The topic is not
// signed, so a captured delivery can be sent again under another one.
func (k *objectRule) checkBody(eventType string, root *canonical.Value) error {
	gid := textOf(root, "admin_graphql_api_id")
	if noun := gidNoun(gid); noun != "" && noun != k.gid && (k.gid != "" || isListedNoun(noun)) {
		return newDead("the topic %s is about objects of type %s, but the signed body is about %.100q: the topic is "+
			"not signed, so it is not trusted", eventType, k.name, gid)
	}
	return nil
}

// isListedNoun reports whether a rule of the table has GraphQL ids of the noun.
func isListedNoun(noun string) bool {
	return slices.ContainsFunc(objectRules, func(k objectRule) bool { return k.gid == noun })
}

// readWhole reads a body that is the object itself. A body that lacks a field is only part of one
// (a subscription with include_fields sends only those). A body without a time has no order.
func (k *objectRule) readWhole(o *provider.Observation, root *canonical.Value) {
	at, ok := readTime(textOf(root, k.version()))
	missing := k.missingField(root)
	switch {
	case missing != "":
		o.Partial = "the body has no " + missing + "; a subscription with include_fields sends only part of the object"
	case !ok:
		o.Partial = "the body's " + k.version() + " is not a time, so its order is unknown"
	case k.hasCutVariants(root):
		o.Partial = "the body lists more variants than it contains; Shopify cuts long lists"
	default:
		o.State, o.At, o.HasAt = root, at.UnixMicro(), true
		o.OwnVersion, o.MayNotAdvance = k.created == "", k.mayNotAdvance
	}
}

// hasCutVariants reports whether a product's list of variants is shorter than that of their ids.
func (k *objectRule) hasCutVariants(root *canonical.Value) bool {
	gids := root.Get("variant_gids")
	return k.name == "product" && gids.Kind() == canonical.Array &&
		len(gids.Elements()) > len(root.Get("variants").Elements())
}

// readDelete accepts a delete only from a body of a delete's form: the id and at most the leftovers
// of the topic. Any other field means that the object existed when the body was signed, and the
// body may have been sent again under an unsigned delete topic. A subscription whose include_fields
// contain only the id sends bodies that look like deletes. It must not share a secret with a source
// that accepts deletes.
func (k *objectRule) readDelete(o provider.Observation, eventType string, root *canonical.Value) (provider.Observation,
	error) {
	if extra := k.beyondDelete(root); extra != "" {
		return o, newDead("a %s contains no %.64q: this body belongs to another topic, and the topic is not signed, "+
			"so the delete is not trusted", eventType, extra)
	}
	if k.canReturn {
		o.Partial = "the delete has no time, and the same object can return"
		return o, nil
	}
	o.Deleted, o.Final, o.State = true, true, root
	return o, nil
}

// readUnknown reads a topic that is not in the table: it makes a refetch pending if the body names
// an object.
func readUnknown(eventType string, root *canonical.Value) provider.Observation {
	noun := nounOf(eventType)
	o := provider.Observation{ObjectType: noun, ObjectID: unknownObjectID(noun, root), Rank: 1, Unit: second}
	if !provider.ValidName(o.ObjectType) || !provider.ValidName(o.ObjectID) {
		return provider.Observation{Ignored: fmt.Sprintf("the topic %s is unknown, and no object of the name "+
			"%.100s is in its body", eventType, noun)}
	}
	o.Partial = fmt.Sprintf("the topic %s is unknown, so its body may be part of an object", eventType)
	return o
}

// unknownObjectID returns the id of an object in the body of a topic that is not in the table. It
// prefers order_id to id, because the id in orders/risk_assessment_changed is the assessment's. It
// also looks in a member of the object's name, as in fulfillment_orders/cancelled.
func unknownObjectID(noun string, root *canonical.Value) string {
	return cmp.Or(idText(root.Get(noun+"_id")), bodyID(root), bodyID(root.Get(noun)))
}

func newDead(format string, args ...any) error {
	return &provider.Dead{Reason: fmt.Sprintf(format, args...)}
}

// The resolutions of Shopify's clocks in microseconds.
const (
	millisecond = 1_000
	second      = 1_000_000
)

// readTime parses a time with its offset, between the years 1970 and 9999.
func readTime(s string) (time.Time, bool) {
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || at.Unix() <= 0 || at.UTC().Year() > 9999 {
		return time.Time{}, false
	}
	return at.UTC(), true
}
