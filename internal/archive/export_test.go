package archive

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// Unexported functions that the tests of the format use.
var (
	AppendLine = appendLine
	ParseLine  = parseLine
	ReadTime   = readTime
	ReadBody   = func(l *line) []byte { return l.body }
)

// Entries reads all entries of a file without importing them.
func Entries(text []byte, f Format, columns map[string]string) (raws [][]byte, errs []error, err error) {
	in := &input{name: "x", path: "x", format: f, close: func() {}}
	if err := in.chooseReader(&ImportParams{Map: columns}, bytes.NewReader(text)); err != nil {
		return nil, nil, err
	}
	defer in.close()
	for {
		e, _, err := in.next()
		if errors.Is(err, io.EOF) {
			return raws, errs, nil
		}
		if err != nil {
			return raws, errs, err
		}
		raws, errs = append(raws, e.raw), append(errs, e.err)
	}
}

// Rows returns the columns of a CSV file's rows, without the first row.
func Rows(text []byte) (rows [][]string) {
	r, err := newCSVReader(bufio.NewReader(bytes.NewReader(text)), nil)
	for err == nil {
		var row []string
		if row, _, err = r.row(); err == nil {
			rows = append(rows, row)
		}
	}
	return rows
}

// Remember limits how many new events a dry run remembers.
func (im *ImportParams) Remember(n int) { im.maxRemembered = n }
