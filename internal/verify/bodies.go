package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// bodyRows is how many bodies of at most smallBody bytes are read at once. Larger ones are read
	// one by one.
	bodyRows  = 500
	smallBody = 16 << 10

	bodiesSQL = `
SELECT e.id, e.source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.api_version, e.origin,
	e.received_at, e.delivery_index, e.headers, e.verification,
  e.fingerprint, e.delivery_id, CASE WHEN octet_length(e.body) <= $2 THEN e.body END, octet_length(e.body),
  	EXISTS (SELECT FROM redacted_events r WHERE r.event = e.id)
FROM events e WHERE e.id = ANY($1::bigint[])`

	bodySQL = `SELECT body FROM events WHERE id = $1`
)

// storedEvent is an event with everything that is stored of its delivery.
type storedEvent struct {
	events.Record
	headers, verification, fingerprint []byte
	delivery                           int64
	// bodyLength is the length of the body in the event's own row; nil if the row has none.
	bodyLength *int64
	redacted   bool
}

// checkBodies checks the fingerprints of some events, and their signatures if requested.
func (w *verification) checkBodies(ctx context.Context, tx pgx.Tx, ids []int64) error {
	all, err := readPage(ctx, tx, func(row pgx.CollectableRow) (e storedEvent, err error) {
		return e, row.Scan(&e.ID, &e.Source, &e.Key, &e.Type, &e.Account, &e.ObjectType, &e.ObjectID, &e.APIVersion,
			&e.Origin, &e.ReceivedAt, &e.Index, &e.headers,
			&e.verification, &e.fingerprint, &e.delivery, &e.Body, &e.bodyLength, &e.redacted)
	}, "bodies", bodiesSQL, ids, smallBody)
	if err != nil {
		return err
	}
	byDelivery := map[int64][]*storedEvent{}
	for i := range all {
		byDelivery[all[i].delivery] = append(byDelivery[all[i].delivery], &all[i])
	}
	for delivery, group := range byDelivery {
		if group = slices.DeleteFunc(group, w.isRedacted); len(group) == 0 {
			continue
		}
		body, err := readBody(ctx, tx, delivery, group)
		if err != nil {
			return err
		}
		w.checkDelivery(group, body)
	}
	w.progress("bodies", w.results.countChecked("bodies", 0))
	return nil
}

// isRedacted reports whether an event was redacted. If the event still has content, it also adds a
// violation.
func (w *verification) isRedacted(e *storedEvent) bool {
	if e.redacted && (e.bodyLength != nil || !bytes.Equal(e.headers, []byte("{}"))) {
		item := w.eventItem(e, "its body or its headers still exist")
		item.Repair = fmt.Sprintf("postern redact --event %d --reason 'restored by a backup'", e.ID)
		w.results.add(RedactionUndone, item)
	}
	return e.redacted
}

// readBody returns the body of a delivery, or nil if there is none. It is stored with the first
// event of the delivery.
func readBody(ctx context.Context, tx pgx.Tx, delivery int64, group []*storedEvent) (body []byte, err error) {
	for _, e := range group {
		if e.ID == delivery && (e.Body != nil || e.bodyLength == nil) {
			return e.Body, nil
		}
	}
	err = tx.QueryRow(ctx, bodySQL, delivery).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return body, err
}

// checkDelivery checks the given events of one delivery.
func (w *verification) checkDelivery(group []*storedEvent, body []byte) {
	first := group[0]
	if body == nil {
		for _, e := range group {
			w.results.add(BodyMissing, w.eventItem(e, fmt.Sprintf("its delivery is %d", e.delivery)))
		}
		return
	}
	src, ok := w.Sources[w.sourceName(first.Source)]
	if !ok {
		w.results.note("%d events of source "+w.sourceName(first.Source)+
			" were not checked against their fingerprints: the source is not in this configuration", int64(len(group)))
		return
	}
	d, err := events.DecodeDelivery(first.headers, body, first.ReceivedAt)
	if err != nil {
		w.results.add(FingerprintDiffers, w.eventItem(first, err.Error()))
		return
	}
	w.results.countChecked("bodies", int64(len(group)))
	identified, err := identifySafely(src, d)
	for _, e := range group {
		w.checkFingerprint(e, body, identified, err)
		if w.Signatures && e.ID == e.delivery && e.Origin == events.OriginWebhook {
			w.checkSignature(e, src, d)
		}
	}
}

// identifySafely returns the provider's events of a delivery. A panic of the provider is returned
// as an error.
func identifySafely(src apply.Source, d *provider.Delivery) (identified []provider.Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v", r)
		}
	}()
	return src.Provider.Identify(src.Config, d)
}

// checkFingerprint compares an event's fingerprint with the provider's, with the hash of the body,
// and with that of a refetch.
func (w *verification) checkFingerprint(e *storedEvent, body []byte, identified []provider.Event, identifyErr error) {
	bodyHash := provider.BodyFingerprint(body)
	if bytes.Equal(e.fingerprint, bodyHash[:]) || e.Index < len(identified) &&
		bytes.Equal(e.fingerprint, identified[e.Index].Fingerprint[:]) {
		return
	}
	if e.Type == provider.RefetchType && e.Origin == events.OriginReconcile {
		e.Body = body
		sum, ok := w.reducer.RefetchFingerprint(&e.Record)
		if !ok {
			w.results.note(
				"%d refetches were not checked against their fingerprints: this configuration cannot read them", 1)
			return
		}
		if bytes.Equal(e.fingerprint, sum[:]) {
			return
		}
	} else if identifyErr != nil {
		w.results.note("%d events were not checked against their fingerprints: this configuration rejects them", 1)
		return
	}
	w.results.add(FingerprintDiffers,
		w.eventItem(e, fmt.Sprintf("its fingerprint is %x, but its body has another one", e.fingerprint)))
}

// checkSignature verifies a delivery again, as of its receipt.
func (w *verification) checkSignature(e *storedEvent, src apply.Source, d *provider.Delivery) {
	var by provider.Verification
	if err := json.Unmarshal(e.verification, &by); err != nil || by.Secret == "" {
		w.results.note("%d deliveries were not verified again: the secret that verified them is not recorded", 1)
		return
	}
	if !slices.ContainsFunc(src.Config.Secrets, func(s provider.Secret) bool {
		return s.Name == by.Secret && len(s.Value) > 0
	}) {
		w.results.note("%d deliveries of source "+src.Config.Name+" were not verified again: their secret is not in "+
			"this configuration", 1)
		return
	}
	w.results.countChecked("signatures", 1)
	if _, err := src.Provider.Verify(src.Config, d); err != nil {
		w.results.add(SignatureWrong, w.eventItem(e, fmt.Sprintf("secret %q verified it at its receipt, but now: %v",
			by.Secret, err)))
	}
}

func (w *verification) eventItem(e *storedEvent, detail string) Item {
	return Item{Event: e.ID, Source: w.sourceName(e.Source), Account: e.Account, ObjectType: e.ObjectType,
		ObjectID: e.ObjectID, Detail: detail}
}
