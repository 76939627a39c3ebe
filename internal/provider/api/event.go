package api

import (
	"encoding/base64"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// specVersion is the version of CloudEvents that is taken.
const specVersion = "1.0"

// check tells what is wrong with an event in the JSON format: https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md, and formats/json-format.md beside it. An attribute that is null
// is not there.
func check(v *canonical.Value, where string) error {
	if v.Kind() != canonical.Object {
		return invalid(http.StatusBadRequest, "%sit is a JSON %s: a CloudEvent is an object", where, v.Kind())
	}
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if absent(v.Get(name)) {
			return invalid(http.StatusBadRequest, "%s%s is missing: every CloudEvent has specversion, id, source and type", where, name)
		}
	}
	for name, value := range v.Members() {
		if why := attribute(name, value); why != "" {
			return invalid(http.StatusBadRequest, "%s%.40q %s", where, name, why)
		}
	}
	if v.Get("data").Kind() != canonical.Missing && v.Get("data_base64").Kind() != canonical.Missing {
		return invalid(http.StatusBadRequest, "%sit has both data and data_base64", where)
	}
	source, _ := v.Get("source").Text()
	id, _ := v.Get("id").Text()
	if !provider.ValidName(source + " " + id) {
		return invalid(http.StatusBadRequest, "%ssource and id together name the event, in at most %d bytes", where, provider.MaxName-1)
	}
	return nil
}

func absent(v *canonical.Value) bool {
	return v.Kind() == canonical.Missing || v.Kind() == canonical.Null
}

// attribute says what is wrong with a member of an event, "" for nothing.
func attribute(name string, v *canonical.Value) string {
	switch {
	case name == "data":
		return ""
	case name == "data_base64":
		text, ok := v.Text()
		if _, err := base64.StdEncoding.DecodeString(text); !ok || err != nil {
			return "is no text in base64"
		}
		return ""
	case !isAttributeName(name):
		return "is no name of an attribute: those are of lower-case letters and digits"
	case absent(v):
		return ""
	}
	if rule, ok := rules[name]; ok {
		text, is := v.Text()
		if !is || text == "" {
			return "is a text, and not empty"
		}
		return rule(text)
	}
	switch v.Kind() {
	case canonical.String:
		text, _ := v.Text()
		return wellWritten(text)
	case canonical.Bool:
		return ""
	case canonical.Number:
		if strings.Trim(string(v.Raw()), "-0123456789") == "" {
			return ""
		}
	}
	return "is no value of an attribute: those are texts, whole numbers, true and false; what else there is to say stands in data"
}

// rules are what must hold of the attributes that CloudEvents define, where they are there.
var rules = map[string]func(text string) string{
	"specversion": func(text string) string {
		if text != specVersion {
			return "is not " + specVersion + ", the one version that is taken"
		}
		return ""
	},
	"id":   wellWritten,
	"type": name,
	"source": func(text string) string {
		if _, err := url.Parse(text); err != nil || strings.ContainsFunc(text, unicode.IsSpace) {
			return "is no reference of a URI, e.g. /shop/orders or https://shop.example/orders"
		}
		return wellWritten(text)
	},
	"subject": wellWritten,
	"time": func(text string) string {
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || at.Unix() <= 0 {
			return "is no time as RFC 3339 writes it, e.g. 2026-07-04T12:30:15.250Z"
		}
		return ""
	},
	"datacontenttype": func(text string) string {
		if media, _, err := mime.ParseMediaType(text); err != nil || !strings.Contains(media, "/") {
			return "is no media type, e.g. application/json"
		}
		return ""
	},
	"dataschema": wellWritten,
}

// name wants a text under which events can be found.
func name(text string) string {
	if !provider.ValidName(text) {
		return "is too long to name something, or has characters that cannot be shown: at most 255 bytes are taken"
	}
	return ""
}

// wellWritten refuses characters that no attribute has (spec.md, Type System).
func wellWritten(text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "has control characters"
	}
	return ""
}

func isAttributeName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
