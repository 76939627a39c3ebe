package stripefake

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// Kinds that a life makes only where Options.Kinds name them: what lies below other objects, and what that lies below.
var rare = []*kind{&accounts, &persons, &bankAccounts, &cards, &taxIDs, &applicationFees, &feeRefunds, &testClocks, &treasuryAccounts, &receivedCredits}

// noted edits the metadata.
var noted = field{"metadata.note", list("1", "2", absent)}

// accounts are the account itself, one at most, which other accounts are connected to or not.
var accounts = kind{
	name: "account", plural: "account", opens: "account.updated", modeless: true,
	birth: func(*maker) tree {
		return tree{"object": "account", "charges_enabled": true, "country": "GB", "default_currency": "gbp", "email": nil, "metadata": tree{}}
	},
	changes: []change{{events: on("account.updated"), weight: 1, do: edits(field{"charges_enabled", list(true, false)}, noted)}},
}

var persons = kind{
	name: "person", plural: "persons", prefix: "person", opens: "person.created", below: "account", owner: "account", modeless: true,
	birth: func(m *maker) tree {
		return tree{"object": "person", "account": m.account, "first_name": m.one("Ada", "Bo"), "metadata": tree{}}
	},
	changes: []change{
		{events: on("person.updated"), weight: 9, do: edits(field{"first_name", list("Ada", "Bo", "Cy")}, noted)},
		{events: on("person.deleted"), weight: 1},
	},
}

// bankAccounts are those that an account is paid out to.
var bankAccounts = kind{
	name: "bank_account", plural: "external_accounts", prefix: "ba", opens: "account.external_account.created", below: "account", owner: "account", modeless: true, undated: true,
	birth: func(m *maker) tree {
		return tree{"object": "bank_account", "account": m.account, "country": "GB", "currency": "gbp", "last4": "6789", "metadata": tree{}, "status": "new"}
	},
	changes: []change{
		{events: on("account.external_account.updated"), weight: 9, do: edits(field{"status", list("new", "verified")}, noted)},
		{events: on("account.external_account.deleted"), weight: 1},
	},
}

var cards = kind{
	name: "card", plural: "sources", prefix: "card", opens: "customer.source.created", below: "customers", owner: "customer", expanded: true, modeless: true, undated: true,
	birth: func(m *maker) tree {
		return tree{"object": "card", "brand": "Visa", "customer": m.ref("customer"), "exp_month": m.one(1, 12), "exp_year": 2030, "last4": "4242", "metadata": tree{}}
	},
	changes: []change{
		{events: on("customer.source.updated"), weight: 9, do: edits(field{"exp_year", list(2030, 2031)}, noted)},
		{events: on("customer.source.deleted"), weight: 1},
	},
}

var taxIDs = kind{
	name: "tax_id", plural: "tax_ids", prefix: "txi", opens: "customer.tax_id.created", below: "customers", owner: "customer", expanded: true, direct: true,
	birth: func(m *maker) tree {
		return tree{"object": "tax_id", "country": "DE", "customer": m.ref("customer"), "type": "eu_vat", "value": "DE123456789", "verification": tree{"status": "pending"}}
	},
	changes: []change{
		{events: on("customer.tax_id.updated"), weight: 9, do: edits(field{"verification.status", list("pending", "verified", "unverified")})},
		{events: on("customer.tax_id.deleted"), weight: 1},
	},
}

var applicationFees = kind{
	name: "application_fee", plural: "application_fees", prefix: "fee", opens: "application_fee.created",
	birth: func(m *maker) tree {
		return tree{"object": "application_fee", "account": Own, "amount": 100, "amount_refunded": 0, "currency": "gbp", "refunded": false}
	},
	changes: []change{{events: on("application_fee.refunded"), weight: 1, do: edits(field{"refunded", list(true, false)})}},
}

var feeRefunds = kind{
	name: "fee_refund", plural: "refunds", prefix: "fr", opens: "application_fee.refund.updated", below: "application_fees", owner: "fee", modeless: true,
	birth: func(m *maker) tree {
		return tree{"object": "fee_refund", "amount": 10, "currency": "gbp", "fee": m.ref("application_fee"), "metadata": tree{}}
	},
	changes: []change{{events: on("application_fee.refund.updated"), weight: 1, do: edits(noted)}},
}

var testClocks = kind{
	name: "test_helpers.test_clock", plural: "test_helpers/test_clocks", prefix: "clock", opens: "test_helpers.test_clock.created",
	birth: func(m *maker) tree {
		return tree{"object": "test_helpers.test_clock", "frozen_time": m.now, "status": "ready"}
	},
	changes: []change{{events: on("test_helpers.test_clock.advancing"), weight: 1, do: edits(field{"status", list("ready", "advancing")})}},
}

