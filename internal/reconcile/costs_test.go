package reconcile_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// priced is an account at a provider's, as far as what is asked of its API depends on it.
type priced struct {
	objectType string
	// events: the API lists them.
	events bool
	create func() string
	// change and remove do so without a webhook that comes.
	change, remove func(id string)
	// deliver delivers the webhooks, and lose loses those of what it does.
	deliver func()
	lose    func(do func())
	advance func(time.Duration)
	order   func(o reconcile.Order) *runs.Run
	// calls are those that were made so far.
	calls func() int
}

// The table of the documentation says what each costs, in calls.
func TestWhatReconcilingCosts(t *testing.T) {
	t.Parallel()
	want := documentedCosts(t)
	for name, account := range map[string]func(*testing.T) *priced{"Stripe": pricedStripe, "GitHub": pricedGitHub, "Shopify": pricedShopify} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want[name], costs(t, account(t))); diff != "" {
				t.Errorf("what docs/reconciliation.md says, and what it is:\n%s", diff)
			}
		})
	}
}

// costs are the calls of each row.
func costs(t *testing.T, p *priced) map[string]string {
	t.Helper()
	got := map[string]string{}
	cost := func(what string, o reconcile.Order) {
		t.Helper()
		before := p.calls()
		if r := p.order(o); r.Status != runs.Done {
			t.Fatalf("%s: %s: %s", what, r.Status, r.Detail)
		}
		got[what] = fmt.Sprint(p.calls() - before)
	}
	object := func(id string) reconcile.Order {
		return reconcile.Order{What: reconcile.Object, Type: p.objectType, ID: id}
	}
	sweep := reconcile.Order{What: reconcile.Objects, Type: p.objectType, Full: true}
	var ids []string
	for range 20 {
		ids = append(ids, p.create())
	}
	p.deliver()
	p.advance(2 * time.Minute)
	cost("a look that finds the object", object(ids[0]))
	p.remove(ids[0])
	p.remove(ids[1])
	p.advance(2 * time.Minute)
	cost("a look that finds nothing", object(ids[0]))
	cost("another one within five minutes", object(ids[1]))
	cost("a sweep of a type that is one page, where all is equal", sweep)
	for _, id := range ids[2:5] {
		p.change(id)
	}
	p.advance(2 * time.Minute)
	cost("the same, where 3 objects differ", sweep)
	for _, id := range ids[5:8] {
		p.remove(id)
	}
	p.advance(2 * time.Minute)
	cost("the same, where 3 objects are gone", sweep)
	const quiet, missing = "a run over events a quarter of an hour after the last, which lacks nothing", "the same, which lacks 3 events"
	if got[quiet], got[missing] = "-", "-"; !p.events {
		return got
	}
	p.order(reconcile.Order{What: reconcile.Events})
	p.create()
	p.deliver()
	p.advance(15 * time.Minute)
	cost(quiet, reconcile.Order{What: reconcile.Events})
	p.lose(func() {
		for range 3 {
			p.create()
		}
	})
	p.advance(15 * time.Minute)
	cost(missing, reconcile.Order{What: reconcile.Events})
	return got
}

func pricedStripe(t *testing.T) *priced {
	t.Helper()
	b := newShop(t, "", stripefake.Options{Seed: 61})
	b.carry(t, b.runner(t, b.api(b.fake.URL), asIs))
	return &priced{objectType: "invoice", events: true, create: func() string { return b.fake.Create("", "invoice", nil) },
		change: func(id string) { b.fake.SetQuietly("", id, map[string]any{"description": "changed"}) }, remove: func(id string) { b.fake.Vanish("", id) },
		deliver: func() { b.deliver(t, every) }, lose: func(do func()) { do(); b.deliver(t, lost) },
		advance: func(d time.Duration) { b.fake.Advance(d) }, order: func(o reconcile.Order) *runs.Run { return b.ask(t, o) }, calls: func() int { return len(b.fake.Requests()) }}
}

func pricedGitHub(t *testing.T) *priced {
	t.Helper()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 1}, nil)
	f.through(t, f.reads.Caller)
	lose := func(do func()) {
		f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
		do()
		f.deliver(t)
		f.fake.SetWebhooks(githubfake.Webhooks{})
	}
	return &priced{objectType: "issue", events: true, create: func() string { return f.fake.Open(0) }, change: func(id string) { lose(func() { f.fake.Edit(id) }) },
		remove: func(id string) { lose(func() { f.fake.Delete(id) }) }, deliver: func() { f.deliver(t) }, lose: lose, advance: func(d time.Duration) { f.fake.Advance(d) },
		order: func(o reconcile.Order) *runs.Run { return f.run(t, o) }, calls: func() int { return len(f.fake.Requests()) }}
}

func pricedShopify(t *testing.T) *priced {
	t.Helper()
	b := newBulkShop(t, shopifyfake.Options{Seed: 62})
	b.api.Bulk = nil
	b.carry(t, b.runner(t))
	return &priced{objectType: "product", create: func() string { return b.fake.Create("product") }, change: func(id string) { b.fake.Change("product", id, true) },
		remove: func(id string) { b.fake.Delete("product", id, true) }, deliver: func() { b.deliver(t, every) },
		advance: func(d time.Duration) { b.fake.Advance(d) }, calls: func() int { return len(b.fake.Requests()) },
		order: func(o reconcile.Order) *runs.Run {
			o.Source = b.Source
			run := b.order(t, o)
			return b.ended(t, run)
		}}
}

// documentedCosts are the numbers of the table, by provider and row.
func documentedCosts(t *testing.T) map[string]map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/reconciliation.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| calls for | ")
	if !found {
		t.Fatal("docs/reconciliation.md has no table of calls")
	}
	table, _, _ = strings.Cut("| calls for | "+table, "\n\n")
	all := map[string]map[string]string{}
	var names []string
	for i, line := range strings.Split(table, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		switch {
		case i == 0:
			names = cells[1:]
			for _, name := range names {
				all[name] = map[string]string{}
			}
		case i > 1:
			for n, name := range names {
				all[name][cells[0]] = cells[n+1]
			}
		}
	}
	return all
}
