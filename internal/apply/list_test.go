package apply_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

var firstDay = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// insertOutcomes inserts outcomes of n events, one second apart: event g is applied to object g % 3
// (0 is none), and every tenth is dead.
func insertOutcomes(t *testing.T, db *testkit.DB, run int64, n int) {
	t.Helper()
	db.Exec(t, `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts,
			at, rule_version)
		SELECT ($1::bigint + 1000 * g) << 20, $2, (SELECT number FROM sources LIMIT 1), g % 3, CASE g % 2
			WHEN 0 THEN 'a' ELSE '' END, 'invoice', (g % 3)::text,
		  CASE g % 10 WHEN 0 THEN 'dead' ELSE 'applied' END, 'because', 1, now(), 1
		FROM generate_series(1, $3::int) g`, firstDay.UnixMilli(), run, n)
}

// eventSeconds returns the second of each outcome's event, with the run if it is not the live one.
func eventSeconds(found []events.Outcome) string {
	var all []string
	for _, o := range found {
		text := fmt.Sprint(events.Time(o.EventID).Sub(firstDay).Seconds())
		if o.Run != 0 {
			text += fmt.Sprint("/", o.Run)
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func TestListOutcomes_filters_selectOutcomes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	operator := b.DB.Role(t, "operator")
	insertOutcomes(t, b.DB, 0, 12)
	insertOutcomes(t, b.DB, 3, 2)
	a, live := "a", int64(0)
	for name, tc := range map[string]struct {
		f    apply.OutcomeFilter
		want string
	}{
		"all":     {apply.OutcomeFilter{}, "12 11 10 9 8 7 6 5 4 3 2/3 2 1/3 1"},
		"one run": {apply.OutcomeFilter{Run: &live, Until: firstDay.Add(4 * time.Second)}, "3 2 1"},
		"dead":    {apply.OutcomeFilter{Status: "dead"}, "10"},
		"applied": {apply.OutcomeFilter{Status: "applied", Since: firstDay.Add(9 * time.Second)},
			"12 11 9"},
		"account":               {apply.OutcomeFilter{Account: &a, Since: firstDay.Add(9 * time.Second)}, "12 10"},
		"object by name":        {apply.OutcomeFilter{ObjectType: "invoice", ObjectID: "2"}, "11 8 5 2/3 2"},
		"object by hash":        {apply.OutcomeFilter{Objects: []int64{1}}, "10 7 4 1/3 1"},
		"objects and status":    {apply.OutcomeFilter{Objects: []int64{1, 2}, Status: "dead"}, "10"},
		"no object":             {apply.OutcomeFilter{Objects: []int64{}}, ""},
		"zero is not an object": {apply.OutcomeFilter{Objects: []int64{0}}, ""},
		"event":                 {apply.OutcomeFilter{Event: events.FirstID(firstDay.Add(2 * time.Second))}, "2/3 2"},
		"source":                {apply.OutcomeFilter{Source: b.Source, Status: "dead"}, "10"},
		"another source":        {apply.OutcomeFilter{Source: b.Source + 1}, ""},
		"since and until": {apply.OutcomeFilter{Since: firstDay.Add(4 * time.Second),
			Until: firstDay.Add(6 * time.Second)}, "5 4"},
		"before all events":   {apply.OutcomeFilter{Until: firstDay}, ""},
		"type without its id": {apply.OutcomeFilter{ObjectType: "order"}, ""},
	} {
		page, err := apply.ListOutcomes(t.Context(), operator, tc.f, "", 0)
		if got := eventSeconds(page.Items); err != nil || got != tc.want || page.Next != "" {
			t.Errorf("%s: got %q, next %q, %v, want %q", name, got, page.Next, err, tc.want)
		}
	}
}

// allPages reads all pages of a filter and counts them.
func allPages(t *testing.T, db *testkit.DB, f apply.OutcomeFilter, limit int) (found []events.Outcome, pages int) {
	t.Helper()
	for cursor := ""; ; {
		page, err := apply.ListOutcomes(t.Context(), db.Pool, f, cursor, limit)
		must(t, err)
		found, pages = append(found, page.Items...), pages+1
		if cursor = page.Next; cursor == "" {
			return found, pages
		}
	}
}

func TestListOutcomes_pages_coverEverythingOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	insertOutcomes(t, b.DB, 0, 30)
	insertOutcomes(t, b.DB, 1, 20)
	for name, f := range map[string]apply.OutcomeFilter{"all": {}, "object": {Objects: []int64{1, 2}},
		"dead": {Status: "dead"}, "dead of objects": {Objects: []int64{1, 2}, Status: "dead"}} {
		all, _ := allPages(t, b.DB, f, 1000)
		for _, limit := range []int{1, 3, 7} {
			parts, _ := allPages(t, b.DB, f, limit)
			equal(t, fmt.Sprintf("%s by %d", name, limit), eventSeconds(all), eventSeconds(parts))
		}
	}
}

func TestListOutcomes_sparseFilter_returnsShortPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	insertOutcomes(t, b.DB, 0, 25_000)
	for want, f := range map[int]apply.OutcomeFilter{3: {ObjectType: "none"},
		2: {Objects: []int64{1, 2}, Status: "stale"}} {
		if found, pages := allPages(t, b.DB, f, 0); len(found) != 0 || pages != want {
			t.Errorf("%+v: %d outcomes on %d pages, want none on %d", f, len(found), pages, want)
		}
	}
	if _, err := apply.ListOutcomes(t.Context(), b.DB.Pool, apply.OutcomeFilter{}, events.MakeCursor(1),
		0); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a cursor of another list: %v", err)
	}
}

