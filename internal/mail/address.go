// Package mail builds messages and submits them to a mail server. It distinguishes a message that
// was not accepted from one whose outcome is unknown. The effects runner calls it. It never
// retries.
package mail

import (
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Address is a sender or recipient: a name, which may be empty, and the address itself, in ASCII.
type Address = mail.Address

// The longest parts of an address (RFC 5321, 4.5.3.1).
const (
	maxLocal  = 64
	maxDomain = 255
)

// ParseAddress parses one address, such as shop@example.com or Shop <shop@example.com>.
func ParseAddress(text string) (Address, error) {
	a, err := mail.ParseAddress(text)
	if err != nil {
		return Address{}, fmt.Errorf("%q is no address: write one such as shop@example.com or Shop <shop@example.com>",
			text)
	}
	return NewAddress(a.Name, a.Address)
}

// NewAddress returns an address with a name. The address must be a single one. The name may be
// any text without control characters.
func NewAddress(name, address string) (Address, error) {
	if !utf8.ValidString(name) { // an encoded word may hold anything
		return Address{}, fmt.Errorf("%q: the name is not valid UTF-8", name)
	}
	if strings.ContainsFunc(name, isControl) {
		return Address{}, fmt.Errorf("%q: the name contains a line end or another control character", name)
	}
	plain, err := plainAddress(address)
	if err != nil {
		return Address{}, fmt.Errorf("%q is not an address that mail can be sent to: %w", address, err)
	}
	return Address{Name: strings.TrimSpace(name), Address: plain}, nil
}

// Domain returns the part of an address after the @.
func Domain(address string) string { return address[strings.LastIndexByte(address, '@')+1:] }

// plainAddress accepts letters, digits and signs with single dots in between, an @, and a domain
// name, which it converts to ASCII. It rejects quoted local parts and IP addresses, because servers
// parse them in different ways and may send the mail elsewhere.
func plainAddress(address string) (string, error) {
	local, domain, ok := strings.Cut(address, "@")
	switch {
	case !ok:
		return "", errors.New("it has no @")
	case local == "", len(local) > maxLocal, strings.Trim(local, ".") != local, strings.Contains(local, ".."),
		strings.ContainsFunc(local, func(c rune) bool { return !isAtomChar(c) && c != '.' }):
		return "", errors.New("before the @ only letters, digits, single dots and !#$%&'*+-/=?^_`{|}~ are allowed")
	}
	ascii, err := idna.Lookup.ToASCII(domain)
	if err != nil || ascii == "" || len(ascii) > maxDomain ||
		strings.ContainsFunc(ascii, func(c rune) bool { return c != '.' && c != '-' && !isLetterOrDigit(c) }) {
		return "", errors.New("after the @ there is no domain name")
	}
	return local + "@" + ascii, nil
}

func isLetterOrDigit(c rune) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// isAtomChar reports whether a character is allowed in the local part of an address (RFC 5322,
// 3.2.3).
func isAtomChar(c rune) bool {
	return isLetterOrDigit(c) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", c)
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }
