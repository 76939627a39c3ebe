// Package events is the append-only log in PostgreSQL. It stores each event once, lists and reads
// events, and lets readers walk the log without skipping events that commit late. Gateways,
// importers and reconciliations append; the processor and many commands read. It never changes a
// stored event.
package events

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Errors that callers classify: ingest and admin map them to a status code, the processor to an
// outcome.
var (
	// ErrUnavailable means that PostgreSQL does not respond or rejects every write. Nothing was
	// acknowledged, and trying again is safe.
	ErrUnavailable = errors.New("unavailable")
	// ErrOtherProvider means that the log has a source of that name with events of another
	// provider.
	ErrOtherProvider = errors.New("use another name for the new source")
	// ErrNotFound means that there is no such event, object or rejection.
	ErrNotFound = errors.New("not found")
)

// The origins of an event.
const (
	OriginWebhook   = "webhook"
	OriginReconcile = "reconcile"
	OriginImport    = "import"
)

// LiveRun is the run number of events that are applied as they arrive. Replays have their own run
// numbers.
const LiveRun int64 = 0

// LiveRunName is how people read and write LiveRun.
const LiveRunName = "live"

// RunName is how people read a run number.
func RunName(run int64) string {
	if run == LiveRun {
		return LiveRunName
	}
	return strconv.FormatInt(run, 10)
}

// Delivery is one verified delivery, ready to be appended.
type Delivery struct {
	// Source is the source's number in the table sources.
	Source int32
	// ReceivedAt is the gateway's time of receipt; every rule uses it.
	ReceivedAt time.Time
	Origin     string
	// Headers are the allow-listed request headers, a JSON object of strings.
	Headers json.RawMessage
	// Verification tells how the sender was verified, a JSON object.
	Verification json.RawMessage
	// Body is stored byte for byte.
	Body []byte
	// Events are the events of the delivery, at least one.
	Events []provider.Event
	// RejectConflicts rejects the whole delivery if one of its keys is stored with another
	// fingerprint; the sender gets an error. Nothing of the delivery is stored then, not even as a
	// conflict. Otherwise its new events are stored, and the others as conflicts.
	RejectConflicts bool
	// Bodies are the events' own bodies in their order, if each event is stored as a separate
	// delivery. If nil, the events share Body.
	Bodies [][]byte
	// Indexes are the events' positions in the delivery, if Events has only some of them; nil means
	// 0, 1, 2 and so on.
	Indexes []int32
}

// index returns the position of the i-th event in its delivery.
func (d *Delivery) index(i int) int32 {
	if d.Indexes == nil {
		return int32(i)
	}
	return d.Indexes[i]
}

// Receipt tells what happened to one event of a delivery. Equal deliveries get equal receipts,
// except for Duplicate.
type Receipt struct {
	// ID is Postern's id of the event; its high bits are the time of the append.
	ID int64
	// Key is the provider's id of the event.
	Key string
	// Duplicate is true if the key was stored before; nothing was changed.
	Duplicate bool
	// Conflict is true if the key was stored before with another fingerprint. The same event in
	// another signed version of the provider's API is no conflict. This delivery was stored as a
	// conflict. A delivery with RejectConflicts is not stored; its receipts then have only Key and
	// Conflict (see Rejected).
	Conflict bool
}

// Time returns the time in an event id, in whole milliseconds.
func Time(id int64) time.Time { return time.UnixMilli(id >> 20).UTC() }

// FirstID returns the smallest id with the given time or a later one.
func FirstID(t time.Time) int64 { return t.UnixMilli() << 20 }

// KeyDigest returns the digest of a key in table event_keys: the first 16 bytes of its SHA-256.
func KeyDigest(key string) [16]byte {
	sum := sha256.Sum256([]byte(key))
	return [16]byte(sum[:16])
}
