package reconcile_test

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// liveProvider is a simulated provider of any kind.
type liveProvider interface {
	Now() time.Time
	Advance(d time.Duration)
	// Step makes one change at the provider. Deliver sends the webhooks that are due.
	Step()
	Deliver(take func(d *provider.Delivery) bool) int
	// source is the reconciler's source, without a number and a caller.
	source(t *testing.T) *providerapi.Source
	// objects are all objects that have ever existed, in their current state.
	objects() []liveObject
	// hide makes an object look as if it were deleted.
	hide(b liveObject, hidden bool)
	// revoke makes the key invalid, until it is valid again.
	revoke(revoked bool)
	// classify returns what a call reads.
	classify(c provider.Call) callTarget
	// requiredEvents are the events that a run for an account must find, by their keys, with their
	// times. There are none if the provider lists none.
	requiredEvents(account string) map[string]time.Time
	// uncomparedFields are the fields that only the API or only the webhooks contain, and those
	// that change without an event.
	uncomparedFields() []string
}

// liveObject is an object of a simulated provider.
type liveObject struct {
	// Account is the account of the object in the mirror.
	Account, Type, ID string
	// Body is the body of its webhooks. It is nil after the deletion.
	Body []byte
	// Changed is the time of its last change.
	Changed time.Time
	// neverDeleted: the object exists, and has always existed since its creation.
	neverDeleted bool
	// readKey names the call that reads it, as callTarget.object does.
	readKey string
}

// callTarget is what a call reads: an object, a page of a list of objects, or anything else.
type callTarget struct {
	object string
	isList bool
}

// stripeProvider is an account at Stripe with its connected accounts.
type stripeProvider struct {
	*stripefake.Fake
	scenario *scenario
}

// mirrorAccount returns the account of a type's objects in the mirror. Some have the same id in
// both modes.
func mirrorAccount(account, objectType string) string {
	if objectType == "product" || objectType == "price" {
		return map[bool]string{true: account + "/test", false: "test"}[account != ""]
	}
	return account
}

func stripeObject(o stripefake.Object) liveObject {
	return liveObject{mirrorAccount(o.Account, o.Type), o.Type, o.ID, o.Body, o.Changed, false, o.Account + " " + o.ID}
}

func (w *stripeProvider) source(t *testing.T) *providerapi.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)},
		Version: stripefake.Version, IDOnlyEvents: w.scenario.stripe.IDOnlyEvents}
	secrets := []provider.Secret{{Name: "one", Value: []byte(stripefake.Secret)}}
	return &providerapi.Source{Config: &provider.Source{Name: "shop", Secrets: secrets}, API: api,
		Provider: stripe.Stripe{}, Reader: stripe.Stripe{}}
}

func (w *stripeProvider) objects() (all []liveObject) {
	for _, o := range w.CurrentObjects() {
		all = append(all, stripeObject(o))
	}
	return all
}

func (w *stripeProvider) hide(b liveObject, hidden bool) {
	account, id, _ := strings.Cut(b.readKey, " ")
	w.SetHidden(account, id, hidden)
}

func (w *stripeProvider) revoke(revoked bool) {
	f := w.scenario.stripe.Faults
	f.Revoked = revoked
	w.SetFaults(f)
}

func (w *stripeProvider) classify(c provider.Call) callTarget {
	part := strings.Split(strings.Trim(c.Path, "/"), "/")
	list := !strings.HasSuffix(c.Path, "/events")
	if len(part) < 3 || len(part) == 3 && part[0] == "v2" || part[len(part)-2] == "events" ||
		part[len(part)-1] == "test_clocks" {
		return callTarget{isList: list}
	}
	id, err := url.PathUnescape(part[len(part)-1])
	if err != nil {
		return callTarget{isList: list}
	}
	return callTarget{object: c.Account + " " + id}
}

// requiredEvents are none if events may appear in the lists after a run has read them.
func (w *stripeProvider) requiredEvents(account string) map[string]time.Time {
	all := map[string]time.Time{}
	if f := w.scenario.stripe.Faults; f.MaxListDelay+f.Lag+f.DateSkew > listDelay {
		return all
	}
	for _, e := range w.Events() {
		if e.Account == account {
			all[e.ID] = e.At
		}
	}
	return all
}

