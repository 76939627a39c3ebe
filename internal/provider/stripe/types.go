package stripe

// eventNames returns the event types of one object type.
func eventNames(prefix string, actions ...string) []string {
	out := make([]string, len(actions))
	for i, a := range actions {
		out[i] = prefix + "." + a
	}
	return out
}

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
	"account": {listed: true, chosenIDs: true},
	"application": {listed: true, ignoredReason: "an application's authorization was given or withdrawn; this is not " +
		"an object of its own"},
	"capability":   {listed: true, id: byAccount},
	"person":       {listed: true, opens: eventNames("person", "created"), deletes: eventNames("person", "deleted")},
	"card":         {listed: true, opens: sourceEventNames("created"), deletes: sourceEventNames("deleted")},
	"bank_account": {listed: true, opens: sourceEventNames("created"), deletes: sourceEventNames("deleted")},
	"source":       {listed: true, survives: sourceEventNames("deleted")}, // a source is only detached
	// Types with one object per account.
	"balance":          {listed: true, id: single},
	"balance_settings": {listed: true, id: single},
	"tax.settings":     {listed: true, id: single},

	// Customers.
	"customer": {listed: true, opens: eventNames("customer", "created"), deletes: eventNames("customer", "deleted"),
		final:        true,
		ignoredPaths: []string{discountCouponUses}},
	"cash_balance": {listed: true, id: byCustomer},
	"discount": {listed: true, opens: eventNames("customer.discount", "created"),
		deletes: eventNames("customer.discount", "deleted"), final: true, id: byCoupon,
		ignoredPaths: []string{couponUses}},
	"tax_id": {listed: true, opens: eventNames("customer.tax_id", "created"),
		deletes: eventNames("customer.tax_id", "deleted")},
	"entitlements.active_entitlement_summary": {listed: true, id: byCustomer},

	// Payments. A charge has three possible first events, and a failed refund makes refunded false
	// again.
	"charge":  {listed: true, ignoredPaths: []string{"receipt_url"}},
	"dispute": {listed: true, opens: eventNames("charge.dispute", "created")},
	"payment_intent": {listed: true, opens: eventNames("payment_intent", "created"), order: intentOrder,
		ignoredPaths: []string{"charges.data.receipt_url"}},
	"setup_intent": {listed: true, opens: eventNames("setup_intent", "created"), order: intentOrder},
	"mandate":      {listed: true},
	"payment_link": {listed: true, opens: eventNames("payment_link", "created")},
	// In an event, a payment method without a customer was detached, and is never attached again.
	"payment_method": {listed: true, status: "customer", order: [][]string{{}, {"null"}}},
	// A refund can be canceled only while it requires an action.
	"refund": {listed: true, opens: eventNames("refund", "created"),
		order: [][]string{{"requires_action"}, {"canceled"}}},
	"review":                    {listed: true, opens: eventNames("review", "opened")},
	"radar.early_fraud_warning": {listed: true, opens: eventNames("radar.early_fraud_warning", "created")},
	"checkout.session": {listed: true, order: [][]string{{"open"}, {"complete", "expired"}},
		ignoredPaths: []string{"client_secret", "url"}},

	// Payouts and transfers. A payout may be shown as paid and then fail. A top-up can be canceled
	// only while it is pending.
	"payout": {listed: true, opens: eventNames("payout", "created"),
		order: [][]string{{"pending"}, {"in_transit"}, {"paid", "canceled"}, {"failed"}}},
	"topup": {listed: true, opens: eventNames("topup", "created"),
		order: [][]string{{"pending"}, {"canceled"}}},
	"transfer":        {listed: true, opens: eventNames("transfer", "created")},
	"application_fee": {listed: true, opens: eventNames("application_fee", "created")},
	"fee_refund":      {listed: true},

	// Billing. An invoice may skip from open to paid or void, and those two are its last statuses.
	"invoice": {listed: true, opens: eventNames("invoice", "created"), deletes: eventNames("invoice", "deleted"),
		final:        true,
		order:        [][]string{{"draft"}, {"open"}, {"uncollectible"}, {"paid", "void"}},
		ignoredPaths: []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf", discountCouponUses}},
	"invoiceitem": {listed: true, opens: eventNames("invoiceitem", "created"),
		deletes: eventNames("invoiceitem", "deleted"),
		final:   true},
	"invoice_payment": {listed: true},
	"credit_note": {listed: true, opens: eventNames("credit_note", "created"), order: [][]string{{"issued"}, {"void"}},
		ignoredPaths: []string{"pdf"}},
	// customer.subscription.deleted is a cancellation: the subscription remains, canceled, and may
	// still be updated.
	"subscription": {listed: true, opens: eventNames("customer.subscription", "created"),
		survives: eventNames("customer.subscription", "deleted"), order: [][]string{
			{"incomplete", "trialing", "active", "past_due", "unpaid", "paused"}, {"canceled", "incomplete_expired"}},
		ignoredPaths: []string{discountCouponUses}},
	"subscription_schedule": {listed: true, opens: eventNames("subscription_schedule", "created"),
		order: [][]string{{"not_started"}, {"active"}, {"completed", "released", "canceled"}}},
	"quote":    {listed: true, opens: eventNames("quote", "created")},
	"tax_rate": {listed: true, opens: eventNames("tax_rate", "created")},
	"promotion_code": {listed: true, opens: eventNames("promotion_code", "created"),
		ignoredPaths: []string{"times_redeemed", couponUses}},

	// The catalogue: users may choose these ids, and reuse one after a delete. A plan and its price
	// share one id, as two types.
	"coupon": {listed: true, opens: eventNames("coupon", "created"), deletes: eventNames("coupon", "deleted"),
		chosenIDs:    true,
		ignoredPaths: []string{"times_redeemed"}},
	"plan": {listed: true, opens: eventNames("plan", "created"), deletes: eventNames("plan", "deleted"),
		chosenIDs: true},
	"price": {listed: true, opens: eventNames("price", "created"), deletes: eventNames("price", "deleted"),
		chosenIDs: true},
	"product": {listed: true, opens: eventNames("product", "created"), deletes: eventNames("product", "deleted"),
		chosenIDs:  true,
		ownVersion: "updated", mayNotAdvance: true},

	"billing.alert": {listed: true, order: [][]string{{"active", "inactive"}, {"archived"}}},
	"billing.alert_triggered": {listed: true,
		ignoredReason: "an alert was triggered; this is an occurrence, not an object"},
	"billing.credit_grant": {listed: true, opens: eventNames("billing.credit_grant", "created"),
		ownVersion: "updated"},
	"billing.credit_balance_transaction": {listed: true,
		opens: eventNames("billing.credit_balance_transaction", "created")},
	"billing.meter": {listed: true, opens: eventNames("billing.meter", "created"),
		ownVersion: "updated"},
	"billing_portal.configuration": {listed: true, opens: eventNames("billing_portal.configuration", "created"),
		ownVersion: "updated"},
	"billing_portal.session": {listed: true, opens: eventNames("billing_portal.session", "created")},

	// Issuing. The request event precedes the creation of the authorization. An expired
	// authorization may still be captured.
	"issuing.authorization": {listed: true, opens: eventNames("issuing_authorization", "request", "created"),
		order: [][]string{{"pending"}, {"closed", "reversed", "expired"}}},
	"issuing.card":        {listed: true, opens: eventNames("issuing_card", "created")},
	"issuing.cardholder":  {listed: true, opens: eventNames("issuing_cardholder", "created")},
	"issuing.transaction": {listed: true, opens: eventNames("issuing_transaction", "created")},
	"issuing.dispute":     {listed: true, opens: eventNames("issuing_dispute", "created")},

	// Objects that Stripe offers to all accounts under the same ids.
	"climate.product":       {listed: true, chosenIDs: true},
	"reporting.report_type": {listed: true, chosenIDs: true},

	// No event reports an account's balance. The link to a receipt differs in each response, as
	// that of a charge does.
	"treasury.financial_account": {listed: true, ignoredPaths: []string{"balance"}},
	"treasury.credit_reversal":   {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.debit_reversal":    {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.inbound_transfer":  {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.outbound_payment":  {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.outbound_transfer": {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.received_credit":   {listed: true, ignoredPaths: treasuryIgnored},
	"treasury.received_debit":    {listed: true, ignoredPaths: treasuryIgnored},

	// Other types. A reader goes online and offline and reports its presence, without an event.
	"terminal.reader": {listed: true, ignoredPaths: []string{"last_seen_at", "status"}},
	"file":            {listed: true, opens: eventNames("file", "created")},
	"test_helpers.test_clock": {listed: true, opens: eventNames("test_helpers.test_clock", "created"),
		deletes: eventNames("test_helpers.test_clock", "deleted"), final: true},
	// Verification goes back from processing to requires_input. A redaction keeps the object
	// without its data. The secret and the link to continue it are short-lived.
	"identity.verification_session": {listed: true, opens: eventNames("identity.verification_session", "created"),
		order:        [][]string{{"requires_input", "processing"}, {"verified", "canceled"}},
		ignoredPaths: []string{"client_secret", "url"}},
}
