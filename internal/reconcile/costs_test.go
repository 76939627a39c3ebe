package reconcile_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// costAccount is an account of a provider, as far as the number of calls depends on it.
type costAccount struct {
	objectType string
	// events: the API lists events.
	events bool
	create func() string
	// change and remove change an object without a webhook.
	change, remove func(id string)
	// deliver delivers the webhooks. loseWebhooks drops the webhooks of a function.
	deliver      func()
	loseWebhooks func(do func())
	advance      func(time.Duration)
	run          func(o reconcile.Params) *runs.Run
	// calls returns the number of calls so far.
	calls func() int
}

// The calls of each operation match the table in the documentation.
func TestReconcile_calls_matchDocumentedCosts(t *testing.T) {
	t.Parallel()
	want := documentedCosts(t)
	for name, account := range map[string]func(*testing.T) *costAccount{"Stripe": stripeCosts, "GitHub": githubCosts,
		"Shopify": shopifyCosts} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Equal(t, "the table in docs/how-to/reconcile-and-repair.md differs", want[name],
				measureCosts(t, account(t)))
		})
	}
}

// measureCosts returns the number of calls of each row.
func measureCosts(t *testing.T, p *costAccount) map[string]string {
	t.Helper()
	got := map[string]string{}
	cost := func(what string, o reconcile.Params) {
		t.Helper()
		before := p.calls()
		if r := p.run(o); r.Status != runs.Done {
			t.Fatalf("%s: %s: %s", what, r.Status, r.Detail)
		}
		got[what] = fmt.Sprint(p.calls() - before)
	}
	object := func(id string) reconcile.Params {
		return reconcile.Params{Scope: reconcile.Object, Type: p.objectType, ID: id}
	}
	fullScan := reconcile.Params{Scope: reconcile.Objects, Type: p.objectType, Full: true}
	var ids []string
	for range 20 {
		ids = append(ids, p.create())
	}
	p.deliver()
	p.advance(2 * time.Minute)
	cost("a refetch that finds the object", object(ids[0]))
	p.remove(ids[0])
	p.remove(ids[1])
	p.advance(2 * time.Minute)
	cost("a refetch that finds nothing", object(ids[0]))
	cost("another one within five minutes", object(ids[1]))
	cost("an object scan of a type with one page, all objects equal", fullScan)
	for _, id := range ids[2:5] {
		p.change(id)
	}
	p.advance(2 * time.Minute)
	cost("the same, with 3 objects that differ", fullScan)
	for _, id := range ids[5:8] {
		p.remove(id)
	}
	p.advance(2 * time.Minute)
	cost("the same, with 3 removed objects", fullScan)
	const quiet, missing = "a run over events a quarter of an hour after the last one, nothing missing",
		"the same, with 3 missing events"
	if got[quiet], got[missing] = "-", "-"; !p.events {
		return got
	}
	p.run(reconcile.Params{Scope: reconcile.Events})
	p.create()
	p.deliver()
	p.advance(15 * time.Minute)
	cost(quiet, reconcile.Params{Scope: reconcile.Events})
	p.loseWebhooks(func() {
		for range 3 {
			p.create()
		}
	})
	p.advance(15 * time.Minute)
	cost(missing, reconcile.Params{Scope: reconcile.Events})
	return got
}

func stripeCosts(t *testing.T) *costAccount {
	t.Helper()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 61})
	b.StartReconciler(t, b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller))
	return &costAccount{objectType: "invoice", events: true,
		create:       func() string { return b.Fake.Create("", "invoice", nil) },
		change:       func(id string) { b.Fake.SetWithoutEvent("", id, map[string]any{"description": "changed"}) },
		remove:       func(id string) { b.Fake.DeleteWithoutEvent("", id) },
		deliver:      func() { b.Deliver(t, reconciled.LoseNone) },
		loseWebhooks: func(do func()) { do(); b.Deliver(t, reconciled.LoseAll) },
		advance:      b.Fake.Advance,
		run:          func(o reconcile.Params) *runs.Run { return b.RunToEnd(t, o) },
		calls:        func() int { return len(b.Fake.Requests()) }}
}

func githubCosts(t *testing.T) *costAccount {
	t.Helper()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour), Repositories: 1}, nil)
	f.StartThrough(t, f.APISource.Caller)
	lose := func(do func()) {
		f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
		do()
		f.Deliver(t)
		f.Fake.SetWebhooks(githubfake.Webhooks{})
	}
	return &costAccount{objectType: "issue", events: true,
		create:       func() string { return f.Fake.OpenIssue(0) },
		change:       func(id string) { lose(func() { f.Fake.Edit(id) }) },
		remove:       func(id string) { lose(func() { f.Fake.Delete(id) }) },
		deliver:      func() { f.Deliver(t) },
		loseWebhooks: lose,
		advance:      f.Fake.Advance,
		run:          func(o reconcile.Params) *runs.Run { return f.RunToEnd(t, o) },
		calls:        func() int { return len(f.Fake.Requests()) }}
}

func shopifyCosts(t *testing.T) *costAccount {
	t.Helper()
	b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 62})
	b.API.Bulk = nil
	b.StartReconciler(t, b.Runner(t))
	return &costAccount{objectType: "product",
		create:  func() string { return b.Fake.Create("product") },
		change:  func(id string) { b.Fake.Change("product", id, true) },
		remove:  func(id string) { b.Fake.Delete("product", id, true) },
		deliver: func() { b.Deliver(t, reconciled.LoseNone) },
		advance: b.Fake.Advance,
		calls:   func() int { return len(b.Fake.Requests()) },
		run:     func(o reconcile.Params) *runs.Run { return b.RunToEnd(t, o) }}
}

// documentedCosts returns the numbers of the table, by provider and row.
func documentedCosts(t *testing.T) map[string]map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/reconcile-and-repair.md")
	testkit.Must(t, err)
	_, table, found := strings.Cut(string(page), "| calls for | ")
	if !found {
		t.Fatal("docs/how-to/reconcile-and-repair.md has no table of calls")
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
