package stripefake

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// explicitKinds are created by steps only if Options.ObjectTypes names them: child objects and
// their parents.
var explicitKinds = []*kind{&accounts, &persons, &bankAccounts, &cards, &taxIDs, &applicationFees, &feeRefunds,
	&testClocks,
	&treasuryAccounts, &receivedCredits}

// metadataNote edits the metadata.
var metadataNote = editableField{"metadata.note", list("1", "2", absentValue)}

// accounts has at most one object in each account: the account itself.
var accounts = kind{
	name: "account", plural: "account", createEvent: "account.updated", modeless: true,
	newBody: func(*changeContext) tree {
		return tree{"object": "account", "charges_enabled": true, "country": "GB", "default_currency": "gbp",
			"email": nil, "metadata": tree{}}
	},
	changes: []change{{events: eventTypes("account.updated"), weight: 1,
		do: editSome(editableField{"charges_enabled", list(true, false)},
			metadataNote)}},
}

var persons = kind{
	name: "person", plural: "persons", prefix: "person", createEvent: "person.created", parentList: "account",
	parentField: "account",
	modeless:    true,
	newBody: func(m *changeContext) tree {
		return tree{"object": "person", "account": m.account, "first_name": m.pick("Ada", "Bo"), "metadata": tree{}}
	},
	changes: []change{
		{events: eventTypes("person.updated"), weight: 9,
			do: editSome(editableField{"first_name", list("Ada", "Bo", "Cy")}, metadataNote)},
		{events: eventTypes("person.deleted"), weight: 1},
	},
}

// bankAccounts are the accounts for payouts.
var bankAccounts = kind{
	name: "bank_account", plural: "external_accounts", prefix: "ba", createEvent: "account.external_account.created",
	parentList: "account", parentField: "account", modeless: true, undated: true,
	newBody: func(m *changeContext) tree {
		return tree{"object": "bank_account", "account": m.account, "country": "GB", "currency": "gbp", "last4": "6789",
			"metadata": tree{}, "status": "new"}
	},
	changes: []change{
		{events: eventTypes("account.external_account.updated"), weight: 9,
			do: editSome(editableField{"status", list("new", "verified")},
				metadataNote)},
		{events: eventTypes("account.external_account.deleted"), weight: 1},
	},
}

var cards = kind{
	name: "card", plural: "sources", prefix: "card", createEvent: "customer.source.created", parentList: "customers",
	parentField: "customer", listedOnExpand: true, modeless: true, undated: true,
	newBody: func(m *changeContext) tree {
		return tree{"object": "card", "brand": "Visa", "customer": m.refTo("customer"), "exp_month": m.pick(1, 12),
			"exp_year": 2030, "last4": "4242", "metadata": tree{}}
	},
	changes: []change{
		{events: eventTypes("customer.source.updated"), weight: 9,
			do: editSome(editableField{"exp_year", list(2030, 2031)}, metadataNote)},
		{events: eventTypes("customer.source.deleted"), weight: 1},
	},
}

var taxIDs = kind{
	name: "tax_id", plural: "tax_ids", prefix: "txi", createEvent: "customer.tax_id.created", parentList: "customers",
	parentField: "customer", listedOnExpand: true, hasOwnPath: true,
	newBody: func(m *changeContext) tree {
		return tree{"object": "tax_id", "country": "DE", "customer": m.refTo("customer"), "type": "eu_vat",
			"value": "DE123456789", "verification": tree{"status": "pending"}}
	},
	changes: []change{
		{events: eventTypes("customer.tax_id.updated"), weight: 9,
			do: editSome(editableField{"verification.status", list("pending", "verified", "unverified")})},
		{events: eventTypes("customer.tax_id.deleted"), weight: 1},
	},
}

var applicationFees = kind{
	name: "application_fee", plural: "application_fees", prefix: "fee", createEvent: "application_fee.created",
	newBody: func(m *changeContext) tree {
		return tree{"object": "application_fee", "account": OwnAccount, "amount": 100, "amount_refunded": 0,
			"currency": "gbp",
			"refunded": false}
	},
	changes: []change{{events: eventTypes("application_fee.refunded"), weight: 1,
		do: editSome(editableField{"refunded", list(true, false)})}},
}

var feeRefunds = kind{
	name: "fee_refund", plural: "refunds", prefix: "fr", createEvent: "application_fee.refund.updated",
	parentList: "application_fees", parentField: "fee", modeless: true,
	newBody: func(m *changeContext) tree {
		return tree{"object": "fee_refund", "amount": 10, "currency": "gbp", "fee": m.refTo("application_fee"),
			"metadata": tree{}}
	},
	changes: []change{{events: eventTypes("application_fee.refund.updated"), weight: 1, do: editSome(metadataNote)}},
}

var testClocks = kind{
	name: "test_helpers.test_clock", plural: "test_helpers/test_clocks", prefix: "clock",
	createEvent: "test_helpers.test_clock.created",
	newBody: func(m *changeContext) tree {
		return tree{"object": "test_helpers.test_clock", "frozen_time": m.now, "status": "ready"}
	},
	changes: []change{{events: eventTypes("test_helpers.test_clock.advancing"), weight: 1,
		do: editSome(editableField{"status", list("ready", "advancing")})}},
}

