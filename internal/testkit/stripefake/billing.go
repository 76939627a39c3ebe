package stripefake

import "slices"

// A cancelled subscription stays and may still be edited, yet no list shows it that does not ask for it.
var subscriptions = kind{
	name: "subscription", plural: "subscriptions", prefix: "sub", opens: "customer.subscription.created",
	filters: []string{"status", "customer", "collection_method", "test_clock"}, status: subscriptionStatus,
	statuses: []string{"active", "all", "canceled", "ended", "incomplete", "incomplete_expired", "past_due", "paused", "trialing", "unpaid"},
	usual:    map[string]string{"status": "", "test_clock": "<nil>"},
	birth: func(m *maker) tree {
		return tree{
			"object": "subscription", "cancel_at_period_end": false, "canceled_at": nil, "cancellation_details": tree{"reason": nil, "comment": nil},
			"collection_method": "charge_automatically", "currency": "gbp", "customer": m.ref("customer"), "ended_at": nil,
			"items": items(m.ref("price"), 1), "latest_invoice": nil, "metadata": tree{}, "status": m.one("incomplete", "trialing", "active"),
		}
	},
	changes: []change{
		{events: on("customer.subscription.updated"), weight: 10, when: not("status", "canceled"), do: edits(
			field{"status", list("incomplete", "trialing", "active", "past_due", "unpaid", "paused")},
			field{"status", list("active", "past_due")},
			field{"cancel_at_period_end", list(false, true)},
			field{"items", list(items("price_Fake1", 1), items("price_Fake1", 5), items("price_Fake2", 5))},
			field{"metadata.workspace", list("4711", "4712", absent)},
		)},
		{events: on("customer.subscription.updated"), weight: 2, when: is("status", "canceled"), do: edits(
			field{"metadata.workspace", list("4711", "4712", absent)},
			field{"cancellation_details.comment", list(nil, "too dear")},
		)},
		{events: on("customer.subscription.deleted"), weight: 2, when: not("status", "canceled"), do: func(m *maker, o tree) {
			o["status"], o["canceled_at"], o["ended_at"] = "canceled", m.now, m.now
			o["cancellation_details"] = tree{"reason": "cancellation_requested", "comment": nil}
		}},
	},
}

func items(price string, quantity int) tree {
	item := tree{"id": "si_Fake1", "object": "subscription_item", "price": tree{"id": price, "object": "price", "currency": "gbp"}, "quantity": quantity}
	return tree{"object": "list", "has_more": false, "data": []any{item}}
}

func subscriptionStatus(asked, status string) bool {
	switch asked {
	case "":
		return status != "canceled"
	case "all":
		return true
	case "ended":
		return status == "canceled" || status == "incomplete_expired"
	}
	return status == asked
}

// Several events tell of a payment, and of them only *.updated says what was before.
var invoices = kind{
	name: "invoice", plural: "invoices", prefix: "in", opens: "invoice.created", filters: []string{"status", "customer", "collection_method"},
	statuses: []string{"draft", "open", "paid", "uncollectible", "void"},
	birth: func(m *maker) tree {
		return tree{
			"object": "invoice", "amount_due": 11400, "amount_paid": 0, "amount_remaining": 11400, "attempt_count": 0, "attempted": false,
			"auto_advance": true, "collection_method": "charge_automatically", "currency": "gbp", "customer": m.ref("customer"), "description": nil,
			"hosted_invoice_url": nil, "invoice_pdf": nil, "metadata": tree{}, "number": nil, "status": "draft", "webhooks_delivered_at": nil,
			"status_transitions": tree{"finalized_at": nil, "marked_uncollectible_at": nil, "paid_at": nil, "voided_at": nil},
		}
	},
	changes: []change{
		{events: on("invoice.updated"), weight: 6, do: edits(
			field{"description", list(nil, "January", "Thank you")},
			field{"auto_advance", list(true, false)},
			field{"metadata.order", list("1", "2", absent)},
		)},
		{events: on("invoice.finalized", "invoice.updated"), weight: 4, when: is("status", "draft"), do: func(m *maker, o tree) {
			o["number"], o["hosted_invoice_url"], o["invoice_pdf"] = "7C1D90AE-0001", "https://invoice.stripe.example/1?s=0", "https://pay.stripe.example/1/pdf?s=0"
			become("open", "finalized_at")(m, o)
		}},
		{events: on("invoice.payment_failed"), weight: 3, when: is("status", "open"), do: func(_ *maker, o tree) {
			count, _ := o["attempt_count"].(float64)
			o["attempted"], o["attempt_count"] = true, count+1
		}},
		{events: on("invoice.updated", "invoice.paid", "invoice.payment_succeeded"), weight: 3, when: is("status", "open", "uncollectible"),
			do: func(m *maker, o tree) {
				o["amount_paid"], o["amount_remaining"], o["attempted"] = o["amount_due"], 0, true
				become("paid", "paid_at")(m, o)
			}},
		{events: on("invoice.voided"), weight: 1, when: is("status", "open", "uncollectible"), do: become("void", "voided_at")},
		{events: on("invoice.marked_uncollectible"), weight: 1, when: is("status", "open"), do: become("uncollectible", "marked_uncollectible_at")},
		{events: on("invoice.deleted"), weight: 2, when: is("status", "draft")},
	},
}

func become(status, at string) func(*maker, tree) {
	return func(m *maker, o tree) {
		o["status"] = status
		o["status_transitions"].(tree)[at] = m.now
	}
}

// The first event of a charge is that of its status, and a refund tells what was before though it is no *.updated.
var charges = kind{
	name: "charge", plural: "charges", prefix: "ch", opens: "charge.{status}", filters: []string{"customer", "payment_intent"},
	birth: func(m *maker) tree {
		status := m.one("pending", "succeeded", "succeeded", "failed")
		return tree{
			"object": "charge", "amount": 11400, "amount_captured": 11400, "amount_refunded": 0, "captured": status == "succeeded", "currency": "gbp",
			"customer": m.ref("customer"), "description": nil, "metadata": tree{}, "paid": status == "succeeded", "payment_intent": "pi_Fake1",
			"receipt_url": "https://pay.stripe.example/1?s=0", "refunded": false, "status": status,
		}
	},
	changes: []change{
		{events: on("charge.updated"), weight: 5, do: edits(
			field{"description", list(nil, "January", "Thank you")},
			field{"metadata.order", list("1", "2", absent)},
		)},
		{events: on("charge.succeeded"), weight: 4, when: is("status", "pending"), do: func(_ *maker, o tree) {
			o["status"], o["captured"], o["paid"] = "succeeded", true, true
		}},
		{events: on("charge.failed"), weight: 1, when: is("status", "pending"), do: func(_ *maker, o tree) { o["status"] = "failed" }},
		{events: on("charge.refunded"), weight: 1, when: func(o tree) bool { return o["status"] == "succeeded" && o["refunded"] == false },
			do: func(_ *maker, o tree) {
				refunded, _ := o["amount_refunded"].(float64)
				o["amount_refunded"] = refunded + 5700
				o["refunded"] = refunded > 0
			}},
	},
}

func on(events ...string) []string { return events }

func is(field string, values ...any) func(tree) bool {
	return func(o tree) bool { return slices.Contains(values, o[field]) }
}

func not(field string, value any) func(tree) bool {
	return func(o tree) bool { return o[field] != value }
}
