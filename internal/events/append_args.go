package events

import (
	"bytes"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// sessionSQL keeps a session from planning an append again for each batch: for one of a single delivery the plan costs more
// than running it. All plans are the same; only their guess of the number of rows differs, and PostgreSQL would take the
// one for few rows to be worth its price. It keeps the plan to the index of the keys too, where they were analysed when there were
// next to none (a scan for each key of a batch: 2.7 s at 100,000 keys), and from being compiled for the price that makes up.
const sessionSQL = `SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off`

// appendParams are the parameters of appendSQL: a body is copied once, and only where an event of its delivery is in rows.
func appendParams(conn *pgx.Conn, batch []Delivery, rows []*row) *postgres.Params {
	p := postgres.NewParams(conn, postgres.Statement{Name: "postern_append", SQL: appendSQL, Session: sessionSQL})
	addEvents(p, batch, rows)
	addDeliveries(p, batch)
	addBodies(p, batch, rows)
	return p
}

func addEvents(p *postgres.Params, batch []Delivery, rows []*row) {
	n := len(rows)
	event := func(i int) *provider.Event { return &batch[rows[i].delivery].Events[rows[i].place] }
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(batch[rows[i].delivery].Source) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(rows[i].digest[:]) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(event(i).Fingerprint[:]) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(int32(rows[i].delivery + 1)) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(batch[rows[i].delivery].place(rows[i].place)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).Key)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).Type)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).Account)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).ObjectType)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).ObjectID)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(Text(event(i).APIVersion)) })
	p.Array(pgtype.TimestamptzOID, n, func(i int) { addClaimed(p, event(i).OccurredAt) })
}

// addClaimed adds a time that a body claims.
func addClaimed(p *postgres.Params, t time.Time) {
	if claimable(t) {
		p.Time(t)
	} else {
		p.Null()
	}
}

func addDeliveries(p *postgres.Params, batch []Delivery) {
	n := len(batch)
	of, each := proofs(batch)
	p.Array(pgtype.TimestamptzOID, n, func(i int) { p.Time(batch[i].ReceivedAt) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(of[i] + 1) })
	p.Array(pgtype.TextOID, len(each), func(i int) { p.Text(Text(each[i].Origin)) })
	p.Array(pgtype.JSONBOID, len(each), func(i int) { p.JSON(each[i].Verification) })
	p.Array(pgtype.JSONBOID, n, func(i int) { p.JSON(batch[i].Headers) })
}

// proofs are deliveries of a batch of which each came and was proven in another way than the others, and for each of the batch the number of the one that is like it. Deliveries of one second and one secret are all alike:
// PostgreSQL then reads their JSON once. Only the last few are looked at, so that a batch of which all differ costs little more.
func proofs(batch []Delivery) (of []int32, each []*Delivery) {
	const lastFew = 4
	of = make([]int32, len(batch))
	for i := range batch {
		d, n := &batch[i], len(each)
		like := n - 1
		for like >= max(0, n-lastFew) && (each[like].Origin != d.Origin || !bytes.Equal(each[like].Verification, d.Verification)) {
			like--
		}
		if like < max(0, n-lastFew) {
			like, each = n, append(each, d)
		}
		of[i] = int32(like)
	}
	return of, each
}

func addBodies(p *postgres.Params, batch []Delivery, rows []*row) {
	bodies, size := make([][]byte, len(batch)), 4*len(batch)
	for _, r := range rows {
		bodies[r.delivery] = batch[r.delivery].Body
	}
	for _, body := range bodies {
		size += len(body)
	}
	p.Grow(size)
	p.Array(pgtype.ByteaOID, len(bodies), func(i int) { p.Bytes(bodies[i]) })
}