var treasuryAccounts = kind{
	name: "treasury.financial_account", plural: "treasury/financial_accounts", prefix: "fa",
	createEvent: "treasury.financial_account.created",
	newBody: func(*changeContext) tree {
		return tree{"object": "treasury.financial_account", "country": "US", "status": "open"}
	},
	changes: []change{{events: eventTypes("treasury.financial_account.closed"), weight: 1,
		when: fieldIs("status", "open"),
		do:   func(_ *changeContext, o tree) { o["status"] = "closed" }}},
}

var receivedCredits = kind{
	name: "treasury.received_credit", plural: "treasury/received_credits", prefix: "rc",
	createEvent: "treasury.received_credit.created",
	filters:     []string{"financial_account"}, requiredFilter: "financial_account",
	newBody: func(m *changeContext) tree {
		return tree{"object": "treasury.received_credit", "amount": 500,
			"financial_account": m.refTo("treasury.financial_account"), "status": "succeeded",
			"hosted_regulatory_receipt_url": "https://payments.stripe.com/regulatory-receipt/x?s=0"}
	},
	changes: []change{{events: eventTypes("treasury.received_credit.failed"), weight: 1,
		when: fieldIs("status", "succeeded"),
		do:   func(_ *changeContext, o tree) { o["status"] = "failed" }}},
}

// connectedAccount serves requests that name an account in the path: the account itself, or its
// child objects.
func (c *call) connectedAccount(path []string, unknown *apiError) ([]byte, *apiError) {
	a := c.fake.account(path[0])
	if a == nil || c.fake.options.Faults.SeesNothing {
		return nil, &apiError{status: http.StatusForbidden, Code: "account_invalid",
			Message: "The provided key does not have access to account '" + path[0] + "'"}
	}
	c.account = a
	if len(path) == 1 {
		return c.accountObject()
	}
	return c.listOrGetChild("account", "", path[1:], unknown)
}

// accountObject returns the requested account.
func (c *call) accountObject() ([]byte, *apiError) {
	if all := c.account.byType[accounts.plural]; len(all) > 0 {
		return c.get(&accounts, all[0].id)
	}
	return c.staticObject(tree{"id": cmp.Or(c.account.id, OwnAccount), "object": "account", "charges_enabled": true,
		"country": "GB", "default_currency": "gbp"})
}

// listOrGetChild returns the list of the children of an object, or one of them. The owner is empty
// for children of the account.
func (c *call) listOrGetChild(plural, owner string, path []string, unknown *apiError) ([]byte, *apiError) {
	for _, k := range explicitKinds {
		switch {
		case k.parentList != plural || k.plural != path[0]:
		case len(path) == 1:
			return c.listChildren(k, owner)
		case len(path) == 2 && (owner == "" || c.isChildOf(k, path[1], owner)):
			return c.get(k, path[1])
		case len(path) == 2:
			return nil, notFound(k, path[1])
		}
	}
	return nil, unknown
}

// isChildOf reports whether an object is a child of the owner, and the owner exists.
func (c *call) isChildOf(k *kind, id, owner string) bool {
	o, of := c.account.objects[id], c.account.objects[owner]
	return o != nil && o.kind == k && of != nil && !of.isDeleted() &&
		bytes.Contains(o.revisions[0].body, fmt.Appendf(nil, `%q:%q`, k.parentField, owner))
}

// listChildren returns a page of the children of an existing owner.
func (c *call) listChildren(k *kind, owner string) ([]byte, *apiError) {
	if o := c.account.objects[owner]; owner != "" && (o == nil || o.isDeleted()) {
		return nil, &apiError{status: http.StatusNotFound, Code: "resource_missing", Param: k.parentField,
			Message: "No such " + k.parentField + ": '" + owner + "'"}
	}
	if owner == "" {
		return c.list(k)
	}
	return c.listWith(k, map[string]string{k.parentField: owner})
}

// addChildLists returns the body of an owner with the lists of its children: lists that are always
// included, and lists that the request expands. They contain the newest ten children.
func (c *call) addChildLists(owner *kind, body []byte) []byte {
	for _, k := range explicitKinds {
		if body == nil || owner == &accounts || k.parentList != owner.plural || k.listedOnExpand &&
			!slices.Contains(c.query["expand[]"], "data."+k.plural) {
			continue
		}
		id := parse(body)["id"].(string)
		var some [][]byte
		more := false
		for _, o := range slices.Backward(c.account.byType[k.plural]) {
			r, there := o.revisionAt(c.now)
			if !there || r.body == nil || !c.isChildOf(k, o.id, id) {
				continue
			}
			if more = len(some) == 10; more {
				break
			}
			some = append(some, c.renderBody(r.body))
		}
		list := page("/v1/"+owner.plural+"/"+id+"/"+k.plural, some, more)
		body = fmt.Appendf(bytes.Clone(body[:len(body)-1]), `,%q:%s}`, k.plural, list)
	}
	return body
}

// kindOfPath returns the kind whose list a path names and the rest of the path, or nil.
func kindOfPath(path []string) (k *kind, rest []string) {
	for n := 1; n <= min(2, len(path)); n++ {
		if k := kindOfList(strings.Join(path[:n], "/"), false); k != nil && k.parentList == "" && k != &accounts {
			return k, path[n:]
		}
	}
	for _, k := range explicitKinds {
		if k.hasOwnPath && len(path) == 2 && k.plural == path[0] {
			return k, path[1:]
		}
	}
	return nil, nil
}
