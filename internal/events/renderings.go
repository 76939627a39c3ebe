package events

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
)

// renderingsSQL is what tells renderings of stored events apart, and what they share.
const renderingsSQL = `
SELECT id, event_type, account, object_type, object_id, api_version, coalesce(occurred_at, '0001-01-01Z') FROM events WHERE id = ANY($1::bigint[])`

// rendering is one of the ways in which a provider may tell an event: its version, empty where it has none, and a digest of what is the same in all of them.
type rendering struct {
	version string
	shared  [16]byte
}

// renderingOf is an event's as the log would keep it.
func renderingOf(e *provider.Event) rendering {
	occurred := int64(0)
	if claimable(e.OccurredAt) {
		occurred = e.OccurredAt.UnixMicro()
	}
	h := sha256.New()
	for _, part := range []string{e.Type, e.Account, e.ObjectType, e.ObjectID} {
		part = Text(part)
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	fmt.Fprintf(h, "%d", occurred)
	return rendering{version: strings.Clone(Text(e.APIVersion)), shared: [16]byte(h.Sum(nil)[:16])} // a clone, or it would keep the body
}

// another tells whether two are of one event, in two versions.
func (r rendering) another(of rendering) bool {
	return r.version != "" && of.version != "" && r.version != of.version && r.shared == of.shared
}

// findConflicts says which events came under a known key with another fingerprint. Where the provider signs the version that it rendered an event in, the same event in another
// version is a duplicate, as from two endpoints pinned to two versions, or from a list and an endpoint. Where anybody can write the version, it says nothing: what differs is kept.
func findConflicts(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, batch []Delivery, rows []row) error {
	stored := map[int64][]*row{} // by the id that is stored
	for i := range rows {
		r := &rows[i]
		e := &batch[r.delivery].Events[r.place]
		r.receipt.Conflict = !bytes.Equal(r.fingerprint, e.Fingerprint[:])
		switch {
		case !r.receipt.Conflict || !e.VersionSigned:
		case r.receipt.ID != 0:
			stored[r.receipt.ID] = append(stored[r.receipt.ID], r)
		default:
			r.receipt.Conflict = !renderingOf(e).another(r.rendering)
		}
	}
	if len(stored) == 0 {
		return nil
	}
	res, err := db.Query(ctx, renderingsSQL, slices.Collect(maps.Keys(stored)))
	if err != nil {
		return err
	}
	var id int64
	var e provider.Event
	_, err = pgx.ForEachRow(res, []any{&id, &e.Type, &e.Account, &e.ObjectType, &e.ObjectID, &e.APIVersion, &e.OccurredAt}, func() error {
		known := renderingOf(&e)
		for _, r := range stored[id] {
			r.receipt.Conflict = !renderingOf(&batch[r.delivery].Events[r.place]).another(known)
		}
		return nil
	})
	return err
}

// claimable: what a body claims beyond the years 1 to 9999 is no time.
func claimable(t time.Time) bool {
	y := t.Year()
	return !t.IsZero() && y >= 1 && y <= 9999
}
