package shopify

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Identify names the one event of a delivery. Its key comes from the header that the source chose; without that header
// it is a content key. A shop that the source does not name is refused.
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
		OccurredAt:  triggered(d.Header.Get(f.triggered)),
		APIVersion:  validName(d.Header.Get(f.version)),
		Fingerprint: provider.BodyFingerprint(d.Body),
	}
	if root, err := provider.ReadObject(d.Body); err == nil {
		// Of a body that is not believed the object is named all the same, where it can be told.
		if o, _ := read(e.Type, root); provider.ValidName(o.ObjectType) && provider.ValidName(o.ObjectID) {
			e.ObjectType, e.ObjectID = o.ObjectType, o.ObjectID
		}
	}
	if e.Key == "" {
		provider.NameByContent(&e, d.Body)
	}
	return []provider.Event{e}, nil
}

// keyHeader is the header that names an event.
func (f *family) keyHeader(src *provider.Source) string {
	if src.Key == "" {
		return f.ids[webhookID]
	}
	return f.ids[src.Key]
}

// eventType is the topic ("orders/create"); of the Events family topic and action ("Product/update").
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

// triggered is when Shopify saw the change; zero where the header is missing or makes no sense. It is not signed, so it
// is only kept, and never decides which state is newer.
func triggered(s string) time.Time {
	at, ok := readTime(s)
	if !ok {
		return time.Time{}
	}
	return at
}

// shopOf is the shop of a delivery if the source takes it. A delivery to a pinned source that names no shop is the
// pinned shop's: the header proves nothing, so its absence takes nothing away.
func shopOf(src *provider.Source, header string) (string, error) {
	shop := shopName(header)
	switch {
	case header == "" && src.Account != "":
		return shopName(src.Account), nil
	case header == "":
		return "", &provider.Rejection{Reason: provider.MissingHeader, Detail: "no shop domain header, and the source names no one shop"}
	case shop == "" || !takes(src, shop):
		return "", &provider.Rejection{Reason: provider.ForbiddenAccount, Detail: fmt.Sprintf("shop %.100q is not allowed here", header)}
	}
	return shop, nil
}

// takes tells whether a source takes deliveries of the shop.
func takes(src *provider.Source, shop string) bool {
	same := func(allowed string) bool { return allowed == "*" || shopName(allowed) == shop }
	return src.Account != "" && same(src.Account) || slices.ContainsFunc(src.Accounts, same)
}

// shopName is a shop's domain in the one spelling it is kept under, lower case; "" where it is no domain.
func shopName(s string) string {
	s = strings.ToLower(s)
	odd := func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.') }
	if s == "" || len(s) > 253 || strings.ContainsFunc(s, odd) || strings.Trim(s, ".-") != s {
		return ""
	}
	return s
}
