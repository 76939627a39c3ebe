package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/testkit"
)

var ledgerDay = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// ledger records outcomes of n events, a second apart: event g is applied to object g % 3 (0 being none), and every tenth is dead.
func ledger(t *testing.T, db *testkit.DB, run int64, n int) {
	t.Helper()
	db.Exec(t, `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		SELECT ($1::bigint + 1000 * g) << 20, $2, (SELECT number FROM sources LIMIT 1), g % 3, CASE g % 2 WHEN 0 THEN 'a' ELSE '' END, 'invoice', (g % 3)::text,
		  CASE g % 10 WHEN 0 THEN 'dead' ELSE 'applied' END, 'because', 1, now(), 1
		FROM generate_series(1, $3::int) g`, ledgerDay.UnixMilli(), run, n)
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
		must(t, err)
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

// windows chooses the even ids, ten ids at a time and nothing between 21 and 40, and fails above a limit. It tells when it was asked.
func windows(limit int64, asked chan<- int64) processor.Walk {
	return processor.Walk{After: 0, Bound: 64, Chunk: 3, Unread: true,
		Match: func(_ context.Context, _ *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error) {
			if asked <- after; after >= limit {
				return nil, after, errors.New("no more")
			}
			for id := after + 1; id <= min(after+10, bound); id++ {
				if id%2 == 0 && (id < 21 || id > 40) {
					ids = append(ids, id)
				}
			}
			return ids, min(after+10, bound), nil
		}}
}

// walked says what a walk gave, and the error it ended with.
func walked(ctx context.Context, w processor.Walk, until int) (got []string) {
	for c, err := range new(processor.Processor).Ahead(ctx, w) {
		if err != nil {
			return append(got, err.Error())
		}
		if got = append(got, fmt.Sprint(c.From, c.IDs, c.End)); len(got) == until {
			return got
		}
	}
	return got
}

// Every chosen event is in one chunk, in order, and the checkpoint that may be set behind each
// passes over nothing. A walk that ends with an error gives out first all that it has read. It
// reads one chunk ahead and no more, and nothing any more once the caller has left.
func TestAheadGivesEveryEventOnce(t *testing.T) {
	t.Parallel()
	want := []string{"0 [2 4 6] 6", "0 [8 10] 10", "10 [12 14 16] 16", "10 [18 20] 20", "20 [] 30", "30 [] 40",
		"40 [42 44 46] 46", "40 [48 50] 50", "50 [52 54 56] 56", "50 [58 60] 60", "60 [62 64] 64"}
	equal(t, "all", want, walked(t.Context(), windows(64, make(chan int64, 100)), 0))
	equal(t, "until an error", append(want[:4:4], "no more"), walked(t.Context(), windows(20, make(chan int64, 100)),
		0))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	got := walked(ctx, windows(64, make(chan int64, 100)), 0)
	if len(got) == 0 || got[len(got)-1] != "stopped" {
		t.Errorf("a walk that was stopped gave %q", got)
	}
	asked := make(chan int64, 100)
	equal(t, "the first chunks", want[:3], walked(t.Context(), windows(64, asked), 3))
	close(asked) // a reader that goes on would panic
	if n := len(asked); n > 2 {
		t.Errorf("matched %d times for chunks of the first two windows", n)
	}
}
