package rules

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// mostPlain bounds what is told of a trouble.
const mostPlain = 500

var (
	errNUL  = errors.New("holds NUL, which the ledger cannot keep")
	errUTF8 = errors.New("is no valid UTF-8, which the ledger cannot keep")
)

// sound refuses a text that the ledger could not keep as it is sent: its repetition would be another one.
func sound(s string) error {
	switch {
	case strings.ContainsRune(s, 0):
		return errNUL
	case !utf8.ValidString(s):
		return errUTF8
	}
	return nil
}

// Plain is a text that may hold anything as the ledger keeps it: valid UTF-8 without NUL, at most 500 bytes and an ellipsis.
func Plain(s string) string {
	cut := s[:min(len(s), mostPlain)]
	for n := 0; n < utf8.UTFMax && len(cut) < len(s) && !utf8.RuneStart(s[len(cut)]); n++ {
		cut = cut[:len(cut)-1]
	}
	if len(cut) < len(s) {
		cut += "…"
	}
	return strings.ToValidUTF8(strings.ReplaceAll(cut, "\x00", "\ufffd"), "\ufffd")
}
