package stripe

import "github.com/postern-gateway/postern/internal/provider"

// FieldUnits implements provider.FieldCatalog: Stripe writes all times as Unix seconds. Amounts are
// whole numbers of the currency's smallest unit.
func (Stripe) FieldUnits() map[provider.FieldUnit][]string {
	return map[provider.FieldUnit][]string{provider.UnixSeconds: {"created", "updated", "*_at", "*_on", "*_date",
		"*_start", "*_end", "billing_cycle_anchor", "next_payment_attempt", "next_pending_invoice_item_invoice"}}
}
