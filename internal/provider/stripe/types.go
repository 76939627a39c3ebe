package stripe

// Status orders that several types share. canceled and succeeded end an intent; earlier statuses go
// back and forth.
var (
	intentOrder = [][]string{
		{"requires_payment_method", "requires_confirmation", "requires_action", "requires_capture", "processing"},
		{"succeeded", "canceled"},
	}
	sources = []string{"customer.source", "account.external_account"}
)

func sourceEventNames(action string) []string {
	return []string{sources[0] + "." + action, sources[1] + "." + action}
}

// The paths of a coupon's count of uses, in the objects of older API versions that contain the
// coupon.
const (
	couponUses         = "coupon.times_redeemed"
	discountCouponUses = "discount.coupon.times_redeemed"
)

// treasuryIgnored is the link to the receipt of a treasury movement.
var treasuryIgnored = []string{"hosted_regulatory_receipt_url"}

// types says what Stripe's objects mean for the version rule, by data.object.object, never by the
// event's name (https://docs.stripe.com/api/events/types). It contains only what Stripe documents:
// a guessed order of statuses could be wrong without any sign, while two states of one second
// without an order are shown as ambiguous. Notices (invoice.sent, invoice.will_be_due,
// customer.subscription.trial_will_end, ...) contain the whole object at that time and are read
// like any other event.
var types = map[string]typeRule{
	// Accounts and their objects. account.application.deauthorized contains an application: the
	// account continues to exist. A connected account has one id in live and in test mode.
	"account": {chosenIDs: true},
	"application": {ignoredReason: "an application's authorization was given or withdrawn; this is not " +
		"an object of its own"},
	"capability":   {id: byAccount},
	"person":       {opens: []string{"person.created"}, deletes: []string{"person.deleted"}},
	"card":         {opens: sourceEventNames("created"), deletes: sourceEventNames("deleted")},
	"bank_account": {opens: sourceEventNames("created"), deletes: sourceEventNames("deleted")},
	"source":       {survives: sourceEventNames("deleted")}, // a source is only detached
	// Types with one object per account.
	"balance":          {id: single},
	"balance_settings": {id: single},
	"tax.settings":     {id: single},

	// Customers.
	"customer": {opens: []string{"customer.created"}, deletes: []string{"customer.deleted"},
		final:        true,
		ignoredPaths: []string{discountCouponUses}},
	"cash_balance": {id: byCustomer},
	"discount": {opens: []string{"customer.discount.created"},
		deletes: []string{"customer.discount.deleted"}, final: true, id: byCoupon,
		ignoredPaths: []string{couponUses}},
	"tax_id": {opens: []string{"customer.tax_id.created"}, deletes: []string{"customer.tax_id.deleted"}},
	"entitlements.active_entitlement_summary": {id: byCustomer},

	// Payments. A charge has three possible first events, and a failed refund makes refunded false
	// again.
	"charge":  {ignoredPaths: []string{"receipt_url"}},
	"dispute": {opens: []string{"charge.dispute.created"}},
	"payment_intent": {opens: []string{"payment_intent.created"}, order: intentOrder,
		ignoredPaths: []string{"charges.data.receipt_url"}},
	"setup_intent": {opens: []string{"setup_intent.created"}, order: intentOrder},
	"mandate":      {},
	"payment_link": {opens: []string{"payment_link.created"}},
	// In an event, a payment method without a customer was detached, and is never attached again.
	"payment_method": {status: "customer", order: [][]string{{}, {"null"}}},
	// A refund can be canceled only while it requires an action.
	"refund": {opens: []string{"refund.created"},
		order: [][]string{{"requires_action"}, {"canceled"}}},
	"review":                    {opens: []string{"review.opened"}},
	"radar.early_fraud_warning": {opens: []string{"radar.early_fraud_warning.created"}},
	"checkout.session": {order: [][]string{{"open"}, {"complete", "expired"}},
		ignoredPaths: []string{"client_secret", "url"}},

	// Payouts and transfers. A payout may be shown as paid and then fail. A top-up can be canceled
	// only while it is pending.
	"payout": {opens: []string{"payout.created"},
		order: [][]string{{"pending"}, {"in_transit"}, {"paid", "canceled"}, {"failed"}}},
	"topup":           {opens: []string{"topup.created"}, order: [][]string{{"pending"}, {"canceled"}}},
	"transfer":        {opens: []string{"transfer.created"}},
	"application_fee": {opens: []string{"application_fee.created"}},
	"fee_refund":      {},

	// Billing. An invoice may skip from open to paid or void, and those two are its last statuses.
	"invoice": {opens: []string{"invoice.created"}, deletes: []string{"invoice.deleted"},
		final:        true,
		order:        [][]string{{"draft"}, {"open"}, {"uncollectible"}, {"paid", "void"}},
		ignoredPaths: []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf", discountCouponUses}},
	"invoiceitem":     {opens: []string{"invoiceitem.created"}, deletes: []string{"invoiceitem.deleted"}, final: true},
	"invoice_payment": {},
	"credit_note": {opens: []string{"credit_note.created"}, order: [][]string{{"issued"}, {"void"}},
		ignoredPaths: []string{"pdf"}},
	// customer.subscription.deleted is a cancellation: the subscription remains, canceled, and may
	// still be updated.
	"subscription": {opens: []string{"customer.subscription.created"},
		survives: []string{"customer.subscription.deleted"}, order: [][]string{
			{"incomplete", "trialing", "active", "past_due", "unpaid", "paused"}, {"canceled", "incomplete_expired"}},
		ignoredPaths: []string{discountCouponUses}},
	"subscription_schedule": {opens: []string{"subscription_schedule.created"},
		order: [][]string{{"not_started"}, {"active"}, {"completed", "released", "canceled"}}},
	"quote":    {opens: []string{"quote.created"}},
	"tax_rate": {opens: []string{"tax_rate.created"}},
	"promotion_code": {opens: []string{"promotion_code.created"},
		ignoredPaths: []string{"times_redeemed", couponUses}},

	// The catalogue: users may choose these ids, and reuse one after a delete. A plan and its price
	// share one id, as two types.
	"coupon": {opens: []string{"coupon.created"}, deletes: []string{"coupon.deleted"},
		chosenIDs:    true,
		ignoredPaths: []string{"times_redeemed"}},
	"plan":  {opens: []string{"plan.created"}, deletes: []string{"plan.deleted"}, chosenIDs: true},
	"price": {opens: []string{"price.created"}, deletes: []string{"price.deleted"}, chosenIDs: true},
	"product": {opens: []string{"product.created"}, deletes: []string{"product.deleted"},
		chosenIDs:  true,
		ownVersion: "updated", mayNotAdvance: true},

	"billing.alert": {order: [][]string{{"active", "inactive"}, {"archived"}}},
	"billing.alert_triggered": {
		ignoredReason: "an alert was triggered; this is an occurrence, not an object"},
	"billing.credit_grant":               {opens: []string{"billing.credit_grant.created"}, ownVersion: "updated"},
	"billing.credit_balance_transaction": {opens: []string{"billing.credit_balance_transaction.created"}},
	"billing.meter":                      {opens: []string{"billing.meter.created"}, ownVersion: "updated"},
	"billing_portal.configuration": {opens: []string{"billing_portal.configuration.created"},
		ownVersion: "updated"},
	"billing_portal.session": {opens: []string{"billing_portal.session.created"}},

	// Issuing. The request event precedes the creation of the authorization. An expired
	// authorization may still be captured.
	"issuing.authorization": {opens: []string{"issuing_authorization.request", "issuing_authorization.created"},
		order: [][]string{{"pending"}, {"closed", "reversed", "expired"}}},
	"issuing.card":        {opens: []string{"issuing_card.created"}},
	"issuing.cardholder":  {opens: []string{"issuing_cardholder.created"}},
	"issuing.transaction": {opens: []string{"issuing_transaction.created"}},
	"issuing.dispute":     {opens: []string{"issuing_dispute.created"}},

	// Objects that Stripe offers to all accounts under the same ids.
	"climate.product":       {chosenIDs: true},
	"reporting.report_type": {chosenIDs: true},

	// No event reports an account's balance. The link to a receipt differs in each response, as
	// that of a charge does.
	"treasury.financial_account": {ignoredPaths: []string{"balance"}},
	"treasury.credit_reversal":   {ignoredPaths: treasuryIgnored},
	"treasury.debit_reversal":    {ignoredPaths: treasuryIgnored},
	"treasury.inbound_transfer":  {ignoredPaths: treasuryIgnored},
	"treasury.outbound_payment":  {ignoredPaths: treasuryIgnored},
	"treasury.outbound_transfer": {ignoredPaths: treasuryIgnored},
	"treasury.received_credit":   {ignoredPaths: treasuryIgnored},
	"treasury.received_debit":    {ignoredPaths: treasuryIgnored},

	// Other types. A reader goes online and offline and reports its presence, without an event.
	"terminal.reader": {ignoredPaths: []string{"last_seen_at", "status"}},
	"file":            {opens: []string{"file.created"}},
	"test_helpers.test_clock": {opens: []string{"test_helpers.test_clock.created"},
		deletes: []string{"test_helpers.test_clock.deleted"}, final: true},
	// Verification goes back from processing to requires_input. A redaction keeps the object
	// without its data. The secret and the link to continue it are short-lived.
	"identity.verification_session": {opens: []string{"identity.verification_session.created"},
		order:        [][]string{{"requires_input", "processing"}, {"verified", "canceled"}},
		ignoredPaths: []string{"client_secret", "url"}},
}
