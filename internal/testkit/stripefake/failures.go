package stripefake

import (
	"fmt"
	"net/http"
	"strings"
)

// failure is an error of the API, in its shape (https://docs.stripe.com/api/errors).
type failure struct {
	status  int
	reason  string // of the limit that was met
	Type    string `json:"type"`
	Code    string `json:"code,omitempty"`
	Param   string `json:"param,omitempty"`
	Message string `json:"message"`
}

func (f *failure) answer() answer {
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
	return answer{status: f.status, header: header, body: text(tree{"error": f})}
}

// missing is the answer about an object that is not there; the second API has its own words.
func missing(k *kind, id string) *failure {
	if k.thin {
		return &failure{status: http.StatusNotFound, Code: "not_found", Message: "Object not found: " + id}
	}
	return &failure{status: http.StatusNotFound, Code: "resource_missing", Param: "id", Message: fmt.Sprintf("No such %s: '%s'", k.name, id)}
}

func unknownParameter(name string) *failure {
	return &failure{status: http.StatusBadRequest, Code: "parameter_unknown", Param: name, Message: "Received unknown parameter: " + name}
}

func badParameter(name, why string) *failure {
	return &failure{status: http.StatusBadRequest, Param: name, Message: why}
}

// only refuses all parameters but the named ones; a name that ends in [ allows a list or a range.
func (c *call) only(names ...string) *failure {
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
