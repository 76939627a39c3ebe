package stripe_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// What GET answers, read by its type.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	type seen struct {
		Deleted, Final, Own bool
		At                  int64
		State               string
	}
	for name, c := range map[string]struct {
		objectType, id, body string
		want                 seen
		dead                 bool
	}{
		"whole":                   {"customer", "cus_1", `{"id":"cus_1","object":"customer","name":"A"}`, seen{State: `{"id":"cus_1","object":"customer","name":"A"}`}, false},
		"stub, ids never reused":  {"customer", "cus_1", `{"id":"cus_1","object":"customer","deleted":true}`, seen{Deleted: true, Final: true}, false},
		"stub of a chosen id":     {"product", "gold", `{"id":"gold","object":"product","deleted":true}`, seen{Deleted: true}, false},
		"missing":                 {"price", "price_1", "", seen{Deleted: true}, false},
		"own version":             {"product", "prod_1", `{"id":"prod_1","object":"product","updated":1800000000}`, seen{Own: true, At: 1_800_000_000_000_000, State: `{"id":"prod_1","object":"product","updated":1800000000}`}, false},
		"canceled is not deleted": {"subscription", "sub_1", `{"id":"sub_1","object":"subscription","status":"canceled"}`, seen{State: `{"id":"sub_1","object":"subscription","status":"canceled"}`}, false},
		"one without an id":       {"cash_balance", "cus_1", `{"object":"cash_balance","customer":"cus_1"}`, seen{State: `{"object":"cash_balance","customer":"cus_1"}`}, false},
		"another object":          {"customer", "cus_1", `{"id":"cus_2","object":"customer"}`, seen{}, true},
		"another type":            {"customer", "cus_1", `{"id":"cus_1","object":"charge"}`, seen{}, true},
		"no JSON":                 {"customer", "cus_1", `<html>`, seen{}, true},
	} {
		s := &provider.Snapshot{ObjectType: c.objectType, ObjectID: c.id, Missing: c.body == "", Body: []byte(c.body)}
		o, err := stripe.Stripe{}.Snapshot(&provider.Source{}, s)
		var dead *provider.Dead
		if errors.As(err, &dead) != c.dead || !c.dead && err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if o.Own && !o.HasAt {
			t.Errorf("%s: a version of its own that is not used", name)
		}
		if got := (seen{o.Deleted, o.Final, o.Own, o.At, string(o.State.Raw())}); !c.dead && got != c.want {
			t.Errorf("%s: %s", name, cmp.Diff(c.want, got))
		}
	}
}
