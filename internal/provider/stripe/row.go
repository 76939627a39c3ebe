package stripe

import (
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// row says what one type of object means for the version rule. The zero row is the safe one for a type the table does
// not know: its snapshots are whole and frozen like all of Stripe's, ordered by the event's time alone, and a delete
// may be taken back.
type row struct {
	// known: the type is in the table.
	known bool
	// opens are the event types that are always an object's first, in their order; among events of one second they come
	// first, unless the object may have been deleted and made again within that second.
	opens []string
	// deletes are the event types after which the object is gone.
	deletes []string
	// survives are event types that sound like a delete after which the object is still there
	// (customer.subscription.deleted, a cancellation).
	survives []string
	// final: a delete is for good, since Stripe makes the ids and never gives one again.
	final bool
	// own is the field that is the object's own version, in seconds; empty: the event's time is the version.
	own string
	// still: own is not known to move with every change.
	still bool
	// status is the field that order is about; empty: "status".
	status string
	// order are groups of statuses such that an object in a later group never goes back to an earlier one. A status that
	// is not named counts as one of the first group.
	order [][]string
	// id is how the object is named in the mirror; empty: by its id.
	id idRule
	// chosen: the ids are not made for one object in one mode: users choose them, or Stripe gives the same ones in live and
	// in test mode. So an id can come back after a delete, and name two objects in the two modes.
	chosen bool
	// volatile are fields that change without an event: counts, and links that each answer renders anew, with a token that holds the time.
	volatile []string
	// ignored says why objects of this type are not mirrored.
	ignored string
}

// idRule is how an object is named whose id is missing or does not suffice.
type idRule int

const (
	byID idRule = iota
	// byAccount: the id is the same in every account (a capability's is its name); the account goes before it.
	byAccount
	// byCustomer: there is one per customer and it has no id.
	byCustomer
	// byCoupon: a discount has an id in newer API versions; in older ones it is named by its customer and subscription.
	byCoupon
	// single: there is one per account and it has no id; it is named by its type.
	single
)

// key names an object in the mirror; "" where it has no name.
func (r row) key(object *canonical.Value) string {
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

// joined names an object by two ids. Stripe's ids hold no colon, so no two pairs share a name.
func joined(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	return a + ":" + b
}

// shares tells whether another object can come to have this one's name.
func (r row) shares(object *canonical.Value) bool {
	return r.chosen || r.id != byID && text(object, "id") == ""
}

// tenant is the account an object is kept under. Ids that Stripe makes differ between live and test mode, so the mode
// need not be in the name; names that users choose or that follow from the account do not differ, and one endpoint gets
// both modes (a platform's live endpoint gets its connected accounts' test events). Their test objects are kept apart
// as those of the account "test", or "acct_1/test". An id that looks like Stripe's own proves nothing: users give the
// live product the id that its test product got.
func (r row) tenant(account string, root *canonical.Value) string {
	live, ok := root.Get("livemode").Bool()
	sameInBoth := r.chosen || r.id == byAccount || r.id == single
	if !ok || live || !sameInBoth {
		return account
	}
	if account == "" {
		return "test"
	}
	return account + "/test"
}

// ignores says why an event's object is not mirrored, "" if it is.
func (r row) ignores(e event) string {
	if preview(e) {
		return "a preview of an invoice that does not exist yet"
	}
	return r.ignored
}

// isDeleted tells whether an object of the type is gone after an event, and whether for good. An event that ends in
// .deleted and is not in the table is believed, since not believing it would show the object as alive for ever; it is
// never final.
func (r row) isDeleted(eventType string) (deleted, final bool) {
	if slices.Contains(r.deletes, eventType) {
		return true, r.final
	}
	return strings.HasSuffix(eventType, ".deleted") && !slices.Contains(r.survives, eventType), false
}

// rank orders what happened to an object in one second: what opens it first, then by status where that never goes back.
// Where ids can come back nothing is safe: the object may have been deleted and made again within the second.
func (r row) rank(eventType string, object *canonical.Value) int {
	if !r.known || r.shares(object) || r.unsureIDs() {
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

// unsureIDs: the type has a delete that is not known to be for good.
func (r row) unsureIDs() bool { return len(r.deletes) > 0 && !r.final }

func (r row) statusField() string {
	if r.status == "" {
		return "status"
	}
	return r.status
}

// statusText is a status as order spells it; null is "null".
func statusText(v *canonical.Value) string {
	if v.Kind() == canonical.Null {
		return "null"
	}
	s, _ := v.Text()
	return s
}

// LeftOut are the fields that states of a type are compared without, by type, of every type that the table mirrors.
func (Stripe) LeftOut() map[string][]string {
	out := map[string][]string{}
	for name, r := range types {
		if r.ignored == "" {
			out[name] = r.volatile
		}
	}
	return out
}
