package postgres_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// session acquires a session from a pool until the test ends.
func session(t *testing.T, pool *pgxpool.Pool) *pgx.Conn {
	t.Helper()
	conn, err := pool.Acquire(t.Context())
	testkit.Must(t, err)
	t.Cleanup(conn.Release)
	return conn.Conn()
}

// statement is SQL with a unique name.
func statement(sql string) postgres.Statement {
	return postgres.Statement{Name: fmt.Sprintf("test_%x", crc32.ChecksumIEEE([]byte(sql))), SQL: sql}
}

// run runs SQL with the parameters that add adds.
func run(ctx context.Context, conn *pgx.Conn, sql string, add func(*postgres.Params),
	each func(postgres.Row) error) (int64, error) {
	p := postgres.NewParams(conn, statement(sql))
	defer p.Release()
	if add != nil {
		add(p)
	}
	return p.Run(ctx, each)
}

// values has one value of each type; nil means nulls.
type values struct {
	Bool                bool
	Bytes, JSON         string
	Int16, Int32, Int64 int64
	Interval            time.Duration
	Text                string
	Time                time.Time
}

// put adds a value, or a null for nil.
func put(p *postgres.Params, rows []*values, add func(v *values)) func(int) {
	return func(i int) {
		if rows[i] == nil {
			p.Null()
		} else {
			add(rows[i])
		}
	}
}

var allTypes = []*values{
	{true, "\x00\xff", `{"a": "\"é"}`, math.MinInt16, math.MinInt32, math.MinInt64, 25*time.Hour + 7*time.Microsecond,
		`"{}\, é 😀`, time.Date(2026, 11, 20, 10, 0, 0, 123_456_000, time.UTC)},
	nil,
	{false, "", `null`, math.MaxInt16, math.MaxInt32, math.MaxInt64, -time.Second, "",
		time.Date(1, 2, 3, 4, 5, 6, 0, time.UTC)},
	{true, "x", `[1, 2]`, -1, 0, 1, 0, "plain", time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)},
}

// Elements of all types arrive at the server unchanged and come back unchanged; so do nulls.
func TestParams_everyType_roundTrips(t *testing.T) {
	t.Parallel()
	conn := session(t, testkit.Database(t).Pool)
	const sql = `SELECT b, y, s, i, l, (extract(epoch FROM d) * 1000000)::bigint, j, x, t,
		(extract(epoch FROM t) * 1000000)::bigint, num_nulls(b, y, s, i, l, d, j, x, t)
		FROM unnest($1::bool[], $2::bytea[], $3::smallint[], $4::int[], $5::bigint[], $6::interval[], $7::jsonb[],
			$8::text[], $9::timestamptz[])
		WITH ORDINALITY AS v(b, y, s, i, l, d, j, x, t, n) ORDER BY n`
	add := func(p *postgres.Params) {
		p.Array(pgtype.BoolOID, len(allTypes), put(p, allTypes, func(v *values) { p.Bool(v.Bool) }))
		p.Array(pgtype.ByteaOID, len(allTypes), put(p, allTypes, func(v *values) { p.Bytes([]byte(v.Bytes)) }))
		p.Array(pgtype.Int2OID, len(allTypes), put(p, allTypes, func(v *values) { p.Int16(int16(v.Int16)) }))
		p.Array(pgtype.Int4OID, len(allTypes), put(p, allTypes, func(v *values) { p.Int32(int32(v.Int32)) }))
		p.Array(pgtype.Int8OID, len(allTypes), put(p, allTypes, func(v *values) { p.Int64(v.Int64) }))
		p.Array(pgtype.IntervalOID, len(allTypes), put(p, allTypes, func(v *values) { p.Interval(v.Interval) }))
		p.Array(pgtype.JSONBOID, len(allTypes), put(p, allTypes, func(v *values) { p.JSON([]byte(v.JSON)) }))
		p.Array(pgtype.TextOID, len(allTypes), put(p, allTypes, func(v *values) { p.Text(v.Text) }))
		p.Array(pgtype.TimestamptzOID, len(allTypes), put(p, allTypes, func(v *values) { p.Time(v.Time) }))
	}
	var got []*values
	n, err := run(t.Context(), conn, sql, add, func(r postgres.Row) error {
		v := &values{r.Bool(0), string(r.Bytes(1)), string(r.JSON(6)), r.Int64(2), r.Int64(3), r.Int64(4),
			time.Duration(r.Int64(5)) * time.Microsecond, r.Text(7), r.Time(8)}
		if nulls := r.Int64(10); nulls == 9 && *v == (values{}) {
			v = nil
		} else if nulls != 0 || v.Time.UnixMicro() != r.Int64(9) {
			t.Errorf("%d nulls in %+v, and the time %d", nulls, v, r.Int64(9))
		}
		got = append(got, v)
		return nil
	})
	if diff := cmp.Diff(allTypes, got); diff != "" || err != nil || n != int64(len(allTypes)) {
		t.Errorf("%d rows, %v (-want +got):\n%s", n, err, diff)
	}
}

