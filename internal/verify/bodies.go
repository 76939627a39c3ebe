package verify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// bodyRows is how many bodies are read at once, each of smallBody bytes at most; larger ones are read alone.
	bodyRows  = 500
	smallBody = 16 << 10

	bodiesSQL = `
SELECT e.id, e.source, e.event_id, e.event_type, e.account, e.object_type, e.object_id, e.api_version, e.origin, e.received_at, e.delivery_index, e.headers, e.verification,
  e.fingerprint, e.delivery_id, CASE WHEN octet_length(e.body) <= $2 THEN e.body END, octet_length(e.body), EXISTS (SELECT FROM redacted r WHERE r.event = e.id)
FROM events e WHERE e.id = ANY($1::bigint[])`

	bodySQL = `SELECT body FROM events WHERE id = $1`
)

// whole is an event with all that is kept of its delivery.
type whole struct {
	events.Record
	headers, verification, fingerprint []byte
	delivery                           int64
	// length is that of the body that is stored with the event itself; nil where there is none.
	length   *int64
	redacted bool
}

// bodies checks the fingerprints of some events, and signatures where that is wanted.
func (w *work) bodies(ctx context.Context, tx pgx.Tx, ids []int64) error {
	all, err := page(ctx, tx, func(row pgx.CollectableRow) (e whole, err error) {
		return e, row.Scan(&e.ID, &e.Source, &e.Key, &e.Type, &e.Account, &e.ObjectType, &e.ObjectID, &e.APIVersion, &e.Origin, &e.ReceivedAt, &e.Index, &e.headers,
			&e.verification, &e.fingerprint, &e.delivery, &e.Body, &e.length, &e.redacted)
	}, "bodies", bodiesSQL, ids, smallBody)
	if err != nil {
		return err
	}
	byDelivery := map[int64][]*whole{}
	for i := range all {
		byDelivery[all[i].delivery] = append(byDelivery[all[i].delivery], &all[i])
	}
	for delivery, of := range byDelivery {
		if of = slices.DeleteFunc(of, w.cleared); len(of) == 0 {
			continue
		}
		body, err := bodyOf(ctx, tx, delivery, of)
		if err != nil {
			return err
		}
		w.delivery(of, body)
	}
	w.tell("bodies", w.tally.look("bodies", 0))
	return nil
}

// cleared says whether an event was redacted; what is left of it then is a violation.
func (w *work) cleared(e *whole) bool {
	if e.redacted && (e.length != nil || !bytes.Equal(e.headers, []byte("{}"))) {
		item := w.event(e, "its body or its headers are there")
		item.Mend = fmt.Sprintf("postern redact --event %d --reason 'a backup has brought it back'", e.ID)
		w.tally.add(RedactionUndone, item)
	}
	return e.redacted
}

// bodyOf is the body of a delivery, nil where there is none: it lies with the first event that was stored of it.
func bodyOf(ctx context.Context, tx pgx.Tx, delivery int64, of []*whole) (body []byte, err error) {
	for _, e := range of {
		if e.ID == delivery && (e.Body != nil || e.length == nil) {
			return e.Body, nil
		}
	}
	err = tx.QueryRow(ctx, bodySQL, delivery).Scan(&body)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return body, err
}

// delivery checks the events of one delivery that were asked for.
func (w *work) delivery(of []*whole, body []byte) {
	first := of[0]
	if body == nil {
		for _, e := range of {
			w.tally.add(BodyMissing, w.event(e, fmt.Sprintf("its delivery is %d", e.delivery)))
		}
		return
	}
	src, ok := w.Sources[w.source(first.Source)]
	if !ok {
		w.tally.note("%d events of source "+w.source(first.Source)+" were not compared with their fingerprints: it is not in the configuration used here", int64(len(of)))
		return
	}
	d, err := events.Delivered(first.headers, body, first.ReceivedAt)
	if err != nil {
		w.tally.add(FingerprintDiffers, w.event(first, err.Error()))
		return
	}
	w.tally.look("bodies", int64(len(of)))
	named, err := identify(src, d)
	for _, e := range of {
		w.fingerprint(e, body, named, err)
		if w.Signatures && e.ID == e.delivery && e.Origin == events.OriginWebhook {
			w.signature(e, src, d)
		}
	}
}

// identify asks the provider for a delivery's events; what it cannot cope with is an error.
func identify(src processor.Source, d *provider.Delivery) (named []provider.Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v", r)
		}
	}()
	return src.Provider.Identify(src.Config, d)
}

// fingerprint compares an event's with that of its body: as its provider makes it, as the body's own, or as that of a look.
func (w *work) fingerprint(e *whole, body []byte, named []provider.Event, unnamed error) {
	plain := provider.BodyFingerprint(body)
	if bytes.Equal(e.fingerprint, plain[:]) || e.Index < len(named) && bytes.Equal(e.fingerprint, named[e.Index].Fingerprint[:]) {
		return
	}
	if e.Type == provider.LookType && e.Origin == events.OriginReconcile {
		e.Body = body
		sum, ok := w.refold.LookFingerprint(&e.Record)
		if !ok {
			w.tally.note("%d looks were not compared with their fingerprints: the configuration used here cannot read them", 1)
			return
		}
		if bytes.Equal(e.fingerprint, sum[:]) {
			return
		}
	} else if unnamed != nil {
		w.tally.note("%d events were not compared with their fingerprints: the configuration used here would refuse them", 1)
		return
	}
	w.tally.add(FingerprintDiffers, w.event(e, fmt.Sprintf("its fingerprint is %x, that of its body another", e.fingerprint)))
}

// signature verifies a delivery again as of its receipt.
func (w *work) signature(e *whole, src processor.Source, d *provider.Delivery) {
	var by provider.Verification
	if err := json.Unmarshal(e.verification, &by); err != nil || by.Secret == "" {
		w.tally.note("%d deliveries were not verified again: nothing says what proved them", 1)
		return
	}
	if !slices.ContainsFunc(src.Config.Secrets, func(s provider.Secret) bool { return s.Name == by.Secret && len(s.Value) > 0 }) {
		w.tally.note("%d deliveries of source "+src.Config.Name+" were not verified again: their secret is not in the configuration used here any more", 1)
		return
	}
	w.tally.look("signatures", 1)
	if _, err := src.Provider.Verify(src.Config, d); err != nil {
		w.tally.add(SignatureWrong, w.event(e, fmt.Sprintf("secret %q proved it at its receipt, and now: %v", by.Secret, err)))
	}
}

func (w *work) event(e *whole, detail string) Item {
	return Item{Event: e.ID, Source: w.source(e.Source), Account: e.Account, ObjectType: e.ObjectType, ObjectID: e.ObjectID, Detail: detail}
}
