package stripe

import (
	"crypto/sha256"
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Identify names the one event of a delivery. Its key is the event's id. A body that cannot be
// read, or that has no id, gets a content key. An event of an account that the source does not
// allow is rejected.
func (Stripe) Identify(src *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e, err := readEvent(d.Body)
	if err != nil {
		out := provider.Event{Type: provider.UnknownType, Account: src.Account,
			Fingerprint: provider.BodyFingerprint(d.Body)}
		provider.SetContentKey(&out, d.Body)
		return []provider.Event{out}, nil
	}
	defer e.root.Release()
	if account := e.account(); !acceptsAccount(src, account) {
		return nil, &provider.Rejection{Reason: provider.ForbiddenAccount,
			Detail: fmt.Sprintf("account %.64q is not allowed here", account)}
	}
	return []provider.Event{e.named(src, d.Body)}, nil
}

// named returns what the log stores of an event.
func (e event) named(src *provider.Source, body []byte) provider.Event {
	out := provider.Event{
		Key:         name(e.root, "id"),
		Type:        e.kind(),
		APIVersion:  name(e.root, "api_version"),
		Fingerprint: fingerprint(e.root),
	}
	out.VersionSigned = out.APIVersion != ""
	out.OccurredAt, _ = e.occurred()
	if a := e.tenant(src); provider.ValidName(a) {
		out.Account = a
	}
	if id, ignored, err := e.identity(src); err == nil && ignored == "" {
		out.Account, out.ObjectType, out.ObjectID = id.account, id.objectType, id.objectID
	}
	if out.Key == "" {
		provider.SetContentKey(&out, body)
	}
	return out
}

// CheckBody requires an event. Stripe's API lists other objects in the same format, and some of
// them have a type too.
func (Stripe) CheckBody(body []byte) error {
	e, err := readEvent(body)
	if err != nil {
		return err
	}
	defer e.root.Release()
	if object := text(e.root, "object"); object != "" && object != "event" && !e.idOnly {
		return fmt.Errorf("the body is a %.40q, not an event", object)
	}
	return nil
}

// fingerprint ignores pending_webhooks, the number of endpoints still to be notified: it differs
// between deliveries of one event, and Stripe does not promise equal bytes either. For an id-only
// event it covers only the names of the event and its object, because the API's list contains more
// than the webhook (changes, data).
func fingerprint(root *canonical.Value) [16]byte {
	if root.Get("object").Is("v2.core.event") {
		h := sha256.New()
		for _, path := range [][]string{{"id"}, {"type"}, {"created"}, {"context"}, {"related_object", "type"},
			{"related_object", "id"}} {
			part := text(root, path...)
			fmt.Fprintf(h, "%d:%s", len(part), part)
		}
		return [16]byte(h.Sum(nil)[:16])
	}
	sum := root.Sum(canonical.Options{Without: []string{"pending_webhooks"}})
	return [16]byte(sum[:16])
}
