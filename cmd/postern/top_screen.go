package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/postern-gateway/postern/internal/terminal"
)

// Terminal control sequences: alternate screen without a cursor, back to the normal screen, cursor
// home, clear the rest of the line, clear the rest of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// topScreen is a terminal in use by the command.
type topScreen struct {
	in         *os.File
	out        *terminal.Screen
	savedState *term.State
}

// openScreen reports whether input and output are a terminal.
func openScreen(in io.Reader, out io.Writer) (*topScreen, bool) {
	i, ok1 := in.(*os.File)
	o, ok2 := out.(*terminal.Screen)
	if !ok1 || !ok2 || !term.IsTerminal(int(i.Fd())) {
		return nil, false
	}
	return &topScreen{in: i, out: o}, true
}

// open switches the terminal to the alternate screen; close restores it. quit is called when the
// user quits or the terminal closes.
func (s *topScreen) open(quit func()) (err error) {
	if s.savedState, err = term.MakeRaw(int(s.in.Fd())); err != nil {
		return err
	}
	go s.listen(quit) // it ends with the process, because a read from a terminal cannot be cancelled
	return s.out.Control(enterScreen)
}

func (s *topScreen) close() error {
	return errors.Join(s.out.Control(leaveScreen), term.Restore(int(s.in.Fd()), s.savedState))
}

// listen waits for q, Ctrl-C, Ctrl-D or the end of the terminal. In raw mode Ctrl-C is a byte and
// not a signal.
func (s *topScreen) listen(quit func()) {
	defer quit()
	key := make([]byte, 1)
	for {
		if _, err := s.in.Read(key); err != nil || strings.ContainsRune("qQ\x03\x04", rune(key[0])) {
			return
		}
	}
}

// draw draws a view from the top, cut to the current size of the terminal.
func (s *topScreen) draw(v *view) error {
	width, height, err := s.out.Size()
	if err != nil || width <= 0 || height <= 0 {
		width, height = screenWidth, 24
	}
	var b strings.Builder
	b.WriteString(home)
	for i, l := range fitLines(v.frame(frameSize{width, screenRejections}), width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(terminal.Escape(l) + clearLine)
	}
	b.WriteString(clearRest)
	return s.out.Control(b.String())
}
