package reconcile_test

import (
	"bytes"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// fakeAPI is what the fakes of all providers have in common.
type fakeAPI interface {
	Now() time.Time
	Advance(d time.Duration)
	// RunSteps makes changes at the provider. Deliver sends the webhooks that are due.
	RunSteps(n int)
	Deliver(take func(d *provider.Delivery) bool) int
}

// liveProvider is a simulated provider of any kind.
type liveProvider struct {
	fakeAPI
	// source is the reconciler's source, without a number and a caller.
	source *providerapi.Source
	// objects returns all objects that have ever existed, in their current state.
	objects func() []liveObject
	// hide makes an object look as if it were deleted.
	hide func(b liveObject, hidden bool)
	// revoke makes the key invalid, until it is valid again.
	revoke func(revoked bool)
	// classify returns what a call reads.
	classify func(c provider.Call) callTarget
	// requiredEvents returns the events that a run for an account must find, by their keys, with
	// their times. There are none if the provider lists none.
	requiredEvents func(account string) map[string]time.Time
	// uncomparedFields are the fields that only the API or only the webhooks contain, and those
	// that change without an event.
	uncomparedFields []string
}

// Step makes one change at the provider.
func (p *liveProvider) Step() { p.RunSteps(1) }

func noEvents(string) map[string]time.Time { return nil }

// sourceOf returns the source of a provider, with its key for the API and its secret.
func sourceOf[P interface {
	provider.Provider
	provider.Reader
	CompleteAPI(api *provider.API) error
}](p P, c provider.Source, secret, key string, api provider.API) *providerapi.Source {
	c.Secrets = []provider.Secret{{Name: "one", Value: []byte(secret)}}
	api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
	if err := p.CompleteAPI(&api); err != nil {
		panic(fatalError{err})
	}
	return &providerapi.Source{Config: &c, API: &api, Provider: p, Reader: p}
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

func stripeAPI(f *stripefake.Fake, o stripefake.Options) *provider.API {
	return &provider.API{BaseURL: f.URL, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)},
		Version: stripefake.Version, IDOnlyEvents: o.IDOnlyEvents}
}

// newStripeProvider makes an account at Stripe with its connected accounts.
func newStripeProvider(f *stripefake.Fake, o stripefake.Options) liveProvider {
	p := liveProvider{fakeAPI: f, classify: stripeTarget, hide: func(b liveObject, hidden bool) {
		account, id, _ := strings.Cut(b.readKey, " ")
		f.SetHidden(account, id, hidden)
	},
		revoke: func(revoked bool) { o.Faults.Revoked = revoked; f.SetFaults(o.Faults) }}
	p.source = &providerapi.Source{Config: &provider.Source{Name: "shop", Secrets: []provider.Secret{{Name: "one",
		Value: []byte(stripefake.Secret)}}}, API: stripeAPI(f, o), Provider: stripe.Stripe{}, Reader: stripe.Stripe{}}
	p.objects = func() (all []liveObject) {
		for _, o := range f.CurrentObjects() {
			all = append(all, stripeObject(o))
		}
		return all
	}
	p.requiredEvents = func(account string) map[string]time.Time {
		all := map[string]time.Time{}
		for _, e := range f.Events() {
			if e.Account == account {
				all[e.ID] = e.At
			}
		}
		return all
	}
	if o.Faults.MaxListDelay+o.Faults.Lag+o.Faults.DateSkew > listDelay { // a run may read the lists before them
		p.requiredEvents = noEvents
	}
	return p
}

