// Package mail makes messages and hands them to a mail server, telling a message that was not taken from one of which nobody knows.
package mail

import (
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"
)

// Address is whom a message is from or to: a name, which may be empty, and the address itself, in ASCII.
type Address = mail.Address

// The longest parts that addresses have (RFC 5321, 4.5.3.1).
const (
	maxLocal  = 64
	maxDomain = 255
)

// ParseAddress reads one address, as shop@example.com or Shop <shop@example.com>.
func ParseAddress(text string) (Address, error) {
	a, err := mail.ParseAddress(text)
	if err != nil {
		return Address{}, fmt.Errorf("%q is no address: write one, as shop@example.com or Shop <shop@example.com>", text)
	}
	return Named(a.Name, a.Address)
}

// Named is an address with a name. The address is checked as one alone; the name is text, whatever is in it.
func Named(name, address string) (Address, error) {
	if !utf8.ValidString(name) { // as an encoded word may hold
		return Address{}, fmt.Errorf("%q: the name is no valid UTF-8", name)
	}
	if strings.ContainsFunc(name, control) {
		return Address{}, fmt.Errorf("%q: the name holds a line end or another control character", name)
	}
	plain, err := plainAddress(address)
	if err != nil {
		return Address{}, fmt.Errorf("%q is no address that mail can be sent to: %w", address, err)
	}
	return Address{Name: strings.TrimSpace(name), Address: plain}, nil
}

// Domain is the part of an address behind the @.
func Domain(address string) string { return address[strings.LastIndexByte(address, '@')+1:] }

// plainAddress wants letters, digits and signs with single dots between, an @, and the name of a domain, which it writes in ASCII. Local parts in quotes and addresses of machines
// are refused: servers read them in different ways, and then mail goes elsewhere.
func plainAddress(address string) (string, error) {
	local, domain, ok := strings.Cut(address, "@")
	switch {
	case !ok:
		return "", errors.New("it has no @")
	case local == "", len(local) > maxLocal, strings.Trim(local, ".") != local, strings.Contains(local, ".."), strings.ContainsFunc(local, func(c rune) bool { return !atom(c) && c != '.' }):
		return "", errors.New("before the @ there may be letters, digits, single dots and !#$%&'*+-/=?^_`{|}~")
	}
	ascii, err := idna.Lookup.ToASCII(domain)
	if err != nil || ascii == "" || len(ascii) > maxDomain || strings.ContainsFunc(ascii, func(c rune) bool { return c != '.' && c != '-' && !letter(c) }) {
		return "", errors.New("behind the @ there is no name of a domain")
	}
	return local + "@" + ascii, nil
}

func letter(c rune) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' }

// atom says whether a character may stand in the local part of an address (RFC 5322, 3.2.3).
func atom(c rune) bool { return letter(c) || strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", c) }

func control(c rune) bool { return c < ' ' || c == 0x7f }
