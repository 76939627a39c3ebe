package stripe

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// typeRule says what one type of object means for the version rule. The zero rule is safe for a
// type that is not in the table: its snapshots are whole, ordered by the event's time alone, and
// its deletes are not final.
type typeRule struct {
	// opens are the event types that are always an object's first, in their order. Among events of
	// one second they come first, unless the object may have been deleted and created again within
	// that second.
	opens []string
	// deletes are the event types that delete the object.
	deletes []string
	// survives are event types that sound like a delete but do not delete the object
	// (customer.subscription.deleted, a cancellation).
	survives []string
	// final means that a delete is permanent, because Stripe makes the ids and never reuses one.
	final bool
	// ownVersion is the field with the object's own version, in seconds. Empty means that the
	// event's time is the version.
	ownVersion string
	// mayNotAdvance means that ownVersion may stay the same after a change.
	mayNotAdvance bool
	// status is the field that order refers to; empty means "status".
	status string
	// order are groups of statuses. An object in a later group never goes back to an earlier one.
	// Any other status counts as part of the first group.
	order [][]string
	// id says how the object is named in the mirror; the default is its id.
	id idRule
	// chosenIDs means that users choose the ids, or Stripe uses the same ids in live and in test
	// mode. An id can then return after a delete, and name two objects in the two modes.
	chosenIDs bool
	// ignoredPaths are fields that change without an event: counters, and links that each response
	// renders again with a time-dependent token.
	ignoredPaths []string
	// ignoredReason says why objects of this type are not mirrored.
	ignoredReason string
}

// idRule says how an object is named whose id is missing or not unique.
type idRule int

const (
	byID idRule = iota
	// byAccount: the id is the same in every account (a capability's id is its name), so the
	// account precedes it.
	byAccount
	// byCustomer: there is one object per customer, without an id.
	byCustomer
	// byCoupon: a discount has an id in newer API versions. In older ones it is named by its
	// customer and subscription.
	byCoupon
	// single: there is one object per account, without an id. It is named by its type.
	single
)

// key returns the name of an object in the mirror, or "".
func (r typeRule) key(object *canonical.Value) string {
	switch r.id {
	case byAccount:
		return joined(text(object, "account"), text(object, "id"))
	case byCustomer:
		return text(object, "customer")
	case byCoupon:
		if id := text(object, "id"); id != "" {
			return id
		}
		if sub := text(object, "subscription"); sub != "" {
			return joined(text(object, "customer"), sub)
		}
		return text(object, "customer")
	case single:
		return text(object, "object")
	}
	return text(object, "id")
}

// joined joins two ids to a name. Stripe's ids contain no colon, so no two pairs have the same
// name.
func joined(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	return a + ":" + b
}

// sharesID reports whether another object can get this object's name.
func (r typeRule) sharesID(object *canonical.Value) bool {
	return r.chosenIDs || r.id != byID && text(object, "id") == ""
}

// tenant returns the account under which an object is mirrored. Ids made by Stripe differ between
// live and test mode. Names that users choose or that follow from the account do not differ. One
// endpoint may receive both modes: a platform's live endpoint receives test events of its connected
// accounts. Such test objects are mirrored under the account "test", or "acct_1/test".
// An id that looks like Stripe's own proves nothing: users give a live product the id of its test
// product.
func (r typeRule) tenant(account string, root *canonical.Value) string {
	live, ok := root.Get("livemode").Bool()
	sameInBoth := r.chosenIDs || r.id == byAccount || r.id == single
	if !ok || live || !sameInBoth {
		return account
	}
	if account == "" {
		return "test"
	}
	return account + "/test"
}

// ignoresEvent returns why an event's object is not mirrored, or "".
func (r typeRule) ignoresEvent(e event) string {
	if isPreview(e) {
		return "a preview of an invoice that does not exist yet"
	}
	return r.ignoredReason
}

// isDeleted reports whether an event deletes an object of the type, and whether the delete is
// permanent. An event that ends in .deleted and is not in the table counts as a delete, because
// otherwise the object would be shown as alive for ever. It is never final.
func (r typeRule) isDeleted(eventType string) (deleted, final bool) {
	if slices.Contains(r.deletes, eventType) {
		return true, r.final
	}
	return strings.HasSuffix(eventType, ".deleted") && !slices.Contains(r.survives, eventType), false
}

// rank orders the events of an object within one second: first the event that opens it, then by
// statuses that never go back. If ids can return, no order is safe, because the object may have
// been deleted and created again within the second.
func (r typeRule) rank(eventType string, object *canonical.Value) int {
	if r.sharesID(object) || r.idsMayReturn() {
		return 1
	}
	if i := slices.Index(r.opens, eventType); i >= 0 {
		return i
	}
	opened := max(1, len(r.opens))
	status := statusText(object.Get(r.statusField()))
	for i, group := range r.order {
		if slices.Contains(group, status) {
			return opened + i
		}
	}
	return opened
}

// idsMayReturn reports whether the type has a delete that may not be permanent.
func (r typeRule) idsMayReturn() bool { return len(r.deletes) > 0 && !r.final }

func (r typeRule) statusField() string {
	if r.status == "" {
		return "status"
	}
	return r.status
}

// statusText returns a status as order writes it; null is "null".
func statusText(v *canonical.Value) string {
	if v.Kind() == canonical.Null {
		return "null"
	}
	s, _ := v.Text()
	return s
}

// IgnoredPaths returns, for each mirrored type of the table, the fields that the comparison of
// states ignores.
func (Stripe) IgnoredPaths() map[string][]string {
	out := map[string][]string{}
	for name, r := range types {
		if r.ignoredReason == "" {
			out[name] = r.ignoredPaths
		}
	}
	return out
}
