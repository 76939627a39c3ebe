package stripe

import (
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// event is a parsed body: a snapshot event, which contains its object as it was at the event, or an
// id-only event, which only names it (https://docs.stripe.com/event-destinations).
type event struct {
	root *canonical.Value
	// object is data.object of a snapshot event, or related_object of an id-only one; nil if there
	// is none.
	object *canonical.Value
	idOnly bool
}

func readEvent(body []byte) (event, error) {
	root, err := provider.ReadObject(body)
	if err != nil {
		return event{}, err
	}
	e := event{root: root, idOnly: root.Get("object").Is("v2.core.event")}
	object := root.Get("data", "object")
	if e.idOnly {
		object = root.Get("related_object")
	}
	if object.Kind() == canonical.Object {
		e.object = object
	}
	return e, nil
}

// text returns the text of a member, or "".
func text(v *canonical.Value, path ...string) string {
	s, _ := v.Get(path...).Text()
	return s
}

// name returns the text of a member if it is a valid name, or "".
func name(v *canonical.Value, path ...string) string {
	if s := text(v, path...); provider.ValidName(s) {
		return s
	}
	return ""
}

// kind returns the event's type, e.g. "customer.updated".
func (e event) kind() string {
	if s := name(e.root, "type"); s != "" {
		return s
	}
	return provider.UnknownType
}

// account returns the connected account of the event; "" for the account that the endpoint belongs
// to.
func (e event) account() string {
	if e.idOnly {
		return text(e.root, "context")
	}
	return text(e.root, "account")
}

// tenant returns the account of the event: the one it names, or else the source's own.
func (e event) tenant(src *provider.Source) string {
	if a := e.account(); a != "" {
		return a
	}
	return src.Account
}

// acceptsAccount reports whether a source accepts events of the account. The endpoint's own account
// is never named and always accepted.
func acceptsAccount(src *provider.Source, account string) bool {
	open := src.Account == "" && len(src.Accounts) == 0
	return open || account == "" || account == src.Account ||
		slices.Contains(src.Accounts, account) || slices.Contains(src.Accounts, "*")
}

// occurred returns the event's time and the resolution of its clock in microseconds: whole seconds
// in snapshot events, milliseconds in id-only ones. The time is zero if there is no valid one.
func (e event) occurred() (at time.Time, unit int64) {
	if e.idOnly {
		at, err := time.Parse(time.RFC3339, text(e.root, "created"))
		if err != nil || !isStorableTime(at.Unix()) {
			return time.Time{}, millisecond
		}
		return at.UTC(), millisecond
	}
	seconds, ok := e.root.Get("created").Int64()
	if !ok || !isStorableTime(seconds) {
		return time.Time{}, second
	}
	return time.Unix(seconds, 0).UTC(), second
}

// The resolutions of Stripe's clocks in microseconds.
const (
	millisecond = 1_000
	second      = 1_000_000
)

// isStorableTime accepts times of the years 1970 to 9999. PostgreSQL and JSON write later times
// differently.
func isStorableTime(seconds int64) bool { return seconds > 0 && seconds < 253_402_300_800 }

// identity is the key of an object in the mirror.
type identity struct{ account, objectType, objectID string }

// identity returns the object of the event. ignored says why there is none; the error is a
// *provider.Dead.
func (e event) identity(src *provider.Source) (id identity, ignored string, err error) {
	if e.object == nil {
		return identity{}, "the event has no object", nil
	}
	if e.idOnly {
		id.objectType, id.objectID = text(e.object, "type"), text(e.object, "id")
	} else {
		id.objectType = text(e.object, "object")
		r := types[id.objectType]
		if why := r.ignoresEvent(e); why != "" {
			return identity{}, why, nil
		}
		id.objectID = r.key(e.object)
	}
	id.account = types[id.objectType].tenant(e.tenant(src), e.root)
	if id.objectType == "" || id.objectID == "" {
		return identity{}, "the event's object has no id, so it cannot be mirrored", nil
	}
	if !provider.ValidName(id.objectType) || !provider.ValidName(id.objectID) || id.account != "" &&
		!provider.ValidName(id.account) {
		return identity{}, "", &provider.Dead{Reason: "the event's object has a type, id or account that is too long " +
			"or has control characters"}
	}
	return id, "", nil
}

// isPreview reports whether an object is a preview of one that does not exist yet
// (invoice.upcoming).
func isPreview(e event) bool {
	return e.root.Get("type").Is("invoice.upcoming") || strings.HasPrefix(text(e.object, "id"), "upcoming_in")
}
