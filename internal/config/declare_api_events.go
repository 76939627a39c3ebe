package config

import (
	"cmp"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/signature"
)

// eventsKept is how long an API lists an event where nothing is said.
const eventsKept = 30 * 24 * time.Hour

// apiEvents reads how an API lists its events.
func (b *builder) apiEvents(e *APIEvents, p provider.Provider) *rest.Events {
	l := b.listing(&APIList{Path: e.Path, Query: e.Query, Items: e.Items, Item: e.Item, Time: e.Time, Limit: e.Limit, Next: e.Next})
	out := &rest.Events{List: *l, Time: rest.Version{Path: e.At.Path, Unit: b.under("at").unit(e.At.Unit, false)}, Kept: cmp.Or(e.Kept, eventsKept), Provider: p}
	b.plainPath("at.path", e.At.Path)
	if e.At.Path == "" {
		b.fail("at.path", "is not set: say where in an event its time stands, e.g. created_at")
	}
	if !l.Request.Names("since") || !l.Request.Names("until") {
		b.fail("query", "does not name both {since} and {until}: events are read one stretch of time after the other")
	}
	b.pages(l, rest.Type{Version: &out.Time})
	of, ok := p.(*declared.Provider)
	if !ok {
		b.fail("path", "events of provider %s are not told by their bodies alone: leave events out", p.Name())
		return out
	}
	events := of.Spec().Events
	b.toldByBody(&events)
	return out
}

// toldByBody wants that an event which the API lists is named as it is where a webhook brings it: by its body, which holds no other.
func (b *builder) toldByBody(e *declared.Events) {
	switch {
	case e.Split != "" && !e.Alone:
		b.fail("path", "the source's deliveries are lists of events (events.split), and a list of the API has each by itself: leave events out")
	case len(e.Bodies) > 0 && !slices.Contains(e.Bodies, declared.JSON):
		b.fail("path", "the source's deliveries are forms (events.body), and the API answers JSON: leave events out")
	case len(e.Key) == 0:
		b.fail("path", "the source's events have no name that is in them: set events.key of the source, e.g. '{json:id}', or leave events out")
	}
	for name, templates := range map[string][]signature.Template{"key": e.Key, "type": e.Type, "account": e.Account} {
		for _, t := range templates {
			for _, r := range t.Refs() {
				if !slices.Contains([]signature.Kind{signature.JSON, signature.Root, signature.EventType, signature.Content}, r.Kind) {
					b.fail("path", "the source's events.%s is read from %s, which an event that the API lists does not have: read it from the body, or leave events out", name, r)
				}
			}
		}
	}
}
