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

// defaultEventRetention is how long an API lists an event where the configuration does not say it.
const defaultEventRetention = 30 * 24 * time.Hour

// apiEvents reads how an API lists its events.
func (b *providerBuilder) apiEvents(e *APIEvents, p provider.Provider) *rest.Events {
	l := b.list(&APIList{Path: e.Path, Query: e.Query, Items: e.Items, Item: e.Item, Time: e.Time, Limit: e.Limit,
		Next: e.Next})
	out := &rest.Events{List: *l, Time: rest.Version{Path: e.At.Path, Unit: b.under("at").unit(e.At.Unit, false)},
		Retention: cmp.Or(e.Retention, defaultEventRetention), Provider: p}
	b.checkPath("at.path", e.At.Path)
	if e.At.Path == "" {
		b.fail("at.path", "is not set: write where in an event its time is, e.g. created_at")
	}
	if !l.Request.Names("since") || !l.Request.Names("until") {
		b.fail("query", "does not contain both {since} and {until}: events are read one time range after the other")
	}
	b.checkPaging(l, rest.Type{Version: &out.Time})
	of, ok := p.(*declared.Provider)
	if !ok {
		b.fail("path", "events of provider %s need more than their bodies: leave events out", p.Name())
		return out
	}
	events := of.Spec().Events
	b.checkNamedByBody(&events)
	return out
}

// checkNamedByBody requires that an event's key, type and account come from its body, so that a
// listed event gets the same names as the one that a webhook delivers.
func (b *providerBuilder) checkNamedByBody(e *declared.Events) {
	switch {
	case e.Split != "" && !e.AllowSingle:
		b.fail("path", "the source's deliveries are lists of events (events.split), and the API lists each event "+
			"separately: leave events out")
	case len(e.Bodies) > 0 && !slices.Contains(e.Bodies, declared.JSON):
		b.fail("path", "the source's deliveries are forms (events.body), but the API returns JSON: leave events out")
	case len(e.Key) == 0:
		b.fail("path", "the source's events have no key in their body: set events.key of the source, e.g. "+
			"'{json:id}', or leave events out")
	}
	for name, templates := range map[string][]signature.Template{"key": e.Key, "type": e.Type, "account": e.Account} {
		for _, t := range templates {
			for _, r := range t.Refs() {
				if !slices.Contains([]signature.Kind{signature.JSON, signature.Root, signature.EventType,
					signature.Content}, r.Kind) {
					b.fail("path", "the source's events.%s is read from %s, which an event that the API lists does "+
						"not have: read it from the body, or leave events out", name, r)
				}
			}
		}
	}
}