func (w *stripeProvider) uncomparedFields() []string { return nil }

// githubProvider is a number of repositories at GitHub.
type githubProvider struct {
	*githubfake.Fake
	faults githubfake.Faults
	// withoutHooks: the configuration names no webhooks, so that the sent events are unknown.
	withoutHooks bool
}

func newGitHubProvider(t *testing.T, o githubfake.Options, withoutHooks bool) liveProvider {
	t.Helper()
	return &githubProvider{githubfake.New(t, o), o.Faults, withoutHooks}
}

func (w *githubProvider) source(t *testing.T) *providerapi.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(githubfake.Key)},
		Webhooks: w.Hooks(), Repositories: w.Repositories()}
	if w.withoutHooks {
		api.Webhooks = nil
	}
	if err := (github.GitHub{}).CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	return &providerapi.Source{Config: &provider.Source{Name: "code",
		Secrets: []provider.Secret{{Name: "one", Value: []byte(githubfake.Secret)}}}, API: api,
		Provider: github.GitHub{}, Reader: github.GitHub{}}
}

func (w *githubProvider) objects() (all []liveObject) {
	for _, o := range w.CurrentObjects() {
		all = append(all, liveObject{"", o.Type, o.ID, o.Body, o.Changed, o.Body != nil, o.Path})
	}
	return all
}

func (w *githubProvider) hide(b liveObject, hidden bool) { w.SetHidden(b.ID, hidden) }

func (w *githubProvider) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

// The call that lists a repository is the call that reads it.
var githubObjectPath = regexp.MustCompile(`^/repos/[^/]+/[^/]+/(issues|pulls|releases|issues/comments)/\d+$`)

func (w *githubProvider) classify(c provider.Call) callTarget {
	if githubObjectPath.MatchString(c.Path) {
		return callTarget{object: c.Path}
	}
	return callTarget{isList: !strings.Contains(c.Path, "/deliveries") && c.Path != "/" &&
		c.Query.Get("per_page") != "1"}
}

func (w *githubProvider) requiredEvents(string) map[string]time.Time {
	all := map[string]time.Time{}
	if w.withoutHooks {
		return all
	}
	for _, one := range w.SentEvents() {
		all[one.Key] = one.At
	}
	return all
}

func (w *githubProvider) uncomparedFields() []string {
	return []string{"closed_by", "permissions", "network_count", "mergeable", "mergeable_state",
		"short_description_html", "delete_branch_on_merge", "squash_merge_commit_title"}
}

// shopifyProvider is a shop at Shopify.
type shopifyProvider struct {
	*shopifyfake.Fake
	faults shopifyfake.Faults
}

func newShopifyProvider(t *testing.T, o shopifyfake.Options) liveProvider {
	t.Helper()
	return &shopifyProvider{shopifyfake.New(t, o), o.Faults}
}

func (w *shopifyProvider) Step() { w.RunSteps(1) }

func (w *shopifyProvider) source(t *testing.T) *providerapi.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)}}
	if err := (shopify.Shopify{}).CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	return &providerapi.Source{Config: &provider.Source{Name: "shop", Account: shopifyfake.Shop,
		Secrets: []provider.Secret{{Name: "one", Value: []byte(shopifyfake.Secret)}}}, API: api,
		Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
}

func (w *shopifyProvider) objects() (all []liveObject) {
	for _, o := range w.CurrentObjects() {
		read := o.Type + " " + o.ID
		all = append(all, liveObject{shopifyfake.Shop, o.Type, o.ID, o.Body, o.Changed, o.Body != nil &&
			o.Type != "inventory_level", read})
	}
	return all
}

func (w *shopifyProvider) hide(b liveObject, hidden bool) { w.SetHidden(b.Type, b.ID, hidden) }

func (w *shopifyProvider) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

var (
	shopifyObjectPath    = regexp.MustCompile(`/([a-z_]+)s/(\d+)\.json$`)
	shopifyFulfillmentID = regexp.MustCompile(`gid://shopify/Fulfillment/(\d+)`)
)

