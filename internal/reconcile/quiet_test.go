package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

// quietShop is a shop of so many invoices, whose last event was forty days ago and of which one has gone since; its id.
func quietShop(t *testing.T, invoices int) (b *shop, gone string) {
	t.Helper()
	b = newShop(t, "", stripefake.Options{Seed: 27})
	for range invoices {
		gone = b.fake.Create("", "invoice", nil)
	}
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(time.Minute)
	b.fake.Vanish("", gone)
	b.fake.Advance(40 * 24 * time.Hour)
	return b, gone
}

// On an account that lists no event any more, an object that the same key finds shows whose it is: what is missing is believed.
func TestAQuietAccountsObjectsShowTheKey(t *testing.T) {
	t.Parallel()
	b, gone := quietShop(t, 5)
	if r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}); r.Status != runs.Done {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) != 1 {
		t.Errorf("deleted are %q", dead)
	}
}

// Where nothing at all shows it, a run ends, and a hint waits, with what a person can do.
func TestAQuietAccountThatNothingShows(t *testing.T) {
	t.Parallel()
	b, gone := quietShop(t, 1)
	const advice = "have anything change in the account that makes an event"
	if r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}); r.Status != runs.Failed || !strings.Contains(r.Detail, advice) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	if _, err := reconcile.Wish(t.Context(), b.Operator, versioning.Key{Source: b.Source, Type: "invoice", ID: gone}, "me", "it is gone"); err != nil {
		t.Fatal(err)
	}
	looksOf(t, b.runner(t, b.api(b.fake.URL), asIs), "one")
	testkit.Eventually(t, time.Minute, func() error {
		if got := b.DB.Rows(t, `SELECT object_id FROM hints WHERE due = 'infinity' AND error LIKE '%' || $1 || '%'`, advice); len(got) != 1 {
			return fmt.Errorf("parked are %q of %q", got, b.DB.Rows(t, `SELECT due || error FROM hints`))
		}
		return nil
	})
	if dead := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`); len(dead) > 0 {
		t.Errorf("deleted are %q", dead)
	}
	b.fake.Create("", "invoice", nil)
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(time.Minute)
	if r := b.asked(t, b.api(b.fake.URL), reconcile.Order{What: reconcile.Object, Type: "invoice", ID: gone}); r.Status != runs.Done {
		t.Errorf("with an event: %s: %s", r.Status, r.Detail)
	}
}

// A dry sweep with a key of another account, of which nothing shows that it is not ours, ends once an object is to be believed gone.
func TestADrySweepOfAnotherAccountEnds(t *testing.T) {
	t.Parallel()
	b, _ := quietShop(t, 5)
	other := stripefake.New(t, stripefake.Options{Seed: 28, Start: b.fake.Now()})
	for range 3 {
		other.Create("", "invoice", nil)
	}
	other.Advance(2 * time.Minute)
	foreign := b.api(serve(t, renamed(other).ServeHTTP))
	r := b.asked(t, foreign, reconcile.Order{What: reconcile.Objects, Type: "invoice", DryRun: true})
	if r.Status != runs.Failed || !strings.Contains(r.Detail, "nothing shows that the key") || !strings.Contains(r.Detail, "the newest event that it lists is not in the log") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
}
