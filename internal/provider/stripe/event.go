package stripe

import (
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// event is a body that was read: a snapshot event, which carries its object whole and frozen, or a thin one, which
// only names it (https://docs.stripe.com/event-destinations).
type event struct {
	root *canonical.Value
	// object is data.object of a snapshot event, related_object of a thin one; nil where there is none.
	object *canonical.Value
	thin   bool
}

func readEvent(body []byte) (event, error) {
	root, err := provider.ReadObject(body)
	if err != nil {
		return event{}, err
	}
	e := event{root: root, thin: root.Get("object").Is("v2.core.event")}
	object := root.Get("data", "object")
	if e.thin {
		object = root.Get("related_object")
	}
	if object.Kind() == canonical.Object {
		e.object = object
	}
	return e, nil
}

// text is a member's text, "" where it is none.
func text(v *canonical.Value, path ...string) string {
	s, _ := v.Get(path...).Text()
	return s
}

// name is a member's text where it can name something, else "".
func name(v *canonical.Value, path ...string) string {
	if s := text(v, path...); provider.ValidName(s) {
		return s
	}
	return ""
}

// kind is the event's type, e.g. "customer.updated".
func (e event) kind() string {
	if s := name(e.root, "type"); s != "" {
		return s
	}
	return provider.UnknownType
}

// account is the connected account the event names; "" for the account the endpoint belongs to.
func (e event) account() string {
	if e.thin {
		return text(e.root, "context")
	}
	return text(e.root, "account")
}

// tenant is the account of the event: the one it names, else the one the source is pinned to.
func (e event) tenant(src *provider.Source) string {
	if a := e.account(); a != "" {
		return a
	}
	return src.Account
}

// allowed tells whether a source takes events of the account. The endpoint's own account is never named and is always taken.
func allowed(src *provider.Source, account string) bool {
	open := src.Account == "" && len(src.Accounts) == 0
	return open || account == "" || account == src.Account ||
		slices.Contains(src.Accounts, account) || slices.Contains(src.Accounts, "*")
}

// occurred is the event's time and the resolution of its clock in microseconds: whole seconds in snapshot events,
// milliseconds in thin ones. The time is zero where there is none that makes sense.
func (e event) occurred() (at time.Time, unit int64) {
	if e.thin {
		at, err := time.Parse(time.RFC3339, text(e.root, "created"))
		if err != nil || !sensible(at.Unix()) {
			return time.Time{}, millisecond
		}
		return at.UTC(), millisecond
	}
	seconds, ok := e.root.Get("created").Int64()
	if !ok || !sensible(seconds) {
		return time.Time{}, second
	}
	return time.Unix(seconds, 0).UTC(), second
}

// Resolutions of Stripe's clocks in microseconds.
const (
	millisecond = 1_000
	second      = 1_000_000
)

// sensible keeps times of the years 1970 to 9999: beyond, PostgreSQL and JSON have no common spelling.
func sensible(seconds int64) bool { return seconds > 0 && seconds < 253_402_300_800 }

// identity is the key of an object in the mirror.
type identity struct{ account, objectType, objectID string }

// identity names the object the event is about. ignored says why there is none; the error is a *provider.Dead.
func (e event) identity(src *provider.Source) (id identity, ignored string, err error) {
	if e.object == nil {
		return identity{}, "the event carries no object", nil
	}
	if e.thin {
		id.objectType, id.objectID = text(e.object, "type"), text(e.object, "id")
	} else {
		id.objectType = text(e.object, "object")
		r := types[id.objectType]
		if why := r.ignores(e); why != "" {
			return identity{}, why, nil
		}
		id.objectID = r.key(e.object)
	}
	id.account = types[id.objectType].tenant(e.tenant(src), e.root)
	if id.objectType == "" || id.objectID == "" {
		return identity{}, "the event's object carries no id, so there is nothing to keep it under", nil
	}
	if !provider.ValidName(id.objectType) || !provider.ValidName(id.objectID) || id.account != "" && !provider.ValidName(id.account) {
		return identity{}, "", &provider.Dead{Reason: "the event's object has a type, id or account that is too long or holds control characters"}
	}
	return id, "", nil
}

// preview tells whether an object is a preview of one that does not exist yet (invoice.upcoming).
func preview(e event) bool {
	return e.root.Get("type").Is("invoice.upcoming") || strings.HasPrefix(text(e.object, "id"), "upcoming_in")
}
