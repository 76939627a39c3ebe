package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// Where no list can be asked for what changed, a time is refused, and not ignored.
func TestATimeThatNoListKnowsIsRefused(t *testing.T) {
	t.Parallel()
	b := newShop(t, "", stripefake.Options{Seed: 30})
	b.fake.Create("", "customer", nil)
	b.deliver(t, func(int) bool { return false })
	b.fake.Advance(2 * time.Hour)
	for _, o := range []reconcile.Order{{Type: "customer", Since: b.fake.Now().Add(-time.Minute)}, {Until: b.fake.Now().Add(-time.Minute)}} {
		o.What = reconcile.Objects
		if r := b.asked(t, b.api(b.fake.URL), o); r.Status != runs.Failed || !strings.Contains(r.Detail, "Leave since and until out") {
			t.Errorf("%q: %s: %s", o.Type, r.Status, r.Detail)
		}
	}
	if proven := b.DB.Rows(t, `SELECT what FROM watermarks`); len(proven) > 0 {
		t.Errorf("proven: %q", proven)
	}
}
