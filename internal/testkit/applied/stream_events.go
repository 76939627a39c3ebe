package applied

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// ProviderKinds are simulated providers with different properties.
var ProviderKinds = map[string]sim.Options{
	"event time": {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 700_000, ChangeSets: 60, Partial: 5,
		DuplicateEvents: 20, MaxDelay: 5_000_000},
	"own version": {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 900_000, ObjectVersions: true,
		Deletes: 15, FinalDeletes: true, DeletesWithoutTime: true, DuplicateEvents: 10, MaxDelay: 5_000_000,
		Noise: true},
	"integers": {Objects: 6, Changes: 8, Contents: 3, Unit: 1_000_000, Gap: 500_000, ObjectVersions: true,
		VersionIsCounter: true, DuplicateEvents: 10},
	"ids reused": {Objects: 6, Changes: 10, Contents: 3, Unit: 1_000_000, Gap: 900_000, Deletes: 30, ChangeSets: 40,
		DuplicateEvents: 20},
	"steps": {Objects: 6, Changes: 8, Contents: 4, Unit: 1_000_000, Gap: 300_000, EventsHoldOwnState: true,
		StatusSteps: true, ChangeSets: 50, Deletes: 10, FinalDeletes: true, Skew: 400_000},
}

// Message is event number n of a history in the form of the stream. It is in no log.
func Message(n int, e sim.Event) stream.Event {
	return stream.Event{Source: SourceName, StoredEvent: provider.StoredEvent{ID: int64(n + 1), Key: e.Key,
		Type: "thing", Origin: events.OriginWebhook, ReceivedAt: e.ReceivedAt, Body: e.Body}}
}

// ThingEvent is event number n, about a new object that is named after the event's key.
func ThingEvent(n int, key string) stream.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(n), 3)), sim.Options{Objects: 1, Changes: 1, Contents: 2, Unit: 1,
		Gap: 10})
	e := Message(n, h.Events[0])
	e.Key = key
	e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_1", "obj_"+key))
	return e
}

// FaultyProvider panics, fails, ignores events or makes them dead, by their key.
type FaultyProvider struct{ sim.Provider }

// Observe implements provider.Provider.
func (FaultyProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	switch e.Key {
	case "panics":
		panic("no such luck")
	case "fails":
		return provider.Observation{}, errors.New("not today")
	case "dead":
		return provider.Observation{}, &provider.Dead{Reason: "cannot be read"}
	case "ignored":
		return provider.Observation{Ignored: "a notice"}, nil
	case "longid":
		o, err := sim.Provider{}.Observe(src, e)
		o.ObjectID = string(make([]byte, 600))
		return o, err
	}
	return sim.Provider{}.Observe(src, e)
}

// RuleOnChanges is a rule that plans an effect for each change of an object.
func RuleOnChanges(t testing.TB) *rules.Rule {
	t.Helper()
	key, err := rules.CompileText("{{ object.id }}:{{ event.id }}", rules.Scope{Change: true})
	testkit.Must(t, err)
	return &rules.Rule{Name: "every", Source: SourceName, Type: "thing", Key: key, Version: 1,
		Approval: rules.ApproveNone, Steps: []rules.Step{{Name: "tell", Destination: "nowhere"}}}
}
