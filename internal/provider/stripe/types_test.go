package stripe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// observed reads a small event of a type about an object.
func observed(event, object string) string {
	body := fmt.Sprintf(`{"id": "evt_1", "object": "event", "created": 100, "type": %q, "data": {"object": %s}}`,
		event, object)
	return providertest.Summary(stripe.Stripe{}.Observe(&provider.Source{},
		&provider.StoredEvent{Type: event, Body: []byte(body)}))
}

// Each rule of the table: what opens, what deletes, ranks, the version, and the object's name.
func TestObserve_everyType_followsItsRule(t *testing.T) {
	t.Parallel()
	const at = ", at 100000000/1000000, "
	const (
		invoiceURLs  = ", without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"
		discountUses = ", without discount.coupon.times_redeemed"
		receiptURL   = ", without hosted_regulatory_receipt_url"
		chargeURL    = ", without charges.data.receipt_url"
		secretURL    = ", without client_secret url"
		couponUses   = ", without coupon.times_redeemed"
	)
	tested := map[string]bool{}
	check := func(event, object, want string) {
		t.Helper()
		if got := observed(event, object); got != want {
			t.Errorf("%s %s:\n got %s\nwant %s", event, object, got, want)
		}
	}
	// Further members of the object, and the summary after the object's name and the event's time.
	for _, test := range []struct{ event, objectType, id, more, want string }{
		{"account.updated", "account", "acct_1", "", "rank 1"},
		{"person.created", "person", "person_1", "", "rank 1"},
		{"person.deleted", "person", "person_1", "", "rank 1, deleted"},
		{"customer.source.deleted", "card", "card_1", "", "rank 1, deleted"},
		{"customer.source.expiring", "card", "card_1", "", "rank 1"},
		{"account.external_account.created", "bank_account", "ba_1", "", "rank 1"},
		{"account.external_account.deleted", "bank_account", "ba_1", "", "rank 1, deleted"},
		{"customer.source.deleted", "source", "src_1", "", "rank 1"},
		{"account.external_account.deleted", "source", "src_1", "", "rank 1"},

		{"customer.created", "customer", "cus_1", "", "rank 0" + discountUses},
		{"customer.updated", "customer", "cus_1", `"test_clock": "clock_1"`, "rank 1, any time" + discountUses},
		{"customer.deleted", "customer", "cus_1", "", "rank 1, deleted, final" + discountUses},
		{"customer.discount.created", "discount", "di_1", `"customer": "cus_1"`, "rank 0" + couponUses},
		{"customer.discount.deleted", "discount", "di_1", `"customer": "cus_1"`, "rank 1, deleted, final" + couponUses},
		{"customer.tax_id.deleted", "tax_id", "txi_1", "", "rank 1, deleted"},

		{"charge.pending", "charge", "ch_1", `"status": "pending"`, "rank 1, without receipt_url"},
		{"charge.succeeded", "charge", "ch_1", `"status": "succeeded"`, "rank 1, without receipt_url"},
		{"charge.dispute.created", "dispute", "dp_1", "", "rank 0"},
		{"charge.dispute.closed", "dispute", "dp_1", `"status": "lost"`, "rank 1"},
		{"payment_intent.created", "payment_intent", "pi_1", `"status": "succeeded"`, "rank 0" + chargeURL},
		{"payment_intent.processing", "payment_intent", "pi_1", `"status": "processing"`, "rank 1" + chargeURL},
		{"payment_intent.succeeded", "payment_intent", "pi_1", `"status": "succeeded"`, "rank 2" + chargeURL},
		{"setup_intent.canceled", "setup_intent", "seti_1", `"status": "canceled"`, "rank 2"},
		{"setup_intent.created", "setup_intent", "seti_1", "", "rank 0"},
		{"mandate.updated", "mandate", "mandate_1", "", "rank 1"},
		{"payment_link.created", "payment_link", "plink_1", "", "rank 0"},
		{"payment_method.attached", "payment_method", "pm_1", `"customer": "cus_1"`, "rank 1"},
		{"payment_method.detached", "payment_method", "pm_1", `"customer": null`, "rank 2"},
		{"refund.created", "refund", "re_1", `"status": "pending"`, "rank 0"},
		{"charge.refund.updated", "refund", "re_1", `"status": "failed"`, "rank 1"},
		{"refund.updated", "refund", "re_1", `"status": "canceled"`, "rank 2"},
		{"review.opened", "review", "prv_1", "", "rank 0"},
		{"radar.early_fraud_warning.created", "radar.early_fraud_warning", "issfr_1", "", "rank 0"},
		{"checkout.session.completed", "checkout.session", "cs_1", `"status": "complete"`, "rank 2" + secretURL},
		{"checkout.session.expired", "checkout.session", "cs_1", `"status": "open"`, "rank 1" + secretURL},

		{"payout.created", "payout", "po_1", `"status": "pending"`, "rank 0"},
		{"payout.updated", "payout", "po_1", `"status": "pending"`, "rank 1"},
		{"payout.updated", "payout", "po_1", `"status": "in_transit"`, "rank 2"},
		{"payout.paid", "payout", "po_1", `"status": "paid"`, "rank 3"},
		{"payout.canceled", "payout", "po_1", `"status": "canceled"`, "rank 3"},
		{"payout.failed", "payout", "po_1", `"status": "failed"`, "rank 4"},
		{"topup.canceled", "topup", "tu_1", `"status": "canceled"`, "rank 2"},
		{"topup.created", "topup", "tu_1", "", "rank 0"},
		{"transfer.created", "transfer", "tr_1", "", "rank 0"},
		{"transfer.reversed", "transfer", "tr_1", "", "rank 1"},
		{"application_fee.created", "application_fee", "fee_1", "", "rank 0"},
		{"application_fee.refund.updated", "fee_refund", "fr_1", "", "rank 1"},

		{"invoice.created", "invoice", "in_1", `"status": "draft"`, "rank 0" + invoiceURLs},
		{"invoice.updated", "invoice", "in_1", `"status": "draft"`, "rank 1" + invoiceURLs},
		{"invoice.sent", "invoice", "in_1", `"status": "open"`, "rank 2" + invoiceURLs},
		{"invoice.marked_uncollectible", "invoice", "in_1", `"status": "uncollectible"`, "rank 3" + invoiceURLs},
		{"invoice.paid", "invoice", "in_1", `"status": "paid"`, "rank 4" + invoiceURLs},
		{"invoice.voided", "invoice", "in_1", `"status": "void"`, "rank 4" + invoiceURLs},
		{"invoice.deleted", "invoice", "in_1", `"status": "draft"`, "rank 1, deleted, final" + invoiceURLs},
		{"invoiceitem.created", "invoiceitem", "ii_1", "", "rank 0"},
		{"invoiceitem.deleted", "invoiceitem", "ii_1", "", "rank 1, deleted, final"},
		{"invoice_payment.paid", "invoice_payment", "inpay_1", `"status": "paid"`, "rank 1"},
		{"credit_note.voided", "credit_note", "cn_1", `"status": "void"`, "rank 2, without pdf"},
		{"credit_note.created", "credit_note", "cn_1", `"status": "issued"`, "rank 0, without pdf"},
		{"customer.subscription.created", "subscription", "sub_1", `"status": "incomplete"`, "rank 0" + discountUses},
		{"customer.subscription.updated", "subscription", "sub_1", `"status": "past_due"`, "rank 1" + discountUses},
		{"customer.subscription.updated", "subscription", "sub_1", `"status": "incomplete_expired"`,
			"rank 2" + discountUses},
		{"customer.subscription.deleted", "subscription", "sub_1", `"status": "canceled"`, "rank 2" + discountUses},
		{"subscription_schedule.created", "subscription_schedule", "sub_sched_1", "", "rank 0"},
		{"subscription_schedule.updated", "subscription_schedule", "sub_sched_1", `"status": "active"`, "rank 2"},
		{"subscription_schedule.released", "subscription_schedule", "sub_sched_1", `"status": "released"`, "rank 3"},
		{"quote.accepted", "quote", "qt_1", `"status": "accepted"`, "rank 1"},
		{"tax_rate.created", "tax_rate", "txr_1", "", "rank 0"},
		{"promotion_code.created", "promotion_code", "promo_1", "",
			"rank 0, without times_redeemed coupon.times_redeemed"},

		{"coupon.created", "coupon", "25OFF", "", "rank 1, without times_redeemed"},
		{"coupon.deleted", "coupon", "25OFF", "", "rank 1, deleted, without times_redeemed"},
		{"plan.created", "plan", "gold", "", "rank 1"},
		{"plan.deleted", "plan", "gold", "", "rank 1, deleted"},
		{"price.deleted", "price", "gold", "", "rank 1, deleted"},
		{"product.updated", "product", "prod_1", "", "rank 1"},
		{"product.deleted", "product", "prod_1", `"updated": 99`, "rank 1, deleted"},

		{"billing.alert.archived", "billing.alert", "alrt_1", `"status": "archived"`, "rank 2"},
		{"billing.credit_balance_transaction.created", "billing.credit_balance_transaction", "cbtxn_1", "", "rank 0"},
		{"billing_portal.session.created", "billing_portal.session", "bps_1", "", "rank 0"},

		{"issuing_authorization.request", "issuing.authorization", "iauth_1", `"status": "pending"`, "rank 0"},
		{"issuing_authorization.created", "issuing.authorization", "iauth_1", `"status": "pending"`, "rank 1"},
		{"issuing_authorization.updated", "issuing.authorization", "iauth_1", `"status": "pending"`, "rank 2"},
		{"issuing_authorization.updated", "issuing.authorization", "iauth_1", `"status": "expired"`, "rank 3"},
		{"issuing_card.created", "issuing.card", "ic_1", "", "rank 0"},
		{"issuing_cardholder.created", "issuing.cardholder", "ich_1", "", "rank 0"},
		{"issuing_transaction.created", "issuing.transaction", "ipi_1", "", "rank 0"},
		{"issuing_dispute.created", "issuing.dispute", "idp_1", "", "rank 0"},

		{"file.created", "file", "file_1", "", "rank 0"},
		{"test_helpers.test_clock.created", "test_helpers.test_clock", "clock_1", "", "rank 0, any time"},
		{"test_helpers.test_clock.deleted", "test_helpers.test_clock", "clock_1", "",
			"rank 1, deleted, final, any time"},
		{"identity.verification_session.created", "identity.verification_session", "vs_1", "", "rank 0" + secretURL},
		{"identity.verification_session.processing", "identity.verification_session", "vs_1", `"status": "processing"`,
			"rank 1" + secretURL},
		{"identity.verification_session.verified", "identity.verification_session", "vs_1", `"status": "verified"`,
			"rank 2" + secretURL},

		{"climate.product.created", "climate.product", "climsku_1", "", "rank 1"},
		{"reporting.report_type.updated", "reporting.report_type", "balance.summary.1", `"updated": 99`, "rank 1"},

		{"treasury.credit_reversal.created", "treasury.credit_reversal", "x_1", "", "rank 1" + receiptURL},
		{"treasury.debit_reversal.created", "treasury.debit_reversal", "x_1", "", "rank 1" + receiptURL},
		{"treasury.inbound_transfer.created", "treasury.inbound_transfer", "x_1", "", "rank 1" + receiptURL},
		{"treasury.outbound_payment.created", "treasury.outbound_payment", "x_1", "", "rank 1" + receiptURL},
		{"treasury.outbound_transfer.created", "treasury.outbound_transfer", "x_1", "", "rank 1" + receiptURL},
		{"treasury.received_credit.created", "treasury.received_credit", "x_1", "", "rank 1" + receiptURL},
		{"treasury.received_debit.created", "treasury.received_debit", "x_1", "", "rank 1" + receiptURL},
		{"terminal.reader.action_succeeded", "terminal.reader", "tmr_1", `"status": "online"`,
			"rank 1, without last_seen_at status"},
		{"treasury.financial_account.created", "treasury.financial_account", "fa_1", "", "rank 1, without balance"},

		// Deletes that the table does not know: of a type with other deletes, and of one without
		// any.
		{"customer.card.deleted", "card", "card_1", "", "rank 1, deleted"},
		{"customer.erased.deleted", "customer", "cus_1", "", "rank 1, deleted" + discountUses},
		{"payment_link.deleted", "payment_link", "plink_1", "", "rank 1, deleted"},
		// Types that are not in the table.
		{"gizmo.created", "gizmo", "giz_1", `"status": "paid"`, "rank 1"},
		{"gizmo.deleted", "gizmo", "giz_1", "", "rank 1, deleted"},
	} {
		tested[test.objectType] = true
		object := fmt.Sprintf(`{"object": %q, "id": %q}`, test.objectType, test.id)
		if test.more != "" {
			object = strings.TrimSuffix(object, "}") + ", " + test.more + "}"
		}
		check(test.event, object, test.objectType+" "+test.id+at+test.want)
	}
	// Objects with another id or time, or none, and events that are ignored.
	for _, test := range []struct{ event, objectType, members, want string }{
		{"account.application.deauthorized", "application", `, "id": "ca_1"`,
			"ignored: an application's authorization was given or withdrawn; this is not an object of its own"},
		{"capability.updated", "capability", `, "id": "card_payments", "account": "acct_1"`,
			"capability acct_1:card_payments" + at + "rank 1"},
		{"capability.updated", "capability", `, "id": "card_payments"`,
			"ignored: the event's object has no id, so it cannot be mirrored"},
		{"balance_settings.updated", "balance_settings", "", "balance_settings balance_settings" + at + "rank 1"},
		{"balance.available", "balance", "", "balance balance" + at + "rank 1"},
		{"tax.settings.updated", "tax.settings", "", "tax.settings tax.settings" + at + "rank 1"},
		{"customer_cash_balance.updated", "cash_balance", `, "customer": "cus_1"`,
			"cash_balance cus_1" + at + "rank 1"},
		{"customer.discount.created", "discount", `, "customer": "cus_1", "subscription": null`,
			"discount cus_1" + at + "rank 1, without coupon.times_redeemed"},
		{"customer.discount.deleted", "discount", `, "customer": "cus_1", "subscription": "sub_1"`,
			"discount cus_1:sub_1" + at + "rank 1, deleted, without coupon.times_redeemed"},
		{"entitlements.active_entitlement_summary.updated", "entitlements.active_entitlement_summary",
			`, "customer": "cus_1"`, "entitlements.active_entitlement_summary cus_1" + at + "rank 1"},
		{"invoice.upcoming", "invoice", `, "status": "draft"`,
			"ignored: a preview of an invoice that does not exist yet"},
		{"invoice.updated", "invoice", `, "id": "upcoming_in_1"`,
			"ignored: a preview of an invoice that does not exist yet"},
		{"product.created", "product", `, "id": "prod_1", "updated": 99`,
			"product prod_1, at 99000000/1000000, rank 1, own, may not advance"},
		{"billing.alert.triggered", "billing.alert_triggered", "",
			"ignored: an alert was triggered; this is an occurrence, not an object"},
		{"billing.credit_grant.created", "billing.credit_grant", `, "id": "credgr_1", "updated": 99`,
			"billing.credit_grant credgr_1, at 99000000/1000000, rank 0, own"},
		{"billing.meter.updated", "billing.meter", `, "id": "mtr_1", "updated": 99`,
			"billing.meter mtr_1, at 99000000/1000000, rank 1, own"},
		{"billing_portal.configuration.updated", "billing_portal.configuration", `, "id": "bpc_1", "updated": 99`,
			"billing_portal.configuration bpc_1, at 99000000/1000000, rank 1, own"},
		{"terminal.refund.created", "terminal.refund", "",
			"ignored: the event's object has no id, so it cannot be mirrored"},
	} {
		tested[test.objectType] = true
		check(test.event, fmt.Sprintf(`{"object": %q%s}`, test.objectType, test.members), test.want)
	}
	for _, name := range stripe.TypeNames() {
		if !tested[name] {
			t.Errorf("no test for the rule of %s", name)
		}
	}
}
