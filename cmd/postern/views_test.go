package main

import (
	"strings"
	"testing"
)

func TestViews_commands_sayWhatTheyDid(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "views create stripe", 3, "", "become the columns: send or reconcile events first")
	b.want(t, "views create stripe invoice", 3, "", "source stripe has no objects yet")
	b.want(t, "views create strpe", 3, "", "source strpe: not found: the registered sources are ")
	b.want(t, "views update stripe", 3, "", "source stripe has no typed views; see postern views list")
	b.want(t, "views update", 0, "No new fields", "")
	b.insertObject(t, "stripe", "", b.append(t, "stripe", "evt_1", "{}"))
	b.want(t, "views list", 0, "No typed views", "")
	for args, want := range map[string]string{
		"create stripe --index name":             "--index needs a TYPE",
		"create stripe --as name=text":           "--as needs a TYPE",
		"create stripe customer --as name=money": "FIELD=TYPE with one of the types bigint, boolean",
		"create stripe customer --schema public": "schema \"public\"",
		"create stripe customer --index nothing": "no column nothing; see postern views list -o json",
		"drop stripe":                            "add --yes",
	} {
		b.run(t, append([]string{"views"}, strings.Fields(args)...)...).want(t, 2, "", want)
	}
	b.want(t, "views create stripe customer --index name,id --as since=unix", 0,
		"stripe  customer  stripe.customer  name, since", "column name: texts of more than 2,000 bytes")
	b.want(t, "views create stripe customer --as sinse=unix", 0, "sinse",
		"no object in the sample has a field sinse, so column sinse is null")
	b.want(t, "views update strpe", 3, "", "source strpe has no typed views; see postern views list")
	b.want(t, "views list", 0, "stripe  customer  stripe.customer  3        name, id", "")
	b.want(t, "views list shop -o json", 0, "[]", "")
	b.want(t, "views update", 0, "No new fields.", "")
	b.want(t, "views create stripe customer --as name=jsonb", 0, "stripe.customer",
		"stripe.customer: column name exists already as text (text of at most 2000 bytes)")
	b.want(t, "views drop stripe --yes", 0, "Dropped 1 view.", "")
	b.want(t, "views drop stripe --yes", 3, "", "no such view; see postern views list")
}
