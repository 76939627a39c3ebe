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
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// ward is a provider that lives, whichever it is.
type ward interface {
	Now() time.Time
	Advance(d time.Duration)
	// Step lets something happen there, and Deliver sends the webhooks that are due.
	Step()
	Deliver(take func(d *provider.Delivery) bool) int
	// source is how it is read, without a number and a caller.
	source(t *testing.T) *reconcile.Source
	// beings are all objects that there ever were, as they are now.
	beings() []being
	// hide lets an object look as if it were gone.
	hide(b being, hidden bool)
	// revoke has the key be unknown, until it is known again.
	revoke(revoked bool)
	// asks says what a call is for.
	asks(c provider.Call) ask
	// told are the events that a run over an account's must find, by their keys, with their times; none where the
	// provider lists none.
	told(account string) map[string]time.Time
	// apart are the fields that either the API or the webhooks tell alone, and those that change unseen.
	apart() []string
}

// being is an object of a ward.
type being struct {
	// Account is the one under which it is kept.
	Account, Type, ID string
	// Body is what webhooks tell of it, nil where it is gone.
	Body []byte
	// Changed is when it changed last.
	Changed time.Time
	// lasts: it is there, and always was since it was made.
	lasts bool
	// read is the call that reads it, as ask.object has it.
	read string
}

// ask is what a call is for: an object, or a page of a list of objects, or anything else.
type ask struct {
	object string
	list   bool
}

// accountWard is an account at Stripe, with those that are connected to it.
type accountWard struct {
	*stripefake.Fake
	c *conditions
}

// keptAs is the account under which objects of a type are kept. The ids of some are the same in both modes.
func keptAs(account, objectType string) string {
	if objectType == "product" || objectType == "price" {
		return map[bool]string{true: account + "/test", false: "test"}[account != ""]
	}
	return account
}

func accountBeing(o stripefake.Object) being {
	return being{keptAs(o.Account, o.Type), o.Type, o.ID, o.Body, o.Changed, false, o.Account + " " + o.ID}
}

func (w *accountWard) source(t *testing.T) *reconcile.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(stripefake.Key)},
		Version: stripefake.Version, ThinEvents: w.c.account.Thin}
	secrets := []provider.Secret{{Name: "one", Value: []byte(stripefake.Secret)}}
	return &reconcile.Source{Config: &provider.Source{Name: "shop", Secrets: secrets}, API: api, Provider: stripe.Stripe{},
		Reader: stripe.Stripe{}}
}

func (w *accountWard) beings() (all []being) {
	for _, o := range w.Truth() {
		all = append(all, accountBeing(o))
	}
	return all
}

func (w *accountWard) hide(b being, hidden bool) {
	account, id, _ := strings.Cut(b.read, " ")
	w.Hide(account, id, hidden)
}

func (w *accountWard) revoke(revoked bool) {
	f := w.c.account.Faults
	f.Revoked = revoked
	w.SetFaults(f)
}

func (w *accountWard) asks(c provider.Call) ask {
	part := strings.Split(strings.Trim(c.Path, "/"), "/")
	list := !strings.HasSuffix(c.Path, "/events")
	if len(part) < 3 || len(part) == 3 && part[0] == "v2" || part[len(part)-2] == "events" || part[len(part)-1] == "test_clocks" {
		return ask{list: list}
	}
	id, err := url.PathUnescape(part[len(part)-1])
	if err != nil {
		return ask{list: list}
	}
	return ask{object: c.Account + " " + id}
}

// told are none where events come into the lists after a run may have reached them.
func (w *accountWard) told(account string) map[string]time.Time {
	all := map[string]time.Time{}
	if f := w.c.account.Faults; f.Late+f.Lag+f.Skew > settleAfter {
		return all
	}
	for _, e := range w.Events() {
		if e.Account == account {
			all[e.ID] = e.At
		}
	}
	return all
}

func (w *accountWard) apart() []string { return nil }

// forgeWard are repositories at GitHub.
type forgeWard struct {
	*githubfake.Fake
	faults githubfake.Faults
	// deaf: it is not said which webhooks there are, so that nobody knows what was sent.
	deaf bool
}

func newForgeWard(t *testing.T, o githubfake.Options, deaf bool) ward {
	t.Helper()
	return &forgeWard{githubfake.New(t, o), o.Faults, deaf}
}

func (w *forgeWard) source(t *testing.T) *reconcile.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(githubfake.Key)}, Hooks: w.Hooks(), Repositories: w.Repositories()}
	if w.deaf {
		api.Hooks = nil
	}
	if err := (github.GitHub{}).CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	return &reconcile.Source{Config: &provider.Source{Name: "code", Secrets: []provider.Secret{{Name: "one", Value: []byte(githubfake.Secret)}}}, API: api, Provider: github.GitHub{}, Reader: github.GitHub{}}
}

func (w *forgeWard) beings() (all []being) {
	for _, o := range w.Truth() {
		all = append(all, being{"", o.Type, o.ID, o.Body, o.Changed, o.Body != nil, o.Path})
	}
	return all
}

func (w *forgeWard) hide(b being, hidden bool) { w.Hide(b.ID, hidden) }

func (w *forgeWard) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

// A repository is listed as it is read: the calls are the same.
var forgeObject = regexp.MustCompile(`^/repos/[^/]+/[^/]+/(issues|pulls|releases|issues/comments)/\d+$`)

