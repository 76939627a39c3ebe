package main

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/postern-gateway/postern/internal/terminal"
)

// What a terminal is told: another screen without a cursor, and back; home; the rest of a line, the rest of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// screen is a terminal in use.
type screen struct {
	in     *os.File
	out    *terminal.Screen
	before *term.State
}

// openScreen says whether a person sits at both ends.
func openScreen(in io.Reader, out io.Writer) (*screen, bool) {
	i, ok1 := in.(*os.File)
	o, ok2 := out.(*terminal.Screen)
	if !ok1 || !ok2 || !term.IsTerminal(int(i.Fd())) {
		return nil, false
	}
	return &screen{in: i, out: o}, true
}

// open takes the terminal over; close gives it back as it was. quit is called when the person has seen enough, or is gone.
func (s *screen) open(quit func()) (err error) {
	if s.before, err = term.MakeRaw(int(s.in.Fd())); err != nil {
		return err
	}
	go s.listen(quit) // ends with the process: a read from a terminal cannot be called off
	return s.out.Control(enterScreen)
}

func (s *screen) close() error {
	return errors.Join(s.out.Control(leaveScreen), term.Restore(int(s.in.Fd()), s.before))
}

// listen waits for q, Ctrl-C, Ctrl-D or the end of the terminal. In raw mode Ctrl-C is a byte and no signal.
func (s *screen) listen(quit func()) {
	defer quit()
	key := make([]byte, 1)
	for {
		if _, err := s.in.Read(key); err != nil || strings.ContainsRune("qQ\x03\x04", rune(key[0])) {
			return
		}
	}
}

// draw shows a view from the top, cut to the size that the terminal has now.
func (s *screen) draw(v *view) error {
	width, height, err := s.out.Size()
	if err != nil || width <= 0 || height <= 0 {
		width, height = screenWidth, 24
	}
	var b strings.Builder
	b.WriteString(home)
	for i, l := range clip(v.frame(room{width, screenRejections}), width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(terminal.Escape(l) + clearLine)
	}
	b.WriteString(clearRest)
	return s.out.Control(b.String())
}
