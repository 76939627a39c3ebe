package postgres

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Statement is SQL that a connection prepares once, when it first runs it.
type Statement struct {
	// Name is what it is prepared as; no other of a connection's statements has it.
	Name string
	SQL  string
	// Session is SQL without parameters that a connection runs before it prepares the statement, empty: none. Settings made there
	// last as long as the session, so a statement that has one is not first run in a transaction, which could take them back.
	Session string
}

// Params are the parameters of one run of a statement, written as the very message that PostgreSQL gets: what is added is copied
// once, into the buffer that goes to the connection. pgx would make each element of an array a value of its own first, send
// text[] and jsonb[] as text, quoted here and parsed there, and copy the whole once more behind its message's header.
//
// Parameters are added in their order. The methods that add a value add a parameter, or within Array an element.
type Params struct {
	conn      *pgx.Conn
	statement Statement
	// buf is an unfinished Bind message, behind a Parse where the connection prepares nothing.
	buf []byte
	// bind is where the Bind message begins in buf, counted where the number of its parameters is.
	bind, counted int
	n             uint16
}

// unused are Params that were released; keptBuffer bounds what one may hold on to, in bytes.
var unused = sync.Pool{New: func() any { return new(Params) }}

const keptBuffer = 1 << 20

// NewParams begins a run of a statement on a connection. Release gives its memory back.
func NewParams(conn *pgx.Conn, statement Statement) *Params {
	p := unused.Get().(*Params)
	p.conn, p.statement, p.n = conn, statement, 0
	p.buf = p.buf[:0]
	name := statement.Name
	if !prepares(conn) {
		name = ""
		p.parse()
	}
	p.bind = len(p.buf)
	p.buf = append(p.buf, 'B', 0, 0, 0, 0, 0) // its length comes with the end; the portal without a name
	p.buf = append(append(p.buf, name...), 0)
	p.buf = append(p.buf, 0, 1, 0, 1) // one format for all parameters: binary
	p.counted = len(p.buf)
	p.buf = append(p.buf, 0, 0)
	return p
}

// Grow makes room for a parameter of n bytes, four more for each element, and for the end. Without it a parameter for which there
// is no room is copied again, with all before it, to where there is.
func (p *Params) Grow(n int) {
	if needed := len(p.buf) + n + overhead; needed > cap(p.buf) {
		p.buf = append(make([]byte, 0, needed), p.buf...)
	}
}

// overhead is more than an array and the end take, in bytes.
const overhead = 64

// parse has the statement prepared without a name, for this run alone; PostgreSQL finds the types of its parameters.
func (p *Params) parse() {
	p.buf = append(p.buf, 'P')
	p.word(uint32(4 + 1 + len(p.statement.SQL) + 1 + 2))
	p.buf = append(append(append(p.buf, 0), p.statement.SQL...), 0, 0, 0)
}

// Release gives the memory back; nothing may be done with p after it.
func (p *Params) Release() {
	p.conn, p.statement = nil, Statement{}
	if cap(p.buf) <= keptBuffer {
		unused.Put(p)
	}
}

// Array adds an array of n elements of a type (pgtype has the numbers of types); put is called for each and adds one value.
func (p *Params) Array(element uint32, n int, put func(i int)) {
	end := p.open()
	params := p.n
	p.word(1, 1, element, uint32(n), 1) // one dimension, elements may be null, n from 1
	for i := range n {
		put(i)
	}
	end()
	p.n = params
}

// Join adds a bytea that is n parts put together.
func (p *Params) Join(n int, part func(i int) []byte) {
	end := p.open()
	for i := range n {
		p.buf = append(p.buf, part(i)...)
	}
	end()
}

// open begins a value whose length is known at its end.
func (p *Params) open() (end func()) {
	p.n++
	p.word(0)
	from := len(p.buf)
	return func() { binary.BigEndian.PutUint32(p.buf[from-4:], uint32(len(p.buf)-from)) }
}

func (p *Params) word(words ...uint32) {
	for _, w := range words {
		p.buf = binary.BigEndian.AppendUint32(p.buf, w)
	}
}

// behind is what follows the parameters: results in binary, then Execute without a bound of rows, then Sync.
const behind = "\x00\x01\x00\x01" + "E\x00\x00\x00\x09\x00\x00\x00\x00\x00" + "S\x00\x00\x00\x04"

// formats is how much of behind belongs to the Bind message.
const formats = 4

// message is all that is sent. It stays valid until something is added; more may be added, and a message asked for again.
func (p *Params) message() ([]byte, error) {
	length, err := bindLength(len(p.buf) - p.bind - 1 + formats)
	if err != nil {
		return nil, err
	}
	binary.BigEndian.PutUint32(p.buf[p.bind+1:], length)
	binary.BigEndian.PutUint16(p.buf[p.counted:], p.n)
	end := len(p.buf)
	whole := append(p.buf, behind...)
	p.buf = whole[:end]
	return whole, nil
}

// maxMessage is the longest message that PostgreSQL takes, in bytes without its type (PQ_LARGE_MESSAGE_LIMIT).
const maxMessage = 1<<30 - 2

func bindLength(n int) (uint32, error) {
	if n > maxMessage {
		return 0, fmt.Errorf("parameters of %d bytes: PostgreSQL takes %d at once", n, maxMessage)
	}
	return uint32(n), nil
}