// testWalk selects the even ids, ten ids at a time and none between 21 and 40, and fails above a
// limit. It reports each query.
func testWalk(limit int64, queries chan<- int64) apply.Walk {
	return apply.Walk{After: 0, Bound: 64, Chunk: 3, IDsOnly: true,
		Match: func(_ context.Context, _ *pgxpool.Pool, after, bound int64) (ids []int64, end int64, err error) {
			if queries <- after; after >= limit {
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

// chunksOf returns the chunks of a walk, and the error with which it ended.
func chunksOf(ctx context.Context, w apply.Walk, until int) (got []string) {
	for c, err := range new(apply.Applier).ReadAhead(ctx, w) {
		if err != nil {
			return append(got, err.Error())
		}
		if got = append(got, fmt.Sprint(c.From, c.IDs, c.End)); len(got) == until {
			return got
		}
	}
	return got
}

// Every selected event is in one chunk, in order, and a checkpoint after each chunk skips nothing.
// A walk that ends with an error first yields all chunks that it has read. It reads one chunk ahead
// and no more, and nothing after the caller has stopped.
func TestReadAhead_anyWalk_yieldsEachEventOnce(t *testing.T) {
	t.Parallel()
	want := []string{"0 [2 4 6] 6", "0 [8 10] 10", "10 [12 14 16] 16", "10 [18 20] 20", "20 [] 30", "30 [] 40",
		"40 [42 44 46] 46", "40 [48 50] 50", "50 [52 54 56] 56", "50 [58 60] 60", "60 [62 64] 64"}
	equal(t, "all", want, chunksOf(t.Context(), testWalk(64, make(chan int64, 100)), 0))
	equal(t, "until an error", append(want[:4:4], "no more"), chunksOf(t.Context(), testWalk(20, make(chan int64, 100)),
		0))
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	got := chunksOf(ctx, testWalk(64, make(chan int64, 100)), 0)
	if len(got) == 0 || got[len(got)-1] != "stopped" {
		t.Errorf("a walk that was stopped gave %q", got)
	}
	queries := make(chan int64, 100)
	equal(t, "the first chunks", want[:3], chunksOf(t.Context(), testWalk(64, queries), 3))
	close(queries) // a reader that continues would panic
	if n := len(queries); n > 2 {
		t.Errorf("matched %d times for chunks of the first two ranges", n)
	}
}