func (w *shopifyProvider) classify(c provider.Call) callTarget {
	if m := shopifyFulfillmentID.FindSubmatch(c.Body); m != nil {
		return callTarget{object: "fulfillment " + string(m[1])}
	}
	if item := c.Query.Get("inventory_item_ids"); item != "" {
		return callTarget{object: "inventory_level " + item + ":" + c.Query.Get("location_ids")}
	}
	if m := shopifyObjectPath.FindStringSubmatch(c.Path); m != nil && !strings.Contains(c.Path, "/fulfillments/") {
		return callTarget{object: m[1] + " " + m[2]}
	}
	return callTarget{isList: c.Query.Has("since_id") || bytes.Contains(c.Body, []byte("page: "))}
}

func (w *shopifyProvider) requiredEvents(string) map[string]time.Time { return nil }

func (w *shopifyProvider) uncomparedFields() []string { return nil }

// restProvider is the API of the example, read by its description, which edits change.
type restProvider struct {
	*restfake.Fake
	faults restfake.Faults
	edits  []string
}

func newRESTProvider(t *testing.T, o restfake.Options, edits []string) liveProvider {
	t.Helper()
	return &restProvider{restfake.New(t, o), o.Faults, edits}
}

func (w *restProvider) source(t *testing.T) *providerapi.Source {
	t.Helper()
	text, err := os.ReadFile("../../examples/any-api/postern.yaml")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DATABASE_URL": "postgres://x", "NATS_URL": "nats://x", "THINGS_SECRET": restfake.Secret,
		"THINGS_API": w.URL, "THINGS_API_KEY": restfake.Key}
	cfg, err := config.Parse([]byte(strings.NewReplacer(w.edits...).Replace(string(text))),
		func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	e := cfg.Endpoints()[0]
	return &providerapi.Source{Config: e.Source, API: e.API, Provider: e.Provider, Reader: e.Reader}
}

func (w *restProvider) objects() (all []liveObject) {
	for id, name := range w.CurrentNames() {
		b := liveObject{Type: "thing", ID: id, Changed: w.LastChange(id), neverDeleted: w.NeverDeleted(id),
			readKey: "/things/" + id}
		if name != "" {
			b.Body = fmt.Appendf(nil, `{"key":%q,"name":%q,"changed":%q}`, id, name, w.FormatTime(b.Changed))
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b liveObject) int { return strings.Compare(a.ID, b.ID) })
	return all
}

func (w *restProvider) hide(b liveObject, hidden bool) { w.SetHidden(b.ID, hidden) }

func (w *restProvider) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

func (w *restProvider) classify(c provider.Call) callTarget {
	if strings.HasPrefix(c.Path, "/things/") {
		return callTarget{object: c.Path}
	}
	return callTarget{isList: strings.HasPrefix(c.Path, "/lists/")}
}

func (w *restProvider) requiredEvents(string) map[string]time.Time { return nil }

func (w *restProvider) uncomparedFields() []string { return []string{"seen"} }

// Lists that may have many empty pages in a row are marked: lists of child objects, of GitHub
// issues, which are listed with pull requests, and of configured APIs.
func TestLists_ofObjectsBelowOthers_areSparse(t *testing.T) {
	t.Parallel()
	described := func(edits ...string) *providerapi.Source {
		return newRESTProvider(t, restfake.Options{}, edits).source(t)
	}
	hub := newGitHubProvider(t, githubfake.Options{}, false).source(t)
	shop := newShopifyProvider(t, shopifyfake.Options{}).source(t)
	for _, c := range []struct {
		source     *providerapi.Source
		objectType string
		want       bool
	}{
		{shop, "fulfillment", true}, {shop, "inventory_level", true}, {shop, "product", false}, {hub, "issue", true},
		{hub, "release", false},
		{described(), "thing", false}, {described("item: thing\n", "item: thing\n            sparse: true\n"), "thing",
			true},
	} {
		lister := c.source.Reader.(provider.ObjectLister)
		if l, ok := lister.Lists(c.source.Config, c.source.API, c.source.Config.Account)[c.objectType]; !ok ||
			l.Sparse != c.want {
			t.Errorf("%s of %s: %+v", c.objectType, c.source.Config.Name, l)
		}
	}
}
