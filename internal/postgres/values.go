package postgres

import (
	"encoding/binary"
	"time"
)

// postgresEpoch is what PostgreSQL counts microseconds from, in Unix microseconds.
const postgresEpoch = 946_684_800_000_000

const null = ^uint32(0) // the length of a null

// value begins a value of n bytes.
func (p *Params) value(n int) {
	p.n++
	p.word(uint32(n))
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
	p.word(uint32(v))
}

// Int64 adds a bigint.
func (p *Params) Int64(v int64) {
	p.value(8)
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(v))
}

// Interval adds an interval, to the microsecond.
func (p *Params) Interval(d time.Duration) {
	p.value(16)
	p.buf = binary.BigEndian.AppendUint64(p.buf, uint64(d.Microseconds()))
	p.word(0, 0) // no days, no months
}

// JSON adds a jsonb, which in binary is its version and its text.
func (p *Params) JSON(text []byte) {
	p.value(1 + len(text))
	p.buf = append(append(p.buf, 1), text...)
}

// Null adds a null, of whatever type is expected.
func (p *Params) Null() {
	p.n++
	p.word(null)
}

// Text adds a text; PostgreSQL takes none with NUL or invalid UTF-8.
func (p *Params) Text(s string) {
	p.value(len(s))
	p.buf = append(p.buf, s...)
}

// Time adds a timestamptz, to the microsecond below.
func (p *Params) Time(t time.Time) {
	p.Int64(t.UnixMicro() - postgresEpoch)
}

// Row is one row of an answer, as it came. A null is the zero value of whatever it is read as, and nil bytes.
type Row [][]byte

// Bool is a boolean.
func (r Row) Bool(column int) bool {
	b := r[column]
	return len(b) == 1 && b[0] != 0
}

// Bytes is a bytea; the row may be used only until the function it was given to returns, so whoever keeps it copies it.
func (r Row) Bytes(column int) []byte { return r[column] }

// Int64 is a smallint, integer or bigint.
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

// JSON is the text of a jsonb; see Bytes.
func (r Row) JSON(column int) []byte {
	if b := r[column]; len(b) > 0 {
		return b[1:] // behind its version
	}
	return nil
}

// Text is a text.
func (r Row) Text(column int) string { return string(r[column]) }

// Time is a timestamptz.
func (r Row) Time(column int) time.Time {
	if r[column] == nil {
		return time.Time{}
	}
	return time.UnixMicro(r.Int64(column) + postgresEpoch)
}
