package events

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// renderingsSQL reads what distinguishes renderings of stored events, and what they have in common.
const renderingsSQL = `
SELECT id, event_type, account, object_type, object_id, api_version, coalesce(occurred_at, '0001-01-01Z') FROM events
	WHERE id = ANY($1::bigint[])`

// rendering identifies one of the forms in which a provider may send an event: its API version,
// empty if it has none, and a digest of what is equal in all forms.
type rendering struct {
	version string
	shared  [16]byte
}

// renderingOf returns the rendering of an event as the log would store it.
func renderingOf(e *provider.Event) rendering {
	occurred := int64(0)
	if isStorableTime(e.OccurredAt) {
		occurred = e.OccurredAt.UnixMicro()
	}
	h := sha256.New()
	for _, part := range []string{e.Type, e.Account, e.ObjectType, e.ObjectID} {
		part = SanitizeText(part)
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	fmt.Fprintf(h, "%d", occurred)
	// a clone, because a substring would keep the body in memory
	return rendering{version: strings.Clone(SanitizeText(e.APIVersion)), shared: [16]byte(h.Sum(nil)[:16])}
}

// isOtherVersionOf returns true if both are renderings of one event in different versions.
func (r rendering) isOtherVersionOf(of rendering) bool {
	return r.version != "" && of.version != "" && r.version != of.version && r.shared == of.shared
}

// isStorableTime returns true for the years 1 to 9999. Other times in a body are ignored.
func isStorableTime(t time.Time) bool {
	y := t.Year()
	return !t.IsZero() && y >= 1 && y <= 9999
}
