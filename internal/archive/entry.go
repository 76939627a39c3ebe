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
	// List: JSON arrays of such bodies, alone or as pages of an API with the array under "data".
	List Format = "list"
)

// Formats are all formats.
var Formats = []Format{Postern, Events, List}

// FormatNames names all formats in messages.
const FormatNames = "postern, events or list"

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

// reader reads the entries of a file, io.EOF after the last one. Any other error concerns the whole
// file and ends the reading.
type reader interface{ next() (entry, error) }

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

// posternReader reads the lines of an export.
type posternReader struct{ lines lineReader }

func (r *posternReader) next() (entry, error) {
	text, err := r.lines.next()
	if err != nil {
		return entry{}, err
	}
	e := entry{line: r.lines.line, raw: text}
	l, err := parseLine(text)
	if err != nil {
		e.err = err
		return e, nil
	}
	e.source, e.provider, e.deliveryID, e.delivery = l.source, l.provider, l.deliveryID, l.toDelivery()
	return e, nil
}

// eventsReader reads one body per line.
type eventsReader struct{ lines lineReader }

func (r *eventsReader) next() (entry, error) {
	text, err := r.lines.next()
	if err != nil {
		return entry{}, err
	}
	return bodyEntry(r.lines.line, text, bytes.TrimSpace(text)), nil
}

// bodyEntry returns an entry whose body must be JSON.
func bodyEntry(line int, raw, body []byte) entry {
	e := entry{line: line, raw: raw, delivery: events.Delivery{Body: body}}
	e.err = checkJSON(body)
	return e
}
