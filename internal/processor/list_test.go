package processor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/testkit"
)

var ledgerDay = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// ledger records outcomes of n events, a second apart: event g is applied to object g % 3 (0 being none), and every tenth is dead.
func ledger(t *testing.T, db *testkit.DB, run int64, n int) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		SELECT ($1::bigint + 1000 * g) << 20, $2, (SELECT number FROM sources LIMIT 1), g % 3, CASE g % 2 WHEN 0 THEN 'a' ELSE '' END, 'invoice', (g % 3)::text,
		  CASE g % 10 WHEN 0 THEN 'dead' ELSE 'applied' END, 'because', 1, now(), 1
		FROM generate_series(1, $3::int) g`, ledgerDay.UnixMilli(), run, n)
	if err != nil {
		t.Fatal(err)
	}
}

// seconds are the events of outcomes as they were numbered, with their run where it is not the live one.
func seconds(found []events.Outcome) string {
	var all []string
	for _, o := range found {
		text := fmt.Sprint(events.Time(o.EventID).Sub(ledgerDay).Seconds())
		if o.Run != 0 {
			text += fmt.Sprint("/", o.Run)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestListOutcomesFilters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	operator := b.db.Role(t, "operator")
	ledger(t, b.db, 0, 12)
	ledger(t, b.db, 3, 2)
	a, live := "a", int64(0)
	for name, tc := range map[string]struct {
		f    processor.OutcomeFilter
		want string
	}{
		"all":                 {processor.OutcomeFilter{}, "12 11 10 9 8 7 6 5 4 3 2/3 2 1/3 1"},
		"one run":             {processor.OutcomeFilter{Run: &live, Until: ledgerDay.Add(4 * time.Second)}, "3 2 1"},
		"dead":                {processor.OutcomeFilter{Status: "dead"}, "10"},
		"applied":             {processor.OutcomeFilter{Status: "applied", Since: ledgerDay.Add(9 * time.Second)}, "12 11 9"},
		"account":             {processor.OutcomeFilter{Account: &a, Since: ledgerDay.Add(9 * time.Second)}, "12 10"},
		"object by name":      {processor.OutcomeFilter{ObjectType: "invoice", ObjectID: "2"}, "11 8 5 2/3 2"},
		"object by hash":      {processor.OutcomeFilter{Objects: []int64{1}}, "10 7 4 1/3 1"},
		"objects and status":  {processor.OutcomeFilter{Objects: []int64{1, 2}, Status: "dead"}, "10"},
		"no object":           {processor.OutcomeFilter{Objects: []int64{}}, ""},
		"zero is no object":   {processor.OutcomeFilter{Objects: []int64{0}}, ""},
		"event":               {processor.OutcomeFilter{Event: events.FirstID(ledgerDay.Add(2 * time.Second))}, "2/3 2"},
		"source":              {processor.OutcomeFilter{Source: b.source, Status: "dead"}, "10"},
		"another source":      {processor.OutcomeFilter{Source: b.source + 1}, ""},
		"since and until":     {processor.OutcomeFilter{Since: ledgerDay.Add(4 * time.Second), Until: ledgerDay.Add(6 * time.Second)}, "5 4"},
		"nothing that early":  {processor.OutcomeFilter{Until: ledgerDay}, ""},
		"type without its id": {processor.OutcomeFilter{ObjectType: "order"}, ""},
	} {
		page, err := processor.ListOutcomes(t.Context(), operator, tc.f, "", 0)
		if got := seconds(page.Items); err != nil || got != tc.want || page.Next != "" {
			t.Errorf("%s: got %q, next %q, %v, want %q", name, got, page.Next, err, tc.want)
		}
	}
}

// follow reads all pages of a filter and counts them.
func follow(t *testing.T, db *testkit.DB, f processor.OutcomeFilter, limit int) (found []events.Outcome, pages int) {
	t.Helper()
	for cursor := ""; ; {
		page, err := processor.ListOutcomes(t.Context(), db.Pool, f, cursor, limit)
		if err != nil {
			t.Fatal(err)
		}
		found, pages = append(found, page.Items...), pages+1
		if cursor = page.Next; cursor == "" {
			return found, pages
		}
	}
}

func TestOutcomePagesCoverEverythingOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ledger(t, b.db, 0, 30)
	ledger(t, b.db, 1, 20)
	for name, f := range map[string]processor.OutcomeFilter{"ledger": {}, "object": {Objects: []int64{1, 2}}, "dead": {Status: "dead"}} {
		whole, _ := follow(t, b.db, f, 1000)
		for _, limit := range []int{1, 3, 7} {
			parts, _ := follow(t, b.db, f, limit)
			if diff := cmp.Diff(seconds(whole), seconds(parts)); diff != "" {
				t.Errorf("%s by %d: %s", name, limit, diff)
			}
		}
	}
}

func TestSparseOutcomePagesAreShortAndGoOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ledger(t, b.db, 0, 25_000)
	for name, f := range map[string]processor.OutcomeFilter{
		"ledger": {ObjectType: "none"}, "object": {Objects: []int64{1, 2}, Status: "stale"},
	} {
		want := map[string]int{"ledger": 3, "object": 2}[name]
		if found, pages := follow(t, b.db, f, 0); len(found) != 0 || pages != want {
			t.Errorf("%s: %d outcomes on %d pages, want none on %d", name, len(found), pages, want)
		}
	}
	if _, err := processor.ListOutcomes(t.Context(), b.db.Pool, processor.OutcomeFilter{}, events.MakeCursor(1), 0); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a cursor of another list: %v", err)
	}
}
