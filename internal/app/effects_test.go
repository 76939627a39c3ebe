package app_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// paidRule is a destination and a rule about paid invoices.
func paidRule(url string, version int) string {
	return fmt.Sprintf(`destinations:
  mail: {url: %q, key: {value: key-of-mail}, allow: [127.0.0.1]}
effects:
  receipt:
    source: a
    type: invoice
    when: new.status == "paid"
    key: "receipt:{{ new.id }}"
    rule_version: %d
    steps: [{name: send, to: mail, path: "/mail", json: {invoice: "{{ new.id }}"}, capture: {id: id}}]
`, url, version)
}

// A rule on a schedule is asked about what there is, at a time that has come.
func TestARuleOnASchedule(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "one"), time.Hour)
	other := sink.New(t)
	if id := r.mustPost(t, "a", r.sign(t, "a", "invoice.paid", 1, time.Now().Add(-time.Minute))).ID; r.outcome(t, id) != "applied" {
		t.Fatal("not applied")
	}
	rule := strings.Replace(paidRule(other.URL, 1), `when: new.status == "paid"`, `schedule: {cron: "0 0 * * *"}`, 1)
	replace(t, r.file, r.head+"sources:\n"+source("a", "one")+rule)
	r.reload(t, "ok")
	testkit.Eventually(t, time.Minute, func() error {
		if n := r.db.Rows(t, `SELECT rule FROM effect_windows`); len(n) != 1 {
			return fmt.Errorf("rules: %q", n)
		}
		return nil
	})
	r.ahead(t, "24 hours")
	r.followed(t, 1)
}

// followed waits until so many effects are done, and for no other.
func (r *reloading) followed(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var done, all int
		if err := r.db.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE state = 'done'), count(*) FROM effects`).Scan(&done, &all); err != nil || done != want || all != want {
			return fmt.Errorf("%d of %d effects are done, %v", done, all, err)
		}
		return nil
	})
}

// A change is followed by its effect, once: not again for a duplicate, nor for another change, of which the log has a word; and again on purpose, under another version of the rule that was read while all runs.
func TestAChangeIsFollowedByItsEffect(t *testing.T) {
	t.Parallel()
	var r *reloading
	begun := time.Now().Add(-time.Minute)
	paid := func(n int) receipt { // a second apart, so that their order is certain
		return r.mustPost(t, "a", r.sign(t, "a", "invoice.paid", n, begun.Add(time.Duration(n)*time.Second)))
	}
	r = startReloading(t, source("a", "one"), time.Hour)
	other := sink.New(t)
	if r.outcome(t, paid(1).ID) != "applied" {
		t.Fatal("not applied")
	}
	r.followed(t, 0) // there is no rule yet
	replace(t, r.file, r.head+"sources:\n"+source("a", "one")+paidRule(other.URL, 1))
	r.reload(t, "ok")
	for range 2 {
		r.outcome(t, paid(2).ID)
	}
	r.followed(t, 1)
	calls := other.Calls()
	if len(calls) != 1 || calls[0].Header.Get("Authorization") != "Bearer key-of-mail" || !strings.HasPrefix(calls[0].Key, "postern-") || !strings.HasPrefix(fmt.Sprint(calls[0].JSON(t)["invoice"]), "in_") {
		t.Errorf("%+v", calls)
	}
	replace(t, r.file, r.head+"sources:\n"+source("a", "one")+paidRule(other.URL, 2))
	r.reload(t, "ok")
	for n := range 2 { // the second changes what has its receipt
		r.outcome(t, paid(3+n).ID)
	}
	r.followed(t, 2)
	testkit.Eventually(t, time.Minute, func() error {
		if said := r.log.String(); !strings.Contains(said, " effects=1\n") || !strings.Contains(said, " effects_known=1\n") {
			return fmt.Errorf("no word of an effect that was planned, or of one that was known:\n%s", said)
		}
		return nil
	})
	var kept string
	if err := r.db.Pool.QueryRow(t.Context(), `SELECT string_agg(request::text, '') FROM effect_steps`).Scan(&kept); err != nil || strings.Contains(kept, "key-of-mail") {
		t.Errorf("the ledger keeps %s, %v", kept, err)
	}
}
