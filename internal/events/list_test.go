package events_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// insertEvents inserts events as the owner, one second apart from day on, so that ids and times are
// known. Event n (from 1) has the key "k<n>". An even n has the type invoice.paid and account a, an
// odd one the type invoice_item and no account.
func (b *testBundle) insertEvents(t *testing.T, day time.Time, n int) {
	t.Helper()
	for _, sql := range []string{
		`SELECT ensure_partitions($1::bigint, $1::bigint + 1000 * $2::bigint)`,
		`INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, occurred_at,
			received_at, origin, api_version,
		   headers, verification, fingerprint, delivery_id, delivery_index, body)
		 SELECT ($1::bigint + 1000 * g) << 20, 1, 'k' || g, CASE g % 2 WHEN 0 THEN 'invoice.paid'
		 	ELSE 'invoice_item' END, CASE g % 2 WHEN 0 THEN 'a' ELSE '' END,
		   'invoice', (g / 2)::text, timestamptz 'epoch' + g * interval '1 day', to_timestamp($1::bigint / 1000.0 + g),
		   	CASE g % 3 WHEN 0 THEN 'import' ELSE 'webhook' END,
		   'v1', '{}', '{}', '\x00', ($1::bigint + 1000 * g) << 20, 0, convert_to('{"n":' || g || '}', 'UTF8')
		 FROM generate_series(1, $2::int) g`,
		`INSERT INTO event_keys (source, key, id, fingerprint)
			SELECT source, substr(sha256(convert_to(event_id, 'UTF8')), 1, 16), id, fingerprint
		 FROM events WHERE id >= $1::bigint << 20 AND $2::int > 0`,
	} {
		b.db.Exec(t, sql, day.UnixMilli(), n)
	}
}

var firstDay = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

func idsOf(items []events.Item) (ids []int64) {
	for _, it := range items {
		ids = append(ids, it.ID)
	}
	return ids
}

func keysOf(items []events.Item) string {
	var keys []string
	for _, it := range items {
		keys = append(keys, it.EventID)
	}
	return strings.Join(keys, " ")
}

func TestList_filters_selectEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	operator := b.db.Role(t, "operator")
	b.insertEvents(t, firstDay, 8)
	b.insertDecided(t, 2, 0, 77, "applied", 0, 0)
	b.insertDecided(t, 2, 5, 77, "dead", 0, 0)   // a replay, not the live run
	b.insertDecided(t, 3, 5, 0, "ignored", 0, 0) // only a replay: pending in the live run
	b.insertDecided(t, 5, 0, 77, "dead", 0, 0)
	b.insertDecided(t, 6, 0, 0, "ignored", 0, 0)
	empty, a := "", "a"
	for name, tc := range map[string]struct {
		f    events.Filter
		want string
	}{
		"all, newest first":                      {events.Filter{}, "k8 k7 k6 k5 k4 k3 k2 k1"},
		"source":                                 {events.Filter{Source: 1, Key: "k3"}, "k3"},
		"another source":                         {events.Filter{Source: 2}, ""},
		"account":                                {events.Filter{Account: &a}, "k8 k6 k4 k2"},
		"no account":                             {events.Filter{Account: &empty}, "k7 k5 k3 k1"},
		"type":                                   {events.Filter{Type: "invoice.paid"}, "k8 k6 k4 k2"},
		"pattern":                                {events.Filter{Type: "invoice*"}, "k8 k7 k6 k5 k4 k3 k2 k1"},
		"underscore is no wildcard":              {events.Filter{Type: "invoice_paid"}, ""},
		"percent is no wildcard":                 {events.Filter{Type: "%"}, ""},
		"object":                                 {events.Filter{ObjectType: "invoice", ObjectID: "2"}, "k5 k4"},
		"key":                                    {events.Filter{Key: "k4"}, "k4"},
		"origin":                                 {events.Filter{Origin: "import"}, "k6 k3"},
		"since is inclusive":                     {events.Filter{Since: firstDay.Add(7 * time.Second)}, "k8 k7"},
		"until is exclusive":                     {events.Filter{Until: firstDay.Add(3 * time.Second)}, "k2 k1"},
		"until with a fraction of a millisecond": {events.Filter{Until: firstDay.Add(3*time.Second + 1)}, "k3 k2 k1"},
		"occurred": {events.Filter{OccurredSince: time.Unix(2*86400, 0),
			OccurredUntil: time.Unix(4*86400, 0)}, "k3 k2"},
		"applied":               {events.Filter{Status: "applied"}, "k2"},
		"dead in the live run":  {events.Filter{Status: "dead"}, "k5"},
		"pending":               {events.Filter{Status: "pending"}, "k8 k7 k4 k3 k1"},
		"applied to an object":  {events.Filter{Objects: []int64{77}}, "k5 k2"},
		"unknown object":        {events.Filter{Objects: []int64{}}, ""},
		"empty list of objects": {events.Filter{Objects: []int64{0}}, ""},
		"object and status":     {events.Filter{Objects: []int64{77}, Status: "applied"}, "k2"},
		"after":                 {events.Filter{AfterID: events.FirstID(firstDay.Add(6 * time.Second))}, "k8 k7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page, err := events.List(t.Context(), operator, tc.f, "", 0)
			testkit.Must(t, err)
			if got := keysOf(page.Items); got != tc.want || page.Next != "" {
				t.Errorf("got %q, next %q, want %q", got, page.Next, tc.want)
			}
			ids, _ := walk(t, operator, &tc.f, math.MaxInt64)
			slices.Reverse(ids)
			testkit.Equal(t, "walked forwards", idsOf(page.Items), ids)
			counted, err := events.Count(t.Context(), operator, &tc.f)
			if err != nil || counted.Events != int64(len(ids)) {
				t.Errorf("counted %+v, %v, want %d", counted, err, len(ids))
			}
		})
	}
}

