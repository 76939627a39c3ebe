package stripefake

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// event is a stored event. Its body never changes, except for the number of pending webhooks.
type event struct {
	account  *account
	object   *object
	id       string
	kind     string
	position int   // in the list of its account
	at       int64 // time of the creation
	listedAt int64 // time at which lists begin to show it
	// head and tail are the body before and after the number of pending webhooks. An id-only event
	// has a head only.
	head, tail []byte
	delivered  bool
}

// Event is an event as Stripe reported it.
type Event struct {
	Account, ID, Type    string
	ObjectType, ObjectID string
	At                   time.Time
	// Body is the event as its first delivery contains it.
	Body []byte
	// IDOnly: it belongs to the v2 API.
	IDOnly bool
	// Delivered: Stripe considers its webhook received.
	Delivered bool
}

// Events returns all events, oldest first in each account.
func (f *Fake) Events() []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Event
	for _, a := range f.accounts {
		for _, e := range a.events {
			all = append(all, Event{
				Account: a.id, ID: e.id, Type: e.kind, ObjectType: e.object.kind.name, ObjectID: e.object.id,
				At:   time.UnixMicro(e.at).UTC(),
				Body: e.body(1), IDOnly: e.object.kind.idOnly, Delivered: e.delivered,
			})
		}
	}
	return all
}

// addEvent adds the event of a change and plans its delivery.
func (f *Fake) addEvent(o *object, kind string, before, after tree) {
	f.idCounts["evt"]++
	now := f.now()
	e := &event{account: o.account, object: o, kind: kind, position: len(o.account.events), at: now, listedAt: now,
		id: fmt.Sprintf("evt_1%s%08d", f.options.Name, f.idCounts["evt"])}
	if late := f.options.Faults.MaxListDelay.Microseconds(); late > 0 {
		e.listedAt += int64(f.chooser.IntN(int(late) + 1))
	}
	if o.kind.idOnly {
		e.head = f.idOnlyBody(e)
	} else {
		e.head, e.tail = f.body(e, before, after)
	}
	o.account.events = append(o.account.events, e)
	o.account.eventsByID[e.id] = e
	f.planDelivery(e)
}

// pending separates the head and the tail of a body, in the key order of encoding/json.
const pending = `"pending_webhooks":`

func (f *Fake) body(e *event, before, after tree) (head, tail []byte) {
	data := tree{"object": after}
	if before != nil && hasPrevious(e.kind) {
		data["previous_attributes"] = previous(before, after)
	}
	body := tree{
		"id": e.id, "object": "event", "api_version": Version, "created": e.at / second, "data": data,
		"livemode":         f.options.LiveMode,
		"pending_webhooks": 1, "request": tree{"id": fmt.Sprintf("req_Fake%d", f.idCounts["evt"]),
			"idempotency_key": nil},
		"type": e.kind,
	}
	if e.account.id != "" {
		body["account"] = e.account.id
	}
	b := text(body)
	i := bytes.LastIndex(b, []byte(pending)) + len(pending)
	return b[:i:i], b[i+1:]
}

// hasPrevious reports whether events of a type have previous attributes.
func hasPrevious(kind string) bool {
	return strings.HasSuffix(kind, ".updated") || kind == "charge.refunded"
}

func (f *Fake) idOnlyBody(e *event) []byte {
	var context any
	if e.account.id != "" {
		context = e.account.id
	}
	return text(tree{
		"id": e.id, "object": "v2.core.event", "type": e.kind, "livemode": f.options.LiveMode, "created": v2Time(e.at),
		"context": context, "reason": nil,
		"related_object": tree{"id": e.object.id, "type": e.object.kind.name, "url": "/v2/core/accounts/" +
			e.object.id},
	})
}

// body returns the event with the given number of pending webhooks.
func (e *event) body(webhooks byte) []byte {
	if e.tail == nil {
		return e.head
	}
	return slices.Concat(e.head, []byte{'0' + webhooks}, e.tail)
}

// bodyInVersion returns the event for an endpoint with the given API version.
func (e *event) bodyInVersion(version string) []byte {
	if version == "" || version == Version || e.tail == nil {
		return e.body(1)
	}
	t := parse(e.body(1))
	t["api_version"] = version
	t["data"].(tree)["object"].(tree)["rendered_in"] = version
	return text(t)
}

// apiBody returns the event as the API returns it. For requests of a connected account it omits the
// account. For an id-only event it has more properties than the webhook.
func (e *event) apiBody() []byte {
	if e.tail == nil {
		return fmt.Appendf(e.head[:len(e.head)-1:len(e.head)-1], `,"changes":{"before":{},"after":{}},"data":{"n":%d}}`,
			e.position)
	}
	webhooks := byte(1)
	if e.delivered {
		webhooks = 0
	}
	body := e.body(webhooks)
	if rest, named := bytes.CutPrefix(body, fmt.Appendf(nil, `{"account":%q,`, e.account.id)); named {
		return append([]byte("{"), rest...)
	}
	return body
}

// isListed reports whether the API returns the event at a time.
func (e *event) isListed(now int64) bool { return e.listedAt <= now && e.at > now-eventRetention }
