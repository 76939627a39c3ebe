package declared

import (
	"bytes"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// maxUnproven is the largest body in which signatures are searched for. Senders that sign each event send a few at a time.
const maxUnproven = 256 << 10

// verifyEach proves a delivery whose events carry a signature each. No tree is built of what nobody has proven: the events are taken
// one by one from the text, and the first that does not prove is the last that is looked at.
func (p *Provider) verifyEach(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	var v provider.Verification
	if len(d.Body) > maxUnproven {
		return v, malformed("the body is %d bytes long; at most %d are searched for signatures", len(d.Body), maxUnproven)
	}
	ev := &p.spec.Events
	elements, ok := signature.Elements(d.Body, ev.Split, ev.Item)
	if !ok {
		return v, noEvents()
	}
	var proven [][]byte
	for text := range elements {
		if len(proven) == MaxEvents {
			return provider.Verification{}, malformed("the body holds more than %d events", MaxEvents)
		}
		one := *d
		one.Body = text
		var err error
		if v, err = provider.Prove(src, &one, p.spec.Schemes...); err != nil {
			return v, err
		}
		proven = append(proven, text)
	}
	if len(proven) == 0 {
		return v, noEvents()
	}
	if err := p.same(d.Body, proven); err != nil {
		return provider.Verification{}, err
	}
	return v, nil
}

// same wants that the events which will be named and read are those that were proven, since another reader finds them.
func (p *Provider) same(text []byte, proven [][]byte) error {
	body, err := p.spec.Events.read(text)
	if err != nil {
		return malformed("the events are signed, and the body around them cannot be read: %v", err)
	}
	for i, place := range body.places {
		if i >= len(proven) || !bytes.Equal(place.item.Raw(), proven[i]) {
			return malformed("the events can be read in two ways")
		}
	}
	if len(body.places) != len(proven) {
		return malformed("the events can be read in two ways")
	}
	return nil
}

func malformed(format string, args ...any) *provider.Rejection {
	return &provider.Rejection{Reason: provider.MalformedSignature, Detail: fmt.Sprintf(format, args...)}
}

func noEvents() *provider.Rejection {
	return &provider.Rejection{Reason: provider.MissingSignature, Detail: "the body holds no events that could be signed"}
}
