package stripefake

import "slices"

// A cancelled subscription remains and can still be edited. Lists show it only on request.
var subscriptions = kind{
	name: "subscription", plural: "subscriptions", prefix: "sub", createEvent: "customer.subscription.created",
	filters: []string{"status", "customer", "collection_method", "test_clock"}, status: subscriptionStatus,
	statusValues: []string{"active", "all", "canceled", "ended", "incomplete", "incomplete_expired", "past_due",
		"paused",
		"trialing", "unpaid"},
	defaultFilter: map[string]string{"status": "", "test_clock": "<nil>"},
	newBody: func(m *changeContext) tree {
		return tree{
			"object": "subscription", "cancel_at_period_end": false, "canceled_at": nil,
			"cancellation_details": tree{"reason": nil, "comment": nil},
			"collection_method":    "charge_automatically", "currency": "gbp", "customer": m.refTo("customer"),
			"ended_at": nil,
			"items":    items(m.refTo("price"), 1), "latest_invoice": nil, "metadata": tree{},
			"status": m.pick("incomplete", "trialing", "active"),
		}
	},
	changes: []change{
		{events: eventTypes("customer.subscription.updated"), weight: 10, when: fieldIsNot("status", "canceled"),
			do: editSome(
				editableField{"status", list("incomplete", "trialing", "active", "past_due", "unpaid", "paused")},
				editableField{"status", list("active", "past_due")},
				editableField{"cancel_at_period_end", list(false, true)},
				editableField{"items", list(items("price_Fake1", 1), items("price_Fake1", 5), items("price_Fake2", 5))},
				editableField{"metadata.workspace", list("4711", "4712", absentValue)},
			)},
		{events: eventTypes("customer.subscription.updated"), weight: 2, when: fieldIs("status", "canceled"),
			do: editSome(
				editableField{"metadata.workspace", list("4711", "4712", absentValue)},
				editableField{"cancellation_details.comment", list(nil, "too dear")},
			)},
		{events: eventTypes("customer.subscription.deleted"), weight: 2, when: fieldIsNot("status", "canceled"),
			do: func(m *changeContext, o tree) {
				o["status"], o["canceled_at"], o["ended_at"] = "canceled", m.now, m.now
				o["cancellation_details"] = tree{"reason": "cancellation_requested", "comment": nil}
			}},
	},
}

func items(price string, quantity int) tree {
	item := tree{"id": "si_Fake1", "object": "subscription_item", "price": tree{"id": price, "object": "price",
		"currency": "gbp"}, "quantity": quantity}
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

// A payment causes several events, and only *.updated events have previous attributes.
var invoices = kind{
	name: "invoice", plural: "invoices", prefix: "in", createEvent: "invoice.created",
	filters: []string{"status", "customer",
		"collection_method"},
	statusValues: []string{"draft", "open", "paid", "uncollectible", "void"},
	newBody: func(m *changeContext) tree {
		return tree{
			"object": "invoice", "amount_due": 11400, "amount_paid": 0, "amount_remaining": 11400, "attempt_count": 0,
			"attempted":    false,
			"auto_advance": true, "collection_method": "charge_automatically", "currency": "gbp",
			"customer": m.refTo("customer"), "description": nil,
			"hosted_invoice_url": nil, "invoice_pdf": nil, "metadata": tree{}, "number": nil, "status": "draft",
			"webhooks_delivered_at": nil,
			"status_transitions": tree{"finalized_at": nil, "marked_uncollectible_at": nil, "paid_at": nil,
				"voided_at": nil},
		}
	},
	changes: []change{
		{events: eventTypes("invoice.updated"), weight: 6, do: editSome(
			editableField{"description", list(nil, "January", "Thank you")},
			editableField{"auto_advance", list(true, false)},
			editableField{"metadata.order", list("1", "2", absentValue)},
		)},
		{events: eventTypes("invoice.finalized", "invoice.updated"), weight: 4, when: fieldIs("status", "draft"),
			do: func(m *changeContext, o tree) {
				o["number"], o["hosted_invoice_url"], o["invoice_pdf"] = "7C1D90AE-0001",
					"https://invoice.stripe.example/1?s=0", "https://pay.stripe.example/1/pdf?s=0"
				setStatus("open", "finalized_at")(m, o)
			}},
		{events: eventTypes("invoice.payment_failed"), weight: 3, when: fieldIs("status", "open"),
			do: func(_ *changeContext, o tree) {
				count, _ := o["attempt_count"].(float64)
				o["attempted"], o["attempt_count"] = true, count+1
			}},
		{events: eventTypes("invoice.updated", "invoice.paid", "invoice.payment_succeeded"), weight: 3,
			when: fieldIs("status", "open", "uncollectible"),
			do: func(m *changeContext, o tree) {
				o["amount_paid"], o["amount_remaining"], o["attempted"] = o["amount_due"], 0, true
				setStatus("paid", "paid_at")(m, o)
			}},
		{events: eventTypes("invoice.voided"), weight: 1, when: fieldIs("status", "open", "uncollectible"),
			do: setStatus("void", "voided_at")},
		{events: eventTypes("invoice.marked_uncollectible"), weight: 1, when: fieldIs("status", "open"),
			do: setStatus("uncollectible", "marked_uncollectible_at")},
		{events: eventTypes("invoice.deleted"), weight: 2, when: fieldIs("status", "draft")},
	},
}

func setStatus(status, at string) func(*changeContext, tree) {
	return func(m *changeContext, o tree) {
		o["status"] = status
		o["status_transitions"].(tree)[at] = m.now
	}
}

// The first event of a charge depends on its status. A refund has previous attributes although its
// event is not *.updated.
var charges = kind{
	name: "charge", plural: "charges", prefix: "ch", createEvent: "charge.{status}",
	filters: []string{"customer", "payment_intent"},
	newBody: func(m *changeContext) tree {
		status := m.pick("pending", "succeeded", "succeeded", "failed")
		return tree{
			"object": "charge", "amount": 11400, "amount_captured": 11400, "amount_refunded": 0,
			"captured": status == "succeeded", "currency": "gbp",
			"customer": m.refTo("customer"), "description": nil, "metadata": tree{}, "paid": status == "succeeded",
			"payment_intent": "pi_Fake1",
			"receipt_url":    "https://pay.stripe.example/1?s=0", "refunded": false, "status": status,
		}
	},
	changes: []change{
		{events: eventTypes("charge.updated"), weight: 5, do: editSome(
			editableField{"description", list(nil, "January", "Thank you")},
			editableField{"metadata.order", list("1", "2", absentValue)},
		)},
		{events: eventTypes("charge.succeeded"), weight: 4, when: fieldIs("status", "pending"),
			do: func(_ *changeContext, o tree) {
				o["status"], o["captured"], o["paid"] = "succeeded", true, true
			}},
		{events: eventTypes("charge.failed"), weight: 1, when: fieldIs("status", "pending"),
			do: func(_ *changeContext, o tree) { o["status"] = "failed" }},
		{events: eventTypes("charge.refunded"), weight: 1, when: func(o tree) bool {
			return o["status"] == "succeeded" && o["refunded"] == false
		},
			do: func(_ *changeContext, o tree) {
				refunded, _ := o["amount_refunded"].(float64)
				o["amount_refunded"] = refunded + 5700
				o["refunded"] = refunded > 0
			}},
	},
}

func eventTypes(events ...string) []string { return events }

func fieldIs(name string, values ...any) func(tree) bool {
	return func(o tree) bool { return slices.Contains(values, o[name]) }
}

func fieldIsNot(name string, value any) func(tree) bool {
	return func(o tree) bool { return o[name] != value }
}
