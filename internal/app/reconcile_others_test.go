package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// startGitHub starts all parts with a source that uses the fake API.
func startGitHub(t *testing.T, fake *githubfake.Fake) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  code:\n    provider: github\n    secrets: [{name: s, value: %s}]\n    api: "+
		"{base_url: %s, key: {value: %s}, rate: 500, hooks: [%s], repositories: [%s]}\n", githubfake.Secret, fake.URL,
		githubfake.Key, strings.Join(fake.Hooks(), ", "), strings.Join(fake.Repositories(), ", ")))
}

// GitHub's objects are not read by id. A late event nevertheless requests a refetch, except for
// types that the API cannot read.
func TestProcessor_lateGitHubEvent_requestsRefetch(t *testing.T) {
	t.Parallel()
	fake := githubfake.New(t, githubfake.Options{Seed: 5, Running: true, Start: time.Now(), Objects: 12})
	r := startGitHub(t, fake)
	runSteps := func(n int) {
		t.Helper()
		fake.RunSteps(n)
		fake.Deliver(r.postTo(t, "code"))
		r.applied(t)
	}
	runSteps(40)
	r.db.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at)
		SELECT DISTINCT source, account,
		'type ' || object_type, to_timestamp(0), now() + interval '1 day', 1, now() FROM objects`)
	requests := func() []string {
		return r.db.QueryStrings(t, `SELECT object_id FROM refetch_requests WHERE reason = 'an event came late'`)
	}
	if ids := requests(); len(ids) > 0 {
		t.Fatalf("refetch requests before the reconciliation: %q", ids)
	}
	runSteps(40)
	if len(requests()) == 0 {
		t.Error("no late event requests a refetch")
	}
	if unreadable := r.db.QueryStrings(t, `SELECT object_type FROM refetch_requests WHERE reason = 'an event came late'
		AND object_type NOT IN ('repository', 'label', 'issue', 'pull_request', 'milestone', 'issue_comment',
		'pull_request_review_comment', 'commit_comment', 'release', 'deployment', 'deployment_status', 'workflow_run',
			'workflow_job', 'check_suite', 'check_run')`); len(unreadable) > 0 {
		t.Errorf("refetches are pending for %q, which the GitHub API does not read", unreadable)
	}
}

// startShop starts a gateway and a processor that read the API of a fake shop.
func startShop(t *testing.T, fake *shopifyfake.Fake) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  shop:\n    provider: shopify\n    account: %s\n    secrets: [{name: s, "+
		"value: %s}]\n    api: {base_url: %s, key: {value: %s}, rate: 500, concurrency: 8}\n",
		shopifyfake.Shop, shopifyfake.Secret, fake.URL, shopifyfake.Key))
}

// deliver sends due webhooks to the source and waits until they are applied.
func (r *reloading) deliver(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	fake.Deliver(r.postTo(t, "shop"))
	r.applied(t)
}

func (r *reloading) waitUntilEqualShop(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	r.waitUntilNoneDiffer(t, func() []providerObject { return r.differingFromShop(t, fake) })
}

// differingFromShop returns the objects whose mirrored state differs. It ignores fields that only
// REST has. The mirror need not have deleted objects that had no webhook.
func (r *reloading) differingFromShop(t *testing.T, fake *shopifyfake.Fake) []providerObject {
	t.Helper()
	var all []providerObject
	for _, o := range fake.CurrentObjects() {
		all = append(all, providerObject{kind: o.Type, id: o.ID, body: o.Body})
	}
	return r.differing(t, all, canonical.Options{Without: []string{"rest_only"}}, true)
}

// A shop loses half of its webhooks and sends none for some changes. A full object scan makes the
// mirror equal to the shop, also where objects were deleted without a webhook.
func TestObjectScan_shopWithLostWebhooks_restoresMirror(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 8, Running: true, Start: time.Now(), WithoutWebhook: 10,
		Objects:       6,
		RESTOnlyField: true, Webhooks: shopifyfake.Webhooks{Lost: 50, Shuffled: 30},
		Faults: shopifyfake.Faults{Throttled: 2, ServerError: 2, CursorExpired: 2}})
	r := startShop(t, fake)
	fake.RunSteps(75)
	r.deliver(t, fake)
	fake.RunSteps(75)
	ids := make([]string, 6)
	for i := range ids {
		ids[i] = fake.Create("product")
	}
	level := fake.Create("inventory_level")
	r.deliver(t, fake)
	for _, id := range ids {
		fake.Delete("product", id, true)
	}
	fake.Delete("inventory_level", level, true)
	fake.Advance(2 * time.Minute) // later than the delay of the lists
	if wrong := r.differingFromShop(t, fake); len(wrong) < 10 {
		t.Fatalf("%d objects differ: too few for this test", len(wrong))
	}
	counts := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Objects}).Counts
	if counts[reconcile.Missing] == 0 || counts[objectscan.MirrorOlder] == 0 || counts[objectscan.Orphans] < 2 {
		t.Errorf("the scan counted %v", counts)
	}
	r.waitUntilEqualShop(t, fake)
}

// A key without read_all_orders cannot see orders older than 60 days: the object scan reports that,
// and writes no tombstones for them.
func TestObjectScan_ordersHiddenFromKey_writesNoTombstones(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Running: true, Start: time.Now(),
		Scopes: []string{"read_orders", "read_fulfillments"}})
	r := startShop(t, fake)
	fake.Create("order")
	r.deliver(t, fake)
	r.waitUntilEqualShop(t, fake)
	fake.Advance(61 * 24 * time.Hour)
	if run := r.runReconciliation(t, reconcile.Params{Scope: reconcile.Objects, Type: "order",
		Full: true}); run.Status != runs.Failed ||
		!strings.Contains(run.Detail, "read_all_orders") {
		t.Errorf("the run is %s: %s", run.Status, run.Detail)
	}
	for _, o := range r.differingFromShop(t, fake) {
		if o.kind == "order" {
			t.Errorf("differs from the shop: %s", o)
		}
	}
}

// Mirrored objects need no calls of their own in an object scan whose list has complete objects. If
// the list's format differs from the webhooks', the object is taken from the page once.
func TestObjectScan_mirroredShop_needsNoExtraCalls(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 10, Running: true, Start: time.Now(), RESTOnlyField: true})
	types := []string{"order", "product", "customer", "fulfillment"}
	for _, name := range types {
		for range 8 {
			fake.Create(name)
		}
	}
	r := startShop(t, fake)
	r.deliver(t, fake)
	r.waitUntilEqualShop(t, fake)
	fake.Advance(2 * time.Minute) // later than the delay of the lists
	for i, kind := range []string{objectscan.ContentDiffers, objectscan.Equal} {
		fake.ResetRequests()
		for _, name := range types {
			counts := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Objects, Type: name, Full: true}).Counts
			if counts[kind] != counts[reconcile.Processed] || counts[reconcile.Processed] < 8 || i == 0 &&
				counts[objectscan.Repaired] != counts[reconcile.Processed] {
				t.Errorf("%s: scan %d counted %v", name, i, counts)
			}
		}
		for _, one := range fake.Requests() {
			if one.Method == http.MethodGet && !strings.HasSuffix(one.Path, "s.json") {
				t.Errorf("scan %d requested %s", i, one.Path)
			}
		}
	}
}

// story simulates customers whose webhooks arrive in the order of the test.
type story struct {
	fake *stripefake.Fake
	// posts are the webhooks in the order of arrival.
	posts []*provider.Delivery
	lost  int
	// ambiguous are the customers whose events do not tell the order of their changes.
	ambiguous []string
}

// webhooksOf makes changes and returns their webhooks in the same order.
func (s *story) webhooksOf(changes ...func()) (ds []*provider.Delivery) {
	for _, change := range changes {
		change()
		s.fake.Deliver(func(d *provider.Delivery) bool { ds = append(ds, d); return true })
	}
	return ds
}

// customer creates a customer some time before its changes. rename returns a change of its name.
func (s *story) customer() (id string, rename func(string) func()) {
	create := func() { id = s.fake.Create("", "customer", map[string]any{"name": "Ada"}) }
	s.posts = append(s.posts, s.webhooksOf(create)...)
	s.fake.Advance(2 * time.Second)
	return id, func(name string) func() { return func() { s.fake.Set("", id, map[string]any{"name": name}) } }
}

// defects simulates known defects of other gateways: two updates in one second in either order,
// with and without a usable change-set; one of them repeated; an update after a delete, of an
// earlier or of the same second; and a missing update before a newer one.
func defects(t *testing.T) *story {
	t.Helper()
	s := &story{fake: stripefake.New(t,
		stripefake.Options{Start: time.Now().Add(-2 * time.Minute).Truncate(time.Second)})}
	for _, backward := range []bool{false, true} {
		// With Charles, the change-set tells the order. With Ada, the value returns to the first.
		for _, last := range []string{"Charles", "Ada"} {
			id, rename := s.customer()
			ds := s.webhooksOf(rename("Byron"), rename(last))
			if backward {
				slices.Reverse(ds)
			}
			s.posts = append(s.posts, ds...)
			if last == "Ada" {
				s.ambiguous = append(s.ambiguous, id)
			}
		}
	}
	_, rename := s.customer()
	ds := s.webhooksOf(rename("Byron"), rename("Charles"))
	s.posts = append(s.posts, ds[0], ds[1], ds[0])
	for _, between := range []time.Duration{0, time.Second} {
		id, rename := s.customer()
		late := s.webhooksOf(rename("Byron"))
		s.fake.Advance(between)
		s.posts = append(s.posts, s.webhooksOf(func() { s.fake.ApplyEvent("", id, "customer.deleted") })...)
		s.posts = append(s.posts, late...)
	}
	_, rename = s.customer()
	s.lost = len(s.webhooksOf(rename("Byron")))
	s.fake.Advance(time.Second)
	s.posts = append(s.posts, s.webhooksOf(rename("Charles"))...)
	s.fake.Advance(time.Minute) // later than the time that a run leaves to the next
	return s
}

// postAll posts the webhooks and waits until each has its outcome.
func (r *reloading) postAll(t *testing.T, s *story) {
	t.Helper()
	duplicates := 0
	for _, d := range s.posts {
		if r.mustPost(t, "shop", d).Duplicate {
			duplicates++
		}
	}
	if events := len(s.fake.Events()) - s.lost; duplicates != 1 || len(s.posts) != events+1 {
		t.Fatalf("%d duplicates of %d webhooks about %d events", duplicates, len(s.posts), events)
	}
	r.waitRows(t, 0, `events e WHERE NOT EXISTS (SELECT FROM outcomes o
		WHERE o.event_id = e.id AND o.run = 0 AND o.status NOT IN ('failed', 'dead'))`)
}

// Without an API, the mirror is correct or marks an object as ambiguous. It marks only those whose
// order cannot be known.
func TestProcessor_providerDefectsWithoutAPI_areMarkedAmbiguous(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop: {provider: stripe, secrets: [{name: s, value: %s}]}\n",
		stripefake.Secret), time.Hour)
	r.postAll(t, s)
	slices.Sort(s.ambiguous)
	if flagged := r.db.QueryStrings(t,
		`SELECT object_id FROM objects WHERE ambiguous AND refetch_after <> 0 ORDER BY 1`); !slices.Equal(flagged,
		s.ambiguous) {
		t.Errorf("ambiguous are %v, want %v", flagged, s.ambiguous)
	}
	wrong := r.differingFromStripe(t, s.fake)
	if len(wrong) != len(s.ambiguous) {
		t.Errorf("%d objects differ or are ambiguous, want %d: %v", len(wrong), len(s.ambiguous), wrong)
	}
}

// With an API, ambiguous objects get the provider's state, and a list that is older than newer
// webhooks changes nothing.
func TestProcessor_providerDefectsWithAPI_areResolved(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop:\n    provider: stripe\n    secrets: [{name: s, value: %s}]\n    api: "+
		"{base_url: %s, key: {value: %s}, version: %s, rate: 500}\n",
		stripefake.Secret, s.fake.URL, stripefake.Key, stripefake.Version), time.Hour)
	r.postAll(t, s)
	r.waitUntilEqual(t, s.fake)
	if refetches := s.fake.RequestsByRoute()["GET /v1/customers/{id}"]; refetches != len(s.ambiguous) {
		t.Errorf("%d refetches, want one of each of %v", refetches, s.ambiguous)
	}
	now := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Events})
	if now.Counts[reconcile.Missing] != int64(s.lost) ||
		now.Counts[reconcile.Present] != int64(len(s.fake.Events())-s.lost) {
		t.Errorf("%v, want %d missing of %d", now.Counts, s.lost, len(s.fake.Events()))
	}
	if got := r.db.QueryStrings(t, `SELECT o.status FROM outcomes o JOIN events e ON e.id = o.event_id
		WHERE e.origin = 'reconcile' AND e.event_type <> 'postern.refetch'`); !slices.Equal(got, []string{"stale"}) {
		t.Errorf("outcomes of the missing events: %v, want stale", got)
	}
	if wrong := r.differingFromStripe(t, s.fake); len(wrong) > 0 {
		t.Errorf("%d objects differ from Stripe, the first: %s", len(wrong), wrong[0])
	}
}
