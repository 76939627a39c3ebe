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

// headerField begins the names of fields that are headers of a delivery.
const headerField = "header."

// fieldNames are what a column may be mapped to.
var fieldNames = []string{"account", "body", "event_id", "event_type", "object_id", "object_type", "occurred_at", "received_at"}

// CheckMap tells what is wrong with a mapping of fields to columns.
func CheckMap(fields map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		header, isHeader := strings.CutPrefix(name, headerField)
		if !slices.Contains(fieldNames, name) && (!isHeader || header == "") {
			return fmt.Errorf("no field %q; known are %s and %sNAME", name, strings.Join(fieldNames, ", "), headerField)
		}
	}
	return nil
}

// mapped are the fields of an event that a row says itself.
type mapped struct {
	values     map[string]string
	header     http.Header
	receivedAt time.Time
	occurredAt time.Time
	// row is the number of the row, from 1; key is the event's where nothing names it, and made says that this was so.
	row  int
	key  string
	made bool
}

// over lays what a row says over what the provider read.
func (m *mapped) over(evs []provider.Event) error {
	if m.values == nil {
		return nil
	}
	if len(evs) != 1 {
		return fmt.Errorf("the body holds %d events: a row is one", len(evs))
	}
	e := &evs[0]
	for name, to := range map[string]*string{"event_id": &e.Key, "event_type": &e.Type, "account": &e.Account, "object_type": &e.ObjectType, "object_id": &e.ObjectID} {
		value := m.values[name]
		if value == "" {
			continue
		}
		if !provider.ValidName(value) {
			return fmt.Errorf("%s %.40q is no name: at most %d bytes, and no control characters", name, value, provider.MaxName)
		}
		*to = value
	}
	if !m.occurredAt.IsZero() {
		e.OccurredAt = m.occurredAt
	}
	switch {
	case m.values["event_id"] != "":
		e.ContentKey = false
	case e.ContentKey:
		e.Key, e.ContentKey, m.made = m.key, false, true // two equal rows are two events
	}
	return nil
}

// csvReader reads rows.
type csvReader struct {
	lines lineReader
	// columns are the names in the first row, which is head.
	columns []string
	head    []byte
	// column is where the fields of the map are.
	column map[string]int
	n      int
	// begin is the line that the row begins in.
	begin int
}

func newCSVReader(in *bufio.Reader, fields map[string]string) (r *csvReader, err error) {
	r = &csvReader{lines: lineReader{in: in}, column: map[string]int{}}
	r.columns, r.head, err = r.row()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: the names of the columns are expected in the first row")
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
		r.column[field] = i
	}
	return r, nil
}

func (r *csvReader) next() (entry, *mapped, error) {
	record, raw, err := r.row()
	var bad *rowError
	if err != nil && !errors.As(err, &bad) {
		return entry{}, nil, err
	}
	r.n++
	e, m := entry{line: r.begin, raw: raw, err: err}, &mapped{}
	if err == nil && len(record) != len(r.columns) {
		e.err = fmt.Errorf("%d columns, not %d as in the first row", len(record), len(r.columns))
	}
	if e.err != nil {
		return e, m, nil
	}
	m, e.err = r.mapped(record)
	if i, ok := r.column["body"]; ok {
		e.delivery.Body = []byte(record[i])
	} else {
		e.delivery.Body = r.object(record)
	}
	return e, m, nil
}

// rowError is what is wrong with a row; those behind it can be read.
type rowError struct{ text string }

func (e *rowError) Error() string { return e.text }

// row reads a row as RFC 4180 has it, and leaves what is between quotes as it is, the ends of lines too.
func (r *csvReader) row() (record []string, raw []byte, err error) {
	if raw, err = r.lines.next(); err != nil {
		return nil, nil, err
	}
	r.begin = r.lines.line
	for at := 0; ; at++ {
		var field string
		if at < len(raw) && raw[at] == '"' {
			field, raw, at, err = r.quoted(raw, at+1)
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
				err = &rowError{"a quote inside a column that does not begin with one"}
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
			return nil, raw, &rowError{"text behind the quote that closes a column"}
		}
	}
}

// quoted reads on to the quote that closes a column, over as many lines as it takes; end is behind it.
func (r *csvReader) quoted(raw []byte, at int) (field string, all []byte, end int, err error) {
	var text []byte
	for {
		i := bytes.IndexByte(raw[at:], '"')
		if i < 0 {
			text, at = append(text, raw[at:]...), len(raw)
			if raw, err = r.lines.more(raw); errors.Is(err, io.EOF) {
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

func (r *csvReader) mapped(record []string) (m *mapped, err error) {
	m = &mapped{values: map[string]string{}, header: http.Header{}, row: r.n}
	for field, i := range r.column {
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

// object is a row as a JSON object of its columns.
func (r *csvReader) object(record []string) []byte {
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