// Parameters that are not arrays, arrays without elements, and the number of affected rows.
func TestParams_withoutArray_roundTrip(t *testing.T) {
	t.Parallel()
	db := scratch(t)
	conn := session(t, db.Pool)
	var got string
	_, err := run(t.Context(), conn, `SELECT concat_ws('|', $1::bool, encode($2::bytea, 'escape'), $3::smallint,
		cardinality($4::int[]), $5::int, $6::bigint,
		cardinality($7::text[]), $8::jsonb->>'a', $9::text IS NULL, encode($10::bytea, 'escape'), $11::text,
			encode($12::bytea, 'escape'), ($13::int[])[1])`, func(p *postgres.Params) {
		p.Bool(true)
		p.Bytes([]byte("bytes"))
		p.Int16(2)
		p.Array(pgtype.Int4OID, 0, nil)
		p.Int32(-4)
		p.Int64(1 << 40)
		p.Array(pgtype.TextOID, 0, nil)
		p.JSON([]byte(`{"a":"b"}`))
		p.Null()
		p.Join(3, func(i int) []byte { return []byte(strings.Repeat("ab", i)) })
		p.Text("text")
		p.Join(0, nil)
		p.Array(pgtype.Int4OID, 2, func(i int) { p.Int32(int32(10 + i)) })
	}, func(r postgres.Row) error { got = r.Text(0); return nil })
	if want := "t|bytes|2|0|-4|1099511627776|0|b|t|ababab|text||10"; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	for _, want := range []int64{7, 0} {
		n, err := run(t.Context(), conn,
			`INSERT INTO scratch SELECT generate_series(1, $1::int) ON CONFLICT DO NOTHING`, func(p *postgres.Params) {
				p.Int32(7)
			}, nil)
		if err != nil || n != want {
			t.Errorf("%d rows affected, %v, want %d", n, err, want)
		}
	}
}

// A large parameter arrives completely, and comes back in a response.
func TestParams_megabytes_roundTrip(t *testing.T) {
	t.Parallel()
	conn := session(t, testkit.Database(t).Pool)
	body := bytes.Repeat([]byte("0123456789abcdef\x00\xff"), 20<<20/18)
	_, err := run(t.Context(), conn, "SELECT sha256($1::bytea), $1::bytea", func(p *postgres.Params) { p.Bytes(body) },
		func(r postgres.Row) error {
			if want := sha256.Sum256(body); !bytes.Equal(r.Bytes(0), want[:]) || !bytes.Equal(r.Bytes(1), body) {
				t.Error("not the body that was sent")
			}
			return nil
		})
	if err != nil {
		t.Error(err)
	}
}

// Parameters that are too long for PostgreSQL are rejected before they are sent.
func TestParams_beyondLimit_isRejected(t *testing.T) {
	t.Parallel()
	if n, err := postgres.BindLength(postgres.MaxMessage); err != nil || n != 1<<30-2 {
		t.Errorf("%d, %v", n, err)
	}
	for _, n := range []int{postgres.MaxMessage + 1, 1<<32 + 100} {
		if _, err := postgres.BindLength(n); err == nil || postgres.IsUnavailable(err) ||
			!strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("%d bytes: %v, want an error that is not retried", n, err)
		}
	}
}

// countingConn records the longest write.
type countingConn struct {
	net.Conn
	longest []byte
}

func (w *countingConn) Write(b []byte) (int, error) {
	if len(b) > len(w.longest) {
		w.longest = b
	}
	return w.Conn.Write(b)
}

// Bodies are copied once, into the buffer that is written. Not parallel, because memory is counted
// for the whole process.
func TestParams_bodies_areCopiedOnce(t *testing.T) {
	cfg, err := pgxpool.ParseConfig(testkit.Database(t).URL)
	testkit.Must(t, err)
	var link *countingConn
	dial := cfg.ConnConfig.DialFunc
	cfg.MaxConns, cfg.ConnConfig.DialFunc = 1, func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		link = &countingConn{Conn: conn}
		return link, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	conn := session(t, pool)
	sized := statement("SELECT cardinality($1::bytea[])")
	body := bytes.Repeat([]byte("x"), 4<<20)
	parts := [][]byte{body[:1<<20], body[1<<20 : 2<<20], body[2<<20 : 3<<20], body[3<<20:]}
	for range 2 {
		link.longest = nil
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p := postgres.NewParams(conn, sized)
		p.Grow(len(body) + 4*len(parts))
		p.Array(pgtype.ByteaOID, len(parts), func(i int) { p.Bytes(parts[i]) })
		testkit.Must(t, errOf(p.Run(t.Context(), nil)))
		if buf := p.Buffer(); len(link.longest) < len(body) || &buf[0] != &link.longest[0] {
			t.Errorf("the longest write, of %d bytes, is not of the buffer of the parameters", len(link.longest))
		}
		p.Release()
		runtime.ReadMemStats(&after)
		if cost := after.TotalAlloc - before.TotalAlloc; cost > uint64(len(body))*5/4 {
			t.Errorf("%d bytes of body cost %d", len(body), cost)
		}
	}
}
