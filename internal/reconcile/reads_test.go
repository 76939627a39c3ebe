package reconcile_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// What a webhook that is named later was sent is read as far back as the provider knows, and nothing is said to be proven of it before that was done.
func TestAWebhookThatIsNamedLater(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 3, Start: time.Now().Add(-60 * time.Hour), Repositories: 2}, nil)
	hooks := f.fake.Hooks()
	f.reads.API.Hooks = hooks[:1]
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Open(1)
	f.fake.Open(1)
	f.fake.SetWebhooks(githubfake.Webhooks{})
	f.deliver(t)
	f.fake.Advance(24 * time.Hour)
	f.carry(t, f.reads.Caller)
	counted := func(order reconcile.Order, missing int64) (since, until time.Time) {
		t.Helper()
		order.What = reconcile.Events
		r := f.run(t, order)
		if r.Status != runs.Done || r.Counts[reconcile.Missing] != missing {
			t.Fatalf("%s: %s, %v, want %d missing", r.Status, r.Detail, r.Counts, missing)
		}
		since, until, err := reconcile.Watermark(t.Context(), f.Pool, f.number, "", reconcile.Events)
		if err != nil {
			t.Fatal(err)
		}
		return since, until
	}
	_, before := counted(reconcile.Order{}, 0)
	f.reads.API.Hooks = hooks
	f.fake.Advance(time.Hour)
	recent := f.fake.Now().Add(-30 * time.Minute)
	if _, until := counted(reconcile.Order{Since: recent}, 0); !until.Equal(before) {
		t.Errorf("proven until %s by a run over half an hour of other webhooks, it was %s", until, before)
	}
	if since, until := counted(reconcile.Order{}, 2); since.After(f.fake.Now().Add(-48*time.Hour)) || !until.After(before) {
		t.Errorf("proven from %s until %s, now it is %s", since, until, f.fake.Now())
	}
}

// What is proven stays until as much was read of what the configuration names now, in however many stretches.
func TestProvenOfOtherLists(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 4, eventTime)
	r := b.runner()
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
	at := func(d time.Duration) time.Time { return time.UnixMicro(sim.Start).Add(d).UTC().Truncate(time.Second) }
	if proven := b.upTo(t, time.Time{}, at(20*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Fatalf("proven until %s", proven)
	}
	other := *r.Sources.All()[b.Source]
	config := *other.Config
	config.Accounts = []string{"*"}
	other.Config = &config
	r.Sources.Replace(&other)
	if proven := b.upTo(t, time.Time{}, at(10*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Errorf("proven until %s by a run that has come to 10 s", proven)
	}
	if proven := b.upTo(t, at(15*time.Second), at(30*time.Second)); !proven.Equal(at(20 * time.Second)) {
		t.Errorf("proven until %s, though nobody has read from 10 s to 15 s", proven)
	}
	if proven := b.upTo(t, time.Time{}, at(25*time.Second)); !proven.Equal(at(25 * time.Second)) {
		t.Errorf("proven until %s, though all was read until 25 s", proven)
	}
	if proven := b.upTo(t, at(24*time.Second), at(30*time.Second)); !proven.Equal(at(30 * time.Second)) {
		t.Errorf("proven until %s, though all was read until 30 s", proven)
	}
}
