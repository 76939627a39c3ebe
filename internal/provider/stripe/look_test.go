package stripe_test

import (
	"errors"
	"fmt"
	"strings"
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

// What has no livemode of its own is in the mode of its event, and of the key that reads it: it can be looked at in both.
func TestLooksInBothModes(t *testing.T) {
	t.Parallel()
	src := &provider.Source{}
	for objectType, object := range map[string]string{
		"account":          `{"id":"acct_1","object":"account","charges_enabled":true}`,
		"capability":       `{"id":"card_payments","object":"capability","account":"acct_1","status":"active"}`,
		"balance_settings": `{"object":"balance_settings","payments":{}}`,
		"balance":          `{"object":"balance","livemode":%t}`,
		"product":          `{"id":"gold","object":"product","deleted":true}`,
	} {
		for _, live := range []bool{true, false} {
			if strings.Contains(object, "%t") {
				object = fmt.Sprintf(object, live)
			}
			event := fmt.Sprintf(`{"id":"evt_1","object":"event","type":"%s.updated","account":"acct_1","created":1790000000,"livemode":%t,"data":{"object":%s}}`, objectType, live, object)
			o, err := stripe.Stripe{}.Observe(src, &provider.Stored{Body: []byte(event)})
			if want := map[bool]string{true: "acct_1", false: "acct_1/test"}[live]; err != nil || o.Account != want {
				t.Errorf("%s, live %t: kept under %q (%v), want %q", objectType, live, o.Account, err, want)
			}
			for key, reads := range map[string]bool{"rk_live_x": live, "rk_test_x": !live, "sk_org_live_x": live, "sk_org_test_x": !live} {
				api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
				if _, ok := (stripe.Stripe{}).Fetch(src, api, o.Account, o.ObjectType, o.ObjectID); ok != reads {
					t.Errorf("%s, live %t, is asked for with %s: %t", objectType, live, key, ok)
				}
			}
			if _, err := (stripe.Stripe{}).Snapshot(src, &provider.Snapshot{Account: o.Account, ObjectType: o.ObjectType, ObjectID: o.ObjectID, Body: []byte(object)}); err != nil {
				t.Errorf("%s, live %t: %v", objectType, live, err)
			}
			if strings.Contains(object, "livemode") {
				other := strings.Replace(object, fmt.Sprint(live), fmt.Sprint(!live), 1)
				if _, err := (stripe.Stripe{}).Snapshot(src, &provider.Snapshot{Account: o.Account, ObjectType: o.ObjectType, ObjectID: o.ObjectID, Body: []byte(other)}); err == nil {
					t.Errorf("%s, live %t: one of the other mode is taken for it", objectType, live)
				}
				object = strings.Replace(object, fmt.Sprint(live), "%t", 1)
			}
		}
	}
}
