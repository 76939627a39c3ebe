package stripe

// on makes the names of one type's events.
func on(prefix string, actions ...string) []string {
	out := make([]string, len(actions))
	for i, a := range actions {
		out[i] = prefix + "." + a
	}
	return out
}

// Orders that several types share. canceled and succeeded end an intent; what comes before goes back and forth.
var (
	intentOrder = [][]string{
		{"requires_payment_method", "requires_confirmation", "requires_action", "requires_capture", "processing"},
		{"succeeded", "canceled"},
	}
	sources = []string{"customer.source", "account.external_account"}
)

func onSources(action string) []string {
	return []string{sources[0] + "." + action, sources[1] + "." + action}
}

// A coupon's count of uses, within what older versions of the API embed it in.
const (
	couponed   = "coupon.times_redeemed"
	discounted = "discount.coupon.times_redeemed"
)

// regulated is the link to a receipt of treasury's movements.
var regulated = []string{"hosted_regulatory_receipt_url"}

// types is what Stripe's objects mean for the version rule, by data.object.object, never by the event's name
// (https://docs.stripe.com/api/events/types). It holds only what Stripe documents: an order of statuses that merely
// looks plausible would be wrong silently where it is wrong, while two states of one second without an order show as
// ambiguous. Notices (invoice.sent, invoice.will_be_due, customer.subscription.trial_will_end, ...) carry the whole
// object as it is then, and are read like any other event.
var types = map[string]row{
	// Accounts and what belongs to them. account.application.deauthorized carries an application: the account lives on.
	// A connected account has one id in live and in test mode.
	"account":      {known: true, chosen: true},
	"application":  {known: true, ignored: "an application's authorization was given or withdrawn; that is no object of its own"},
	"capability":   {known: true, id: byAccount},
	"person":       {known: true, opens: on("person", "created"), deletes: on("person", "deleted")},
	"card":         {known: true, opens: onSources("created"), deletes: onSources("deleted")},
	"bank_account": {known: true, opens: onSources("created"), deletes: onSources("deleted")},
	"source":       {known: true, survives: onSources("deleted")}, // a source is only detached
	// What there is one of in each account.
	"balance":          {known: true, id: single},
	"balance_settings": {known: true, id: single},
	"tax.settings":     {known: true, id: single},

	// Customers.
	"customer":     {known: true, opens: on("customer", "created"), deletes: on("customer", "deleted"), final: true, volatile: []string{discounted}},
	"cash_balance": {known: true, id: byCustomer},
	"discount":     {known: true, opens: on("customer.discount", "created"), deletes: on("customer.discount", "deleted"), final: true, id: byCoupon, volatile: []string{couponed}},
	"tax_id":       {known: true, opens: on("customer.tax_id", "created"), deletes: on("customer.tax_id", "deleted")},
	"entitlements.active_entitlement_summary": {known: true, id: byCustomer},

	// Payments. A charge has three possible first events, and a failed refund takes refunded back.
	"charge":         {known: true, volatile: []string{"receipt_url"}},
	"dispute":        {known: true, opens: on("charge.dispute", "created")},
	"payment_intent": {known: true, opens: on("payment_intent", "created"), order: intentOrder, volatile: []string{"charges.data.receipt_url"}},
	"setup_intent":   {known: true, opens: on("setup_intent", "created"), order: intentOrder},
	"mandate":        {known: true},
	"payment_link":   {known: true, opens: on("payment_link", "created")},
	// A payment method without customer, in an event, was detached, and is never attached again.
	"payment_method": {known: true, status: "customer", order: [][]string{{}, {"null"}}},
	// A refund can be canceled only while it requires an action.
	"refund":                    {known: true, opens: on("refund", "created"), order: [][]string{{"requires_action"}, {"canceled"}}},
	"review":                    {known: true, opens: on("review", "opened")},
	"radar.early_fraud_warning": {known: true, opens: on("radar.early_fraud_warning", "created")},
	"checkout.session":          {known: true, order: [][]string{{"open"}, {"complete", "expired"}}, volatile: []string{"client_secret", "url"}},

	// Money in and out. A payout may show as paid and then fail. A top-up can be canceled only while it is pending.
	"payout": {known: true, opens: on("payout", "created"),
		order: [][]string{{"pending"}, {"in_transit"}, {"paid", "canceled"}, {"failed"}}},
	"topup":           {known: true, opens: on("topup", "created"), order: [][]string{{"pending"}, {"canceled"}}},
	"transfer":        {known: true, opens: on("transfer", "created")},
	"application_fee": {known: true, opens: on("application_fee", "created")},
	"fee_refund":      {known: true},

	// Billing. An invoice may skip from open to paid or void, and those two end it.
	"invoice": {known: true, opens: on("invoice", "created"), deletes: on("invoice", "deleted"), final: true,
		order: [][]string{{"draft"}, {"open"}, {"uncollectible"}, {"paid", "void"}}, volatile: []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf", discounted}},
	"invoiceitem":     {known: true, opens: on("invoiceitem", "created"), deletes: on("invoiceitem", "deleted"), final: true},
	"invoice_payment": {known: true},
	"credit_note":     {known: true, opens: on("credit_note", "created"), order: [][]string{{"issued"}, {"void"}}, volatile: []string{"pdf"}},
	// customer.subscription.deleted is a cancellation: the subscription stays, canceled, and may still be updated.
	"subscription": {known: true, opens: on("customer.subscription", "created"), survives: on("customer.subscription", "deleted"), order: [][]string{
		{"incomplete", "trialing", "active", "past_due", "unpaid", "paused"}, {"canceled", "incomplete_expired"}}, volatile: []string{discounted}},
	"subscription_schedule": {known: true, opens: on("subscription_schedule", "created"),
		order: [][]string{{"not_started"}, {"active"}, {"completed", "released", "canceled"}}},
	"quote":          {known: true, opens: on("quote", "created")},
	"tax_rate":       {known: true, opens: on("tax_rate", "created")},
	"promotion_code": {known: true, opens: on("promotion_code", "created"), volatile: []string{"times_redeemed", couponed}},

	// The catalogue: users may choose these ids, and use one again after a delete. A plan and its price share one id, as
	// two types.
	"coupon": {known: true, opens: on("coupon", "created"), deletes: on("coupon", "deleted"), chosen: true, volatile: []string{"times_redeemed"}},
	"plan":   {known: true, opens: on("plan", "created"), deletes: on("plan", "deleted"), chosen: true},
	"price":  {known: true, opens: on("price", "created"), deletes: on("price", "deleted"), chosen: true},
	"product": {known: true, opens: on("product", "created"), deletes: on("product", "deleted"), chosen: true,
		own: "updated", still: true},

	"billing.alert":                      {known: true, order: [][]string{{"active", "inactive"}, {"archived"}}},
	"billing.alert_triggered":            {known: true, ignored: "an alert was triggered; that is something that happened, and no object"},
	"billing.credit_grant":               {known: true, opens: on("billing.credit_grant", "created"), own: "updated"},
	"billing.credit_balance_transaction": {known: true, opens: on("billing.credit_balance_transaction", "created")},
	"billing.meter":                      {known: true, opens: on("billing.meter", "created"), own: "updated"},
	"billing_portal.configuration":       {known: true, opens: on("billing_portal.configuration", "created"), own: "updated"},
	"billing_portal.session":             {known: true, opens: on("billing_portal.session", "created")},

	// Issuing. The request is asked before the authorization is created; an expired one may still be captured.
	"issuing.authorization": {known: true, opens: on("issuing_authorization", "request", "created"),
		order: [][]string{{"pending"}, {"closed", "reversed", "expired"}}},
	"issuing.card":        {known: true, opens: on("issuing_card", "created")},
	"issuing.cardholder":  {known: true, opens: on("issuing_cardholder", "created")},
	"issuing.transaction": {known: true, opens: on("issuing_transaction", "created")},
	"issuing.dispute":     {known: true, opens: on("issuing_dispute", "created")},

	// What Stripe offers to all under the same ids.
	"climate.product":       {known: true, chosen: true},
	"reporting.report_type": {known: true, chosen: true},

	// No event tells of an account's balance. The link to a receipt is another one in each answer, as that of a charge is.
	"treasury.financial_account": {known: true, volatile: []string{"balance"}},
	"treasury.credit_reversal":   {known: true, volatile: regulated},
	"treasury.debit_reversal":    {known: true, volatile: regulated},
	"treasury.inbound_transfer":  {known: true, volatile: regulated},
	"treasury.outbound_payment":  {known: true, volatile: regulated},
	"treasury.outbound_transfer": {known: true, volatile: regulated},
	"treasury.received_credit":   {known: true, volatile: regulated},
	"treasury.received_debit":    {known: true, volatile: regulated},

	// The rest. A reader goes on and off and tells that it is there, and no event says so.
	"terminal.reader":         {known: true, volatile: []string{"last_seen_at", "status"}},
	"file":                    {known: true, opens: on("file", "created")},
	"test_helpers.test_clock": {known: true, opens: on("test_helpers.test_clock", "created"), deletes: on("test_helpers.test_clock", "deleted"), final: true},
	// Verification goes back from processing to requires_input. A redaction keeps the object without its data. What lets somebody go on with it lives for a short time.
	"identity.verification_session": {known: true, opens: on("identity.verification_session", "created"),
		order: [][]string{{"requires_input", "processing"}, {"verified", "canceled"}}, volatile: []string{"client_secret", "url"}},
}
