package github

import (
	"bytes"
	"net/url"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// formField begins the body of a webhook with the content type application/x-www-form-urlencoded.
// No JSON begins with it. The content type itself is unsigned and not stored with the event.
var formField = []byte("payload=")

// read parses a delivery's body: JSON, or a form with JSON in its only field. The error is a
// *provider.Dead.
func read(body []byte) (*canonical.Value, error) {
	if !bytes.HasPrefix(body, formField) {
		return provider.ReadObject(body)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, newDead("the body begins like a form but is not one: %v%s", err, provider.SignedBySender)
	}
	if len(form["payload"]) != 1 {
		return nil, newDead("the body is a form with %d fields named payload instead of one", len(form["payload"]))
	}
	return provider.ReadObject([]byte(form.Get("payload")))
}

// CheckBody requires a readable body.
func (GitHub) CheckBody(body []byte) error {
	root, err := read(body)
	root.Release()
	return err
}
