// Package terminal makes output safe to show on a terminal. Stored data comes from unauthenticated
// clients, and a terminal obeys control characters: they move the cursor, set the clipboard or
// reorder text. Output to a file or pipe stays as it is.
package terminal

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Screen writes to a terminal and escapes what a terminal would obey.
type Screen struct {
	to io.Writer
	fd int
}

// New returns a Screen in front of a writer that stands for a terminal of unknown size.
func New(to io.Writer) *Screen { return &Screen{to: to, fd: -1} }

// Writer returns a Screen in front of f if f is a terminal, else f itself.
func Writer(f *os.File) io.Writer {
	if fd := int(f.Fd()); term.IsTerminal(fd) {
		return &Screen{to: f, fd: fd}
	}
	return f
}

// Write writes p escaped. A character that is split between two calls is safe, but is shown as
// escaped bytes.
func (s *Screen) Write(p []byte) (int, error) {
	if err := s.Control(Escape(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Line replaces the line that the cursor is in by text, escaped, and stays in that line.
func (s *Screen) Line(text string) error { return s.Control("\r" + Escape(text) + "\x1b[K") }

// Control writes sequences that the terminal must obey, unescaped. They must not hold stored data.
func (s *Screen) Control(sequences string) error {
	_, err := io.WriteString(s.to, sequences)
	return err
}

// Size returns the columns and rows of the terminal.
func (s *Screen) Size() (width, height int, err error) { return term.GetSize(s.fd) }

// Escape writes control characters except newline and tab, and the marks that change the direction
// of text, as \u and four hexadecimal digits, which keep the value of a JSON text. A byte that is
// not UTF-8 becomes \x and two digits.
func Escape(text string) string {
	var out strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&out, `\x%02x`, text[0])
		case r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Bidi_Control):
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			out.WriteString(text[:n])
		}
		text = text[n:]
	}
	return out.String()
}
