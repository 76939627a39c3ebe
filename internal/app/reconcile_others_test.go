package app_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// startGitHub starts everything with a source of the fake's.
func startGitHub(t *testing.T, fake *githubfake.Fake, key, more string) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  code:\n    provider: github\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, rate: 500, hooks: [%s], repositories: [%s]%s}\n",
		githubfake.Secret, fake.URL, key, strings.Join(fake.Hooks(), ", "), strings.Join(fake.Repositories(), ", "), more))
}

// A webhook of GitHub's that is lost is lost: half of them are, some come twice, late or in another order, and some GitHub takes for received. After one run over what it says it
// sent, and the looks that are owed, the mirror is GitHub's, and what comes after all is a duplicate.
func TestReconcileGitHub(t *testing.T) {
	t.Parallel()
	fake := githubfake.New(t, githubfake.Options{Seed: 3, Running: true, Start: time.Now(), Objects: 12,
		Webhooks: githubfake.Webhooks{Lost: 40, Swallowed: 10, Doubled: 10, Shuffled: 30, Delayed: 5, Delay: time.Hour}, Faults: githubfake.Faults{Hurried: 1, Broken: 3, Dropped: 2}})
	r := startGitHub(t, fake, githubfake.Key, "")
	fake.Live(150)
	fake.Deliver(r.taking(t, "code"))
	fake.Advance(time.Hour) // behind what a run leaves to the next
	fake.Deliver(r.taking(t, "code"))
	fake.Advance(time.Minute)
	if wrong := r.againstGitHub(t, fake); len(wrong) == 0 {
		t.Fatal("nothing is wrong: there is nothing to prove")
	}
	run := r.reconciled(t, reconcile.Order{What: reconcile.Events})
	c := run.Counts
	if run.Status != runs.Done || c[reconcile.Missing] == 0 || c[reconcile.Undelivered] == 0 || c[reconcile.Undelivered] >= c[reconcile.Missing] ||
		c[reconcile.Seen] != c[reconcile.Missing]+c[reconcile.Present] || c[reconcile.Conflicting] != 0 {
		t.Errorf("%s with %v: %s", run.Status, c, run.Detail)
	}
	r.alike(t, func() []theirs { return r.againstGitHub(t, fake) })
	if again := r.reconciled(t, reconcile.Order{What: reconcile.Events}); again.Status != runs.Done || again.Counts[reconcile.Missing] != 0 || again.Counts[reconcile.Seen] == 0 {
		t.Errorf("again: %s with %v: %s", again.Status, again.Counts, again.Detail)
	}
}

// againstGitHub are the objects that the mirror does not show as they are, but for what changes without a version, or is told
// by webhooks or the API alone.
func (r *reloading) againstGitHub(t *testing.T, fake *githubfake.Fake) []theirs {
	t.Helper()
	var all []theirs
	for _, o := range fake.Truth() {
		all = append(all, theirs{kind: o.Type, id: o.ID, body: o.Body})
	}
	return r.differing(t, all, canonical.Options{DropNull: true, Without: []string{"closed_by", "delete_branch_on_merge", "mergeable",
		"mergeable_state", "network_count", "permissions", "short_description_html", "squash_merge_commit_title"}}, false)
}

