package provider

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

// UnknownType is the type of an event that does not tell its own.
const UnknownType = "unknown"

// TellsTypes says whether a provider's events tell their types. Where they do not, as one that is data may have it by a method TellsTypes, UnknownType
// says nothing against an event.
func TellsTypes(p Provider) bool {
	if may, ok := p.(interface{ TellsTypes() bool }); ok {
		return may.TellsTypes()
	}
	return true
}

// SenderMade ends the reason why a verified body cannot be read.
const SenderMade = "; its signature is right, so the sender made it so"

// BodyChecker is a provider whose bodies are not just any JSON object. CheckBody tells why a body is none that its sender makes.
type BodyChecker interface{ CheckBody(body []byte) error }

// CheckBody tells why a body is none that a provider's sender makes, nil where it may be one. It is for bodies that no signature vouches for: whatever is
// verified is kept.
func CheckBody(p Provider, body []byte) error {
	check := checkObject
	if checker, ok := p.(BodyChecker); ok {
		check = checker.CheckBody
	}
	if err := check(body); err != nil {
		return errors.New(strings.TrimSuffix(err.Error(), SenderMade))
	}
	return nil
}

func checkObject(body []byte) error {
	v, err := ReadObject(body)
	v.Release()
	return err
}

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
		return &Dead{Reason: fmt.Sprintf("the body is not JSON: %s at byte %d", syntax.Msg, syntax.Offset) + SenderMade}
	}
	return &Dead{Reason: "the body is not JSON: " + err.Error()}
}

// NameByContent gives an event a content key: the delivery names none that can be used.
func NameByContent(e *Event, body []byte) {
	e.Key, e.ContentKey = ContentKey(e.Type, e.Account, body), true
}
