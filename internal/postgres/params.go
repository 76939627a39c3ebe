package postgres

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Statement is SQL that a connection prepares once, before its first run.
type Statement struct {
	// Name is the name of the prepared statement, unique in its connection.
	Name string
	SQL  string
	// SetupSQL is SQL without parameters that a connection runs before it prepares the statement;
	// empty: none. Its settings last as long as the session. The first run must therefore not be in
	// a transaction, whose rollback would undo them.
	SetupSQL string
}

// Params are the parameters of one run of a statement, written directly in the format of
// PostgreSQL's message. Each value is copied once, into the buffer that is sent. pgx would convert
// each element of an array to a separate value, send text[] and jsonb[] as quoted text, and copy
// the whole again.
//
// Parameters are added in their order. The methods that add a value add a parameter or, within
// Array, an element.
type Params struct {
	conn      *pgx.Conn
	statement Statement
	// buf is an unfinished Bind message, after a Parse message where the connection prepares
	// nothing.
	buf []byte
	// bindStart is the position of the Bind message in buf. countPos is the position of the number
	// of its parameters.
	bindStart, countPos int
	n                   uint16
}

// paramsPool holds released Params. maxPooledBuffer is the largest buffer that one keeps, in bytes.
var paramsPool = sync.Pool{New: func() any { return new(Params) }}

const maxPooledBuffer = 1 << 20

// NewParams starts a run of a statement on a connection. Call Release after it.
func NewParams(conn *pgx.Conn, statement Statement) *Params {
	p := paramsPool.Get().(*Params)
	p.conn, p.statement, p.n = conn, statement, 0
	p.buf = p.buf[:0]
	name := statement.Name
	if !canPrepare(conn) {
		name = ""
		p.parse()
	}
	p.bindStart = len(p.buf)
	p.buf = append(p.buf, 'B', 0, 0, 0, 0, 0) // message() sets the length; the portal has no name
	p.buf = append(append(p.buf, name...), 0)
	p.buf = append(p.buf, 0, 1, 0, 1) // one format for all parameters: binary
	p.countPos = len(p.buf)
	p.buf = append(p.buf, 0, 0)
	return p
}

// Grow reserves space for a parameter of n bytes, four more for each element, and for the end of
// the message. Without it a parameter that does not fit causes a copy of the buffer.
func (p *Params) Grow(n int) {
	if needed := len(p.buf) + n + arrayOverhead; needed > cap(p.buf) {
		p.buf = append(make([]byte, 0, needed), p.buf...)
	}
}

// arrayOverhead is an upper bound for the bytes of an array's header and the message's end.
const arrayOverhead = 64

// parse prepares the statement without a name, for this run only. PostgreSQL infers the types of
// its parameters.
func (p *Params) parse() {
	p.buf = append(p.buf, 'P')
	p.appendUint32s(uint32(4 + 1 + len(p.statement.SQL) + 1 + 2))
	p.buf = append(append(append(p.buf, 0), p.statement.SQL...), 0, 0, 0)
}

// Release returns the memory to the pool; p must not be used after it.
func (p *Params) Release() {
	p.conn, p.statement = nil, Statement{}
	if cap(p.buf) <= maxPooledBuffer {
		paramsPool.Put(p)
	}
}

// Array adds an array of n elements of a type (pgtype lists the types' oids). put is called for
// each element and adds one value.
func (p *Params) Array(element uint32, n int, put func(i int)) {
	end := p.beginValue()
	params := p.n
	p.appendUint32s(1, 1, element, uint32(n), 1) // one dimension, elements may be null, n from 1
	for i := range n {
		put(i)
	}
	end()
	p.n = params
}

// Join adds a bytea that is the concatenation of n parts.
func (p *Params) Join(n int, part func(i int) []byte) {
	end := p.beginValue()
	for i := range n {
		p.buf = append(p.buf, part(i)...)
	}
	end()
}

// beginValue starts a value whose length is set at its end.
func (p *Params) beginValue() (end func()) {
	p.n++
	p.appendUint32s(0)
	from := len(p.buf)
	return func() { binary.BigEndian.PutUint32(p.buf[from-4:], uint32(len(p.buf)-from)) }
}

func (p *Params) appendUint32s(words ...uint32) {
	for _, w := range words {
		p.buf = binary.BigEndian.AppendUint32(p.buf, w)
	}
}

// messageTrailer follows the parameters: results in binary format, then Execute without a row
// limit, then Sync.
const messageTrailer = "\x00\x01\x00\x01" + "E\x00\x00\x00\x09\x00\x00\x00\x00\x00" + "S\x00\x00\x00\x04"

// bindTrailerLen is the part of messageTrailer that belongs to the Bind message.
const bindTrailerLen = 4

// message returns the complete message. It is valid until a parameter is added; after that, call
// message again.
func (p *Params) message() ([]byte, error) {
	length, err := bindLength(len(p.buf) - p.bindStart - 1 + bindTrailerLen)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(p.buf[p.bindStart+1:], length)
	binary.BigEndian.PutUint16(p.buf[p.countPos:], p.n)
	end := len(p.buf)
	whole := append(p.buf, messageTrailer...)
	p.buf = whole[:end]
	return whole, nil
}

// maxMessage is the longest message that PostgreSQL accepts, in bytes without its type
// (PQ_LARGE_MESSAGE_LIMIT).
const maxMessage = 1<<30 - 2

func bindLength(n int) (uint32, error) {
	if n > maxMessage {
		return 0, fmt.Errorf("parameters of %d bytes: PostgreSQL accepts at most %d", n, maxMessage)
	}
	return uint32(n), nil
}
