package stripefake

import "slices"

// kind is a type of objects: its initial body and its possible changes.
type kind struct {
	name, plural, prefix string
	// createEvent is the type of the creation event.
	createEvent string
	// chosenIDs: users choose the ids. Accounts share some ids, and a deleted id may be used again.
	chosenIDs bool
	// deletedStub: the API returns a stub for a deleted object. Deleted objects of other types are
	// not found.
	deletedStub bool
	// idOnly: it belongs to the v2 API, and its events contain no state.
	idOnly bool
	// filters are the fields by which its list can be filtered. statusValues are the allowed values
	// of "status", and status compares them; nil means equal. defaultFilter has the values of
	// fields that a request does not filter by.
	filters       []string
	statusValues  []string
	status        func(asked, status string) bool
	defaultFilter map[string]string
	// parentList is the plural of the parent's kind, and parentField the field with the parent's
	// id. listedOnExpand: the parent contains the list only if a request expands it. requiredFilter
	// is a filter that its list requires.
	parentList, parentField string
	listedOnExpand          bool
	// hasOwnPath: it also has a path of its own.
	hasOwnPath     bool
	requiredFilter string
	// modeless and undated objects have no livemode or no created field.
	modeless, undated bool
	newBody           func(m *changeContext) tree
	changes           []change
}

// change is a possible change of an object.
type change struct {
	// events are its event types. All of them have the same state. The name decides whether an
	// event has previous attributes.
	events []string
	// weight is its relative frequency.
	weight int
	// when reports whether it is possible. Nil means always.
	when func(o tree) bool
	// do executes it. Nil means that it deletes the object.
	do func(m *changeContext, o tree)
}

// changeContext is the context of a creation or a change.
type changeContext struct {
	choose Chooser
	id     string
	// account is the id of the account.
	account     string
	now         int64 // seconds
	refTo       func(kind string) string
	liveMode    bool
	keepVersion bool // the version of the object does not advance
}

func (m *changeContext) pick(values ...any) any { return values[m.choose.IntN(len(values))] }

// kinds are the types of the account, in the order of CurrentObjects.
var kinds = []*kind{&customers, &products, &prices, &subscriptions, &invoices, &charges, &v2Accounts}

// allKinds returns these types and explicitKinds.
func allKinds() []*kind { return slices.Concat(kinds, explicitKinds) }

func kindNamed(name string) *kind {
	for _, k := range allKinds() {
		if k.name == name {
			return k
		}
	}
	panic("stripefake: there are no objects of type " + name)
}

var customers = kind{
	name: "customer", plural: "customers", prefix: "cus", createEvent: "customer.created", deletedStub: true,
	filters: []string{"email", "test_clock"}, defaultFilter: noClock,
	newBody: func(m *changeContext) tree {
		return tree{
			"object": "customer", "address": tree{"city": "Leeds", "country": "GB", "line1": "14 Aire Wharf",
				"line2": nil}, "balance": 0,
			"currency": "gbp", "delinquent": false, "description": nil, "discount": nil, "email": m.pick(emails...),
			"metadata": tree{"plan": "team"},
			"name":     m.pick("Ada Carter", "Jo Böhm", "Ünal & Söhne <GmbH>"), "phone": nil,
			"preferred_locales": []any{"en-GB"}, "shipping": nil,
		}
	},
	changes: []change{
		{events: eventTypes("customer.updated"), weight: 16, do: editSome(
			editableField{"email", emails},
			editableField{"name", list("Ada Carter", "A. Carter", nil)},
			editableField{"balance", list(0, -500, 1200)},
			editableField{"address.city", list("Leeds", "York")},
			editableField{"address.line2", list(nil, "2nd floor")},
			editableField{"metadata.plan", list("team", "solo", absentValue)},
			editableField{"metadata.seats", list("5", absentValue)},
			editableField{"preferred_locales", list([]any{"en-GB"}, []any{"de", "en-GB"}, []any{})},
			editableField{"shipping", list(nil, tree{"name": "Ada", "phone": nil}, tree{"name": "Bo", "phone": nil})},
		)},
		{events: eventTypes("customer.deleted"), weight: 1},
	},
}

