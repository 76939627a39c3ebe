// Package events is the append-only log: what an event is, how a batch of deliveries is appended exactly once, and how
// the log is read without skipping what commits late.
package events

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// The kinds of error that the edges map: ingest and admin to a status code, processor to an outcome.
var (
	// ErrUnavailable: a store we need does not answer, or takes nothing whatever it is; nothing was acknowledged and trying again is safe.
	ErrUnavailable = errors.New("unavailable")
	// ErrOtherProvider: a source of that name is in the log, with events of another provider.
	ErrOtherProvider = errors.New("name the new one differently")
	// ErrNotFound: no such event, object or rejection.
	ErrNotFound = errors.New("not found")
)

// The origins of an event.
const (
	OriginWebhook   = "webhook"
	OriginReconcile = "reconcile"
	OriginHint      = "hint"
	OriginImport    = "import"
)

// LiveRun is the run of events applied as they arrive; replays have runs of their own.
const LiveRun int64 = 0

// Delivery is one verified delivery, ready to be appended.
type Delivery struct {
	// Source is the number of the source in table sources.
	Source int32
	// ReceivedAt is the gateway's own time of receipt; every rule uses it.
	ReceivedAt time.Time
	Origin     string
	// Headers are the allow-listed request headers, a JSON object of strings.
	Headers json.RawMessage
	// Verification is what proved the sender, a JSON object.
	Verification json.RawMessage
	// Body is kept byte for byte.
	Body []byte
	// Events are what the delivery carries, at least one.
	Events []provider.Event
	// Exact: its sender is told when a key is there with another fingerprint. Then nothing of the delivery is stored, not even as a conflict. Else what is new of it is stored, and the rest kept apart.
	Exact bool
	// Bodies are the events' own, in their order, where each is stored as a delivery of its own; nil: they share Body.
	Bodies [][]byte
	// Places are the events' places in the delivery, where some of them are not among Events; nil: 0, 1, 2 and so on.
	Places []int32
}

// place is that of the i-th event in its delivery.
func (d *Delivery) place(i int) int32 {
	if d.Places == nil {
		return int32(i)
	}
	return d.Places[i]
}

// Receipt says what became of one event of a delivery. Twins get equal receipts but for Duplicate.
type Receipt struct {
	// ID is ours; its high bits are the time of the append.
	ID int64
	// Key is the provider's id of the event.
	Key string
	// Duplicate: the key was there before; nothing was changed.
	Duplicate bool
	// Conflict: the key was there before with another fingerprint, and is not the same event in another, signed version of the provider's API; this delivery was kept apart, whole. An Exact one was
	// not: then each of its receipts says no more than its key and this (Refused).
	Conflict bool
}

// Time is the time an event id carries, in whole milliseconds.
func Time(id int64) time.Time { return time.UnixMilli(id >> 20).UTC() }

// FirstID is the least id that carries the given time or a later one.
func FirstID(t time.Time) int64 { return t.UnixMilli() << 20 }

// KeyDigest is what table event_keys holds of a key: the first 16 bytes of its SHA-256.
func KeyDigest(key string) [16]byte {
	sum := sha256.Sum256([]byte(key))
	return [16]byte(sum[:16])
}