// readAllPages reads all pages of a filter and counts them.
func readAllPages(t *testing.T, b *testBundle, f events.Filter, limit int) (items []events.Item, pages int) {
	t.Helper()
	for cursor := ""; ; pages++ {
		page, err := events.List(t.Context(), b.db.Pool, f, cursor, limit)
		testkit.Must(t, err)
		items = append(items, page.Items...)
		if cursor = page.Next; cursor == "" {
			return items, pages + 1
		}
	}
}

func TestList_pages_coverEverythingOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertEvents(t, firstDay, 25)
	for _, n := range []int{1, 4, 9, 16, 25} {
		b.insertDecided(t, n, 0, 77, "dead", 0, 0)
	}
	for _, n := range []int{2, 20} {
		b.insertDecided(t, n, 0, 78, "stale", 0, 0)
	}
	for name, f := range map[string]events.Filter{"log": {}, "object": {Objects: []int64{77}}, "dead": {Status: "dead"},
		"stale": {Status: "stale"},
		"type":  {Type: "invoice.*"}} {
		whole, _ := readAllPages(t, b, f, 1000)
		for _, limit := range []int{1, 2, 5, 7} {
			parts, _ := readAllPages(t, b, f, limit)
			if diff := cmp.Diff(keysOf(whole), keysOf(parts)); diff != "" {
				t.Errorf("%s by %d: %s", name, limit, diff)
			}
		}
	}
}

// A filter with few matches must not walk the whole log in one call.
func TestList_fewMatches_pagesAreShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertEvents(t, firstDay, 25_000)
	for name, f := range map[string]events.Filter{"key": {Key: "k3"}, "since": {Key: "k3", Since: firstDay}} {
		items, pages := readAllPages(t, b, f, 0)
		if keysOf(items) != "k3" || pages != 3 {
			t.Errorf("%s: got %q on %d pages, want k3 on 3 pages of 10,000 rows", name, keysOf(items), pages)
		}
	}
}

