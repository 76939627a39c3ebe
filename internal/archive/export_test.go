package archive

import (
	"bytes"
	"errors"
	"io"
)

// Unexported functions that the tests of the format use.
var (
	AppendLine = appendLine
	ParseLine  = parseLine
	ReadBody   = func(l *line) []byte { return l.body }
)

// Entries reads all entries of a file without importing them.
func Entries(text []byte, f Format) (raws [][]byte, errs []error, err error) {
	in := &input{name: "x", path: "x", format: f, close: func() {}}
	if err := in.readFrom(bytes.NewReader(text)); err != nil {
		return nil, nil, err
	}
	defer in.close()
	for {
		e, err := in.next()
		if errors.Is(err, io.EOF) {
			return raws, errs, nil
		}
		if err != nil {
			return raws, errs, err
		}
		raws, errs = append(raws, e.raw), append(errs, e.err)
	}
}

// Remember limits how many new events a dry run remembers.
func (im *ImportParams) Remember(n int) { im.maxRemembered = n }