func (w *forgeWard) asks(c provider.Call) ask {
	if forgeObject.MatchString(c.Path) {
		return ask{object: c.Path}
	}
	return ask{list: !strings.Contains(c.Path, "/deliveries") && c.Path != "/" && c.Query.Get("per_page") != "1"}
}

func (w *forgeWard) told(string) map[string]time.Time {
	all := map[string]time.Time{}
	if w.deaf {
		return all
	}
	for _, one := range w.Told() {
		all[one.Key] = one.At
	}
	return all
}

func (w *forgeWard) apart() []string {
	return []string{"closed_by", "permissions", "network_count", "mergeable", "mergeable_state", "short_description_html", "delete_branch_on_merge", "squash_merge_commit_title"}
}

// shopWard is a shop at Shopify.
type shopWard struct {
	*shopifyfake.Fake
	faults shopifyfake.Faults
}

func newShopWard(t *testing.T, o shopifyfake.Options) ward {
	t.Helper()
	return &shopWard{shopifyfake.New(t, o), o.Faults}
}

func (w *shopWard) Step() { w.Live(1) }

func (w *shopWard) source(t *testing.T) *reconcile.Source {
	t.Helper()
	api := &provider.API{BaseURL: w.URL, Key: provider.Secret{Name: "api.key", Value: []byte(shopifyfake.Key)}}
	if err := (shopify.Shopify{}).CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	return &reconcile.Source{Config: &provider.Source{Name: "shop", Account: shopifyfake.Shop, Secrets: []provider.Secret{{Name: "one", Value: []byte(shopifyfake.Secret)}}}, API: api,
		Provider: shopify.Shopify{}, Reader: shopify.Shopify{}}
}

func (w *shopWard) beings() (all []being) {
	for _, o := range w.Truth() {
		read := o.Type + " " + o.ID
		all = append(all, being{shopifyfake.Shop, o.Type, o.ID, o.Body, o.Changed, o.Body != nil && o.Type != "inventory_level",
			read})
	}
	return all
}

func (w *shopWard) hide(b being, hidden bool) { w.Hide(b.Type, b.ID, hidden) }

func (w *shopWard) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

var (
	shopObject      = regexp.MustCompile(`/([a-z_]+)s/(\d+)\.json$`)
	shopFulfillment = regexp.MustCompile(`gid://shopify/Fulfillment/(\d+)`)
)

func (w *shopWard) asks(c provider.Call) ask {
	if m := shopFulfillment.FindSubmatch(c.Body); m != nil {
		return ask{object: "fulfillment " + string(m[1])}
	}
	if item := c.Query.Get("inventory_item_ids"); item != "" {
		return ask{object: "inventory_level " + item + ":" + c.Query.Get("location_ids")}
	}
	if m := shopObject.FindStringSubmatch(c.Path); m != nil && !strings.Contains(c.Path, "/fulfillments/") {
		return ask{object: m[1] + " " + m[2]}
	}
	return ask{list: c.Query.Has("since_id") || bytes.Contains(c.Body, []byte("page: "))}
}

func (w *shopWard) told(string) map[string]time.Time { return nil }

func (w *shopWard) apart() []string { return nil }

// thingsWard is the API of the example, read by its description, which edits change.
type thingsWard struct {
	*restfake.Fake
	faults restfake.Faults
	edits  []string
}

func newThingsWard(t *testing.T, o restfake.Options, edits []string) ward {
	t.Helper()
	return &thingsWard{restfake.Make(t, o), o.Faults, edits}
}

func (w *thingsWard) source(t *testing.T) *reconcile.Source {
	t.Helper()
	text, err := os.ReadFile("../../examples/any-api/postern.yaml")
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"DATABASE_URL": "postgres://x", "NATS_URL": "nats://x", "THINGS_SECRET": restfake.Secret, "THINGS_API": w.URL, "THINGS_API_KEY": restfake.Key}
	cfg, err := config.Parse([]byte(strings.NewReplacer(w.edits...).Replace(string(text))), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	e := cfg.Endpoints()[0]
	return &reconcile.Source{Config: e.Source, API: e.API, Provider: e.Provider, Reader: e.Reader}
}

func (w *thingsWard) beings() (all []being) {
	for id, name := range w.Truth() {
		b := being{Type: "thing", ID: id, Changed: w.Changed(id), lasts: w.Lasts(id), read: "/things/" + id}
		if name != "" {
			b.Body = fmt.Appendf(nil, `{"key":%q,"name":%q,"changed":%q}`, id, name, w.Stamp(b.Changed))
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b being) int { return strings.Compare(a.ID, b.ID) })
	return all
}

func (w *thingsWard) hide(b being, hidden bool) { w.Hide(b.ID, hidden) }

func (w *thingsWard) revoke(revoked bool) {
	f := w.faults
	f.Revoked = revoked
	w.SetFaults(f)
}

func (w *thingsWard) asks(c provider.Call) ask {
	if strings.HasPrefix(c.Path, "/things/") {
		return ask{object: c.Path}
	}
	return ask{list: strings.HasPrefix(c.Path, "/lists/")}
}

func (w *thingsWard) told(string) map[string]time.Time { return nil }

func (w *thingsWard) apart() []string { return []string{"seen"} }
