package github

import (
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Identify names the one event of a delivery. Its key is the delivery's id, which GitHub keeps when
// it sends a delivery again, or else a content key. Its fingerprint covers the content of the body,
// because GitHub's API returns a delivery in other bytes. Its type is the event's name and, if the
// body has one, the action: "issues.opened". It has no account. If the source names accounts, a
// body of other owners is rejected. A body without an owner is accepted, because its signature is
// right.
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
		if err := checkOwners(src, root); err != nil {
			return nil, err
		}
		e.Type = eventType(event, root)
		sum := root.Sum(canonical.Options{})
		e.Fingerprint = [16]byte(sum[:16])
		describe(&e, event, root)
	}
	if !provider.ValidName(e.Key) {
		provider.SetContentKey(&e, d.Body)
	}
	return []provider.Event{e}, nil
}

// describe adds the object of an event, and its time if the body contains it. If the body is not
// trusted, the object is named anyway if possible.
func describe(e *provider.Event, event string, root *canonical.Value) {
	o, _ := observe(event, root)
	if provider.ValidName(o.ObjectType) && provider.ValidName(o.ObjectID) {
		e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
	}
	if o.HasAt && !o.OwnVersion {
		e.OccurredAt = timeOf(o.At)
	}
}

// eventType joins an event's name and its action. Without a name the type is unknown, whatever the
// action.
func eventType(event string, root *canonical.Value) string {
	if event == "" {
		return provider.UnknownType
	}
	if t := event + "." + text(root, "action"); text(root, "action") != "" && provider.ValidName(t) {
		return t
	}
	return event
}

// eventName returns the event's name from its header, or "". GitHub's names consist of words with
// underscores. A dot in the unsigned header could look like an action.
func eventName(header string) string {
	invalid := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_') }
	if len(header) > 100 || strings.ContainsFunc(header, invalid) {
		return ""
	}
	return header
}

// checkOwners rejects a body whose owners the source does not name. One allowed owner is enough: an
// organization's webhook also reports objects that were transferred to it or from it.
func checkOwners(src *provider.Source, root *canonical.Value) error {
	names, of := src.Accounts, owners(root)
	if len(names) == 0 || len(of) == 0 {
		return nil
	}
	for _, owner := range of {
		if slices.ContainsFunc(names, func(name string) bool { return name == "*" || strings.EqualFold(name, owner) }) {
			return nil
		}
	}
	return &provider.Rejection{Reason: provider.ForbiddenAccount,
		Detail: fmt.Sprintf("owner %.100q is not allowed here", of[0])}
}

// owners returns the logins of a body's owners.
func owners(root *canonical.Value) []string {
	var out []string
	for _, path := range [][]string{{"repository", "owner", "login"}, {"organization", "login"},
		{"installation", "account", "login"}} {
		if login := text(root, path...); login != "" {
			out = append(out, login)
		}
	}
	return out
}
