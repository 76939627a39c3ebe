package archive

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
)

// delivery is a line as it will be appended: everything that decides about objects stays as it was. The origin becomes import, but for what was fetched
// from the provider's API, whose origin says how the body is read.
func (l *line) delivery() events.Delivery {
	origin := l.origin
	if origin == events.OriginWebhook {
		origin = events.OriginImport
	}
	return events.Delivery{ReceivedAt: l.receivedAt, Origin: origin, Headers: l.headers, Verification: l.imported(), Body: l.body,
		Events: []provider.Event{l.event}, Places: []int32{l.place}}
}

// imported is the verification with where the event was before; one that says it already stays as it is.
func (l *line) imported() []byte {
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

// join adds an entry to a delivery where both are of the same: then the body is stored once.
func join(d *events.Delivery, e *entry) bool {
	next := &e.delivery
	if slices.Contains(d.Places, next.Places[0]) || !d.ReceivedAt.Equal(next.ReceivedAt) || d.Origin != next.Origin ||
		!bytes.Equal(d.Headers, next.Headers) || !bytes.Equal(d.Verification, next.Verification) || !bytes.Equal(d.Body, next.Body) {
		return false
	}
	d.Places, d.Events = append(d.Places, next.Places...), append(d.Events, next.Events...)
	return true
}

// plain makes deliveries of files that no Postern wrote.
type plain struct {
	source *Source
	// request has the headers that all deliveries have.
	request provider.Delivery
	// receivedAt is for all; zero: each event's own time.
	receivedAt time.Time
	// base is the time of what says none, and no event was received later than now.
	base, now time.Time
	format    Format
	marks     *marks
}

// complete names an entry's events as the door would, but proves nothing. header are those of this entry alone, which go before those of all.
func (p *plain) complete(e *entry, file string, m *mapped) {
	of := p.marks.of(e)
	d := p.request
	d.Body = e.delivery.Body
	d.ReceivedAt, m.key = of.receipt(), p.marks.key(m.row, of)
	d.Header = http.Header{}
	maps.Copy(d.Header, p.request.Header)
	maps.Copy(d.Header, m.header)
	evs, err := p.read(&d, m)
	if err != nil {
		e.err = err
		return
	}
	e.made = m.made
	verification := appendQuoted([]byte(`{"imported":{"format":`), string(p.format))
	verification = append(appendQuoted(append(verification, `,"file":`...), events.Text(file)), "}}"...)
	e.delivery = events.Delivery{ReceivedAt: p.receipt(m, evs), Origin: events.OriginImport, Headers: events.AppendHeaders(nil, p.source.Provider.Headers(), &d),
		Verification: verification, Body: d.Body, Events: evs}
}

// read are the events of a delivery as the provider and the row name them. An error says why it is none.
func (p *plain) read(d *provider.Delivery, m *mapped) ([]provider.Event, error) {
	if m.receivedAt.After(p.now.Add(maxAhead)) {
		return nil, yetToCome(m.receivedAt)
	}
	if err := provider.CheckBody(p.source.Provider, d.Body); err != nil {
		return nil, err
	}
	evs, err := p.identify(d)
	if err != nil {
		return nil, err
	}
	if err := m.over(evs); err != nil {
		return nil, err
	}
	return evs, p.known(evs, m)
}

// identify asks the provider; what it cannot cope with is an error of this entry alone.
func (p *plain) identify(d *provider.Delivery) (evs []provider.Event, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("reading it panicked: %v", r)
		}
	}()
	return p.source.Provider.Identify(p.source.Config, d)
}

// known refuses what nothing tells the type of: at the door it is kept for its signature alone, and here nothing says that it is an event. Of a provider
// without types a name will do.
func (p *plain) known(evs []provider.Event, m *mapped) error {
	if len(evs) == 0 {
		return errors.New("it holds no event")
	}
	types := provider.TellsTypes(p.source.Provider)
	told := func(e provider.Event) bool { return e.Type != provider.UnknownType || !types && !e.ContentKey }
	if m.values["event_type"] == "" && !slices.ContainsFunc(evs, told) {
		return errors.New("the provider cannot tell what event this is; where a header says so, give it with --header, and where a column does, map event_type to it")
	}
	return nil
}

// receipt is when an entry was received: what it or the person says, else the time of its latest event. It bounds how far ahead a version may lie, so
// it is never later than now.
func (p *plain) receipt(m *mapped, evs []provider.Event) time.Time {
	at := m.receivedAt
	if at.IsZero() {
		at = p.receivedAt
	}
	if at.IsZero() {
		for i := range evs {
			if evs[i].OccurredAt.After(at) {
				at = evs[i].OccurredAt
			}
		}
	}
	if at.IsZero() {
		at = p.base
	}
	if at.After(p.now) {
		at = p.now
	}
	return at.UTC().Truncate(time.Microsecond)
}

func yetToCome(at time.Time) error {
	return fmt.Errorf("it was received at %s, which is yet to come", at.Format(time.RFC3339))
}

func checkJSON(body []byte) error {
	v, err := canonical.Parse(body)
	if err != nil {
		return err
	}
	v.Release()
	return nil
}
