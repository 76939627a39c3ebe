package events

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

// Rejected returns true if nothing of the delivery was stored, because it has RejectConflicts and
// one of its keys is stored with another fingerprint. The receipts tell which.
func (d *Delivery) Rejected(receipts []Receipt) bool {
	return d.RejectConflicts && slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Conflict })
}

// clearReceiptsOnConflict clears the ids in the receipts of a rejected delivery, so that nothing
// looks stored.
func clearReceiptsOnConflict(receipts []Receipt) {
	if !slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Conflict }) {
		return
	}
	for i, r := range receipts {
		receipts[i] = Receipt{Key: r.Key, Conflict: r.Conflict}
	}
}

// needsTransaction returns true if a delivery with several events must be stored completely or not
// at all. The statement reports a conflict only after it has stored the other events, so only a
// rollback can remove them.
func needsTransaction(d Delivery) bool { return d.RejectConflicts && len(d.Events) > 1 }

// needsSeparateAppend returns true if a delivery cannot go unchanged into the common statement of
// the batch.
func needsSeparateAppend(d Delivery) bool { return needsTransaction(d) || d.Bodies != nil }

// split returns the deliveries that the log stores for this one: one per event if the events have
// their own bodies.
func (d *Delivery) split() []Delivery {
	if d.Bodies == nil {
		return []Delivery{*d}
	}
	out := make([]Delivery, len(d.Events))
	for i := range out {
		out[i] = *d
		out[i].Events, out[i].Body, out[i].Bodies = d.Events[i:i+1], d.Bodies[i], nil
	}
	return out
}

// pieceOrigin tells which events a piece has: those of a delivery of the batch, from firstEvent on.
type pieceOrigin struct{ delivery, firstEvent int }

// group is a part of a batch that one statement appends: pieces, and the origin of each.
type group struct {
	pieces  []Delivery
	origins []pieceOrigin
}

// maxGroupEvents is the number of events after which the next delivery starts another group.
const maxGroupEvents = 4096

// makeGroups splits the deliveries at the given indexes into pieces and groups them. The pieces of
// one delivery stay together.
func makeGroups(batch []Delivery, indexes []int) []group {
	var all []group
	events := maxGroupEvents
	for _, index := range indexes {
		d := &batch[index]
		if events >= maxGroupEvents {
			all, events = append(all, group{}), 0
		}
		g, firstEvent := &all[len(all)-1], 0
		for _, piece := range d.split() {
			g.pieces, g.origins = append(g.pieces, piece), append(g.origins, pieceOrigin{index, firstEvent})
			firstEvent += len(piece.Events)
		}
		events += len(d.Events)
	}
	return all
}

// copyReceipts copies the receipts of a group's rows to the receipts of the batch.
func (g *group) copyReceipts(receipts [][]Receipt, rows []batchRow) {
	for _, r := range rows {
		origin := g.origins[r.delivery]
		receipts[origin.delivery][origin.firstEvent+r.index] = r.receipt
	}
}

// appendSeparately first appends the deliveries that need no transaction, then the others, each
// completely or not at all. If one statement fails, others may be committed; appending again finds
// them.
func appendSeparately(ctx context.Context, conn *pgx.Conn, batch []Delivery) ([][]Receipt, error) {
	receipts := make([][]Receipt, len(batch))
	var together, inTx []int
	for i, d := range batch {
		receipts[i] = make([]Receipt, len(d.Events))
		if needsTransaction(d) {
			inTx = append(inTx, i)
		} else {
			together = append(together, i)
		}
	}
	for _, g := range makeGroups(batch, together) {
		rows := sortRowsByKey(g.pieces)
		if err := appendRows(ctx, conn, g.pieces, rows); err != nil {
			return nil, err
		}
		g.copyReceipts(receipts, rows)
	}
	for _, g := range makeGroups(batch, inTx) {
		if err := appendAllOrNothing(ctx, conn, batch, g, receipts); err != nil {
			return nil, err
		}
	}
	for i := range batch {
		if batch[i].RejectConflicts {
			clearReceiptsOnConflict(receipts[i])
		}
	}
	return receipts, nil
}

// maxGroupRounds is how often a group is tried before its deliveries are appended one by one. The
// first round finds all conflicts with the log; later rounds find only what other gateways have
// committed since.
const maxGroupRounds = 3

