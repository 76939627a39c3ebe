package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/hindsight"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// invoice stores an event about an invoice of Stripe's and has it applied.
func (b *testBundle) invoice(t *testing.T, n int, id, status string) {
	t.Helper()
	at := time.Now().Add(-time.Hour).Add(time.Duration(n) * time.Minute)
	body := fmt.Appendf(nil, `{"id":"evt_%d","object":"event","type":"invoice.updated","created":%d,"data":{"object":{"id":%q,"object":"invoice","status":%q}}}`, n, at.Unix(), id, status)
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: b.known.Number["stripe"], ReceivedAt: at, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: body,
		Events: []provider.Event{{Key: fmt.Sprint("evt_", n), Type: "invoice.updated", ObjectType: "invoice", ObjectID: id, OccurredAt: at, Fingerprint: provider.BodyFingerprint(body)}}}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := processor.New(processor.Options{Pool: b.db.Role(t, "processor"), Settings: processor.DefaultSettings, ID: "p", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"stripe": {Number: b.known.Number["stripe"], Config: &provider.Source{Name: "stripe"}, Provider: stripe.Stripe{}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ApplyStored(t.Context(), processor.Target{}, []int64{receipts[0][0].ID}, false); err != nil {
		t.Fatal(err)
	}
}

// A rule is tried on what was, and nothing is written.
func TestEffectsPlan(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf(`
database: {url: %q}
sources:
  stripe: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  mail: {url: "https://mail.example"}
effects:
  receipt:
    source: stripe
    type: invoice
    when: new.status == "paid" && changed("status")
    key: "receipt:{{ new.id }}"
    rule_version: 2
    steps: [{name: send, to: mail, path: "/mail"}]
`, b.db.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	plan := func(args ...string) result {
		return execute(t.Context(), "", append([]string{"--config", file, "effects", "plan"}, args...)...)
	}
	plan("--rule", "receipt", "--since", "1d").want(t, 0, "No change since then", "under version 2: 0 new, 0 known, 0 known under another version, 0 of a key that came before, 0 gone\n")
	for n, status := range []string{"open", "paid", "open", "paid"} {
		b.invoice(t, n, "in_1", status)
	}
	b.invoice(t, 4, "in_2", "paid")
	b.invoice(t, 5, "in_3", "paid")
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
		SELECT key, version, 'receipt', $1, '', 'invoice', 'x', 7, 0, 'done', 'mail', now(), now() FROM (VALUES ('receipt:in_2', 2), ('receipt:in_3', 1)) AS d(key, version)`, b.known.Number["stripe"])
	r := plan("--rule", "receipt", "--since", "1d")
	r.want(t, 0, "receipt:in_2  invoice in_2", "under version 2: 1 new, 1 known, 1 known under another version, 1 of a key that came before, 0 gone\n")
	r.want(t, 0, "effect 2, v1, done", "")
	var all []hindsight.Change
	if r := plan("--rule", "receipt", "--since", "1d", "-o", "json"); json.Unmarshal([]byte(r.out), &all) != nil || len(all) != 4 || all[0].Ledger != hindsight.New || all[0].EventKey != "evt_1" || all[0].Key != "receipt:in_1" {
		t.Errorf("%+v", r)
	}
	b.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state, destination, planned_at, updated_at)
		SELECT 'paid:in_1', 1, 'receipt', $1, '', 'invoice', 'in_1', id, 0, 'done', 'mail', now(), now() FROM events WHERE event_id = 'evt_1'`, b.known.Number["stripe"])
	plan("--rule", "receipt", "--since", "1d").want(t, 0, "gone  paid:in_1", "1 of a key that came before, 1 gone\n")
	if r := plan("--rule", "receipt", "--since", "1d", "-o", "json"); json.Unmarshal([]byte(r.out), &all) != nil || len(all) != 5 || all[4].Ledger != hindsight.Gone || all[4].EventKey != "evt_1" || all[4].ObjectID != "in_1" || all[4].HasVersion != 1 || all[4].State != effects.Done {
		t.Errorf("%+v", r)
	}
	if n := b.db.Rows(t, `SELECT count(*)::text FROM effects`); n[0] != "3" {
		t.Errorf("%s effects: a dry run has written", n)
	}
	plan("--rule", "receipt").want(t, 2, "", "--since")

	beside := filepath.Join(t.TempDir(), "postern.yaml") // it leaves the database to a dev instance
	if err := os.WriteFile(beside, []byte(strings.Replace(text, "database: {url: "+strconv.Quote(b.db.URL)+"}", "", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	execute(t.Context(), "", "--config", beside, "--dir", b.dir, "effects", "plan", "--rule", "receipt", "--since", "1d").want(t, 0, "receipt:in_2", "")
	execute(t.Context(), "", "--config", beside, "effects", "plan", "--rule", "receipt", "--since", "1d").want(t, 1, "", "database.url")
	execute(t.Context(), "", "--config", beside, "effects", "plan", "--rule", "receipt", "--since", "1d").want(t, 1, "", "or name a dev instance beside it with --dir DIR")
	plan("--rule", "other", "--since", "1d").want(t, 2, "", `there is no rule "other"`)
	plan("--rule", "receipt", "--since", "soon").want(t, 2, "", "an RFC 3339 time")
}
