package rules

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// maxMessageBytes bounds a stored error message.
const maxMessageBytes = 500

var (
	errNUL  = errors.New("contains NUL, which the ledger cannot store")
	errUTF8 = errors.New("is not valid UTF-8, which the ledger cannot store")
)

// checkStorable rejects a text that the ledger cannot store unchanged. A repeated request would
// otherwise differ from the first.
func checkStorable(s string) error {
	switch {
	case strings.ContainsRune(s, 0):
		return errNUL
	case !utf8.ValidString(s):
		return errUTF8
	}
	return nil
}

// StorableMessage returns a text in a form that the ledger can store: valid UTF-8 without NUL, at
// most 500 bytes and an ellipsis.
func StorableMessage(s string) string {
	cut := s[:min(len(s), maxMessageBytes)]
	for n := 0; n < utf8.UTFMax && len(cut) < len(s) && !utf8.RuneStart(s[len(cut)]); n++ {
		cut = cut[:len(cut)-1]
	}
	if len(cut) < len(s) {
		cut += "…"
	}
	return strings.ToValidUTF8(strings.ReplaceAll(cut, "\x00", "\ufffd"), "\ufffd")
}