// appendAllOrNothing appends deliveries that are stored completely or not at all, in one
// transaction. If some conflict, it rolls back and tries again without them.
func appendAllOrNothing(ctx context.Context, conn *pgx.Conn, batch []Delivery, g group, receipts [][]Receipt) error {
	var appended []batchRow
	for round := 1; len(g.pieces) > 0; round++ {
		remaining := g.deliveries()
		if round > maxGroupRounds && len(remaining) > 1 {
			for _, index := range remaining {
				if err := appendAllOrNothing(ctx, conn, batch, makeGroups(batch, []int{index})[0],
					receipts); err != nil {
					return err
				}
			}
			break
		}
		rows := sortRowsByKey(g.pieces)
		if err := appendInTx(ctx, conn, g.pieces, rows); err != nil {
			return err
		}
		appended = append(appended, rows...)
		rejected := g.rejected(rows)
		g.copyReceipts(receipts, rows)
		if len(rejected) == 0 {
			break
		}
		remaining = slices.DeleteFunc(remaining, func(index int) bool { return rejected[index] })
		g = group{}
		if len(remaining) > 0 {
			g = makeGroups(batch, remaining)[0]
		}
	}
	if err := awaitStandby(ctx, conn, appended); err != nil {
		return err
	}
	return postgres.CheckConfirmed(conn)
}

// deliveries returns the indexes of the group's deliveries, in order.
func (g *group) deliveries() []int {
	var out []int
	for _, origin := range g.origins {
		if origin.firstEvent == 0 {
			out = append(out, origin.delivery)
		}
	}
	return out
}

// rejected returns the deliveries of the group that conflict with the log, or with an earlier
// delivery of the group that is not rejected itself. If there are none, the group was committed. In
// rows it clears a conflict with a rejected delivery. It compares fingerprints only, because these
// events have no signed versions.
func (g *group) rejected(rows []batchRow) map[int]bool {
	rejected := map[int]bool{}
	if !slices.ContainsFunc(rows, func(r batchRow) bool { return r.receipt.Conflict }) {
		return rejected
	}
	// firstRow has, for each row, the first row with the same key. rowsOf has the rows of each
	// delivery.
	firstRow, rowsOf := make([]int, len(rows)), map[int][]int{}
	fingerprints := map[int][]byte{} // the fingerprint of a key, by the first row with that key
	for i := range rows {
		if firstRow[i] = i; rows[i].repeated {
			firstRow[i] = firstRow[i-1]
		} else if rows[i].receipt.Duplicate {
			fingerprints[i] = rows[i].fingerprint
		}
		index := g.origins[rows[i].delivery].delivery
		rowsOf[index] = append(rowsOf[index], i)
	}
	for _, index := range g.deliveries() {
		added := map[int][]byte{}
		for _, i := range rowsOf[index] {
			r := &rows[i]
			fingerprint := g.pieces[r.delivery].Events[r.index].Fingerprint[:]
			stored, found := fingerprints[firstRow[i]]
			if !found {
				stored, found = added[firstRow[i]]
			}
			if !found {
				stored, added[firstRow[i]] = fingerprint, fingerprint
			}
			r.receipt.Conflict = !bytes.Equal(stored, fingerprint)
			rejected[index] = rejected[index] || r.receipt.Conflict
		}
		if rejected[index] {
			continue
		}
		delete(rejected, index)
		maps.Copy(fingerprints, added)
	}
	return rejected
}

// appendInTx appends pieces in a transaction, and rolls back if one conflicts.
func appendInTx(ctx context.Context, conn *pgx.Conn, pieces []Delivery, rows []batchRow) error {
	first := firstOfEachKey(rows)
	params := appendParams(conn, pieces, first)
	defer params.Release()
	for attempt := 1; ; attempt++ {
		err := commitUnlessConflict(ctx, conn, params, pieces, rows, first)
		if err == nil {
			return nil
		}
		if err2 := prepareRetry(ctx, conn, err); err2 != nil || attempt == maxAppendAttempts {
			return errors.Join(err2, err)
		}
	}
}

// commitUnlessConflict sets the receipts in rows, and commits only if none of them is a conflict. A
// concurrent append with the same key waits until the transaction ends.
func commitUnlessConflict(ctx context.Context, conn *pgx.Conn, params *postgres.Params, pieces []Delivery,
	rows []batchRow, first []*batchRow) error {
	if err := params.Prepare(ctx); err != nil { // before the transaction, because a rollback would undo its settings
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // no effect after a commit
	if err := insert(ctx, params, pieces, first); err != nil {
		return err
	}
	if err := findConcurrentDuplicates(ctx, conn, pieces, first); err != nil {
		return err
	}
	fillRepeatedRows(rows)
	if err := findConflicts(ctx, conn, pieces, rows); err != nil {
		return err
	}
	if slices.ContainsFunc(rows, func(r batchRow) bool { return r.receipt.Conflict }) {
		return nil
	}
	return tx.Commit(ctx)
}
