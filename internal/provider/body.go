package provider

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// UnknownType is the type of an event that does not contain its own type.
const UnknownType = "unknown"

// HasEventTypes reports whether a provider's events contain their type. A provider that is
// configured implements a method HasEventTypes. If it returns false, UnknownType is a normal type.
func HasEventTypes(p Provider) bool {
	if may, ok := p.(interface{ HasEventTypes() bool }); ok {
		return may.HasEventTypes()
	}
	return true
}

// SignedBySender ends the reason why a verified body cannot be read.
const SignedBySender = "; its signature is right, so the sender sent it like this"

// BodyChecker is a provider whose bodies are not just any JSON object. CheckBody returns why the
// body cannot be one of the sender's.
type BodyChecker interface{ CheckBody(body []byte) error }

// CheckBody returns why the body cannot be one of the provider's sender, or nil. It is for bodies
// without a verified signature: every verified body is stored.
func CheckBody(p Provider, body []byte) error {
	check := checkObject
	if checker, ok := p.(BodyChecker); ok {
		check = checker.CheckBody
	}
	if err := check(body); err != nil {
		return errors.New(strings.TrimSuffix(err.Error(), SignedBySender))
	}
	return nil
}

func checkObject(body []byte) error {
	v, err := ReadObject(body)
	v.Release()
	return err
}

// ReadObject parses a body that must be one JSON object. The error is a *Dead that says what is
// wrong and where.
func ReadObject(body []byte) (*canonical.Value, error) {
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, unreadable(err)
	}
	if v.Kind() != canonical.Object {
		return nil, &Dead{Reason: fmt.Sprintf("the body is a JSON %s, not an object; the provider sends objects only",
			v.Kind())}
	}
	return v, nil
}

func unreadable(err error) *Dead {
	var syntax *canonical.SyntaxError
	if errors.As(err, &syntax) {
		return &Dead{Reason: fmt.Sprintf("the body is not JSON: %s at byte %d", syntax.Msg, syntax.Offset) +
			SignedBySender}
	}
	return &Dead{Reason: "the body is not JSON: " + err.Error()}
}

// SetContentKey gives an event a content key, for a delivery without a usable key.
func SetContentKey(e *Event, body []byte) {
	e.Key, e.ContentKey = ContentKey(e.Type, e.Account, body), true
}
