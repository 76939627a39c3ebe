package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Format is how a file holds events.
type Format string

// The formats.
const (
	// Postern: lines of an export.
	Postern Format = "postern"
	// Events: a line of JSON each, the bodies as the provider sends them.
	Events Format = "events"
	// List: JSON arrays of such bodies, bare or as pages of an API with the array under "data".
	List Format = "list"
	// CSV: a row each, with names in the first.
	CSV Format = "csv"
	// Bodies: a folder with a file for each delivery.
	Bodies Format = "bodies"
)

// Formats are all.
var Formats = []Format{Postern, Events, List, CSV, Bodies}

// entry is what a file has of one event, or of one delivery.
type entry struct {
	// line is where it begins, from 1.
	line int
	// raw is the entry as it stands in the file, with its end of line; nil where it is a file of its own.
	raw []byte
	// file is the name of its own file, empty in a file of many.
	file string
	// source is the name of the source that the entry says, empty where it says none.
	source, provider string
	// receivedAt is the time of receipt that the entry or its file says; zero: none.
	receivedAt time.Time
	delivery   events.Delivery
	// group is the same for the events of a delivery, 0 where nothing is known of that.
	group int64
	// made: its key was made from file and row.
	made bool
	// err is why the entry is no event.
	err error
}

// reader reads the entries of a file, io.EOF behind the last. An error otherwise is of the file and ends the reading.
type reader interface{ next() (entry, error) }

// lineReader reads lines, however long.
type lineReader struct {
	in   *bufio.Reader
	line int
}

// next returns the next line that has more than space in it, with its end. What it returns is the caller's.
func (l *lineReader) next() ([]byte, error) {
	for {
		text, err := l.more(nil)
		if err != nil || len(bytes.TrimSpace(text)) > 0 {
			return text, err
		}
	}
}

// more appends one more line to a text.
func (l *lineReader) more(text []byte) ([]byte, error) {
	l.line++
	for n := len(text); ; {
		part, err := l.in.ReadSlice('\n')
		text = append(text, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(text) <= maxText:
			continue
		case len(text) > maxText:
			return text, fmt.Errorf("line %d: more than %d MiB in one piece: is this the file's format?", l.line, maxText>>20)
		case errors.Is(err, io.EOF) && len(text) > n:
			err = nil // a last line without an end
		}
		return text, err
	}
}

// posternReader reads lines of an export.
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
	e.source, e.provider, e.receivedAt, e.group = l.source, l.provider, l.receivedAt, l.deliveryID
	e.delivery = l.delivery()
	return e, nil
}

// eventsReader reads one body from each line.
type eventsReader struct{ lines lineReader }

func (r *eventsReader) next() (entry, error) {
	text, err := r.lines.next()
	if err != nil {
		return entry{}, err
	}
	return bodyEntry(r.lines.line, text, bytes.TrimSpace(text)), nil
}

// bodyEntry is an entry that must be JSON.
func bodyEntry(line int, raw, body []byte) entry {
	e := entry{line: line, raw: raw, delivery: events.Delivery{Body: body}}
	e.err = checkJSON(body)
	return e
}