func TestList_invalidParameters_areErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, try := range map[string]struct {
		cursor string
		limit  int
	}{
		"not a cursor": {"!!", 0}, "cursor of another list": {events.MakeCursor(1, "a"), 0},
		"text instead of a number": {events.MakeCursor("a"), 0},
		"too long":                 {strings.Repeat("A", 8000), 0}, "limit": {"", 1001}, "negative": {"", -1},
	} {
		if _, err := events.List(t.Context(), b.db.Pool, events.Filter{}, try.cursor, try.limit); !errors.Is(err,
			events.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestShow_event_hasContentConflictsOutcomes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	operator := b.db.Role(t, "operator")
	id := b.append(t, b.delivery("one \xff", "k1"))[0][0].ID
	b.append(t, b.delivery("two", "k1"))
	several := b.append(t, b.delivery(`{"n":1}`, "k2", "k3"))[0]
	testkit.ExecSQL(t, b.db.Pool, `INSERT INTO outcomes (event_id, run, source, object, account, object_type,
		object_id, status, reason, version,
		decided_by, attempts, due, at, rule_version) VALUES ($1, 0, 1, 5, 'a', 'order', '1', 'failed', 'no luck', NULL,
			'{"at": 7}', 3, $2, $2, 1)`,
		id, firstDay)
	life, err := events.Show(t.Context(), operator, "k1", 0)
	testkit.Must(t, err)
	byID, err := events.Show(t.Context(), operator, fmt.Sprint(id), 0)
	if diff := cmp.Diff(life, byID); err != nil || diff != "" {
		t.Errorf("by key and by id: %v, %s", err, diff)
	}
	if life.Encoding != "base64" || string(life.Body) != "one \xff" || len(life.Conflicts) != 1 ||
		life.Conflicts[0].EventID != "k1" {
		t.Errorf("event: %+v", life)
	}
	if o := life.Outcomes; len(o) != 1 || o[0].Reason != "no luck" || string(o[0].DecidedBy) != `{"at": 7}` ||
		!o[0].Due.Equal(firstDay) {
		t.Errorf("outcomes: %+v", o)
	}
	conflict, err := events.ShowConflict(t.Context(), operator, life.Conflicts[0].ID)
	if err != nil || conflict.Text != "two" || conflict.Bytes != 3 {
		t.Errorf("conflict: %+v, %v", conflict, err)
	}
	second, err := events.Show(t.Context(), operator, fmt.Sprint(several[1].ID), 0)
	if err != nil || second.Text != `{"n":1}` || second.Encoding != "utf-8" {
		t.Errorf("the second event of a delivery has the body of the first: %+v, %v", second, err)
	}
}

func TestFind_keyOrID_returnsEvent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	registered, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"other": "stripe"})
	testkit.Must(t, err)
	first := b.append(t, b.delivery("x", "k1", "only"))[0]
	duplicate := b.delivery("x", "k1")
	duplicate.Source = registered.Number["other"]
	second := b.append(t, duplicate)[0]
	_, err = events.Find(t.Context(), b.db.Pool, "k1", 0)
	var several *events.AmbiguousKeyError
	if !errors.As(err, &several) ||
		!cmp.Equal(several.IDs, map[string]int64{"shop": first[0].ID, "other": second[0].ID}) {
		t.Errorf("a key of two sources: %v", err)
	}
	if id, err := events.Find(t.Context(), b.db.Pool, "k1", duplicate.Source); err != nil || id != second[0].ID {
		t.Errorf("restricted to a source: %d, %v", id, err)
	}
	if id, err := events.Find(t.Context(), b.db.Pool, "only", 0); err != nil || id != first[1].ID {
		t.Errorf("only one: %d, %v", id, err)
	}
	if _, err := events.Show(t.Context(), b.db.Pool, "none", 0); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown key: %v", err)
	}
	if _, err := events.Show(t.Context(), b.db.Pool, "12345", 0); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown id: %v", err)
	}
	if _, err := events.ShowConflict(t.Context(), b.db.Pool, 1); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown conflict: %v", err)
	}
}

func TestListConflicts_filters_selectConflicts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("x", "k1", "k2"))
	b.append(t, b.delivery("y", "k1", "k2"))
	b.append(t, b.delivery("z", "k1"))
	at := b.delivery("").ReceivedAt
	for name, tc := range map[string]struct {
		f    events.ConflictFilter
		want int
	}{
		"all": {events.ConflictFilter{}, 3}, "key": {events.ConflictFilter{Key: "k1"}, 2},
		"type":       {events.ConflictFilter{Type: "orders/*"}, 3},
		"other type": {events.ConflictFilter{Type: "x"}, 0}, "other source": {events.ConflictFilter{Source: 9}, 0},
		"since": {events.ConflictFilter{Since: at}, 3}, "until": {events.ConflictFilter{Until: at}, 0},
	} {
		page, err := events.ListConflicts(t.Context(), b.db.Role(t, "operator"), tc.f, "", 0)
		if err != nil || len(page.Items) != tc.want {
			t.Errorf("%s: %d, %v, want %d", name, len(page.Items), err, tc.want)
		}
	}
	first, err := events.ListConflicts(t.Context(), b.db.Pool, events.ConflictFilter{}, "", 2)
	if err != nil || len(first.Items) != 2 {
		t.Fatalf("first page: %+v, %v", first, err)
	}
	rest, err := events.ListConflicts(t.Context(), b.db.Pool, events.ConflictFilter{}, first.Next, 2)
	if err != nil || len(rest.Items) != 1 || rest.Next != "" || rest.Items[0].ID >= first.Items[1].ID {
		t.Errorf("second page: %+v, %v", rest, err)
	}
}

func TestPage_json_hasDocumentedFields(t *testing.T) {
	t.Parallel()
	item := events.Item{ID: 1 << 60,
		OccurredAt: events.Instant{Time: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("x", 3600))}}
	b, err := json.Marshal(events.Page[events.Item]{Items: []events.Item{item}, Next: "c"})
	testkit.Must(t, err)
	for _, want := range []string{`"id":"1152921504606846976"`, `"occurred_at":"2026-01-02T02:04:05.000006Z"`,
		`"received_at":null`, `"next_cursor":"c"`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s is missing in %s", want, b)
		}
	}
	if b, _ := json.Marshal(events.Page[events.Item]{}); string(b) != `{"items":[],"next_cursor":null}` {
		t.Errorf("empty page: %s", b)
	}
}

func FuzzReadCursor(f *testing.F) {
	for _, seed := range []string{"", events.MakeCursor(1), events.MakeCursor(1, "a"), "bnVsbA", "W10"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		n, s := int64(-5), "unset"
		if err := events.ReadCursor(cursor, &n, &s); err != nil && !errors.Is(err, events.ErrInvalid) {
			t.Fatal(err)
		}
	})
}
