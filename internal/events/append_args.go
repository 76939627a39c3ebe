package events

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/provider"
)

// arrays are the parameters of a statement, each a one-dimensional array in PostgreSQL's binary form, in one buffer. pgx would
// send text[] and jsonb[] as text, quoted here and parsed there, and make each element a value of its own first.
type arrays struct {
	buf []byte
	// ends are where each array ends in buf.
	ends []int
}

// array adds an array of n elements, which each puts.
func (a *arrays) array(element uint32, n int, put func(i int)) {
	if n == 0 {
		a.words(0, 0, element) // no dimension
	} else {
		a.words(1, 1, element, uint32(n), 1) // one dimension, elements may be null, n from 1
	}
	for i := range n {
		put(i)
	}
	a.ends = append(a.ends, len(a.buf))
}

func (a *arrays) words(words ...uint32) {
	for _, w := range words {
		a.buf = binary.BigEndian.AppendUint32(a.buf, w)
	}
}

func (a *arrays) int32(v int32) { a.words(4, uint32(v)) }

func (a *arrays) bytes(b []byte) {
	a.words(uint32(len(b)))
	a.buf = append(a.buf, b...)
}

func (a *arrays) text(s string) {
	s = Text(s)
	a.words(uint32(len(s)))
	a.buf = append(a.buf, s...)
}

// json adds a jsonb, which in binary is its version and its text.
func (a *arrays) json(b []byte) {
	a.words(uint32(len(b)) + 1)
	a.buf = append(append(a.buf, 1), b...)
}

// postgresEpoch is what PostgreSQL counts microseconds from, in Unix microseconds.
const postgresEpoch = 946_684_800_000_000

func (a *arrays) time(t time.Time) {
	a.words(8)
	a.buf = binary.BigEndian.AppendUint64(a.buf, uint64(t.UnixMicro()-postgresEpoch))
}

const null = ^uint32(0) // the length of a null

// claimed adds a time that a body claims; what it claims beyond the years 1 to 9999 is no time.
func (a *arrays) claimed(t time.Time) {
	if y := t.Year(); t.IsZero() || y < 1 || y > 9999 {
		a.words(null)
		return
	}
	a.time(t)
}

func (a *arrays) values() [][]byte {
	out, from := make([][]byte, len(a.ends)), 0
	for i, end := range a.ends {
		out[i], from = a.buf[from:end:end], end
	}
	return out
}

// appendArgs are the parameters of appendSQL: a body is copied once, and only where an event of its delivery is in rows.
func appendArgs(batch []Delivery, rows []*row) *arrays {
	needed, size := make([]bool, len(batch)), 0
	for _, r := range rows {
		needed[r.delivery] = true
	}
	for i := range batch {
		size += len(batch[i].Headers) + len(batch[i].Verification) + perDelivery
		if needed[i] {
			size += len(batch[i].Body)
		}
	}
	a := &arrays{ends: make([]int, 0, 17)}
	if used, ok := buffers.Get().(*[]byte); ok {
		a.buf = (*used)[:0]
	}
	a.buf = slices.Grow(a.buf, size+perEvent*len(rows))
	a.events(batch, rows)
	a.deliveries(batch, needed)
	return a
}

// buffers are those of arrays that were sent; keptBuffer bounds what one may hold on to, in bytes.
var buffers sync.Pool

const keptBuffer = 1 << 20

// release gives the memory back; the values may not be used after it.
func (a *arrays) release() {
	if cap(a.buf) <= keptBuffer {
		buffers.Put(&a.buf)
	}
}

// About what the columns take besides headers, verification and body, in bytes.
const (
	perDelivery = 64
	perEvent    = 320
)

