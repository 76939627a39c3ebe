package ingest

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// direct tells whether whoever sends is a program of the user's own, which reads what it is answered.
func direct(ep Endpoint) bool {
	_, ok := ep.Provider.(provider.Direct)
	return ok
}

// accepted has a proven delivery stored as its provider accepts it. Another body than the one that came counts among what is held, beside that.
func (v *visit) accepted(d *provider.Delivery) error {
	a, err := provider.Accept(v.ep.Provider, v.ep.Config, d)
	if err != nil {
		return err
	}
	if body := a.Delivery.Body; len(body) != len(d.Body) && !v.memory.grow(v.memory.amount+int64(len(body))) {
		return errFull
	}
	*d, v.bodies = *a.Delivery, a.Bodies
	return nil
}

// conflicting is the answer to a delivery that was refused for its keys: what they are, the first few.
func conflicting(receipts []events.Receipt) *problem {
	var keys []string
	for _, r := range receipts {
		if r.Conflict && len(keys) < shownEvents {
			keys = append(keys, fmt.Sprintf("%q", events.Text(r.Key)))
		}
	}
	return &problem{Status: http.StatusUnprocessableEntity, Type: "urn:postern:problem:key-reused", Title: "key used before", outcome: "conflict",
		Detail: "Stored before with other content: " + strings.Join(keys, ", ") + ". Nothing of this delivery was stored. Give a new event a new key."}
}

// unusable is the answer to a proven delivery that cannot be stored; nil for any other error.
func unusable(err error) *problem {
	var why *provider.Invalid
	if !errors.As(err, &why) {
		return nil
	}
	return &problem{Status: why.Status, Type: "urn:postern:problem:invalid", Title: "delivery cannot be stored", outcome: "invalid", Detail: events.Text(why.Detail)}
}

// challenged says how to prove oneself, as a 401 must where that is a matter of HTTP's own (RFC 9110, 11.6.1).
func challenged(p *problem, ep Endpoint, reply *provider.Reply) {
	if p == errUnauthenticated && direct(ep) {
		reply.Header.Set("WWW-Authenticate", "Bearer")
	}
}
