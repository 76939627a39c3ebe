// Package discord is the provider Discord, for the webhook events of an app. Discord signs with a
// key pair and expects its own response to each ping. It sends wrongly signed requests on purpose,
// and drops an address that does not reject them with 401.
package discord

import (
	"embed"
	"net/http"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

// tolerance is longer than the ten minutes in which Discord retries a delivery, in case a retry
// keeps the time of the first attempt. Events are identified by their content, so a delivery sent
// twice within it is one event.
const tolerance = 15 * time.Minute

func complete(s *declared.Spec) {
	s.Schemes[0].Timestamp.Tolerance = tolerance
	s.Handshake = handshake
}

// handshake responds to pings: of type 0 for webhook events, of type 1 for interactions (a webhook
// event has type 1 too, and contains an event).
func handshake(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil || body.Get("event").Kind() == canonical.Object {
		return nil
	}
	kind, ok := body.Get("type").Int64()
	switch {
	case !ok:
		return nil
	case kind == 0:
		return &provider.Reply{Status: http.StatusNoContent, Header: http.Header{"Content-Type": {"application/json"}}}
	case kind == 1:
		return &provider.Reply{ContentType: "application/json", Body: []byte(`{"type":1}`)}
	}
	return nil
}
