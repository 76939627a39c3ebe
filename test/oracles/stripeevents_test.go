package oracles_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/stripe/stripe-go/v84"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// What is asked of events of the first API, Stripe's description knows, with its parameters, and
// answers as we read it.
func TestStripeMock_eventCalls_areKnown(t *testing.T) {
	t.Parallel()
	m, api := mock(t), &provider.API{Key: provider.Secret{Value: []byte("key of no mode")}}
	until := time.Date(2026, time.November, 22, 12, 0, 0, 0, time.UTC)
	ask := func(c provider.Call) (int, []byte) {
		r := asked(t, c.Path+"?"+c.Query.Encode())
		maps.Copy(r.Header, c.Header)
		w := httptest.NewRecorder()
		m.stub.HandleRequest(w, r)
		return w.Code, w.Body.Bytes()
	}
	var s stripe.Stripe
	for _, account := range []string{"", "acct_1"} {
		lists := map[string]provider.Call{"control": s.CredentialCheck(api, account)}
		for _, cursor := range []string{"", "evt_1"} {
			lists["events behind "+cursor] = s.ListEvents(api, account, until.Add(-time.Hour), until, cursor)
			lists["undelivered behind "+cursor] = s.ListUndelivered(api, account, until.Add(-time.Hour), until, cursor)
		}
		for name, c := range lists {
			status, body := ask(c)
			page, _, err := s.EventPage(account, body)
			if status != http.StatusOK || err != nil || len(page) == 0 {
				t.Errorf("%s of account %q: GET %s?%s: %d %.300s (%v)", name, account, c.Path, c.Query.Encode(), status,
					body, err)
			}
			c.Query.Set("postern", "1") // which is no parameter
			if status, _ := ask(c); status != http.StatusBadRequest {
				t.Errorf("%s: a parameter that there is not is answered with %d: nothing is proven", name, status)
			}
		}
		c, ok := s.FetchEvent(api, account,
			&provider.StoredEvent{Key: "evt_1", Body: []byte(`{"id": "evt_1", "object": "event"}`)})
		var event struct{ ID, Object string }
		status, body := ask(c)
		if err := json.Unmarshal(body, &event); !ok || status != http.StatusOK || err != nil ||
			event.Object != "event" || event.ID != "evt_1" {
			t.Errorf("event of account %q: GET %s: %d %.300s (%v)", account, c.Path, status, body, err)
		}
	}
}

// secondCall is a call as far as the second API tells one from another.
type secondCall struct {
	Path, Context string
	Query         url.Values
}

// There is no published description of the second API. Stripe's own client sends the same requests
// as we do: the same paths and parameters, for the same accounts.
func TestStripeSDK_secondAPI_sendsOurCalls(t *testing.T) {
	t.Parallel()
	var sent secondCall
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = secondCall{r.URL.Path, r.Header.Get("Stripe-Context"), r.URL.Query()}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"id": "x_1", "object": "v2.core.event", "type": "v2.core.account.created",
			"related_object": {"id": "acct_2", "type": "v2.core.account", "url": "/v2/core/accounts/acct_2"},
			"data": []}`)
	}))
	t.Cleanup(server.Close)
	client := sdk.NewClient("sk_test_1",
		sdk.WithBackends(&sdk.Backends{API: sdk.GetBackendWithConfig(sdk.APIBackend,
			&sdk.BackendConfig{URL: sdk.String(server.URL), MaxNetworkRetries: sdk.Int64(0),
				EnableTelemetry: sdk.Bool(false), LeveledLogger: &sdk.LeveledLogger{Level: sdk.LevelNull}})}))
	var s stripe.Stripe
	api := &provider.API{Key: provider.Secret{Value: []byte("sk_test_1")}, IDOnlyEvents: true}
	const account = "acct_1"
	// Its bounds are numbers, which this list does not take: their names alone are compared.
	bounds := &sdk.RangeQueryParams{GreaterThanOrEqual: 1, LesserThanOrEqual: 2}
	of := sdk.Params{StripeContext: sdk.String(account)}
	same := func(what string, c provider.Call, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		ours := secondCall{c.Path, c.Header.Get("Stripe-Context"), maps.Clone(c.Query)}
		for _, query := range []url.Values{ours.Query, sent.Query} {
			for name := range query {
				if strings.HasPrefix(name, "created[") {
					query[name] = nil
				}
			}
		}
		if len(ours.Query) == 0 {
			ours.Query = url.Values{}
		}
		if !reflect.DeepEqual(sent, ours) {
			t.Errorf("%s: Stripe's client asks %+v, and we %+v", what, sent, ours)
		}
	}
	first := func(seq func(func(error) bool)) (err error) {
		seq(func(e error) bool { err = e; return false })
		return err
	}
	same("list of events", s.ListIDOnlyEvents(api, account, time.Unix(1, 0), time.Unix(2, 0), ""),
		first(func(yield func(error) bool) {
			client.V2CoreEvents.List(t.Context(), &sdk.V2CoreEventListParams{Params: of, Limit: sdk.Int64(100),
				Created: bounds})(func(_ sdk.V2CoreEvent, err error) bool { return yield(err) })
		}))
	thin, ok := s.FetchEvent(api, account,
		&provider.StoredEvent{Key: "evt_1", Body: []byte(`{"id": "evt_1", "object": "v2.core.event"}`)})
	_, err := client.V2CoreEvents.Retrieve(t.Context(), "evt_1", &sdk.V2CoreEventRetrieveParams{Params: of})
	if same("event", thin, err); !ok {
		t.Error("a thin event is not read")
	}
	list := func(objectType string, part int) provider.Call {
		return s.ListObjects(&provider.Source{}, api, account, objectType, time.Time{}, time.Time{},
			fmt.Sprintf("%d:", part))
	}
	for part, closed := range []bool{false, true} {
		same("list of accounts", list("v2.core.account", part), first(func(yield func(error) bool) {
			client.V2CoreAccounts.List(t.Context(), &sdk.V2CoreAccountListParams{Params: of, Limit: sdk.Int64(100),
				Closed: sdk.Bool(closed)})(func(_ *sdk.V2CoreAccount, err error) bool { return yield(err) })
		}))
	}
	same("list of destinations", list("v2.core.event_destination", 0), first(func(yield func(error) bool) {
		client.V2CoreEventDestinations.List(t.Context(), &sdk.V2CoreEventDestinationListParams{Params: of,
			Limit: sdk.Int64(100)})(func(_ *sdk.V2CoreEventDestination, err error) bool { return yield(err) })
	}))
	one, _ := s.Fetch(&provider.Source{}, api, account, "v2.core.account", "acct_2")
	included := []*string{}
	for _, name := range slices.Sorted(maps.Keys(one.Query)) {
		included = append(included, sdk.String(one.Query.Get(name)))
	}
	_, err = client.V2CoreAccounts.Retrieve(t.Context(), "acct_2", &sdk.V2CoreAccountRetrieveParams{Params: of,
		Include: included})
	same("account", one, err)
	destination, _ := s.Fetch(&provider.Source{}, api, account, "v2.core.event_destination", "ed_1")
	_, err = client.V2CoreEventDestinations.Retrieve(t.Context(), "ed_1",
		&sdk.V2CoreEventDestinationRetrieveParams{Params: of})
	same("destination", destination, err)
}
