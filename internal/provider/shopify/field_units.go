package shopify

import "github.com/postern-gateway/postern/internal/provider"

// FieldUnits implements provider.FieldCatalog: Shopify writes amounts of money as decimal texts.
func (Shopify) FieldUnits() map[provider.FieldUnit][]string {
	return map[provider.FieldUnit][]string{provider.DecimalText: {"amount", "cost", "price", "*_price", "total_*",
		"current_total_*", "outstanding_*", "*_spent"}}
}
