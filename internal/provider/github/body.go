package github

import (
	"bytes"
	"net/url"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// formField begins the body of a webhook of the content type application/x-www-form-urlencoded. No JSON begins so, and the
// stored event does not tell its content type, which is unsigned besides.
var formField = []byte("payload=")

// read reads a delivery's body: JSON, or a form whose one field holds it. The error is a *provider.Dead.
func read(body []byte) (*canonical.Value, error) {
	if !bytes.HasPrefix(body, formField) {
		return provider.ReadObject(body)
	}
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, dead("the body begins like a form and is none: %v%s", err, provider.SenderMade)
	}
	if len(form["payload"]) != 1 {
		return nil, dead("the body is a form with %d fields named payload instead of one", len(form["payload"]))
	}
	return provider.ReadObject([]byte(form.Get("payload")))
}

// CheckBody wants a body that can be read.
func (GitHub) CheckBody(body []byte) error {
	root, err := read(body)
	root.Release()
	return err
}
