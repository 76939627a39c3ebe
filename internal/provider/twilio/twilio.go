// Package twilio is the provider Twilio. It sends forms about messages and calls, and the JSON of
// Event Streams. Both are signed with the address that they are sent to; for JSON the address
// contains a digest of the body. Forms have no id, and most of them no time.
package twilio

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	// Twilio's own programs try the address with and without its default port.
	for i, message := range []string{"{url|port}{sorted_form}", "{url|port}"} {
		s.Schemes[i].Or = declared.Templates(message)
	}
	s.Events.AllowSingle = true // Event Streams send lists
	s.Reject, s.Check = rejectOtherBody, check
}

// check requires an address without a query: Twilio signs the query of each delivery, and Event
// Streams add to it.
func check(src *provider.Source) error {
	if strings.ContainsAny(src.URL, "?#") {
		return errors.New("url: leave out the part that begins with ? or #; the query is taken from each delivery")
	}
	return nil
}

// rejectOtherBody rejects a body that does not match the digest in the address, even if the
// signature is right: a signature over an address alone is also valid for an empty form at that
// address.
func rejectOtherBody(_ *provider.Source, d *provider.Delivery) *provider.Rejection {
	query, _ := url.ParseQuery(d.Query) // unreadable parts do not count
	if !query.Has("bodySHA256") {
		return nil
	}
	sum := sha256.Sum256(d.Body)
	if strings.EqualFold(query.Get("bodySHA256"), hex.EncodeToString(sum[:])) {
		return nil
	}
	return &provider.Rejection{Reason: provider.WrongSignature,
		Detail: "the body does not match the digest in the address, bodySHA256"}
}
