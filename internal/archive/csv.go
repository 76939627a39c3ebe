package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// headerField is the prefix of fields that are headers of a delivery.
const headerField = "header."

// fieldNames are the fields to which a column can be mapped.
var fieldNames = []string{"account", "body", "event_id", "event_type", "object_id", "object_type", "occurred_at",
	"received_at"}

// CheckMap checks a mapping of fields to columns.
func CheckMap(fields map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		header, isHeader := strings.CutPrefix(name, headerField)
		if !slices.Contains(fieldNames, name) && (!isHeader || header == "") {
			return fmt.Errorf("no field %q; the fields are %s and %sNAME", name, strings.Join(fieldNames, ", "),
				headerField)
		}
	}
	return nil
}

// rowFields are the fields of an event that a row contains itself.
type rowFields struct {
	values     map[string]string
	header     http.Header
	receivedAt time.Time
	occurredAt time.Time
	// row is the number of the row, from 1. key is the event's key if the row has none, and madeKey
	// reports that it was used.
	row     int
	key     string
	madeKey bool
}

// applyTo overwrites the fields that the provider read with those of the row.
func (m *rowFields) applyTo(evs []provider.Event) error {
	if m.values == nil {
		return nil
	}
	if len(evs) != 1 {
		return fmt.Errorf("the body has %d events, but a row must have one", len(evs))
	}
	e := &evs[0]
	for name, target := range map[string]*string{"event_id": &e.Key, "event_type": &e.Type, "account": &e.Account,
		"object_type": &e.ObjectType, "object_id": &e.ObjectID} {
		value := m.values[name]
		if value == "" {
			continue
		}
		if !provider.ValidName(value) {
			return fmt.Errorf("%s %.40q is not a valid name: at most %d bytes, and no control characters", name, value,
				provider.MaxNameBytes)
		}
		*target = value
	}
	if !m.occurredAt.IsZero() {
		e.OccurredAt = m.occurredAt
	}
	switch {
	case m.values["event_id"] != "":
		e.ContentKey = false
	case e.ContentKey:
		e.Key, e.ContentKey, m.madeKey = m.key, false, true // two equal rows are two events
	}
	return nil
}

// csvReader reads rows.
type csvReader struct {
	lines lineReader
	// columns are the names in the first row, and header is that row's text.
	columns []string
	header  []byte
	// columnOf is the column of each mapped field.
	columnOf  map[string]int
	rowNumber int
	// firstLine is the line where the row begins.
	firstLine int
}

func newCSVReader(in *bufio.Reader, fields map[string]string) (r *csvReader, err error) {
	r = &csvReader{lines: lineReader{in: in}, columnOf: map[string]int{}}
	r.columns, r.header, err = r.row()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: the first row must have the names of the columns")
	}
	if err != nil {
		return nil, fmt.Errorf("read the names of the columns: %w", err)
	}
	r.columns[0] = strings.TrimPrefix(r.columns[0], "\ufeff")
	for i, name := range r.columns {
		if slices.Index(r.columns, name) != i {
			return nil, fmt.Errorf("two columns are named %q", name)
		}
	}
	for field, name := range fields {
		i := slices.Index(r.columns, name)
		if i < 0 {
			return nil, fmt.Errorf("no column %q for %s; there are %s", name, field, strings.Join(r.columns, ", "))
		}
		r.columnOf[field] = i
	}
	return r, nil
}

func (r *csvReader) next() (entry, *rowFields, error) {
	record, raw, err := r.row()
	var bad *rowError
	if err != nil && !errors.As(err, &bad) {
		return entry{}, nil, err
	}
	r.rowNumber++
	e, m := entry{line: r.firstLine, raw: raw, err: err}, &rowFields{}
	if err == nil && len(record) != len(r.columns) {
		e.err = fmt.Errorf("%d columns instead of the first row's %d", len(record), len(r.columns))
	}
	if e.err != nil {
		return e, m, nil
	}
	m, e.err = r.toFields(record)
	if i, ok := r.columnOf["body"]; ok {
		e.delivery.Body = []byte(record[i])
	} else {
		e.delivery.Body = r.toJSON(record)
	}
	return e, m, nil
}

// rowError is an error in one row. Later rows can still be read.
type rowError struct{ text string }

func (e *rowError) Error() string { return e.text }

// row reads a row as in RFC 4180. Quoted text is unchanged, including its line ends.
func (r *csvReader) row() (record []string, raw []byte, err error) {
	if raw, err = r.lines.next(); err != nil {
		return nil, nil, err
	}
	r.firstLine = r.lines.line
	for at := 0; ; at++ {
		var field string
		if at < len(raw) && raw[at] == '"' {
			field, raw, at, err = r.quotedField(raw, at+1)
		} else {
			end := at + len(raw[at:])
			if i := bytes.IndexAny(raw[at:], ",\n"); i >= 0 {
				end = at + i
			}
			field = string(raw[at:end])
			if end == len(raw) || raw[end] == '\n' {
				field = strings.TrimSuffix(field, "\r")
			}
			if strings.Contains(field, `"`) {
				err = &rowError{"a quote inside a column that does not begin with a quote"}
			}
			at = end
		}
		if err != nil {
			return nil, raw, err
		}
		record = append(record, field)
		switch rest := raw[at:]; {
		case len(bytes.TrimRight(rest, "\r\n")) == 0:
			return record, raw, nil
		case rest[0] != ',':
			return nil, raw, &rowError{"text after the closing quote of a column"}
		}
	}
}

// quotedField reads to the closing quote of a column, over as many lines as needed. end is the
// position after it.
func (r *csvReader) quotedField(raw []byte, at int) (field string, all []byte, end int, err error) {
	var text []byte
	for {
		i := bytes.IndexByte(raw[at:], '"')
		if i < 0 {
			text, at = append(text, raw[at:]...), len(raw)
			if raw, err = r.lines.appendLine(raw); errors.Is(err, io.EOF) {
				err = &rowError{"a quote is not closed"}
			}
			if err != nil {
				return "", raw, at, err
			}
			continue
		}
		text, at = append(text, raw[at:at+i]...), at+i+1
		if at == len(raw) || raw[at] != '"' {
			return string(text), raw, at, nil
		}
		text, at = append(text, '"'), at+1
	}
}

func (r *csvReader) toFields(record []string) (m *rowFields, err error) {
	m = &rowFields{values: map[string]string{}, header: http.Header{}, row: r.rowNumber}
	for field, i := range r.columnOf {
		value := record[i]
		m.values[field] = value
		if name, ok := strings.CutPrefix(field, headerField); ok && value != "" {
			m.header[textproto.CanonicalMIMEHeaderKey(name)] = []string{value}
		}
	}
	if m.receivedAt, err = readTime(m.values["received_at"]); err != nil {
		return m, fmt.Errorf("received_at: %w", err)
	}
	if m.occurredAt, err = readTime(m.values["occurred_at"]); err != nil {
		return m, fmt.Errorf("occurred_at: %w", err)
	}
	return m, nil
}

// toJSON returns a row as a JSON object of its columns.
func (r *csvReader) toJSON(record []string) []byte {
	out := []byte{'{'}
	for i, name := range r.columns {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendQuoted(out, strings.ToValidUTF8(name, "\ufffd")), ':')
		out = appendQuoted(out, strings.ToValidUTF8(record[i], "\ufffd"))
	}
	return append(out, '}')
}
