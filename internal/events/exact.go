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

// Refused tells whether nothing of a delivery was stored, since it is Exact and has a key that is there with another fingerprint; its receipts say which.
func (d *Delivery) Refused(receipts []Receipt) bool {
	return d.Exact && slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Conflict })
}

// onlyConflicts leaves of the receipts of an Exact delivery, where it is refused, nothing that could be taken for something stored.
func onlyConflicts(receipts []Receipt) {
	if !slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Conflict }) {
		return
	}
	for i, r := range receipts {
		receipts[i] = Receipt{Key: r.Key, Conflict: r.Conflict}
	}
}

// alone tells whether a delivery needs a transaction: all of its events are stored or none, and what decides that may only be seen once the statement has ended. One event is
// stored or is not, whoever else is there.
func alone(d Delivery) bool { return d.Exact && len(d.Events) > 1 }

// apart tells whether a delivery is not appended as it is, beside others.
func apart(d Delivery) bool { return alone(d) || d.Bodies != nil }

// pieces are the deliveries as which a delivery is stored.
func (d *Delivery) pieces() []Delivery {
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

// share says which events of a batch a piece has: those of a delivery, from one of them on.
type share struct{ delivery, from int }

// group is a part of a batch that is appended by a statement: pieces, and of each whose it is.
type group struct {
	pieces []Delivery
	of     []share
}

// groupEvents is how many events a statement has before what follows goes into another.
const groupEvents = 4096

// groups divides the deliveries of a batch at those places, in pieces; those of a delivery stay together.
func groups(batch []Delivery, places []int) []group {
	var all []group
	events := groupEvents
	for _, place := range places {
		d := &batch[place]
		if events >= groupEvents {
			all, events = append(all, group{}), 0
		}
		g, from := &all[len(all)-1], 0
		for _, piece := range d.pieces() {
			g.pieces, g.of = append(g.pieces, piece), append(g.of, share{place, from})
			from += len(piece.Events)
		}
		events += len(d.Events)
	}
	return all
}

// tell puts the receipts of a group's rows where they belong.
func (g *group) tell(receipts [][]Receipt, rows []row) {
	for _, r := range rows {
		of := g.of[r.delivery]
		receipts[of.delivery][of.from+r.place] = r.receipt
	}
}

// appendApart appends what needs no transaction, and then each of the rest whole or not at all. Where one statement fails others may be in the log; appending again finds them.
func appendApart(ctx context.Context, conn *pgx.Conn, batch []Delivery) ([][]Receipt, error) {
	receipts := make([][]Receipt, len(batch))
	var together, whole []int
	for i, d := range batch {
		receipts[i] = make([]Receipt, len(d.Events))
		if alone(d) {
			whole = append(whole, i)
		} else {
			together = append(together, i)
		}
	}
	for _, g := range groups(batch, together) {
		rows := sortedRows(g.pieces)
		if err := appendRows(ctx, conn, g.pieces, rows); err != nil {
			return nil, err
		}
		g.tell(receipts, rows)
	}
	for _, g := range groups(batch, whole) {
		if err := appendWhole(ctx, conn, batch, g, receipts); err != nil {
			return nil, err
		}
	}
	for i := range batch {
		if batch[i].Exact {
			onlyConflicts(receipts[i])
		}
	}
	return receipts, nil
}

// wholeRounds is how often a group is tried before its deliveries go one by one: the first time tells what conflicts with the log, and another only what other gateways have committed since.
const wholeRounds = 3

// appendWhole appends deliveries that are stored whole or not at all, in one transaction: where some conflict it is taken back, and tried again without them.
func appendWhole(ctx context.Context, conn *pgx.Conn, batch []Delivery, g group, receipts [][]Receipt) error {
	var told []row
	for round := 1; len(g.pieces) > 0; round++ {
		left := g.deliveries()
		if round > wholeRounds && len(left) > 1 {
			for _, place := range left {
				if err := appendWhole(ctx, conn, batch, groups(batch, []int{place})[0], receipts); err != nil {
					return err
				}
			}
			break
		}
		rows := sortedRows(g.pieces)
		if err := appendAlone(ctx, conn, g.pieces, rows); err != nil {
			return err
		}
		told = append(told, rows...)
		refused := g.refused(rows)
		g.tell(receipts, rows)
		if len(refused) == 0 {
			break
		}
		left = slices.DeleteFunc(left, func(place int) bool { return refused[place] })
		g = group{}
		if len(left) > 0 {
			g = groups(batch, left)[0]
		}
	}
	if err := awaitStandby(ctx, conn, told); err != nil {
		return err
	}
	return postgres.Confirmed(conn)
}

// deliveries are the places of a group's deliveries, in order.
func (g *group) deliveries() []int {
	var out []int
	for _, of := range g.of {
		if of.from == 0 {
			out = append(out, of.delivery)
		}
	}
	return out
}

// refused are the deliveries of a group that conflict with the log, or with what comes before them in the group and is not refused itself; where there is none the group is committed. In rows it
// leaves a conflict only where there is one with these. The fingerprints decide: none of these events comes in versions that are signed.
func (g *group) refused(rows []row) map[int]bool {
	refused := map[int]bool{}
	if !slices.ContainsFunc(rows, func(r row) bool { return r.receipt.Conflict }) {
		return refused
	}
	keys, of := make([]int, len(rows)), map[int][]int{} // of each row the first with its key, and of each delivery its rows
	taken := map[int][]byte{}                           // the fingerprint under a key, by its first row
	for i := range rows {
		if keys[i] = i; rows[i].twin {
			keys[i] = keys[i-1]
		} else if rows[i].receipt.Duplicate {
			taken[i] = rows[i].fingerprint
		}
		place := g.of[rows[i].delivery].delivery
		of[place] = append(of[place], i)
	}
	for _, place := range g.deliveries() {
		own := map[int][]byte{}
		for _, i := range of[place] {
			r := &rows[i]
			fingerprint := g.pieces[r.delivery].Events[r.place].Fingerprint[:]
			before, there := taken[keys[i]]
			if !there {
				before, there = own[keys[i]]
			}
			if !there {
				before, own[keys[i]] = fingerprint, fingerprint
			}
			r.receipt.Conflict = !bytes.Equal(before, fingerprint)
			refused[place] = refused[place] || r.receipt.Conflict
		}
		if refused[place] {
			continue
		}
		delete(refused, place)
		maps.Copy(taken, own)
	}
	return refused
}

// appendAlone appends pieces in a transaction, and takes them back where one conflicts.
func appendAlone(ctx context.Context, conn *pgx.Conn, pieces []Delivery, rows []row) error {
	first := firsts(rows)
	params := appendParams(conn, pieces, first)
	defer params.Release()
	for attempt := 1; ; attempt++ {
		err := allOrNothing(ctx, conn, params, pieces, rows, first)
		if err == nil {
			return nil
		}
		if err2 := mend(ctx, conn, err); err2 != nil || attempt == appendAttempts {
			return errors.Join(err2, err)
		}
	}
}

// allOrNothing leaves the receipts in rows; what was inserted is committed only if none of them is a conflict. Whoever waits for one of its keys meanwhile goes on when that is decided.
func allOrNothing(ctx context.Context, conn *pgx.Conn, params *postgres.Params, one []Delivery, rows []row, first []*row) error {
	if err := params.Prepare(ctx); err != nil { // its settings are to last longer than the transaction
		return err
	}
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit this does nothing
	if err := insert(ctx, params, one, first); err != nil {
		return err
	}
	if err := findTwins(ctx, conn, one, first); err != nil {
		return err
	}
	answerTwins(rows)
	if err := findConflicts(ctx, conn, one, rows); err != nil {
		return err
	}
	if slices.ContainsFunc(rows, func(r row) bool { return r.receipt.Conflict }) {
		return nil
	}
	return tx.Commit(ctx)
}
