package declared

import (
	"bytes"
	"fmt"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// maxUnverifiedBody is the largest body in which signatures are searched. Senders that sign each
// event send a few at a time.
const maxUnverifiedBody = 256 << 10

// verifyEach verifies a delivery whose events are signed separately. It reads the events one by one
// from the text and stops at the first that fails, because it must not build a tree of unverified
// data.
func (p *Provider) verifyEach(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	var v provider.Verification
	if len(d.Body) > maxUnverifiedBody {
		return v, malformed("the body is %d bytes long; at most %d are searched for signatures", len(d.Body),
			maxUnverifiedBody)
	}
	ev := &p.spec.Events
	elements, ok := signature.Elements(d.Body, ev.Split, ev.Item)
	if !ok {
		return v, noEvents()
	}
	var verified [][]byte
	for text := range elements {
		if len(verified) == MaxEvents {
			return provider.Verification{}, malformed("the body holds more than %d events", MaxEvents)
		}
		one := *d
		one.Body = text
		var err error
		if v, err = provider.VerifySchemes(src, &one, p.spec.Schemes...); err != nil {
			return v, err
		}
		verified = append(verified, text)
	}
	if len(verified) == 0 {
		return v, noEvents()
	}
	if err := p.checkSameEvents(d.Body, verified); err != nil {
		return provider.Verification{}, err
	}
	return v, nil
}

// checkSameEvents checks that the parser, which names and reads the events, finds exactly the
// events that were verified.
func (p *Provider) checkSameEvents(text []byte, verified [][]byte) error {
	body, err := p.spec.Events.parse(text)
	if err != nil {
		return malformed("the events are signed, but the body around them cannot be read: %v", err)
	}
	for i, position := range body.positions {
		if i >= len(verified) || !bytes.Equal(position.event.Raw(), verified[i]) {
			return malformed("the events of the body are ambiguous")
		}
	}
	if len(body.positions) != len(verified) {
		return malformed("the events of the body are ambiguous")
	}
	return nil
}

func malformed(format string, args ...any) *provider.Rejection {
	return &provider.Rejection{Reason: provider.MalformedSignature, Detail: fmt.Sprintf(format, args...)}
}

func noEvents() *provider.Rejection {
	return &provider.Rejection{Reason: provider.MissingSignature,
		Detail: "the body has no events that could be signed"}
}
