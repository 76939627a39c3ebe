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
	redactedSQL = `SELECT r.event FROM redacted_events r WHERE r.event = ANY($1::bigint[])`

	// newerSQL reports whether a newer change exists. It counts a removed object as newer, because
	// its removal was a change.
	newerSQL = `
SELECT NOT EXISTS (SELECT FROM objects o JOIN sources s ON s.number = o.source WHERE s.name = $1 AND o.account = $2
	AND o.object_type = $3 AND o.object_id = $4 AND o.revision <= $5)`

	// droppedSQL finds the events of dropped partitions.
	droppedSQL = `SELECT d.id FROM unnest($1::bigint[]) AS d(id) WHERE NOT EXISTS (SELECT FROM events e
		WHERE e.id = d.id)`

	// clearedSinceSQL reports whether the run has cleared the object since that revision.
	clearedSinceSQL = `
SELECT EXISTS (SELECT FROM objects o JOIN sources s ON s.number = o.source WHERE s.name = $1 AND o.account = $2
	AND o.object_type = $3 AND o.object_id = $4 AND o.revision > $5
  AND o.state IS NULL AND o.tied_states = '[]' AND o.updated_at >= (SELECT r.began_at FROM redactions r
  	WHERE r.run = $6))`
)

// deleteMessages deletes the messages of redacted events, of any run, from the streams. A process
// that was publishing during the redaction may add a message later; it expires by age.
func (w *execution) deleteMessages(ctx context.Context) (runs.Status, error) {
	if w.Conn == nil {
		return runs.Running, nil
	}
	own, err := w.ownRequest(ctx) // it is cleared later
	if err != nil {
		return "", err
	}
	events := func(ctx context.Context, ids []int64) ([]int64, error) {
		redacted, err := collect(ctx, w.Pool, redactedSQL, ids)
		for _, id := range without(own, redacted) {
			if slices.Contains(ids, id) {
				redacted = append(redacted, id)
			}
		}
		return redacted, err
	}
	// Objects may have been cleared because of their state, while their events are in dropped
	// partitions. Those events were not redacted.
	dropped := map[int64]bool{}
	made := func(ctx context.Context, ids []int64) ([]int64, error) {
		redacted, err := events(ctx, ids)
		if err != nil || !w.objectsCleared {
			return redacted, err
		}
		rest, err := collect(ctx, w.Pool, droppedSQL, without(ids, redacted))
		for _, id := range rest {
			dropped[id] = true
		}
		return append(redacted, rest...), err
	}
	for name, what := range map[string]stream.EraseFilter{
		stream.EventsStream: {Events: events}, stream.ReplaysStream: {Events: events},
		stream.ChangesStream: {Events: made, Change: func(ctx context.Context, envelope []byte) (bool, error) {
			return w.outdated(ctx, envelope, dropped)
		}},
	} {
		n, err := w.Conn.EraseMessages(ctx, name, what)
		w.lease.Counts[CountMessages] += n
		if err != nil {
			return "", fmt.Errorf("everything is redacted except in stream %s (if the error persists, check that the "+
				"NATS user has the rights that deploy/nats-accounts.conf gives processors): %w", name, err)
		}
	}
	return runs.Running, nil
}

// outdated reports whether a newer change exists. The newest change stays, because it shows the
// object after the redaction. A change of an event in a dropped partition is outdated only if the
// run has cleared its object.
func (w *execution) outdated(ctx context.Context, envelope []byte, dropped map[int64]bool) (newer bool, err error) {
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
		sql, args = clearedSinceSQL, append(args, w.lease.Run.ID)
	}
	if err := w.Pool.QueryRow(ctx, sql, args...).Scan(&newer); err != nil {
		return false, fmt.Errorf("read the revision of an object: %w", err)
	}
	return newer, nil
}
