package events

import (
	"bytes"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
)

// sessionSQL makes the session plan the append statement once. A plan for a batch of one delivery
// costs more than its execution, and all plans are the same. Only their row estimates differ, and
// for few rows PostgreSQL would plan again each time.
//
// It forces the index on keys, even if the table was analyzed while it was almost empty. Otherwise
// each key of a batch costs a scan (2.7 s at 100,000 keys).
const sessionSQL = `SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off`

// appendParams returns the parameters of appendSQL. A body is copied once, and only if an event of
// its delivery is in rows.
func appendParams(conn *pgx.Conn, batch []Delivery, rows []*batchRow) *postgres.Params {
	p := postgres.NewParams(conn, postgres.Statement{Name: "postern_append", SQL: appendSQL, SetupSQL: sessionSQL})
	addEvents(p, batch, rows)
	addDeliveries(p, batch)
	addBodies(p, batch, rows)
	return p
}

func addEvents(p *postgres.Params, batch []Delivery, rows []*batchRow) {
	n := len(rows)
	event := func(i int) *provider.Event { return &batch[rows[i].delivery].Events[rows[i].index] }
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(batch[rows[i].delivery].Source) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(rows[i].digest[:]) })
	p.Array(pgtype.ByteaOID, n, func(i int) { p.Bytes(event(i).Fingerprint[:]) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(int32(rows[i].delivery + 1)) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(batch[rows[i].delivery].index(rows[i].index)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).Key)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).Type)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).Account)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).ObjectType)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).ObjectID)) })
	p.Array(pgtype.TextOID, n, func(i int) { p.Text(SanitizeText(event(i).APIVersion)) })
	p.Array(pgtype.TimestamptzOID, n, func(i int) { addEventTime(p, event(i).OccurredAt) })
}

// addEventTime adds a time from a body.
func addEventTime(p *postgres.Params, t time.Time) {
	if isStorableTime(t) {
		p.Time(t)
	} else {
		p.Null()
	}
}

func addDeliveries(p *postgres.Params, batch []Delivery) {
	n := len(batch)
	indexes, distinct := distinctProvenances(batch)
	p.Array(pgtype.TimestamptzOID, n, func(i int) { p.Time(batch[i].ReceivedAt) })
	p.Array(pgtype.Int4OID, n, func(i int) { p.Int32(indexes[i] + 1) })
	p.Array(pgtype.TextOID, len(distinct), func(i int) { p.Text(SanitizeText(distinct[i].Origin)) })
	p.Array(pgtype.JSONBOID, len(distinct), func(i int) { p.JSON(distinct[i].Verification) })
	p.Array(pgtype.JSONBOID, n, func(i int) { p.JSON(batch[i].Headers) })
}

// distinctProvenances returns the deliveries of a batch that differ in origin or verification
// (distinct). indexes has, for each delivery, the index of the one that it equals. Deliveries with
// the same secret and second are equal; PostgreSQL then parses their JSON once. It compares only
// with the last few, so a batch of different deliveries costs little more.
func distinctProvenances(batch []Delivery) (indexes []int32, distinct []*Delivery) {
	const compared = 4
	indexes = make([]int32, len(batch))
	for i := range batch {
		d, n := &batch[i], len(distinct)
		match := n - 1
		for match >= max(0, n-compared) &&
			(distinct[match].Origin != d.Origin || !bytes.Equal(distinct[match].Verification, d.Verification)) {
			match--
		}
		if match < max(0, n-compared) {
			match, distinct = n, append(distinct, d)
		}
		indexes[i] = int32(match)
	}
	return indexes, distinct
}

func addBodies(p *postgres.Params, batch []Delivery, rows []*batchRow) {
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
