package github

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Identify names the one event of a delivery: by the delivery's id, which GitHub keeps when it sends a delivery again; without
// it the key is a content key. Its fingerprint is of what the body says, since GitHub's API tells of a delivery in other bytes. Its type is the event's name and, where the body has one, the action: "issues.opened". It has
// no account. Where the source names accounts, a body that says it belongs to other owners is refused; one that names no owner
// is taken, since it is signed and no one else's.
func (GitHub) Identify(src *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e := provider.Event{
		Key:         d.Header.Get(deliveryHeader),
		Type:        provider.UnknownType,
		Fingerprint: provider.BodyFingerprint(d.Body),
	}
	event := eventName(d.Header.Get(eventHeader))
	if event != "" {
		e.Type = event
	}
	if root, err := read(d.Body); err == nil {
		if err := takes(src, root); err != nil {
			return nil, err
		}
		e.Type = eventType(event, root)
		sum := root.Sum(canonical.Options{})
		e.Fingerprint = [16]byte(sum[:16])
		describe(&e, event, root)
	}
	if !provider.ValidName(e.Key) {
		provider.NameByContent(&e, d.Body)
	}
	return []provider.Event{e}, nil
}

// describe says of which object an event is, and when it happened where the body tells. Of a body that is not believed the
// object is named all the same, where it can be told.
func describe(e *provider.Event, event string, root *canonical.Value) {
	o, _ := observe(event, root)
	if provider.ValidName(o.ObjectType) && provider.ValidName(o.ObjectID) {
		e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
	}
	if o.HasAt && !o.Own {
		e.OccurredAt = timeOf(o.At)
	}
}

// eventType is an event's name and its action. Without a name it is unknown, whatever the action.
func eventType(event string, root *canonical.Value) string {
	if event == "" {
		return provider.UnknownType
	}
	if t := event + "." + text(root, "action"); text(root, "action") != "" && provider.ValidName(t) {
		return t
	}
	return event
}

// eventName is the event's name from its header, "" where it is none: GitHub's names are words with underscores, and a dot
// would let an unsigned header pass for an action.
func eventName(header string) string {
	odd := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') }
	if len(header) > 100 || strings.ContainsFunc(header, odd) {
		return ""
	}
	return header
}

// allowed are the owners that a source names; none: it takes any.
func allowed(src *provider.Source) []string {
	if src.Account == "" {
		return src.Accounts
	}
	return append([]string{src.Account}, src.Accounts...)
}

// takes refuses a body of owners that the source does not name. One of a body's owners is enough: an organization's webhook
// also tells of what came to the organization from elsewhere, and of what left it.
func takes(src *provider.Source, root *canonical.Value) error {
	names, of := allowed(src), owners(root)
	if len(names) == 0 || len(of) == 0 {
		return nil
	}
	for _, owner := range of {
		if slices.ContainsFunc(names, func(name string) bool { return name == "*" || strings.EqualFold(name, owner) }) {
			return nil
		}
	}
	return &provider.Rejection{Reason: provider.ForbiddenAccount, Detail: fmt.Sprintf("owner %.100q is not allowed here", of[0])}
}

// owners are the logins of those whom a body belongs to.
func owners(root *canonical.Value) []string {
	var out []string
	for _, path := range [][]string{{"repository", "owner", "login"}, {"organization", "login"}, {"installation", "account", "login"}} {
		if login := text(root, path...); login != "" {
			out = append(out, login)
		}
	}
	return out
}
