package provider

import (
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/canonical"
)

// UnknownType is the type of an event that does not tell its own.
const UnknownType = "unknown"

// ReadObject reads a body that must be one JSON object. The error is a *Dead that says what is wrong and where.
func ReadObject(body []byte) (*canonical.Value, error) {
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, unreadable(err)
	}
	if v.Kind() != canonical.Object {
		return nil, &Dead{Reason: fmt.Sprintf("the body is a JSON %s, not an object; the provider sends objects only", v.Kind())}
	}
	return v, nil
}

func unreadable(err error) *Dead {
	var syntax *canonical.SyntaxError
	if errors.As(err, &syntax) {
		return &Dead{Reason: fmt.Sprintf("the body is not JSON: %s at byte %d; its signature is right, so the sender made it so", syntax.Msg, syntax.Offset)}
	}
	return &Dead{Reason: "the body is not JSON: " + err.Error()}
}

// NameByContent gives an event a content key: the delivery names none that can be used.
func NameByContent(e *Event, body []byte) {
	e.Key, e.ContentKey = ContentKey(e.Type, e.Account, body), true
}
