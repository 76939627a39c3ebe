package stripefake

import (
	"fmt"
	"net/http"
	"strings"
)

// apiError is an error in the format of the API (https://docs.stripe.com/api/errors).
type apiError struct {
	status  int
	reason  string // of the limit that was exceeded
	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

func (f *apiError) response() response {
	if f.Type == "" {
		f.Type = "invalid_request_error"
	}
	header := http.Header{}
	if f.status == http.StatusUnauthorized {
		header.Set("Www-Authenticate", `Bearer realm="Stripe"`)
	}
	if f.reason != "" {
		header.Set("Stripe-Rate-Limited-Reason", f.reason)
	}
	return response{status: f.status, header: header, body: text(tree{"error": f})}
}

// notFound returns the error for a missing object. The v2 API has its own format.
func notFound(k *kind, id string) *apiError {
	if k.idOnly {
		return &apiError{status: http.StatusNotFound, Code: "not_found", Message: "Object not found: " + id}
	}
	return &apiError{status: http.StatusNotFound, Code: "resource_missing", Param: "id",
		Message: fmt.Sprintf("No such %s: '%s'", k.name, id)}
}

func unknownParameter(name string) *apiError {
	return &apiError{status: http.StatusBadRequest, Code: "parameter_unknown", Param: name,
		Message: "Received unknown parameter: " + name}
}

func badParameter(name, why string) *apiError {
	return &apiError{status: http.StatusBadRequest, Param: name, Message: why}
}

// allowParameters rejects all parameters except the named ones. A name that ends in [ allows a list
// or a range.
func (c *call) allowParameters(names ...string) *apiError {
	for asked := range c.query {
		known := false
		for _, name := range names {
			known = known || asked == name || strings.HasSuffix(name, "[") && strings.HasPrefix(asked, name)
		}
		if !known {
			return unknownParameter(asked)
		}
	}
	return nil
}