var treasuryAccounts = kind{
	name: "treasury.financial_account", plural: "treasury/financial_accounts", prefix: "fa", opens: "treasury.financial_account.created",
	birth: func(*maker) tree {
		return tree{"object": "treasury.financial_account", "country": "US", "status": "open"}
	},
	changes: []change{{events: on("treasury.financial_account.closed"), weight: 1, when: is("status", "open"), do: func(_ *maker, o tree) { o["status"] = "closed" }}},
}

var receivedCredits = kind{
	name: "treasury.received_credit", plural: "treasury/received_credits", prefix: "rc", opens: "treasury.received_credit.created",
	filters: []string{"financial_account"}, must: "financial_account",
	birth: func(m *maker) tree {
		return tree{"object": "treasury.received_credit", "amount": 500, "financial_account": m.ref("treasury.financial_account"), "status": "succeeded",
			"hosted_regulatory_receipt_url": "https://payments.stripe.com/regulatory-receipt/x?s=0"}
	},
	changes: []change{{events: on("treasury.received_credit.failed"), weight: 1, when: is("status", "succeeded"), do: func(_ *maker, o tree) { o["status"] = "failed" }}},
}

// ofAccount answers what is asked of an account by its name: itself, or what lies below it.
func (c *call) ofAccount(path []string, unknown *failure) ([]byte, *failure) {
	a := c.fake.account(path[0])
	if a == nil || c.fake.options.Faults.Blind {
		return nil, &failure{status: http.StatusForbidden, Code: "account_invalid", Message: "The provided key does not have access to account '" + path[0] + "'"}
	}
	c.account = a
	if len(path) == 1 {
		return c.itself()
	}
	return c.below("account", "", path[1:], unknown)
}

// itself is the account that is asked for.
func (c *call) itself() ([]byte, *failure) {
	if all := c.account.kinds[accounts.plural]; len(all) > 0 {
		return c.get(&accounts, all[0].id)
	}
	return c.control(tree{"id": cmp.Or(c.account.id, Own), "object": "account", "charges_enabled": true, "country": "GB", "default_currency": "gbp"})
}

// below answers what lies below an object: the list, or one of it. The owner of what lies below the account is "".
func (c *call) below(plural, owner string, path []string, unknown *failure) ([]byte, *failure) {
	for _, k := range rare {
		switch {
		case k.below != plural || k.plural != path[0]:
		case len(path) == 1:
			return c.listBelow(k, owner)
		case len(path) == 2 && (owner == "" || c.owns(k, path[1], owner)):
			return c.get(k, path[1])
		case len(path) == 2:
			return nil, missing(k, path[1])
		}
	}
	return nil, unknown
}

// owns tells whether an object lies below the owner, which is there.
func (c *call) owns(k *kind, id, owner string) bool {
	o, of := c.account.objects[id], c.account.objects[owner]
	return o != nil && o.kind == k && of != nil && !of.gone() && bytes.Contains(o.revisions[0].body, fmt.Appendf(nil, `%q:%q`, k.owner, owner))
}

// listBelow answers a page of what lies below an owner that is there.
func (c *call) listBelow(k *kind, owner string) ([]byte, *failure) {
	if o := c.account.objects[owner]; owner != "" && (o == nil || o.gone()) {
		return nil, &failure{status: http.StatusNotFound, Code: "resource_missing", Param: k.owner, Message: "No such " + k.owner + ": '" + owner + "'"}
	}
	if owner == "" {
		return c.list(k)
	}
	return c.listWith(k, map[string]string{k.owner: owner})
}

// nested is the rendered body of an owner with the lists of what lies below it: those that are always there, and those that are asked for. They hold the newest ten.
func (c *call) nested(owner *kind, body []byte) []byte {
	for _, k := range rare {
		if body == nil || owner == &accounts || k.below != owner.plural || k.expanded && !slices.Contains(c.query["expand[]"], "data."+k.plural) {
			continue
		}
		id := parse(body)["id"].(string)
		var some [][]byte
		more := false
		for _, o := range slices.Backward(c.account.kinds[k.plural]) {
			r, there := o.at(c.now)
			if !there || r.body == nil || !c.owns(k, o.id, id) {
				continue
			}
			if more = len(some) == 10; more {
				break
			}
			some = append(some, c.rendered(r.body))
		}
		list := page("/v1/"+owner.plural+"/"+id+"/"+k.plural, some, more)
		body = fmt.Appendf(bytes.Clone(body[:len(body)-1]), `,%q:%s}`, k.plural, list)
	}
	return body
}

// kindAt is the kind whose list a path names, and what of the path follows; nil where there is none.
func kindAt(path []string) (k *kind, rest []string) {
	for n := 1; n <= min(2, len(path)); n++ {
		if k := kindListed(strings.Join(path[:n], "/"), false); k != nil && k.below == "" && k != &accounts {
			return k, path[n:]
		}
	}
	for _, k := range rare {
		if k.direct && len(path) == 2 && k.plural == path[0] {
			return k, path[1:]
		}
	}
	return nil, nil
}
