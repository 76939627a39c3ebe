package stripefake

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// event is one event as it is kept; its body never changes but for the count of webhooks that are pending.
type event struct {
	account *account
	object  *object
	id      string
	kind    string
	place   int   // in its account's list
	at      int64 // when it was made
	listed  int64 // when lists begin to show it
	// head and tail are the body before and after the count; a thin event is all head.
	head, tail []byte
	delivered  bool
}

// Event is one thing that happened, as Stripe told it.
type Event struct {
	Account, ID, Type    string
	ObjectType, ObjectID string
	At                   time.Time
	// Body is the event as its first delivery carries it.
	Body []byte
	// Thin: it belongs to the second API.
	Thin bool
	// Delivered: Stripe takes its webhook for received.
	Delivered bool
}

// Events are all events that ever were, oldest first in each account.
func (f *Fake) Events() []Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []Event
	for _, a := range f.accounts {
		for _, e := range a.events {
			all = append(all, Event{
				Account: a.id, ID: e.id, Type: e.kind, ObjectType: e.object.kind.name, ObjectID: e.object.id, At: time.UnixMicro(e.at).UTC(),
				Body: e.body(1), Thin: e.object.kind.thin, Delivered: e.delivered,
			})
		}
	}
	return all
}

// tell makes an event of a change and the delivery that it owes.
func (f *Fake) tell(o *object, kind string, before, after tree) {
	f.made["evt"]++
	now := f.now()
	e := &event{account: o.account, object: o, kind: kind, place: len(o.account.events), at: now, listed: now, id: fmt.Sprintf("evt_1%s%08d", f.options.Name, f.made["evt"])}
	if late := f.options.Faults.Late.Microseconds(); late > 0 {
		e.listed += int64(f.choose.IntN(int(late) + 1))
	}
	if o.kind.thin {
		e.head = f.thinBody(e)
	} else {
		e.head, e.tail = f.body(e, before, after)
	}
	o.account.events = append(o.account.events, e)
	o.account.named[e.id] = e
	f.owe(e)
}

// pending stands between the head and the tail of a body, by the order in which encoding/json writes keys.
const pending = `"pending_webhooks":`

func (f *Fake) body(e *event, before, after tree) (head, tail []byte) {
	data := tree{"object": after}
	if before != nil && tellsBefore(e.kind) {
		data["previous_attributes"] = previous(before, after)
	}
	body := tree{
		"id": e.id, "object": "event", "api_version": Version, "created": e.at / second, "data": data, "livemode": f.options.Live,
		"pending_webhooks": 1, "request": tree{"id": fmt.Sprintf("req_Fake%d", f.made["evt"]), "idempotency_key": nil}, "type": e.kind,
	}
	if e.account.id != "" {
		body["account"] = e.account.id
	}
	b := text(body)
	i := bytes.LastIndex(b, []byte(pending)) + len(pending)
	return b[:i:i], b[i+1:]
}

// tellsBefore tells whether events of a type say what was before.
func tellsBefore(kind string) bool {
	return strings.HasSuffix(kind, ".updated") || kind == "charge.refunded"
}

func (f *Fake) thinBody(e *event) []byte {
	var context any
	if e.account.id != "" {
		context = e.account.id
	}
	return text(tree{
		"id": e.id, "object": "v2.core.event", "type": e.kind, "livemode": f.options.Live, "created": thinTime(e.at), "context": context, "reason": nil,
		"related_object": tree{"id": e.object.id, "type": e.object.kind.name, "url": "/v2/core/accounts/" + e.object.id},
	})
}

// body is the event with as many webhooks pending.
func (e *event) body(webhooks byte) []byte {
	if e.tail == nil {
		return e.head
	}
	return slices.Concat(e.head, []byte{'0' + webhooks}, e.tail)
}

// pinned is the event as an endpoint gets it that is pinned to a version of the API.
func (e *event) pinned(version string) []byte {
	if version == "" || version == Version || e.tail == nil {
		return e.body(1)
	}
	t := parse(e.body(1))
	t["api_version"] = version
	t["data"].(tree)["object"].(tree)["rendered_in"] = version
	return text(t)
}

// answer is the event as the API answers it: to a connected account that asks for its own, without the account. Of a thin one it tells more than its webhook.
func (e *event) answer() []byte {
	if e.tail == nil {
		return fmt.Appendf(e.head[:len(e.head)-1:len(e.head)-1], `,"changes":{"before":{},"after":{}},"data":{"n":%d}}`, e.place)
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

// shown tells whether the API answers with the event at a time.
func (e *event) shown(now int64) bool { return e.listed <= now && e.at > now-kept }
