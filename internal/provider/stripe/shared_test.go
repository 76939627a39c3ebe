package stripe_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// Types whose objects other accounts may have under the same names.
func TestSharedTypes(t *testing.T) {
	t.Parallel()
	want := []string{"balance", "balance_settings", "climate.product", "coupon", "plan", "price", "product", "reporting.report_type", "tax.settings"}
	if diff := cmp.Diff(want, stripe.Stripe{}.SharedTypes()); diff != "" {
		t.Error(diff)
	}
}
