package shopify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Identify names the one event of a delivery. Its key comes from the header that the source chose,
// or else is a content key. A shop that the source does not allow is rejected.
func (Shopify) Identify(src *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	f := familyOf(d)
	shop, err := shopOf(src, d.Header.Get(f.shop))
	if err != nil {
		return nil, err
	}
	e := provider.Event{
		Key:         validName(d.Header.Get(f.keyHeader(src))),
		Type:        f.eventType(d),
		Account:     shop,
		OccurredAt:  parseTriggered(d.Header.Get(f.triggeredAt)),
		APIVersion:  validName(d.Header.Get(f.version)),
		Fingerprint: provider.BodyFingerprint(d.Body),
	}
	if root, err := provider.ReadObject(d.Body); err == nil {
		// If the body is not trusted, the object is named anyway if possible.
		if o, _ := read(e.Type, root); provider.ValidName(o.ObjectType) && provider.ValidName(o.ObjectID) {
			e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
		}
	}
	if e.Key == "" {
		provider.SetContentKey(&e, d.Body)
	}
	return []provider.Event{e}, nil
}

// keyHeader returns the header with the event's key.
func (f *family) keyHeader(src *provider.Source) string {
	if src.Key == "" {
		return f.ids[webhookID]
	}
	return f.ids[src.Key]
}

// eventType returns the topic ("orders/create"), or topic and action in the Events family
// ("Product/update").
func (f *family) eventType(d *provider.Delivery) string {
	t := d.Header.Get(f.topic)
	if f.action != "" && t != "" {
		t += "/" + d.Header.Get(f.action)
	}
	if !provider.ValidName(t) {
		return provider.UnknownType
	}
	return t
}

func validName(s string) string {
	if !provider.ValidName(s) {
		return ""
	}
	return s
}

// parseTriggered returns when Shopify detected the change, or zero if the header is missing or
// invalid. The header is not signed, so it is only stored, and never decides which state is newer.
func parseTriggered(s string) time.Time {
	at, ok := readTime(s)
	if !ok {
		return time.Time{}
	}
	return at
}

// shopOf returns the shop of a delivery if the source accepts it. A source with one account uses
// that shop if the header is missing: the unsigned header proves nothing anyway.
func shopOf(src *provider.Source, header string) (string, error) {
	shop := shopName(header)
	switch {
	case header == "" && src.Account != "":
		return shopName(src.Account), nil
	case header == "":
		return "", &provider.Rejection{Reason: provider.MissingHeader,
			Detail: "the shop domain header is missing, and the source allows several shops"}
	case shop == "" || !acceptsShop(src, shop):
		return "", &provider.Rejection{Reason: provider.ForbiddenAccount,
			Detail: fmt.Sprintf("shop %.100q is not allowed here", header)}
	}
	return shop, nil
}

// acceptsShop reports whether a source accepts deliveries of the shop.
func acceptsShop(src *provider.Source, shop string) bool {
	same := func(allowed string) bool { return allowed == "*" || shopName(allowed) == shop }
	return src.Account != "" && same(src.Account) || slices.ContainsFunc(src.Accounts, same)
}

// shopName returns a shop's domain in lower case, as it is stored; "" if it is no domain.
func shopName(s string) string {
	s = strings.ToLower(s)
	invalid := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.') }
	if s == "" || len(s) > 253 || strings.ContainsFunc(s, invalid) || strings.Trim(s, ".-") != s {
		return ""
	}
	return s
}
