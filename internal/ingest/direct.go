package ingest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// isDirect returns true if the sender is a program of the user, which reads the response.
func isDirect(ep Endpoint) bool {
	_, ok := ep.Provider.(provider.DirectProvider)
	return ok
}

// accept converts a verified delivery to the form in which its provider stores it. If that form has
// a body of another size, accept counts its memory as well.
func (r *webhookRequest) accept(d *provider.Delivery) error {
	a, err := provider.Accept(r.ep.Provider, r.ep.Config, d)
	if err != nil {
		return err
	}
	if body := a.Delivery.Body; len(body) != len(d.Body) && !r.memory.grow(r.memory.amount+int64(len(body))) {
		return errOverloaded
	}
	*d, r.bodies = *a.Delivery, a.Bodies
	return nil
}

// conflictProblem returns the response to a delivery that was rejected for its keys. It names the
// first few keys.
func conflictProblem(receipts []events.Receipt) *problem {
	var keys []string
	for _, r := range receipts {
		if r.Conflict && len(keys) < maxListedEvents {
			keys = append(keys, fmt.Sprintf("%q", events.SanitizeText(r.Key)))
		}
	}
	return errKeyReused.with(errKeyReused.Status, "Stored before with other content: "+strings.Join(keys, ", ")+
		". Nothing of this delivery was stored. Give a new event a new key.")
}

// invalidProblem returns the response to a verified delivery that cannot be stored; nil for any
// other error.
func invalidProblem(err error) *problem {
	var invalid *provider.InvalidDelivery
	if !errors.As(err, &invalid) {
		return nil
	}
	return errInvalid.with(invalid.Status, events.SanitizeText(invalid.Detail))
}

// addAuthChallenge adds the header that a 401 needs where HTTP authentication is used (RFC 9110,
// 11.6.1).
func addAuthChallenge(p *problem, ep Endpoint, reply *provider.Reply) {
	if p == errUnauthenticated && isDirect(ep) {
		reply.Header.Set("WWW-Authenticate", "Bearer")
	}
}