// noClock: objects with a test clock are listed only on request.
var noClock = map[string]string{"test_clock": "<nil>"}

var emails = list("ada@postern.example", "bo@postern.example", "cy@postern.example")

var products = kind{
	name: "product", plural: "products", prefix: "team", createEvent: "product.created", chosenIDs: true,
	filters: []string{"active"},
	newBody: func(m *changeContext) tree {
		return tree{
			"object": "product", "active": true, "default_price": nil, "description": nil, "images": []any{},
			"metadata":           tree{},
			"marketing_features": []any{tree{"name": "Audit log"}}, "name": "Team", "updated": m.now,
		}
	},
	changes: []change{
		{events: eventTypes("product.updated"), weight: 16, do: func(m *changeContext, o tree) {
			editSome(
				editableField{"name", list("Team", "Team Plus", "Solo")},
				editableField{"active", list(true, false)},
				editableField{"description", list(nil, "for up to fifty people")},
				editableField{"metadata.tier", list("1", "2", absentValue)},
				editableField{"marketing_features", list([]any{tree{"name": "Audit log"}},
					[]any{tree{"name": "Audit log"}, tree{"name": "Seats"}})},
			)(m, o)
			if !m.keepVersion {
				o["updated"] = m.now
			}
		}},
		{events: eventTypes("product.deleted"), weight: 1},
	},
}

var prices = kind{
	name: "price", plural: "prices", prefix: "price", createEvent: "price.created",
	filters: []string{"active", "product",
		"type"},
	defaultFilter: map[string]string{"active": "true"}, // as its documentation says
	newBody: func(m *changeContext) tree {
		return tree{
			"object": "price", "active": true, "billing_scheme": "per_unit", "currency": "gbp", "lookup_key": nil,
			"metadata": tree{}, "nickname": nil,
			"product": m.refTo("product"), "recurring": tree{"interval": "month", "interval_count": 1},
			"type": "recurring", "unit_amount": m.pick(900, 1900),
		}
	},
	changes: []change{
		{events: eventTypes("price.updated"), weight: 16, do: editSome(
			editableField{"active", list(true, false)},
			editableField{"nickname", list(nil, "monthly", "old")},
			editableField{"lookup_key", list(nil, "team_monthly")},
			editableField{"metadata.tier", list("1", absentValue)},
		)},
		{events: eventTypes("price.deleted"), weight: 1},
	},
}

// v2Accounts are accounts of the v2 API, which has id-only events.
var v2Accounts = kind{
	name: "v2.core.account", plural: "accounts", prefix: "acct_v2", createEvent: "v2.core.account.created",
	idOnly:  true,
	filters: []string{"closed"}, defaultFilter: map[string]string{"closed": "false"},
	newBody: func(*changeContext) tree {
		return tree{"object": "v2.core.account", "contact_email": nil, "display_name": "Shop", "dashboard": "full",
			"metadata": tree{}, "closed": false,
			"configuration": tree{"customer": nil, "merchant": tree{"applied": true},
				"recipient": tree{"applied": false}}, "defaults": tree{"currency": "gbp"},
			"identity": tree{"country": "GB"}, "requirements": tree{"entries": []any{}}}
	},
	changes: []change{
		{events: eventTypes("v2.core.account.updated"), weight: 16, when: fieldIs("closed", false), do: editSome(
			editableField{"display_name", list("Shop", "Shop & Co", "Shop Ltd")},
			editableField{"contact_email", append(emails, nil)},
			editableField{"metadata.tier", list("1", absentValue)},
			editableField{"defaults.currency", list("gbp", "eur")},
			editableField{"configuration.merchant.applied", list(true, false)},
		)},
		{events: eventTypes("v2.core.account.closed"), weight: 1, when: fieldIs("closed", false),
			do: func(_ *changeContext, o tree) { o["closed"] = true }},
	},
}
