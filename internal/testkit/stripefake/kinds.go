package stripefake

import "slices"

// kind is a type of object: what it is made of and what can happen to it.
type kind struct {
	name, plural, prefix string
	// opens names the event of its creation.
	opens string
	// chosen: its users choose the ids, so that two accounts share some and one comes back after a delete.
	chosen bool
	// stub: a deleted one is answered with a stub that says so; others are not found.
	stub bool
	// thin: it belongs to the second API, and its events carry none of it.
	thin bool
	// filters are the fields that its list can be narrowed by. statuses are what may be asked for as "status", and status says how that
	// is meant, nil: equal. usual is what a list shows of a field that it is not asked by; absent: all.
	filters  []string
	statuses []string
	status   func(asked, status string) bool
	usual    map[string]string
	// below is the plural of the kind that it lies below, and owner the field that names which; expanded: its owner's list shows it only where that is asked for. must is the filter that its list
	// cannot do without.
	below, owner string
	expanded     bool
	// direct: it is also read by a path of its own.
	direct bool
	must   string
	// modeless and undated objects do not tell their mode, or when they were created.
	modeless, undated bool
	birth             func(m *maker) tree
	changes           []change
}

// change is something that can happen to an object.
type change struct {
	// events tell of it, each with the same state. One that tells what was before says so by its name.
	events []string
	// weight is how likely it is beside the others.
	weight int
	// when tells whether it can happen; nil: always.
	when func(o tree) bool
	// do makes it happen; nil: it deletes the object.
	do func(m *maker, o tree)
}

// maker is what a birth or a change is made from.
type maker struct {
	choose Chooser
	id     string
	// account is the id of the account.
	account string
	now     int64 // seconds
	ref     func(kind string) string
	live    bool
	still   bool // the own version stays
}

func (m *maker) one(values ...any) any { return values[m.choose.IntN(len(values))] }

// kinds are the types of the account, in the order in which Truth lists them.
var kinds = []*kind{&customers, &products, &prices, &subscriptions, &invoices, &charges, &thinAccounts}

// allKinds are those, and the rare ones.
func allKinds() []*kind { return slices.Concat(kinds, rare) }

func kindNamed(name string) *kind {
	for _, k := range allKinds() {
		if k.name == name {
			return k
		}
	}
	panic("stripefake: there are no objects of type " + name)
}

var customers = kind{
	name: "customer", plural: "customers", prefix: "cus", opens: "customer.created", stub: true, filters: []string{"email", "test_clock"}, usual: noClock,
	birth: func(m *maker) tree {
		return tree{
			"object": "customer", "address": tree{"city": "Leeds", "country": "GB", "line1": "14 Aire Wharf", "line2": nil}, "balance": 0,
			"currency": "gbp", "delinquent": false, "description": nil, "discount": nil, "email": m.one(emails...), "metadata": tree{"plan": "team"},
			"name": m.one("Ada Carter", "Jo Böhm", "Ünal & Söhne <GmbH>"), "phone": nil, "preferred_locales": []any{"en-GB"}, "shipping": nil,
		}
	},
	changes: []change{
		{events: on("customer.updated"), weight: 16, do: edits(
			field{"email", emails},
			field{"name", list("Ada Carter", "A. Carter", nil)},
			field{"balance", list(0, -500, 1200)},
			field{"address.city", list("Leeds", "York")},
			field{"address.line2", list(nil, "2nd floor")},
			field{"metadata.plan", list("team", "solo", absent)},
			field{"metadata.seats", list("5", absent)},
			field{"preferred_locales", list([]any{"en-GB"}, []any{"de", "en-GB"}, []any{})},
			field{"shipping", list(nil, tree{"name": "Ada", "phone": nil}, tree{"name": "Bo", "phone": nil})},
		)},
		{events: on("customer.deleted"), weight: 1},
	},
}

// noClock: what has a test clock is not listed but where it is asked for.
var noClock = map[string]string{"test_clock": "<nil>"}

var emails = list("ada@postern.example", "bo@postern.example", "cy@postern.example")

var products = kind{
	name: "product", plural: "products", prefix: "team", opens: "product.created", chosen: true, filters: []string{"active"},
	birth: func(m *maker) tree {
		return tree{
			"object": "product", "active": true, "default_price": nil, "description": nil, "images": []any{}, "metadata": tree{},
			"marketing_features": []any{tree{"name": "Audit log"}}, "name": "Team", "updated": m.now,
		}
	},
	changes: []change{
		{events: on("product.updated"), weight: 16, do: func(m *maker, o tree) {
			edits(
				field{"name", list("Team", "Team Plus", "Solo")},
				field{"active", list(true, false)},
				field{"description", list(nil, "for up to fifty people")},
				field{"metadata.tier", list("1", "2", absent)},
				field{"marketing_features", list([]any{tree{"name": "Audit log"}}, []any{tree{"name": "Audit log"}, tree{"name": "Seats"}})},
			)(m, o)
			if !m.still {
				o["updated"] = m.now
			}
		}},
		{events: on("product.deleted"), weight: 1},
	},
}

var prices = kind{
	name: "price", plural: "prices", prefix: "price", opens: "price.created", filters: []string{"active", "product", "type"},
	usual: map[string]string{"active": "true"}, // so its description says
	birth: func(m *maker) tree {
		return tree{
			"object": "price", "active": true, "billing_scheme": "per_unit", "currency": "gbp", "lookup_key": nil, "metadata": tree{}, "nickname": nil,
			"product": m.ref("product"), "recurring": tree{"interval": "month", "interval_count": 1}, "type": "recurring", "unit_amount": m.one(900, 1900),
		}
	},
	changes: []change{
		{events: on("price.updated"), weight: 16, do: edits(
			field{"active", list(true, false)},
			field{"nickname", list(nil, "monthly", "old")},
			field{"lookup_key", list(nil, "team_monthly")},
			field{"metadata.tier", list("1", absent)},
		)},
		{events: on("price.deleted"), weight: 1},
	},
}

// thinAccounts are accounts of the second API, whose events are thin.
var thinAccounts = kind{
	name: "v2.core.account", plural: "accounts", prefix: "acct_v2", opens: "v2.core.account.created", thin: true,
	filters: []string{"closed"}, usual: map[string]string{"closed": "false"},
	birth: func(*maker) tree {
		return tree{"object": "v2.core.account", "contact_email": nil, "display_name": "Shop", "dashboard": "full", "metadata": tree{}, "closed": false,
			"configuration": tree{"customer": nil, "merchant": tree{"applied": true}, "recipient": tree{"applied": false}}, "defaults": tree{"currency": "gbp"},
			"identity": tree{"country": "GB"}, "requirements": tree{"entries": []any{}}}
	},
	changes: []change{
		{events: on("v2.core.account.updated"), weight: 16, when: is("closed", false), do: edits(
			field{"display_name", list("Shop", "Shop & Co", "Shop Ltd")},
			field{"contact_email", append(emails, nil)},
			field{"metadata.tier", list("1", absent)},
			field{"defaults.currency", list("gbp", "eur")},
			field{"configuration.merchant.applied", list(true, false)},
		)},
		{events: on("v2.core.account.closed"), weight: 1, when: is("closed", false), do: func(_ *maker, o tree) { o["closed"] = true }},
	},
}
