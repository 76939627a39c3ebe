package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/postern-gateway/postern/internal/events"
)

// Format is the format of a file of events.
type Format string

// The formats.
const (
	// Postern: lines of an export.
	Postern Format = "postern"
	// Events: one JSON body per line, as the provider sends it.
	Events Format = "events"
)

// Formats are all formats.
var Formats = []Format{Postern, Events}

// FormatNames names all formats in messages.
const FormatNames = "postern or events"

// entry is one event or one delivery of a file.
type entry struct {
	// line is its first line, from 1.
	line int
	// raw is the entry's text in the file, with its line end.
	raw []byte
	// source is the name of the source in the entry, "" for none.
	source, provider string
	delivery         events.Delivery
	// deliveryID is the same for the events of one delivery; 0 if it is not known.
	deliveryID int64
	// err is why the entry is not an event.
	err error
}

// lineReader reads lines of any length.
type lineReader struct {
	in   *bufio.Reader
	line int
}

// next returns the next line that is not blank, with its line end. The result belongs to the
// caller.
func (l *lineReader) next() ([]byte, error) {
	for {
		text, err := l.readLine()
		if err != nil || len(bytes.TrimSpace(text)) > 0 {
			return text, err
		}
	}
}

// readLine returns the next line.
func (l *lineReader) readLine() (text []byte, err error) {
	l.line++
	for {
		part, err := l.in.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(text) <= maxTextBytes:
			continue
		case len(text) > maxTextBytes:
			return text, fmt.Errorf("line %d: more than %d MiB in one piece: is this the right format?", l.line,
				maxTextBytes>>20)
		case errors.Is(err, io.EOF) && len(text) > 0:
			err = nil // a last line without a line end
		}
		return text, err
	}
}

// next returns the next entry, io.EOF after the last one. Any other error concerns the whole file
// and ends the reading.
func (in *input) next() (entry, error) {
	text, err := in.lines.next()
	if err != nil {
		return entry{}, err
	}
	e := entry{line: in.lines.line, raw: text}
	if in.format == Postern {
		e.readExported()
	} else {
		e.delivery.Body = bytes.TrimSpace(text)
		e.err = checkJSON(e.delivery.Body)
	}
	return e, nil
}

// readExported reads a line of an export.
func (e *entry) readExported() {
	l, err := parseLine(e.raw)
	if err != nil {
		e.err = err
		return
	}
	e.source, e.provider, e.deliveryID, e.delivery = l.source, l.provider, l.deliveryID, l.toDelivery()
}