// GitHub's objects are read by what is known of them, not by their names: an event that comes late owes them a look all the same, and none those of a type that the API does not read.
func TestLateEventsOfGitHubOweLooks(t *testing.T) {
	t.Parallel()
	fake := githubfake.New(t, githubfake.Options{Seed: 5, Running: true, Start: time.Now(), Objects: 12})
	r := startGitHub(t, fake, githubfake.Key, "")
	lived := func(n int) {
		t.Helper()
		fake.Live(n)
		fake.Deliver(r.taking(t, "code"))
		r.applied(t)
	}
	lived(40)
	r.db.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT DISTINCT source, account, 'type ' || object_type, to_timestamp(0), now() + interval '1 day', 1, now() FROM objects`)
	if hints := r.db.Rows(t, `SELECT object_id FROM hints WHERE reason = 'an event came late'`); len(hints) > 0 {
		t.Fatalf("hints before anything is proven: %q", hints)
	}
	lived(40)
	if hints := r.db.Rows(t, `SELECT object_id FROM hints WHERE reason = 'an event came late'`); len(hints) == 0 {
		t.Error("no late event owes a look")
	}
	if odd := r.db.Rows(t, `SELECT object_type FROM hints WHERE reason = 'an event came late' AND object_type NOT IN ('repository', 'label', 'issue', 'pull_request', 'milestone', 'issue_comment',
		'pull_request_review_comment', 'commit_comment', 'release', 'deployment', 'deployment_status', 'workflow_run', 'workflow_job', 'check_suite', 'check_run')`); len(odd) > 0 {
		t.Errorf("looks are owed of %q, which GitHub does not read", odd)
	}
}

// startShop starts a gateway and a processor that read the API of a fake shop.
func startShop(t *testing.T, fake *shopifyfake.Fake) *reloading {
	t.Helper()
	return startReading(t, fmt.Sprintf("  shop:\n    provider: shopify\n    account: %s\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, rate: 500, concurrency: 8}\n",
		shopifyfake.Shop, shopifyfake.Secret, fake.URL, shopifyfake.Key))
}

// A shop loses half of its webhooks, some changes send none, and REST answers in a shape of its own: each object that is looked at is then as the shop has it, whatever the faults.
func TestLooksOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 7, Running: true, Start: time.Now(), Quiet: 10, Objects: 4, Webhooks: shopifyfake.Webhooks{Lost: 50, Shuffled: 30},
		Faults: shopifyfake.Faults{Throttled: 3, Broken: 3}})
	r := startShop(t, fake)
	fake.Live(100)
	for range 8 {
		fake.Create("refund")
	}
	r.deliver(t, fake)
	wrong := r.againstShop(t, fake)
	if len(wrong) < 5 || !slices.ContainsFunc(wrong, func(o theirs) bool { return o.kind == "refund" }) {
		t.Fatalf("%d objects are wrong: nothing is proven", len(wrong))
	}
	for _, o := range wrong {
		r.done(t, reconcile.Order{What: reconcile.Object, Type: o.kind, ID: o.id})
	}
	r.untilLikeShop(t, fake)
}

// deliver sends what is due to the source, and waits until it is applied.
func (r *reloading) deliver(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	fake.Deliver(r.taking(t, "shop"))
	r.applied(t)
}

func (r *reloading) untilLikeShop(t *testing.T, fake *shopifyfake.Fake) {
	t.Helper()
	r.alike(t, func() []theirs { return r.againstShop(t, fake) })
}

// againstShop are the objects that the mirror does not show as the shop has them, but for what REST alone carries. What was never
// told of and is gone may be unknown.
func (r *reloading) againstShop(t *testing.T, fake *shopifyfake.Fake) []theirs {
	t.Helper()
	var all []theirs
	for _, o := range fake.Truth() {
		all = append(all, theirs{kind: o.Type, id: o.ID, body: o.Body})
	}
	return r.differing(t, all, canonical.Options{Without: []string{"rest_only"}}, true)
}

// A shop loses half of its webhooks and sends none for some changes. An object scan over everything makes the mirror the shop's,
// also where objects were deleted quietly.
func TestSweepsOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 8, Running: true, Start: time.Now(), Quiet: 10, Objects: 6, Shapes: true, Webhooks: shopifyfake.Webhooks{Lost: 50, Shuffled: 30},
		Faults: shopifyfake.Faults{Throttled: 2, Broken: 2, Expired: 2}})
	r := startShop(t, fake)
	fake.Live(75)
	r.deliver(t, fake)
	fake.Live(75)
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
	fake.Advance(2 * time.Minute) // behind what the lists may not know yet
	if wrong := r.againstShop(t, fake); len(wrong) < 10 {
		t.Fatalf("%d objects are wrong: nothing is proven", len(wrong))
	}
	counts := r.done(t, reconcile.Order{What: reconcile.Objects}).Counts
	if counts[reconcile.Missing] == 0 || counts[reconcile.Behind] == 0 || counts[reconcile.Ghosts] < 2 {
		t.Errorf("the scan counted %v", counts)
	}
	r.untilLikeShop(t, fake)
}

// A key without read_all_orders sees no order of more than 60 days ago: the sweep says so, and makes no tombstone of it.
func TestOldOrdersOfAShop(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Running: true, Start: time.Now(), Scopes: []string{"read_orders", "read_fulfillments"}})
	r := startShop(t, fake)
	fake.Create("order")
	r.deliver(t, fake)
	r.untilLikeShop(t, fake)
	fake.Advance(61 * 24 * time.Hour)
	if run := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: "order", Full: true}); run.Status != runs.Failed ||
		!strings.Contains(run.Detail, "read_all_orders") {
		t.Errorf("the run is %s: %s", run.Status, run.Detail)
	}
	for _, o := range r.againstShop(t, fake) {
		if o.kind == "order" {
			t.Errorf("not as the shop has it: %s", o)
		}
	}
}

// What webhooks have told costs a sweep no call of its own, where its list tells whole objects: whose shape differs from the webhooks', it is taken from the page, once.
func TestSweepOfAShopThatIsMirrored(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 10, Running: true, Start: time.Now(), Shapes: true})
	types := []string{"order", "product", "customer", "fulfillment"}
	for _, name := range types {
		for range 8 {
			fake.Create(name)
		}
	}
	r := startShop(t, fake)
	r.deliver(t, fake)
	r.untilLikeShop(t, fake)
	fake.Advance(2 * time.Minute) // behind what the lists may not know yet
	for i, kind := range []string{reconcile.Different, reconcile.Equal} {
		fake.Forget()
		for _, name := range types {
			counts := r.done(t, reconcile.Order{What: reconcile.Objects, Type: name, Full: true}).Counts
			if counts[kind] != counts[reconcile.Seen] || counts[reconcile.Seen] < 8 || i == 0 && counts[reconcile.Mended] != counts[reconcile.Seen] {
				t.Errorf("%s: sweep %d counted %v", name, i, counts)
			}
		}
		for _, one := range fake.Requests() {
			if one.Method == http.MethodGet && !strings.HasSuffix(one.Path, "s.json") {
				t.Errorf("sweep %d asked for %s", i, one.Path)
			}
		}
	}
}

// story is a life of customers whose webhooks come as tests want, not as they happened.
type story struct {
	fake *stripefake.Fake
	// posts are the webhooks in the order in which they come.
	posts []*provider.Delivery
	lost  int
	// doubtful are those whose order nothing in their events tells.
	doubtful []string
}

// told are the webhooks of what happens.
func (s *story) told(happens ...func()) (ds []*provider.Delivery) {
	for _, one := range happens {
		one()
		s.fake.Deliver(func(d *provider.Delivery) bool { ds = append(ds, d); return true })
	}
	return ds
}

// customer makes one a while before what happens to it.
func (s *story) customer() (id string, named func(string) func()) {
	s.posts = append(s.posts, s.told(func() { id = s.fake.Create("", "customer", map[string]any{"name": "Ada"}) })...)
	s.fake.Advance(2 * time.Second)
	return id, func(name string) func() { return func() { s.fake.Set("", id, map[string]any{"name": name}) } }
}

// defects is what other gateways are known to get wrong: two updates in one second in either order, where their change-sets tell the order and where they do not; one of
// them again; an update after a delete, of an earlier second or of the same; and an update that is missing, behind which a newer one has come.
func defects(t *testing.T) *story {
	t.Helper()
	s := &story{fake: stripefake.New(t, stripefake.Options{Start: time.Now().Add(-2 * time.Minute).Truncate(time.Second)})}
	for _, backward := range []bool{false, true} {
		for _, last := range []string{"Charles", "Ada"} { // told by the change-sets, and not: it came back to what it was
			id, named := s.customer()
			ds := s.told(named("Byron"), named(last))
			if backward {
				slices.Reverse(ds)
			}
			s.posts = append(s.posts, ds...)
			if last == "Ada" {
				s.doubtful = append(s.doubtful, id)
			}
		}
	}
	_, named := s.customer()
	ds := s.told(named("Byron"), named("Charles"))
	s.posts = append(s.posts, ds[0], ds[1], ds[0])
	for _, between := range []time.Duration{0, time.Second} {
		id, named := s.customer()
		late := s.told(named("Byron"))
		s.fake.Advance(between)
		s.posts = append(s.posts, s.told(func() { s.fake.Do("", id, "customer.deleted") })...)
		s.posts = append(s.posts, late...)
	}
	_, named = s.customer()
	s.lost = len(s.told(named("Byron")))
	s.fake.Advance(time.Second)
	s.posts = append(s.posts, s.told(named("Charles"))...)
	s.fake.Advance(time.Minute) // behind what a run leaves to the next
	return s
}

// come posts the webhooks, and waits until each has its outcome.
func (r *reloading) come(t *testing.T, s *story) {
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

// Without the API's word the mirror is right, or says of an object that it is in doubt: of those alone whose order nothing tells.
func TestDefectsOfOthersAreNeverSilent(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop: {provider: stripe, secrets: [{name: s, value: %s}]}\n", stripefake.Secret), time.Hour)
	r.come(t, s)
	slices.Sort(s.doubtful)
	if flagged := r.db.Rows(t, `SELECT object_id FROM objects WHERE ambiguous AND look_after <> 0 ORDER BY 1`); !slices.Equal(flagged, s.doubtful) {
		t.Errorf("in doubt are %v, want %v", flagged, s.doubtful)
	}
	wrong := r.against(t, s.fake)
	if len(wrong) != len(s.doubtful) {
		t.Errorf("%d objects are wrong or in doubt, want %d: %v", len(wrong), len(s.doubtful), wrong)
	}
}

// With it all doubt ends in what the provider has, and what a list brings behind newer webhooks changes nothing.
func TestDefectsOfOthersAreSettled(t *testing.T) {
	t.Parallel()
	s := defects(t)
	r := startReloading(t, fmt.Sprintf("  shop:\n    provider: stripe\n    secrets: [{name: s, value: %s}]\n    api: {base_url: %s, key: {value: %s}, version: %s, rate: 500}\n",
		stripefake.Secret, s.fake.URL, stripefake.Key, stripefake.Version), time.Hour)
	r.come(t, s)
	r.become(t, s.fake)
	if looks := s.fake.Counts()["GET /v1/customers/{id}"]; looks != len(s.doubtful) {
		t.Errorf("%d looks, want one at each of %v", looks, s.doubtful)
	}
	now := r.done(t, reconcile.Order{What: reconcile.Events})
	if now.Counts[reconcile.Missing] != int64(s.lost) || now.Counts[reconcile.Present] != int64(len(s.fake.Events())-s.lost) {
		t.Errorf("%v, want %d missing of %d", now.Counts, s.lost, len(s.fake.Events()))
	}
	if got := r.db.Rows(t, `SELECT o.status FROM outcomes o JOIN events e ON e.id = o.event_id WHERE e.origin = 'reconcile' AND e.event_type <> 'postern.look'`); !slices.Equal(got, []string{"stale"}) {
		t.Errorf("what was missing is %v", got)
	}
	if wrong := r.against(t, s.fake); len(wrong) > 0 {
		t.Errorf("%d objects are not as Stripe has them, the first: %s", len(wrong), wrong[0])
	}
}
