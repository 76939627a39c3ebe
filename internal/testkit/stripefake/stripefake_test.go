package stripefake_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client makes requests as an SDK does, but never retries.
type client struct {
	t       *testing.T
	fake    *stripefake.Fake
	http    *http.Client
	key     string
	account string
	version string
}

func newClient(t *testing.T, f *stripefake.Fake) *client {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true} // on a reused connection Go retries automatically
	return &client{t: t, fake: f, key: stripefake.Key, http: &http.Client{Transport: transport,
		Timeout: 30 * time.Second}}
}

// request sends a GET. The error is that of the transport.
func (c *client) request(path string, query url.Values) (status int, header http.Header, body []byte, err error) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.fake.URL+path+"?"+query.Encode(), nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	if c.version != "" {
		r.Header.Set("Stripe-Version", c.version)
	}
	if c.account != "" {
		r.Header.Set("Stripe-Account", c.account)
	}
	response, err := c.http.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header, body, err
}

// get returns the response of a request that must succeed.
func (c *client) get(path string, query url.Values) map[string]any {
	c.t.Helper()
	status, _, body, err := c.request(path, query)
	if err != nil || status != http.StatusOK {
		c.t.Fatalf("GET %s?%s: %d %s (%v)", path, query.Encode(), status, body, err)
	}
	return tree(c.t, body)
}

// ids returns the ids of a page.
func ids(page map[string]any) []string {
	var out []string
	for _, item := range page["data"].([]any) {
		out = append(out, item.(map[string]any)["id"].(string))
	}
	return out
}

// all returns the items of a list, read page by page.
func (c *client) all(path string, query url.Values, limit int) []string {
	c.t.Helper()
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", strconv.Itoa(limit))
	var out []string
	for {
		page := c.get(path, query)
		got := ids(page)
		if len(got) > 0 && slices.Contains(out, got[0]) {
			c.t.Fatalf("%s shows %s twice", path, got[0])
		}
		out = append(out, got...)
		if page["has_more"] != true {
			return out
		}
		if len(got) != limit {
			c.t.Fatalf("a page of %d items with the limit %d has more items", len(got), limit)
		}
		query.Set("starting_after", got[len(got)-1])
	}
}

func tree(t *testing.T, body []byte) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("read %s: %v", body, err)
	}
	return out
}

func TestFake_sameSeed_makesSameHistory(t *testing.T) {
	t.Parallel()
	lived := func(seed uint64) ([]stripefake.Event, []stripefake.Object) {
		f := stripefake.New(t, stripefake.Options{Seed: seed, Accounts: []string{"acct_1"}, Burst: 50, ReusedIDs: 50,
			IDOnlyEvents: true})
		f.RunSteps(300)
		return f.Events(), f.CurrentObjects()
	}
	events, truth := lived(1)
	again, truthAgain := lived(1)
	if !reflect.DeepEqual(events, again) || !reflect.DeepEqual(truth, truthAgain) {
		t.Error("one seed gave two different results")
	}
	if other, _ := lived(2); reflect.DeepEqual(events, other) {
		t.Error("two seeds gave the same result")
	}
}

// Many steps produce every situation that makes the order of events difficult.
func TestRunSteps_manySteps_coverEveryKindOfChange(t *testing.T) {
	t.Parallel()
	f := stripefake.New(t, stripefake.Options{Seed: 1, Accounts: []string{"acct_1"}, Burst: 50, ReusedIDs: 50,
		IDOnlyEvents: true})
	f.RunSteps(4500)
	types, seconds, creations, accounts := map[string]int{}, map[string]int{}, map[string]int{},
		map[string]map[string]bool{}
	for _, e := range f.Events() {
		types[e.Type]++
		seconds[fmt.Sprint(e.ObjectID, e.At.Unix())]++
		if e.Type == "product.created" {
			creations[e.Account+e.ObjectID]++
		}
		if accounts[e.ObjectID] == nil {
			accounts[e.ObjectID] = map[string]bool{}
		}
		accounts[e.ObjectID][e.Account] = true
	}
	for _, e := range f.Events() {
		data, _ := tree(t, e.Body)["data"].(map[string]any)
		_, tells := data["previous_attributes"]
		if want := !e.IDOnly && (strings.HasSuffix(e.Type, ".updated") || e.Type == "charge.refunded"); tells != want {
			t.Fatalf("%s has previous attributes: %t", e.Type, tells)
		}
	}
	for _, want := range []string{
		"charge.failed", "charge.pending", "charge.refunded", "charge.succeeded", "charge.updated", "customer.created",
		"customer.deleted",
		"customer.subscription.created", "customer.subscription.deleted", "customer.subscription.updated",
		"customer.updated", "invoice.created",
		"invoice.deleted", "invoice.finalized", "invoice.marked_uncollectible", "invoice.paid",
		"invoice.payment_failed", "invoice.payment_succeeded",
		"invoice.updated", "invoice.voided", "price.created", "price.deleted", "price.updated", "product.created",
		"product.deleted", "product.updated",
		"v2.core.account.closed", "v2.core.account.created", "v2.core.account.updated",
	} {
		if types[want] < 3 {
			t.Errorf("%s occurred %d times", want, types[want])
		}
	}
	if most := slices.Max(slices.Collect(maps.Values(seconds))); most < 4 {
		t.Errorf("the maximum of events of one object in one second is %d", most)
	}
	if most := slices.Max(slices.Collect(maps.Values(creations))); most < 2 {
		t.Error("no product id was used again")
	}
	if len(accounts["team-1"]) != 2 {
		t.Error("the accounts share no product id")
	}
}

func TestOptions_burst_changesTheSameObjectAgain(t *testing.T) {
	t.Parallel()
	again := map[int]int{}
	for _, burst := range []int{0, 90} {
		f := stripefake.New(t, stripefake.Options{Seed: 1, Burst: burst})
		f.RunSteps(500)
		last := ""
		for _, e := range f.Events() {
			if e.ObjectID == last {
				again[burst]++
			}
			last = e.ObjectID
		}
	}
	if again[90] < 2*again[0] || again[90] < 250 {
		t.Errorf("an event has the object of the previous one %d times, in bursts %d times", again[0], again[90])
	}
}
