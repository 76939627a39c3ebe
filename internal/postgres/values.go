package postgres

import (
	"encoding/binary"
	"time"
)

// postgresEpoch is the start of PostgreSQL's timestamps, in Unix microseconds.
const postgresEpoch = 946_684_800_000_000

const null = ^uint32(0) // the length that means null

// value starts a value of n bytes.
func (p *Params) value(n int) {
	p.n++
	p.appendUint32s(uint32(n))
}

// Bool adds a boolean.
func (p *Params) Bool(v bool) {
	p.value(1)
	b := byte(0)
	if v {
		b = 1
	}
	p.buf = append(p.buf, b)
}

// Bytes adds a bytea; nil is an empty one.
func (p *Params) Bytes(b []byte) {
	p.value(len(b))
	p.buf = append(p.buf, b...)
}

// Int16 adds a smallint.
func (p *Params) Int16(v int16) {
	p.value(2)
	p.buf = binary.BigEndian.AppendUint16(p.buf, uint16(v))
}

// Int32 adds an integer.
func (p *Params) Int32(v int32) {
	p.value(4)
	p.appendUint32s(uint32(v))
}

// Int64 adds a bigint.
func (p *Params) Int64(v int64) {
	p.value(8)
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(v))
}

// Interval adds an interval, in microseconds.
func (p *Params) Interval(d time.Duration) {
	p.value(16)
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(d.Microseconds()))
	p.appendUint32s(0, 0) // no days, no months
}

// JSON adds a jsonb. Its binary form is a version byte and the text.
func (p *Params) JSON(text []byte) {
	p.value(1 + len(text))
	p.buf = append(append(p.buf, 1), text...)
}

// Null adds a null of the expected type.
func (p *Params) Null() {
	p.n++
	p.appendUint32s(null)
}

// Text adds a text. PostgreSQL rejects NUL and invalid UTF-8.
func (p *Params) Text(s string) {
	p.value(len(s))
	p.buf = append(p.buf, s...)
}

// Time adds a timestamptz, truncated to microseconds.
func (p *Params) Time(t time.Time) {
	p.Int64(t.UnixMicro() - postgresEpoch)
}

// Row is one row of a response, undecoded. A null decodes to the zero value of each type, and to
// nil bytes.
type Row [][]byte

// Bool decodes a boolean.
func (r Row) Bool(column int) bool {
	b := r[column]
	return len(b) == 1 && b[0] != 0
}

// Bytes decodes a bytea. The bytes are valid until the function that got the row returns; copy them
// to keep them.
func (r Row) Bytes(column int) []byte { return r[column] }

// Int64 decodes a smallint, integer or bigint.
func (r Row) Int64(column int) int64 {
	switch b := r[column]; len(b) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(b)))
	case 4:
		return int64(int32(binary.BigEndian.Uint32(b)))
	case 8:
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// JSON decodes the text of a jsonb; see Bytes.
func (r Row) JSON(column int) []byte {
	if b := r[column]; len(b) > 0 {
		return b[1:] // after its version byte
	}
	return nil
}

// Text decodes a text.
func (r Row) Text(column int) string { return string(r[column]) }

// Time decodes a timestamptz.
func (r Row) Time(column int) time.Time {
	if r[column] == nil {
		return time.Time{}
	}
	return time.UnixMicro(r.Int64(column) + postgresEpoch)
}
