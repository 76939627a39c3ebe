package archive

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// toDelivery returns the delivery that appends a line. Everything that decides about objects stays
// the same. The origin becomes import. Only refetched data keeps its origin, because the origin
// determines how the body is read.
func (l *line) toDelivery() events.Delivery {
	origin := l.origin
	if origin == events.OriginWebhook {
		origin = events.OriginImport
	}
	return events.Delivery{ReceivedAt: l.receivedAt, Origin: origin, Headers: l.headers,
		Verification: l.importedVerification(),
		Body:         l.body,
		Events:       []provider.Event{l.event}, Indexes: []int32{l.index}}
}

// importedVerification adds the event's previous origin to the verification. A verification that
// already has one stays as it is.
func (l *line) importedVerification() []byte {
	v, err := canonical.Parse(l.verification)
	if err != nil || v.Get("imported") != nil {
		return l.verification
	}
	members := bytes.TrimSpace(v.Raw()[1 : len(v.Raw())-1])
	v.Release()
	out := append([]byte{'{'}, members...)
	if len(members) > 0 {
		out = append(out, ',')
	}
	out = appendQuoted(append(out, `"imported":{"origin":`...), l.origin)
	out = strconv.AppendInt(append(out, `,"delivery_id":"`...), l.deliveryID, 10)
	return append(out, `"}}`...)
}

// joinEntry adds an entry to a delivery if both belong to the same delivery. The body is then
// stored once.
func joinEntry(d *events.Delivery, e *entry) bool {
	next := &e.delivery
	if slices.Contains(d.Indexes, next.Indexes[0]) || !d.ReceivedAt.Equal(next.ReceivedAt) || d.Origin != next.Origin ||
		!bytes.Equal(d.Headers, next.Headers) || !bytes.Equal(d.Verification, next.Verification) ||
		!bytes.Equal(d.Body, next.Body) {
		return false
	}
	d.Indexes, d.Events = append(d.Indexes, next.Indexes...), append(d.Events, next.Events...)
	return true
}

// deliveryBuilder makes deliveries from files that are not exports.
type deliveryBuilder struct {
	source *Source
	// request has the headers of all deliveries.
	request provider.Delivery
	// receivedAt applies to all; zero: each event's own time.
	receivedAt time.Time
	// defaultTime is the time of events without one. No event was received later than now.
	defaultTime, now time.Time
	format           Format
	digest           *fileDigest
}

// fill identifies an entry's events as the ingest endpoint would, but without verifying a
// signature.
func (p *deliveryBuilder) fill(e *entry, file string) {
	d := p.request
	d.Body, d.ReceivedAt = e.delivery.Body, p.digest.entryDigest().syntheticReceipt()
	evs, err := p.readEvents(&d)
	if err != nil {
		e.err = err
		return
	}
	verification := appendQuoted([]byte(`{"imported":{"format":`), string(p.format))
	verification = append(appendQuoted(append(verification, `,"file":`...), events.SanitizeText(file)), "}}"...)
	e.delivery = events.Delivery{ReceivedAt: p.receiptTime(evs), Origin: events.OriginImport,
		Headers:      events.AppendHeaders(nil, p.source.Provider.Headers(), &d),
		Verification: verification, Body: d.Body, Events: evs}
}

// readEvents returns the events of a delivery. An error says why it is not an event.
func (p *deliveryBuilder) readEvents(d *provider.Delivery) ([]provider.Event, error) {
	if err := provider.CheckBody(p.source.Provider, d.Body); err != nil {
		return nil, err
	}
	evs, err := p.identify(d)
	if err != nil {
		return nil, err
	}
	return evs, p.checkType(evs)
}

// identify calls the provider. A panic is an error of this entry only.
func (p *deliveryBuilder) identify(d *provider.Delivery) (evs []provider.Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v", r)
		}
	}()
	return p.source.Provider.Identify(p.source.Config, d)
}

// checkType rejects events of unknown type. The ingest endpoint stores such an event because of its
// signature, but here nothing shows that it is an event. A key is enough for a provider without
// types.
func (p *deliveryBuilder) checkType(evs []provider.Event) error {
	if len(evs) == 0 {
		return errors.New("it has no event")
	}
	types := provider.HasEventTypes(p.source.Provider)
	isKnown := func(e provider.Event) bool { return e.Type != provider.UnknownType || !types && !e.ContentKey }
	if !slices.ContainsFunc(evs, isKnown) {
		return errors.New("the provider cannot determine the event type; if a header has it, pass it with --header")
	}
	return nil
}

// receiptTime returns when an entry was received: the time of the parameters, of its latest event,
// or of the file. It bounds how far ahead a version may be, so it is never later than now.
func (p *deliveryBuilder) receiptTime(evs []provider.Event) time.Time {
	at := p.receivedAt
	if at.IsZero() {
		for i := range evs {
			if evs[i].OccurredAt.After(at) {
				at = evs[i].OccurredAt
			}
		}
	}
	if at.IsZero() {
		at = p.defaultTime
	}
	if at.After(p.now) {
		at = p.now
	}
	return at.UTC().Truncate(time.Microsecond)
}

func checkJSON(body []byte) error {
	v, err := canonical.Parse(body)
	if err != nil {
		return err
	}
	v.Release()
	return nil
}