func (a *arrays) events(batch []Delivery, rows []*row) {
	n := len(rows)
	event := func(i int) *provider.Event { return &batch[rows[i].delivery].Events[rows[i].place] }
	a.array(pgtype.Int4OID, n, func(i int) { a.int32(batch[rows[i].delivery].Source) })
	a.array(pgtype.ByteaOID, n, func(i int) { a.bytes(rows[i].digest[:]) })
	a.array(pgtype.ByteaOID, n, func(i int) { a.bytes(event(i).Fingerprint[:]) })
	a.array(pgtype.Int4OID, n, func(i int) { a.int32(int32(rows[i].delivery + 1)) })
	a.array(pgtype.Int4OID, n, func(i int) { a.int32(int32(rows[i].place)) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).Key) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).Type) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).Account) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).ObjectType) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).ObjectID) })
	a.array(pgtype.TextOID, n, func(i int) { a.text(event(i).APIVersion) })
	a.array(pgtype.TimestamptzOID, n, func(i int) { a.claimed(event(i).OccurredAt) })
}

func (a *arrays) deliveries(batch []Delivery, needed []bool) {
	m := len(batch)
	a.array(pgtype.TimestamptzOID, m, func(i int) { a.time(batch[i].ReceivedAt) })
	a.array(pgtype.TextOID, m, func(i int) { a.text(batch[i].Origin) })
	a.array(pgtype.JSONBOID, m, func(i int) { a.json(batch[i].Headers) })
	a.array(pgtype.JSONBOID, m, func(i int) { a.json(batch[i].Verification) })
	a.array(pgtype.ByteaOID, m, func(i int) {
		if needed[i] {
			a.bytes(batch[i].Body)
		} else {
			a.bytes(nil)
		}
	})
}

// binaryFormat asks for all parameters and results in binary.
var binaryFormat = []int16{pgx.BinaryFormatCode}

// run runs appendSQL with encoded parameters.
func run(ctx context.Context, conn *pgx.Conn, args [][]byte) (*pgconn.ResultReader, error) {
	if conn.Config().DefaultQueryExecMode != pgx.QueryExecModeCacheStatement { // the database's URL asks for it
		return conn.PgConn().ExecParams(ctx, appendSQL, args, nil, binaryFormat, binaryFormat), nil
	}
	name, err := prepare(ctx, conn)
	if err != nil {
		return nil, err
	}
	return conn.PgConn().ExecPrepared(ctx, name, args, binaryFormat, binaryFormat), nil
}

// sessionSQL keeps a session from planning an append again for each batch: for one of a single delivery the plan costs more
// than running it. All plans are the same; only their guess of the number of rows differs, and PostgreSQL would take the
// one for few rows to be worth its price. It keeps the plan to the index of the keys too, where they were analysed when there were
// next to none (a scan for each key of a batch: 2.7 s at 100,000 keys), and from being compiled for the price that makes up.
const sessionSQL = `SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off`

// statement is appendSQL as a connection has it prepared; tries counts how often, so that each has a name of its own.
type statement struct {
	name  string
	tries int
}

// preparedKey is where a connection keeps its statement.
const preparedKey = "postern append"

// prepare prepares appendSQL, once for each connection.
func prepare(ctx context.Context, conn *pgx.Conn) (string, error) {
	kept := conn.PgConn().CustomData()
	s, _ := kept[preparedKey].(statement)
	if s.name != "" {
		return s.name, nil
	}
	if err := conn.PgConn().Exec(ctx, sessionSQL).Close(); err != nil {
		return "", err
	}
	s.tries++
	name := fmt.Sprint("postern_append_", s.tries)
	if _, err := conn.Prepare(ctx, name, appendSQL); err != nil {
		return "", err
	}
	s.name = name
	kept[preparedKey] = s
	return name, nil
}

// forget has the statement prepared again: somebody changed what it rests on, or took it from the session.
func forget(conn *pgx.Conn) {
	kept := conn.PgConn().CustomData()
	s, _ := kept[preparedKey].(statement)
	s.name = ""
	kept[preparedKey] = s
}

// int64Of is a bigint of an answer in binary; false: null.
func int64Of(b []byte) (int64, bool) {
	if len(b) != 8 {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(b)), true
}

// boolOf is a boolean of an answer in binary.
func boolOf(b []byte) bool { return len(b) == 1 && b[0] != 0 }