func stripeTarget(c provider.Call) callTarget {
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

// The call that lists a repository is the call that reads it.
var githubObjectPath = regexp.MustCompile(`^/repos/[^/]+/[^/]+/(issues|pulls|releases|issues/comments)/\d+$`)

// newGitHubProvider makes a number of repositories at GitHub. Without hooks, the configuration
// names no webhooks, so that the sent events are unknown.
func newGitHubProvider(t *testing.T, o githubfake.Options, withoutHooks bool) liveProvider {
	t.Helper()
	f := githubfake.New(t, o)
	p := liveProvider{fakeAPI: f, requiredEvents: noEvents,
		uncomparedFields: []string{"closed_by", "permissions", "network_count", "mergeable", "mergeable_state",
			"short_description_html", "delete_branch_on_merge", "squash_merge_commit_title"},
		hide:   func(b liveObject, hidden bool) { f.SetHidden(b.ID, hidden) },
		revoke: func(revoked bool) { o.Faults.Revoked = revoked; f.SetFaults(o.Faults) }}
	api := provider.API{BaseURL: f.URL, Repositories: f.Repositories()}
	if !withoutHooks {
		api.Webhooks = f.Hooks()
		p.requiredEvents = func(string) map[string]time.Time {
			all := map[string]time.Time{}
			for _, one := range f.SentEvents() {
				all[one.Key] = one.At
			}
			return all
		}
	}
	p.source = sourceOf(github.GitHub{}, provider.Source{Name: "code"}, githubfake.Secret, githubfake.Key, api)
	p.objects = func() (all []liveObject) {
		for _, o := range f.CurrentObjects() {
			all = append(all, liveObject{"", o.Type, o.ID, o.Body, o.Changed, o.Body != nil, o.Path})
		}
		return all
	}
	p.classify = func(c provider.Call) callTarget {
		if githubObjectPath.MatchString(c.Path) {
			return callTarget{object: c.Path}
		}
		return callTarget{isList: !strings.Contains(c.Path, "/deliveries") && c.Path != "/" &&
			c.Query.Get("per_page") != "1"}
	}
	return p
}

var (
	shopifyObjectPath    = regexp.MustCompile(`/([a-z_]+)s/(\d+)\.json$`)
	shopifyFulfillmentID = regexp.MustCompile(`gid://shopify/Fulfillment/(\d+)`)
)

// newShopifyProvider makes a shop at Shopify.
func newShopifyProvider(t *testing.T, o shopifyfake.Options) liveProvider {
	t.Helper()
	f := shopifyfake.New(t, o)
	p := liveProvider{fakeAPI: f, requiredEvents: noEvents, classify: shopifyTarget,
		hide:   func(b liveObject, hidden bool) { f.SetHidden(b.Type, b.ID, hidden) },
		revoke: func(revoked bool) { o.Faults.Revoked = revoked; f.SetFaults(o.Faults) }}
	p.source = sourceOf(shopify.Shopify{}, provider.Source{Name: "shop", Account: shopifyfake.Shop}, shopifyfake.Secret,
		shopifyfake.Key, provider.API{BaseURL: f.URL})
	p.objects = func() (all []liveObject) {
		for _, o := range f.CurrentObjects() {
			all = append(all, liveObject{shopifyfake.Shop, o.Type, o.ID, o.Body, o.Changed,
				o.Body != nil && o.Type != "inventory_level", o.Type + " " + o.ID})
		}
		return all
	}
	return p
}

func shopifyTarget(c provider.Call) callTarget {
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

// newRESTProvider makes the API of the example, read by its description, which edits change.
func newRESTProvider(t *testing.T, o restfake.Options, edits []string) liveProvider {
	t.Helper()
	f := restfake.New(t, o)
	e := reconciled.ExampleEndpoint(t, f.URL, edits...)
	p := liveProvider{fakeAPI: f, requiredEvents: noEvents, uncomparedFields: []string{"seen"},
		source: &providerapi.Source{Config: e.Source, API: e.API, Provider: e.Provider, Reader: e.Reader},
		hide:   func(b liveObject, hidden bool) { f.SetHidden(b.ID, hidden) },
		revoke: func(revoked bool) { o.Faults.Revoked = revoked; f.SetFaults(o.Faults) }}
	p.objects = func() (all []liveObject) {
		for id, name := range f.CurrentNames() {
			b := liveObject{Type: "thing", ID: id, Changed: f.LastChange(id), neverDeleted: f.NeverDeleted(id),
				readKey: "/things/" + id}
			if name != "" {
				b.Body = fmt.Appendf(nil, `{"key":%q,"name":%q,"changed":%q}`, id, name, f.FormatTime(b.Changed))
			}
			all = append(all, b)
		}
		slices.SortFunc(all, func(a, b liveObject) int { return strings.Compare(a.ID, b.ID) })
		return all
	}
	p.classify = func(c provider.Call) callTarget {
		if strings.HasPrefix(c.Path, "/things/") {
			return callTarget{object: c.Path}
		}
		return callTarget{isList: strings.HasPrefix(c.Path, "/lists/")}
	}
	return p
}

// Lists that may have many empty pages in a row are marked: lists of child objects, of GitHub
// issues, which are listed with pull requests, and of configured APIs.
func TestLists_ofObjectsBelowOthers_areSparse(t *testing.T) {
	t.Parallel()
	described := func(edits ...string) *providerapi.Source {
		return newRESTProvider(t, restfake.Options{}, edits).source
	}
	hub := newGitHubProvider(t, githubfake.Options{}, false).source
	shop := newShopifyProvider(t, shopifyfake.Options{}).source
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
