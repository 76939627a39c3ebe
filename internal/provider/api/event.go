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

// specVersion is the supported version of CloudEvents.
const specVersion = "1.0"

// checkEvent returns what is wrong with an event in the JSON format:
// https://github.com/cloudevents/spec/blob/main/cloudevents/spec.md and formats/json-format.md in
// the same folder. An attribute that is null counts as absent.
func checkEvent(v *canonical.Value, where string) error {
	if v.Kind() != canonical.Object {
		return invalid(http.StatusBadRequest, "%sit is a JSON %s: a CloudEvent is an object", where, v.Kind())
	}
	for _, name := range []string{"specversion", "id", "source", "type"} {
		if isAbsent(v.Get(name)) {
			return invalid(http.StatusBadRequest, "%s%s is missing: every CloudEvent has specversion, id, source and "+
				"type", where, name)
		}
	}
	for name, value := range v.Members() {
		if why := checkAttribute(name, value); why != "" {
			return invalid(http.StatusBadRequest, "%s%.40q %s", where, name, why)
		}
	}
	if v.Get("data").Kind() != canonical.Missing && v.Get("data_base64").Kind() != canonical.Missing {
		return invalid(http.StatusBadRequest, "%sit has both data and data_base64", where)
	}
	source, _ := v.Get("source").Text()
	id, _ := v.Get("id").Text()
	if !provider.ValidName(source + " " + id) {
		return invalid(http.StatusBadRequest, "%ssource and id together are the event's key, which has at most %d "+
			"bytes", where, provider.MaxNameBytes-1)
	}
	return nil
}

func isAbsent(v *canonical.Value) bool {
	return v.Kind() == canonical.Missing || v.Kind() == canonical.Null
}

// checkAttribute returns what is wrong with a member of an event, or "".
func checkAttribute(name string, v *canonical.Value) string {
	switch {
	case name == "data":
		return ""
	case name == "data_base64":
		text, ok := v.Text()
		if _, err := base64.StdEncoding.DecodeString(text); !ok || err != nil {
			return "is not base64 text"
		}
		return ""
	case !isAttributeName(name):
		return "is not the name of an attribute: use lower-case letters and digits"
	case isAbsent(v):
		return ""
	}
	if rule, ok := attributeRules[name]; ok {
		text, is := v.Text()
		if !is || text == "" {
			return "must be a text that is not empty"
		}
		return rule(text)
	}
	switch v.Kind() {
	case canonical.String:
		text, _ := v.Text()
		return checkCharacters(text)
	case canonical.Bool:
		return ""
	case canonical.Number:
		if strings.Trim(string(v.Raw()), "-0123456789") == "" {
			return ""
		}
	}
	return "is not the value of an attribute: use a text, a whole number, true or false; put anything else into data"
}

// attributeRules check the attributes that CloudEvents define, if they are present.
var attributeRules = map[string]func(text string) string{
	"specversion": func(text string) string {
		if text != specVersion {
			return "is not " + specVersion + ", the only supported version"
		}
		return ""
	},
	"id":   checkCharacters,
	"type": checkName,
	"source": func(text string) string {
		if _, err := url.Parse(text); err != nil || strings.ContainsFunc(text, unicode.IsSpace) {
			return "is not a URI reference, e.g. /shop/orders or https://shop.example/orders"
		}
		return checkCharacters(text)
	},
	"subject": checkCharacters,
	"time": func(text string) string {
		if at, err := time.Parse(time.RFC3339Nano, text); err != nil || at.Unix() <= 0 {
			return "is not an RFC 3339 time, e.g. 2026-07-04T12:30:15.250Z"
		}
		return ""
	},
	"datacontenttype": func(text string) string {
		if media, _, err := mime.ParseMediaType(text); err != nil || !strings.Contains(media, "/") {
			return "is not a media type, e.g. application/json"
		}
		return ""
	},
	"dataschema": checkCharacters,
}

// checkName checks a text by which events can be searched.
func checkName(text string) string {
	if !provider.ValidName(text) {
		return "is longer than 255 bytes, or has characters that cannot be displayed"
	}
	return ""
}

// checkCharacters rejects characters that no attribute may have (spec.md, Type System).
func checkCharacters(text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "has control characters"
	}
	return ""
}

func isAttributeName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}
