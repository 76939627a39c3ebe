package stripefake_test

import (
	"net/http"
	"net/url"
	"reflect"
	"testing"
	"time"

	sdk "github.com/stripe/stripe-go/v84"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// officialClient returns Stripe's own client with the address of the fake.
func officialClient(f *stripefake.Fake) *sdk.Client {
	config := &sdk.BackendConfig{URL: sdk.String(f.URL),
		HTTPClient:        &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second},
		MaxNetworkRetries: sdk.Int64(0), EnableTelemetry: sdk.Bool(false),
		LeveledLogger: &sdk.LeveledLogger{Level: sdk.LevelNull}}
	api := sdk.GetBackendWithConfig(sdk.APIBackend, config)
	return sdk.NewClient(stripefake.Key, sdk.WithBackends(&sdk.Backends{API: api}))
}

// There is no published description of the v2 API. Stripe's own client reads its id-only events in
// pages, newest first. An object has the properties that a request includes, and no others.
func TestFake_officialV2Client_readsIDOnlyEvents(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, IDOnlyEvents: true, Objects: 10})
	f.RunSteps(600)
	c := officialClient(f)
	want := 0
	for _, e := range f.Events() {
		if e.IDOnly {
			want++
		}
	}
	sections := url.Values{"include[0]": {"configuration.customer"}, "include[1]": {"configuration.merchant"},
		"include[2]": {"configuration.recipient"}, "include[3]": {"defaults"}, "include[4]": {"identity"},
		"include[5]": {"requirements"}}
	events, last := 0, time.Now().AddDate(100, 0, 0)
	for e, err := range c.V2CoreEvents.List(t.Context(), &sdk.V2CoreEventListParams{Limit: sdk.Int64(5)}) {
		if err != nil {
			t.Fatal(err)
		}
		base, object := readIDOnly(t, e)
		if base.Created.After(last) || base.Object != "v2.core.event" {
			t.Fatalf("event %+v", base)
		}
		events, last = events+1, base.Created
		if one, err := c.V2CoreEvents.Retrieve(t.Context(), base.ID, nil); err != nil || one == nil {
			t.Fatalf("retrieve %s: %v", base.ID, err)
		}
		o, _ := f.ObjectAt("", object.ID, f.Now())
		if got := get(t, f, object.URL+"?"+sections.Encode()); !reflect.DeepEqual(got, tree(t, o.Body)) {
			t.Fatalf("%s is %v, not %s", object.URL, got, o.Body)
		}
		if less := get(t, f, object.URL); less["configuration"] != nil || less["defaults"] != nil ||
			less["identity"] != nil || less["requirements"] != nil || less["id"] != object.ID {
			t.Fatalf("%s returns properties that were not requested: %v", object.URL, less)
		}
	}
	if events != want || events < 20 {
		t.Errorf("the list has %d id-only events, want %d", events, want)
	}
}

// readIDOnly returns the common part of an id-only event, which Stripe's client models by type.
func readIDOnly(t *testing.T, e sdk.V2CoreEvent) (sdk.V2BaseEvent, *sdk.V2CoreEventRelatedObject) {
	t.Helper()
	switch e := e.(type) {
	case *sdk.V2CoreAccountCreatedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	case *sdk.V2CoreAccountUpdatedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	case *sdk.V2CoreAccountClosedEvent:
		return e.V2BaseEvent, &e.RelatedObject
	}
	t.Fatalf("Stripe's client does not know %T", e)
	return sdk.V2BaseEvent{}, nil
}
