package config

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
)

// directProvider builds the provider for the user's own services. The place and key of events are
// fixed. The source may define types, accounts and objects.
func (s *Source) directProvider(b *providerBuilder) provider.Provider {
	own := api.Events()
	for key, is := range map[string]bool{"key": len(s.Events.Key) > 0, "split": s.Events.Split != "",
		"item": s.Events.Item != "", "body": len(s.Events.Body) > 0,
		"api_version": len(s.Events.APIVersion) > 0, "every_delivery": s.Events.EveryDelivery} {
		if is {
			b.under("events").fail(key, "CloudEvents, and the header Idempotency-Key, define this for provider: api: "+
				"leave it out")
		}
	}
	events := own
	if !isZero(s.Events) {
		events = b.under("events").events(&s.Events, own)
		events.Split = own.Split
		if len(s.Events.Type) > 0 { // a CloudEvent's type need not be repeated
			events.Type = append(events.Type, own.Type...)
		}
	}
	objects := b.under("objects").objects(s.Objects, &events)
	made := api.Of(events, objects, s.Events.Headers...)
	b.under("events").rejectTokenInEvents(&events, made.Schemes())
	return made
}
