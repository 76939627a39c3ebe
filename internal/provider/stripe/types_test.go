package stripe_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// observed reads a small event: its type, its object, and further members.
func observed(t *testing.T, event, object, more string) string {
	t.Helper()
	body := fmt.Sprintf(`{"id": "evt_1", "object": "event", "created": 100, "type": %q, "data": {"object": %s}%s}`,
		event, object, more)
	return providertest.Summary(stripe.Stripe{}.Observe(&provider.Source{},
		&provider.StoredEvent{Type: event, Body: []byte(body)}))
}

// Each rule of the table: what opens, what deletes, ranks, the version, and the object's name.
func TestObserve_everyType_followsItsRule(t *testing.T) {
	t.Parallel()
	const at = ", at 100000000/1000000, "
	tests := []struct{ event, object, want string }{
		{"account.updated", `{"object": "account", "id": "acct_1"}`, "account acct_1" + at + "rank 1"},
		{"account.application.deauthorized", `{"object": "application", "id": "ca_1"}`,
			"ignored: an application's authorization was given or withdrawn; this is not an object of its own"},
		{"capability.updated", `{"object": "capability", "id": "card_payments", "account": "acct_1"}`,
			"capability acct_1:card_payments" + at + "rank 1"},
		{"capability.updated", `{"object": "capability", "id": "card_payments"}`,
			"ignored: the event's object has no id, so it cannot be mirrored"},
		{"person.created", `{"object": "person", "id": "person_1"}`, "person person_1" + at + "rank 1"},
		{"person.deleted", `{"object": "person", "id": "person_1"}`, "person person_1" + at + "rank 1, deleted"},
		{"customer.source.deleted", `{"object": "card", "id": "card_1"}`, "card card_1" + at + "rank 1, deleted"},
		{"customer.source.expiring", `{"object": "card", "id": "card_1"}`, "card card_1" + at + "rank 1"},
		{"account.external_account.created", `{"object": "bank_account", "id": "ba_1"}`, "bank_account ba_1" + at +
			"rank 1"},
		{"account.external_account.deleted", `{"object": "bank_account", "id": "ba_1"}`, "bank_account ba_1" + at +
			"rank 1, deleted"},
		{"customer.source.deleted", `{"object": "source", "id": "src_1"}`, "source src_1" + at + "rank 1"},
		{"account.external_account.deleted", `{"object": "source", "id": "src_1"}`, "source src_1" + at + "rank 1"},
		{"balance_settings.updated", `{"object": "balance_settings"}`, "balance_settings balance_settings" + at +
			"rank 1"},
		{"balance.available", `{"object": "balance"}`, "balance balance" + at + "rank 1"},
		{"tax.settings.updated", `{"object": "tax.settings"}`, "tax.settings tax.settings" + at + "rank 1"},

		{"customer.created", `{"object": "customer", "id": "cus_1"}`, "customer cus_1" + at +
			"rank 0, without discount.coupon.times_redeemed"},
		{"customer.updated", `{"object": "customer", "id": "cus_1", "test_clock": "clock_1"}`, "customer cus_1" + at +
			"rank 1, any time, without discount.coupon.times_redeemed"},
		{"customer.deleted", `{"object": "customer", "id": "cus_1"}`, "customer cus_1" + at +
			"rank 1, deleted, final, without discount.coupon.times_redeemed"},
		{"customer_cash_balance.updated", `{"object": "cash_balance", "customer": "cus_1"}`, "cash_balance cus_1" + at +
			"rank 1"},
		{"customer.discount.created", `{"object": "discount", "id": "di_1", "customer": "cus_1"}`, "discount di_1" +
			at + "rank 0, without coupon.times_redeemed"},
		{"customer.discount.deleted", `{"object": "discount", "id": "di_1", "customer": "cus_1"}`, "discount di_1" +
			at + "rank 1, deleted, final, without coupon.times_redeemed"},
		{"customer.discount.created", `{"object": "discount", "customer": "cus_1", "subscription": null}`,
			"discount cus_1" + at + "rank 1, without coupon.times_redeemed"},
		{"customer.discount.deleted", `{"object": "discount", "customer": "cus_1", "subscription": "sub_1"}`,
			"discount cus_1:sub_1" + at + "rank 1, deleted, without coupon.times_redeemed"},
		{"customer.tax_id.deleted", `{"object": "tax_id", "id": "txi_1"}`, "tax_id txi_1" + at + "rank 1, deleted"},
		{"entitlements.active_entitlement_summary.updated",
			`{"object": "entitlements.active_entitlement_summary", "customer": "cus_1"}`,
			"entitlements.active_entitlement_summary cus_1" + at + "rank 1"},

		{"charge.pending", `{"object": "charge", "id": "ch_1", "status": "pending"}`, "charge ch_1" + at +
			"rank 1, without receipt_url"},
		{"charge.succeeded", `{"object": "charge", "id": "ch_1", "status": "succeeded"}`, "charge ch_1" + at +
			"rank 1, without receipt_url"},
		{"charge.dispute.created", `{"object": "dispute", "id": "dp_1"}`, "dispute dp_1" + at + "rank 0"},
		{"charge.dispute.closed", `{"object": "dispute", "id": "dp_1", "status": "lost"}`, "dispute dp_1" + at +
			"rank 1"},
		{"payment_intent.created", `{"object": "payment_intent", "id": "pi_1", "status": "succeeded"}`,
			"payment_intent pi_1" + at + "rank 0, without charges.data.receipt_url"},
		{"payment_intent.processing", `{"object": "payment_intent", "id": "pi_1", "status": "processing"}`,
			"payment_intent pi_1" + at + "rank 1, without charges.data.receipt_url"},
		{"payment_intent.succeeded", `{"object": "payment_intent", "id": "pi_1", "status": "succeeded"}`,
			"payment_intent pi_1" + at + "rank 2, without charges.data.receipt_url"},
		{"setup_intent.canceled", `{"object": "setup_intent", "id": "seti_1", "status": "canceled"}`,
			"setup_intent seti_1" + at + "rank 2"},
		{"setup_intent.created", `{"object": "setup_intent", "id": "seti_1"}`, "setup_intent seti_1" + at + "rank 0"},
		{"mandate.updated", `{"object": "mandate", "id": "mandate_1"}`, "mandate mandate_1" + at + "rank 1"},
		{"payment_link.created", `{"object": "payment_link", "id": "plink_1"}`, "payment_link plink_1" + at + "rank 0"},
		{"payment_method.attached", `{"object": "payment_method", "id": "pm_1", "customer": "cus_1"}`,
			"payment_method pm_1" + at + "rank 1"},
		{"payment_method.detached", `{"object": "payment_method", "id": "pm_1", "customer": null}`,
			"payment_method pm_1" + at + "rank 2"},
		{"refund.created", `{"object": "refund", "id": "re_1", "status": "pending"}`, "refund re_1" + at + "rank 0"},
		{"charge.refund.updated", `{"object": "refund", "id": "re_1", "status": "failed"}`, "refund re_1" + at +
			"rank 1"},
		{"refund.updated", `{"object": "refund", "id": "re_1", "status": "canceled"}`, "refund re_1" + at + "rank 2"},
		{"review.opened", `{"object": "review", "id": "prv_1"}`, "review prv_1" + at + "rank 0"},
		{"radar.early_fraud_warning.created", `{"object": "radar.early_fraud_warning", "id": "issfr_1"}`,
			"radar.early_fraud_warning issfr_1" + at + "rank 0"},
		{"checkout.session.completed", `{"object": "checkout.session", "id": "cs_1", "status": "complete"}`,
			"checkout.session cs_1" + at + "rank 2, without client_secret url"},
		{"checkout.session.expired", `{"object": "checkout.session", "id": "cs_1", "status": "open"}`,
			"checkout.session cs_1" + at + "rank 1, without client_secret url"},

		{"payout.created", `{"object": "payout", "id": "po_1", "status": "pending"}`, "payout po_1" + at + "rank 0"},
		{"payout.updated", `{"object": "payout", "id": "po_1", "status": "pending"}`, "payout po_1" + at + "rank 1"},
		{"payout.updated", `{"object": "payout", "id": "po_1", "status": "in_transit"}`, "payout po_1" + at + "rank 2"},
		{"payout.paid", `{"object": "payout", "id": "po_1", "status": "paid"}`, "payout po_1" + at + "rank 3"},
		{"payout.canceled", `{"object": "payout", "id": "po_1", "status": "canceled"}`, "payout po_1" + at + "rank 3"},
		{"payout.failed", `{"object": "payout", "id": "po_1", "status": "failed"}`, "payout po_1" + at + "rank 4"},
		{"topup.canceled", `{"object": "topup", "id": "tu_1", "status": "canceled"}`, "topup tu_1" + at + "rank 2"},
		{"topup.created", `{"object": "topup", "id": "tu_1"}`, "topup tu_1" + at + "rank 0"},
		{"transfer.created", `{"object": "transfer", "id": "tr_1"}`, "transfer tr_1" + at + "rank 0"},
		{"transfer.reversed", `{"object": "transfer", "id": "tr_1"}`, "transfer tr_1" + at + "rank 1"},
		{"application_fee.created", `{"object": "application_fee", "id": "fee_1"}`, "application_fee fee_1" + at +
			"rank 0"},
		{"application_fee.refund.updated", `{"object": "fee_refund", "id": "fr_1"}`, "fee_refund fr_1" + at + "rank 1"},

		{"invoice.created", `{"object": "invoice", "id": "in_1", "status": "draft"}`, "invoice in_1" + at +
			"rank 0, without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"},
		{"invoice.updated", `{"object": "invoice", "id": "in_1", "status": "draft"}`, "invoice in_1" + at +
			"rank 1, without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"},
		{"invoice.sent", `{"object": "invoice", "id": "in_1", "status": "open"}`, "invoice in_1" + at +
			"rank 2, without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"},
		{"invoice.marked_uncollectible", `{"object": "invoice", "id": "in_1", "status": "uncollectible"}`,
			"invoice in_1" + at + "rank 3, without webhooks_delivered_at hosted_invoice_url invoice_pdf " +
				"discount.coupon.times_redeemed"},
		{"invoice.paid", `{"object": "invoice", "id": "in_1", "status": "paid"}`, "invoice in_1" + at +
			"rank 4, without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"},
		{"invoice.voided", `{"object": "invoice", "id": "in_1", "status": "void"}`, "invoice in_1" + at +
			"rank 4, without webhooks_delivered_at hosted_invoice_url invoice_pdf discount.coupon.times_redeemed"},
		{"invoice.deleted", `{"object": "invoice", "id": "in_1", "status": "draft"}`, "invoice in_1" + at +
			"rank 1, deleted, final, without webhooks_delivered_at hosted_invoice_url invoice_pdf " +
			"discount.coupon.times_redeemed"},
		{"invoice.upcoming", `{"object": "invoice", "status": "draft"}`,
			"ignored: a preview of an invoice that does not exist yet"},
		{"invoice.updated", `{"object": "invoice", "id": "upcoming_in_1"}`,
			"ignored: a preview of an invoice that does not exist yet"},
		{"invoiceitem.created", `{"object": "invoiceitem", "id": "ii_1"}`, "invoiceitem ii_1" + at + "rank 0"},
		{"invoiceitem.deleted", `{"object": "invoiceitem", "id": "ii_1"}`, "invoiceitem ii_1" + at +
			"rank 1, deleted, final"},
		{"invoice_payment.paid", `{"object": "invoice_payment", "id": "inpay_1", "status": "paid"}`,
			"invoice_payment inpay_1" + at + "rank 1"},
		{"credit_note.voided", `{"object": "credit_note", "id": "cn_1", "status": "void"}`, "credit_note cn_1" + at +
			"rank 2, without pdf"},
		{"credit_note.created", `{"object": "credit_note", "id": "cn_1", "status": "issued"}`, "credit_note cn_1" + at +
			"rank 0, without pdf"},
		{"customer.subscription.created", `{"object": "subscription", "id": "sub_1", "status": "incomplete"}`,
			"subscription sub_1" + at + "rank 0, without discount.coupon.times_redeemed"},
		{"customer.subscription.updated", `{"object": "subscription", "id": "sub_1", "status": "past_due"}`,
			"subscription sub_1" + at + "rank 1, without discount.coupon.times_redeemed"},
		{"customer.subscription.updated", `{"object": "subscription", "id": "sub_1", "status": "incomplete_expired"}`,
			"subscription sub_1" + at + "rank 2, without discount.coupon.times_redeemed"},
		{"customer.subscription.deleted", `{"object": "subscription", "id": "sub_1", "status": "canceled"}`,
			"subscription sub_1" + at + "rank 2, without discount.coupon.times_redeemed"},
		{"subscription_schedule.created", `{"object": "subscription_schedule", "id": "sub_sched_1"}`,
			"subscription_schedule sub_sched_1" + at + "rank 0"},
		{"subscription_schedule.updated",
			`{"object": "subscription_schedule", "id": "sub_sched_1", "status": "active"}`,
			"subscription_schedule sub_sched_1" + at + "rank 2"},
		{"subscription_schedule.released",
			`{"object": "subscription_schedule", "id": "sub_sched_1", "status": "released"}`,
			"subscription_schedule sub_sched_1" + at + "rank 3"},
		{"quote.accepted", `{"object": "quote", "id": "qt_1", "status": "accepted"}`, "quote qt_1" + at + "rank 1"},
		{"tax_rate.created", `{"object": "tax_rate", "id": "txr_1"}`, "tax_rate txr_1" + at + "rank 0"},
		{"promotion_code.created", `{"object": "promotion_code", "id": "promo_1"}`, "promotion_code promo_1" + at +
			"rank 0, without times_redeemed coupon.times_redeemed"},

		{"coupon.created", `{"object": "coupon", "id": "25OFF"}`, "coupon 25OFF" + at +
			"rank 1, without times_redeemed"},
		{"coupon.deleted", `{"object": "coupon", "id": "25OFF"}`, "coupon 25OFF" + at +
			"rank 1, deleted, without times_redeemed"},
		{"plan.created", `{"object": "plan", "id": "gold"}`, "plan gold" + at + "rank 1"},
		{"plan.deleted", `{"object": "plan", "id": "gold"}`, "plan gold" + at + "rank 1, deleted"},
		{"price.deleted", `{"object": "price", "id": "gold"}`, "price gold" + at + "rank 1, deleted"},
		{"product.created", `{"object": "product", "id": "prod_1", "updated": 99}`,
			"product prod_1, at 99000000/1000000, rank 1, own, may not advance"},
		{"product.updated", `{"object": "product", "id": "prod_1"}`, "product prod_1" + at + "rank 1"},
		{"product.deleted", `{"object": "product", "id": "prod_1", "updated": 99}`, "product prod_1" + at +
			"rank 1, deleted"},

		{"billing.alert.archived", `{"object": "billing.alert", "id": "alrt_1", "status": "archived"}`,
			"billing.alert alrt_1" + at + "rank 2"},
		{"billing.alert.triggered", `{"object": "billing.alert_triggered"}`,
			"ignored: an alert was triggered; this is an occurrence, not an object"},
		{"billing.credit_grant.created", `{"object": "billing.credit_grant", "id": "credgr_1", "updated": 99}`,
			"billing.credit_grant credgr_1, at 99000000/1000000, rank 0, own"},
		{"billing.credit_balance_transaction.created",
			`{"object": "billing.credit_balance_transaction", "id": "cbtxn_1"}`,
			"billing.credit_balance_transaction cbtxn_1" + at + "rank 0"},
		{"billing.meter.updated", `{"object": "billing.meter", "id": "mtr_1", "updated": 99}`,
			"billing.meter mtr_1, at 99000000/1000000, rank 1, own"},
		{"billing_portal.configuration.updated",
			`{"object": "billing_portal.configuration", "id": "bpc_1", "updated": 99}`,
			"billing_portal.configuration bpc_1, at 99000000/1000000, rank 1, own"},
		{"billing_portal.session.created", `{"object": "billing_portal.session", "id": "bps_1"}`,
			"billing_portal.session bps_1" + at + "rank 0"},

		{"issuing_authorization.request", `{"object": "issuing.authorization", "id": "iauth_1", "status": "pending"}`,
			"issuing.authorization iauth_1" + at + "rank 0"},
		{"issuing_authorization.created", `{"object": "issuing.authorization", "id": "iauth_1", "status": "pending"}`,
			"issuing.authorization iauth_1" + at + "rank 1"},
		{"issuing_authorization.updated", `{"object": "issuing.authorization", "id": "iauth_1", "status": "pending"}`,
			"issuing.authorization iauth_1" + at + "rank 2"},
		{"issuing_authorization.updated", `{"object": "issuing.authorization", "id": "iauth_1", "status": "expired"}`,
			"issuing.authorization iauth_1" + at + "rank 3"},
		{"issuing_card.created", `{"object": "issuing.card", "id": "ic_1"}`, "issuing.card ic_1" + at + "rank 0"},
		{"issuing_cardholder.created", `{"object": "issuing.cardholder", "id": "ich_1"}`, "issuing.cardholder ich_1" +
			at + "rank 0"},
		{"issuing_transaction.created", `{"object": "issuing.transaction", "id": "ipi_1"}`,
			"issuing.transaction ipi_1" + at + "rank 0"},
		{"issuing_dispute.created", `{"object": "issuing.dispute", "id": "idp_1"}`, "issuing.dispute idp_1" + at +
			"rank 0"},

		{"file.created", `{"object": "file", "id": "file_1"}`, "file file_1" + at + "rank 0"},
		{"test_helpers.test_clock.created", `{"object": "test_helpers.test_clock", "id": "clock_1"}`,
			"test_helpers.test_clock clock_1" + at + "rank 0, any time"},
		{"test_helpers.test_clock.deleted", `{"object": "test_helpers.test_clock", "id": "clock_1"}`,
			"test_helpers.test_clock clock_1" + at + "rank 1, deleted, final, any time"},
		{"identity.verification_session.created", `{"object": "identity.verification_session", "id": "vs_1"}`,
			"identity.verification_session vs_1" + at + "rank 0, without client_secret url"},
		{"identity.verification_session.processing",
			`{"object": "identity.verification_session", "id": "vs_1", "status": "processing"}`,
			"identity.verification_session vs_1" + at + "rank 1, without client_secret url"},
		{"identity.verification_session.verified",
			`{"object": "identity.verification_session", "id": "vs_1", "status": "verified"}`,
			"identity.verification_session vs_1" + at + "rank 2, without client_secret url"},

		{"climate.product.created", `{"object": "climate.product", "id": "climsku_1"}`, "climate.product climsku_1" +
			at + "rank 1"},
		{"reporting.report_type.updated",
			`{"object": "reporting.report_type", "id": "balance.summary.1", "updated": 99}`,
			"reporting.report_type balance.summary.1" + at + "rank 1"},

		{"treasury.credit_reversal.created", `{"object": "treasury.credit_reversal", "id": "x_1"}`,
			"treasury.credit_reversal x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.debit_reversal.created", `{"object": "treasury.debit_reversal", "id": "x_1"}`,
			"treasury.debit_reversal x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.inbound_transfer.created", `{"object": "treasury.inbound_transfer", "id": "x_1"}`,
			"treasury.inbound_transfer x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.outbound_payment.created", `{"object": "treasury.outbound_payment", "id": "x_1"}`,
			"treasury.outbound_payment x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.outbound_transfer.created", `{"object": "treasury.outbound_transfer", "id": "x_1"}`,
			"treasury.outbound_transfer x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.received_credit.created", `{"object": "treasury.received_credit", "id": "x_1"}`,
			"treasury.received_credit x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"treasury.received_debit.created", `{"object": "treasury.received_debit", "id": "x_1"}`,
			"treasury.received_debit x_1" + at + "rank 1, without hosted_regulatory_receipt_url"},
		{"terminal.reader.action_succeeded", `{"object": "terminal.reader", "id": "tmr_1", "status": "online"}`,
			"terminal.reader tmr_1" + at + "rank 1, without last_seen_at status"},
		{"treasury.financial_account.created", `{"object": "treasury.financial_account", "id": "fa_1"}`,
			"treasury.financial_account fa_1" + at + "rank 1, without balance"},

		// Deletes that the table does not know: of a type with other deletes, and of one without
		// any.
		{"customer.card.deleted", `{"object": "card", "id": "card_1"}`, "card card_1" + at + "rank 1, deleted"},
		{"customer.erased.deleted", `{"object": "customer", "id": "cus_1"}`, "customer cus_1" + at +
			"rank 1, deleted, without discount.coupon.times_redeemed"},
		{"payment_link.deleted", `{"object": "payment_link", "id": "plink_1"}`, "payment_link plink_1" + at +
			"rank 1, deleted"},
		// Types that are not in the table.
		{"gizmo.created", `{"object": "gizmo", "id": "giz_1", "status": "paid"}`, "gizmo giz_1" + at + "rank 1"},
		{"gizmo.deleted", `{"object": "gizmo", "id": "giz_1"}`, "gizmo giz_1" + at + "rank 1, deleted"},
		{"terminal.refund.created", `{"object": "terminal.refund"}`,
			"ignored: the event's object has no id, so it cannot be mirrored"},
	}
	tested := ""
	for _, test := range tests {
		tested += test.object
		if got := observed(t, test.event, test.object, ""); got != test.want {
			t.Errorf("%s %s:\n got %s\nwant %s", test.event, test.object, got, test.want)
		}
	}
	for _, name := range stripe.TypeNames() {
		if !strings.Contains(tested, fmt.Sprintf(`"object": %q`, name)) {
			t.Errorf("no test for the rule of %s", name)
		}
	}
}
