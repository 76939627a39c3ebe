package redaction

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
)

const (
	goneSQL = `SELECT r.event FROM redacted r WHERE r.event = ANY($1::bigint[])`

	// newerSQL: an object that is there no more has announced that.
	newerSQL = `
SELECT NOT EXISTS (SELECT FROM objects o JOIN sources s ON s.number = o.source WHERE s.name = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4 AND o.revision <= $5)`

	// droppedSQL are the events that retention has dropped.
	droppedSQL = `SELECT d.id FROM unnest($1::bigint[]) AS d(id) WHERE NOT EXISTS (SELECT FROM events e WHERE e.id = d.id)`

	// clearedSinceSQL: the run has cleared the object since that revision.
	clearedSinceSQL = `
SELECT EXISTS (SELECT FROM objects o JOIN sources s ON s.number = o.source WHERE s.name = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4 AND o.revision > $5
  AND o.state IS NULL AND o.tie_set = '[]' AND o.updated_at >= (SELECT r.began_at FROM redactions r WHERE r.run = $6))`
)

// feeds deletes what the streams hold of redacted events, of whichever run. What a process had in hand when they were redacted may come into a stream after this, and goes at
// its age.
func (w *work) feeds(ctx context.Context) (runs.Status, error) {
	if w.Conn == nil {
		return runs.Running, nil
	}
	own, err := w.asked(ctx) // it is cleared after this
	if err != nil {
		return "", err
	}
	events := func(ctx context.Context, ids []int64) ([]int64, error) {
		gone, err := collect(ctx, w.Pool, goneSQL, ids)
		for _, id := range without(own, gone) {
			if slices.Contains(ids, id) {
				gone = append(gone, id)
			}
		}
		return gone, err
	}
	// Of objects that were cleared for what they showed, the events may be dropped: nothing of those was redacted.
	dropped := map[int64]bool{}
	made := func(ctx context.Context, ids []int64) ([]int64, error) {
		gone, err := events(ctx, ids)
		if err != nil || !w.cleared {
			return gone, err
		}
		rest, err := collect(ctx, w.Pool, droppedSQL, without(ids, gone))
		for _, id := range rest {
			dropped[id] = true
		}
		return append(gone, rest...), err
	}
	for name, what := range map[string]stream.Forgotten{
		stream.EventsStream: {Events: events}, stream.ReplaysStream: {Events: events},
		stream.ChangesStream: {Events: made, Change: func(ctx context.Context, envelope []byte) (bool, error) { return w.outdated(ctx, envelope, dropped) }},
	} {
		n, err := w.Conn.Forget(ctx, name, what)
		w.hold.Counts[CountMessages] += n
		if err != nil {
			return "", fmt.Errorf("all is redacted but what stream %s still holds (if that stays so: has the user of NATS the rights that deploy/nats-accounts.conf gives processors?): %w", name, err)
		}
	}
	return runs.Running, nil
}

// outdated tells whether a change has a newer one. The newest stays: it says what there is since the redaction. A change that a
// dropped event made is outdated only where the run has cleared its object.
func (w *work) outdated(ctx context.Context, envelope []byte, dropped map[int64]bool) (newer bool, err error) {
	var e struct {
		Event    int64  `json:"event_id,string"`
		Source   string `json:"source"`
		Account  string `json:"account"`
		Type     string `json:"object_type"`
		ID       string `json:"object_id"`
		Revision int64  `json:"revision"`
	}
	if err := json.Unmarshal(envelope, &e); err != nil {
		return false, fmt.Errorf("read a change: %w", err)
	}
	sql, args := newerSQL, []any{e.Source, e.Account, e.Type, e.ID, e.Revision}
	if dropped[e.Event] {
		sql, args = clearedSinceSQL, append(args, w.hold.Run.Run)
	}
	if err := w.Pool.QueryRow(ctx, sql, args...).Scan(&newer); err != nil {
		return false, fmt.Errorf("read the revision of an object: %w", err)
	}
	return newer, nil
}
