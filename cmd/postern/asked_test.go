package main

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// What a run was asked for is said in words.
func TestAskedFor(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]runs.Run{
		"events, of stripe, all accounts, as a dry run": {Job: "reconcile", Asked: []byte(`{"source":1,"what":"events","all_accounts":true,"dry_run":true,"words":{"source":"stripe"}}`)},
		"objects of type customer, in full, of stripe, account acct_1": {Job: "reconcile",
			Asked: []byte(`{"source":1,"account":"acct_1","what":"objects","type":"customer","full":true,"words":{"source":"stripe","full":"true"}}`)},
		"objects of all types, of shop, since 2026-11-22T01:02:03.000000Z, until 2026-11-22T02:00:00.000000Z": {Job: "reconcile",
			Asked: []byte(`{"source":1,"what":"objects","since":"2026-11-22T01:02:03Z","until":"2026-11-22T02:00:00Z","words":{"source":"shop"}}`)},
		"customer cus_1, of stripe": {Job: "reconcile", Asked: []byte(`{"source":1,"what":"object","type":"customer","id":"cus_1","words":{"source":"stripe"}}`)},
		"customer cus_1, to win over all that was there before, of stripe": {Job: "reconcile",
			Asked: []byte(`{"source":1,"what":"object","type":"customer","id":"cus_1","settle":true,"words":{"source":"stripe"}}`)},
		"since 6h, source stripe": {Job: "replay", Asked: []byte(`{"filter":{},"words":{"source":"stripe","since":"6h"},"rate":5}`)},
		`{"bodies":30}`:           {Job: "retention", Asked: []byte(`{"bodies":30}`)},
		`{"what":7}`:              {Job: "reconcile", Asked: []byte(`{"what":7}`)},
	} {
		if got := askedFor(&r); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The list of runs says what it counts of each: a sweep goes through objects.
func TestProcessed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.run(t, "replay", "--yes", "--no-wait").want(t, 0, "waiting", "")
	number := b.known.Number["stripe"]
	b.db.Exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at) VALUES
		('reconcile', jsonb_build_object('source', $1::int, 'what', 'objects'), 'me', '', 'running', '', '{"processed": 2600, "equal": 2600}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'what', 'object', 'type', 'customer', 'id', 'cus_1'), 'me', '', 'running', '', '{"processed": 1}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'what', 'events', 'all_accounts', true), 'me', '', 'running', '', '{"accounts": 3}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'what', 'events'), 'me', '', 'running', '', '{"processed": 2}', now(), now())`, number)
	r := b.run(t, "runs", "list")
	var cells []string
	for _, line := range strings.Split(strings.TrimSpace(r.out), "\n") {
		at := strings.Index(r.out, "PROCESSED")
		cells = append(cells, strings.TrimSpace(line[at:strings.Index(r.out, "MADE")]))
	}
	if got, want := strings.Join(cells, "|"), "PROCESSED|2 events|3 accounts|1 object|2600 objects|0 events"; got != want {
		t.Errorf("%s, want %s in\n%s", got, want, r.out)
	}
}

// Each approval is shown with what was approved.
func TestApprovalsAreShown(t *testing.T) {
	t.Parallel()
	at := events.Instant{Time: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)}
	r := &runs.Run{Job: "reconcile", Asked: []byte(`{"what":"events"}`), ApprovedBy: "ada", Approval: "they are gone", Approvals: []runs.Approval{
		{What: "key 1", Said: "nothing shows that the key is right", Who: "bob", Why: "it is", At: at}, {What: "tombstones", Said: "90 of 90 objects", Who: "ada", Why: "they are gone", At: at}}}
	var out strings.Builder
	if err := printRun(&out, &cli{}, r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"approved by  bob at 2026-11-22T01:02:03.000000Z\nbecause      it is\napproved     nothing shows that the key is right\n",
		"approved by  ada at 2026-11-22T01:02:03.000000Z\nbecause      they are gone\napproved     90 of 90 objects\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	r.Approvals = nil
	if err := printRun(&out, &cli{}, r); err != nil || !strings.Contains(out.String(), "approved by  ada\nbecause      they are gone\n") {
		t.Errorf("approved before each was kept: %v\n%s", err, out.String())
	}
}
