package versioning_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

var firstObjectTime = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// insertObjects stores n objects, numbered from 1, of two sources and two types. Every 2nd is
// deleted, every 3rd ambiguous, every 5th has a pending refetch, and they change one second apart.
// pad is the size of each state.
func insertObjects(t *testing.T, n, pad int) *testkit.DB {
	t.Helper()
	db := testkit.Database(t)
	register(t, db, "one")
	register(t, db, "two")
	db.Exec(t, `
		INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen,
			version_rank, tied_states, overflow, time_from, time_to,
		  refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision,
		  	rule_version, created_at, updated_at)
		SELECT 1 + g % 2, CASE g % 4 WHEN 0 THEN '' ELSE 'a' END, CASE g % 7 WHEN 0 THEN 'price' ELSE 'plan' END,
			lpad(g::text, 6, '0'), false, g, 0, 1, '[]', false, 0, 0,
		  CASE g % 5 WHEN 0 THEN 1 ELSE 0 END, g % 3 = 0, g % 2 = 0, '\x00', '\x00', CASE
		  	WHEN $2 > 0 THEN jsonb_build_object('pad', repeat('x', $2::int)) END, false, g, 1, 1,
		  $3::timestamptz, $3::timestamptz + g * interval '1 s'
		FROM generate_series(1, $1::int) g`, n, pad, firstObjectTime)
	return db
}

func register(t *testing.T, db *testkit.DB, source string) {
	t.Helper()
	_, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{source: "stripe"})
	testkit.Must(t, err)
}

func objectNumbers(found []versioning.View) string {
	var all []string
	for _, o := range found {
		all = append(all, strings.TrimLeft(o.ObjectID, "0"))
	}
	return strings.Join(all, " ")
}

func TestListObjects_filters_selectMatchingObjects(t *testing.T) {
	t.Parallel()
	operator := insertObjects(t, 15, 0).Role(t, "operator")
	empty, a, yes, no := "", "a", true, false
	for name, tc := range map[string]struct {
		f    versioning.ObjectFilter
		want string
	}{
		"no filter":                {versioning.ObjectFilter{}, "4 8 12 2 6 10 14 1 3 5 9 11 13 15 7"},
		"source":                   {versioning.ObjectFilter{Source: 2}, "1 3 5 9 11 13 15 7"},
		"account":                  {versioning.ObjectFilter{Account: &empty}, "4 8 12"},
		"source and account":       {versioning.ObjectFilter{Source: 1, Account: &a}, "2 6 10 14"},
		"source and empty account": {versioning.ObjectFilter{Source: 1, Account: &empty}, "4 8 12"},
		"type":                     {versioning.ObjectFilter{Type: "price"}, "14 7"},
		"id":                       {versioning.ObjectFilter{ID: "000009"}, "9"},
		"deleted":                  {versioning.ObjectFilter{Deleted: &yes, Type: "price"}, "14"},
		"not deleted":              {versioning.ObjectFilter{Deleted: &no, Type: "price"}, "7"},
		"ambiguous":                {versioning.ObjectFilter{Ambiguous: &yes, Source: 1}, "12 6"},
		"refetch pending":          {versioning.ObjectFilter{RefetchPending: &yes}, "10 5 15"},
		"changed": {versioning.ObjectFilter{Since: firstObjectTime.Add(3 * time.Second),
			Until: firstObjectTime.Add(5 * time.Second)}, "4 3"},
		"unknown source":         {versioning.ObjectFilter{Source: 9}, ""},
		"greatest source number": {versioning.ObjectFilter{Source: 1<<31 - 1}, ""},
	} {
		page, err := versioning.ListObjects(t.Context(), operator, tc.f, "", 0)
		if got := objectNumbers(page.Items); err != nil || got != tc.want || page.Next != "" {
			t.Errorf("%s: got %q, next %q, %v, want %q", name, got, page.Next, err, tc.want)
		}
	}
}

// readPages reads all pages of a filter and returns the length of each.
func readPages(t *testing.T, db *testkit.DB, f versioning.ObjectFilter, limit int) (found []versioning.View,
	lengths []int) {
	t.Helper()
	for cursor := ""; ; {
		page, err := versioning.ListObjects(t.Context(), db.Pool, f, cursor, limit)
		testkit.Must(t, err)
		found, lengths = append(found, page.Items...), append(lengths, len(page.Items))
		if cursor = page.Next; cursor == "" {
			return found, lengths
		}
	}
}

func TestListObjects_page_isBoundedInRowsAndBytes(t *testing.T) {
	t.Parallel()
	_, lengths := readPages(t, insertObjects(t, 25_000, 0), versioning.ObjectFilter{ID: "none"}, 0)
	if diff := cmp.Diff([]int{0, 0, 0}, lengths); diff != "" {
		t.Errorf("pages of a filter that matches nothing: %s", diff)
	}
	// With 300 states of 100 KB, the second hundred exceeds the 8 MiB limit of a page.
	_, lengths = readPages(t, insertObjects(t, 300, 100_000), versioning.ObjectFilter{}, 1000)
	if diff := cmp.Diff([]int{100, 100, 100}, lengths[:min(3, len(lengths))]); diff != "" {
		t.Errorf("pages of large states: %s", diff)
	}
	// The limit holds for both windows of a page together.
	tx := testkit.OpenTx(t, insertObjects(t, 300, 100_000).Pool, "SELECT")
	page, err := versioning.ListObjectsInTx(t.Context(), tx, versioning.ObjectFilter{}, versioning.Key{Source: -1},
		slices.Values([]int{99, 300}), 1000)
	testkit.Must(t, err)
	testkit.Equal(t, "objects of a page whose first window reaches the limit", 99, len(page.Items))
}

// A page reads few objects if the filter selects many, and ends after 10,000 if it selects none,
// also in the index, however many objects follow, with each plan.
func TestListObjects_manyObjects_readsOnlyItsPageOfTheIndex(t *testing.T) {
	t.Parallel()
	db := insertObjects(t, 0, 0)
	db.InsertObjects(t, 60_000)
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		read := func(f versioning.ObjectFilter, want int) int64 {
			before := testkit.IndexBlocksRead(t, tx, "objects_pkey")
			page, err := versioning.ListObjectsInTx(t.Context(), tx, f, versioning.Key{Source: -1}, events.Windows(10),
				10)
			if err != nil || len(page.Items) != want || page.Next == "" {
				t.Fatalf("%s: %d objects, cursor %q, %v", name, len(page.Items), page.Next, err)
			}
			return testkit.IndexBlocksRead(t, tx, "objects_pkey") - before
		}
		if n := read(versioning.ObjectFilter{ID: "none"}, 0); n > 200 || strings.HasPrefix(name, "ANALYZE") && n < 50 {
			t.Errorf("%s: %d blocks of the index were read", name, n)
		}
		if n := read(versioning.ObjectFilter{}, 10); n > 50 {
			t.Errorf("%s: %d blocks of the index were read for the first ten objects", name, n)
		}
	})
}

// No border of a page hides an object, wherever the objects of a source, account or type end.
func TestListObjects_smallPages_listEachObjectOnce(t *testing.T) {
	t.Parallel()
	db := insertObjects(t, 330, 0)
	yes := true
	for name, f := range map[string]versioning.ObjectFilter{"all": {}, "source": {Source: 1},
		"last source": {Source: 2}, "type": {Type: "price"}, "ambiguous": {Ambiguous: &yes}} {
		all, _ := readPages(t, db, f, 1000)
		for _, limit := range []int{7, 100, 150} {
			found, _ := readPages(t, db, f, limit)
			testkit.Equal(t, fmt.Sprint(name, " by ", limit), objectNumbers(all), objectNumbers(found))
		}
		for _, windows := range [][]int{{1}, {2}, {2, 3}, {7}, {50}} {
			tx, err := db.Pool.Begin(t.Context())
			testkit.Must(t, err)
			var found []versioning.View
			after := versioning.Key{Source: -1}
			for more := true; more; {
				page, err := versioning.ListObjectsInTx(t.Context(), tx, f, after, slices.Values(windows), 5)
				testkit.Must(t, err)
				found = append(found, page.Items...)
				testkit.Must(t, events.ReadCursor(page.Next, &after.Source, &after.Account, &after.Type, &after.ID))
				more = page.Next != ""
			}
			testkit.Must(t, tx.Rollback(t.Context()))
			if diff := cmp.Diff(objectNumbers(all), objectNumbers(found)); diff != "" || len(found) < 40 {
				t.Errorf("%s, pages of %d: %s", name, windows, diff)
			}
		}
	}
}

func TestFindObjects_accounts_returnsOnePerAccount(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	register(t, db, "one")
	for _, account := range []string{"", "a", "b", "c"} {
		for _, id := range []string{"1", "2" + account} {
			db.Exec(t, `INSERT INTO objects VALUES (1, $1, 'plan', $2, false, 5, 0, 1, '[]', false, 0, 0, 0, false,
				false, '\x00', '\x00', NULL, false, 1, 1, 1, now(), now())`, account, id)
		}
	}
	empty, b := "", "b"
	for name, tc := range map[string]struct {
		account *string
		id      string
		want    string
	}{
		"in every account": {nil, "1", `"" "a" "b" "c" `}, "in one": {nil, "2c", `"c" `}, "in none": {nil, "3", ""},
		"named": {&b, "1", `"b" `}, "given empty account": {&empty, "1", `"" `}, "in another account": {&b, "2c", ""},
	} {
		found, err := versioning.FindObjects(t.Context(), db.Role(t, "operator"), 1, tc.account, "plan", tc.id)
		got := ""
		for i := range found {
			got += fmt.Sprintf("%q ", found[i].Account)
			if key := found[i].Key(); key != (versioning.Key{Source: 1, Account: found[i].Account, Type: "plan",
				ID: tc.id}) || string(found[i].State) != "null" {
				t.Errorf("%s: %+v", name, found[i])
			}
		}
		if err != nil || got != tc.want {
			t.Errorf("%s: %s, %v, want %s", name, got, err, tc.want)
		}
		for _, source := range []int32{0, 1} {
			keys, err := versioning.FindKeys(t.Context(), db.Role(t, "operator"), source, tc.account, "plan", tc.id)
			want := make([]versioning.Key, 0, len(found))
			for i := range found {
				want = append(want, found[i].Key())
			}
			if diff := cmp.Diff(want, keys, cmpopts.EquateEmpty()); diff != "" || err != nil {
				t.Errorf("%s: keys of source %d: %v%s", name, source, err, diff)
			}
		}
	}
	db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"source": 2}')).* FROM objects o
		WHERE account IN ('a', 'b') AND object_id = '1'`)
	register(t, db, "two")
	for name, tc := range map[string]struct {
		account *string
		want    string
	}{"in every account": {nil, `1"" 1"a" 1"b" 1"c" 2"a" 2"b" `}, "in one": {&b, `1"b" 2"b" `}} {
		keys, err := versioning.FindKeys(t.Context(), db.Role(t, "operator"), 0, tc.account, "plan", "1")
		got := ""
		for _, k := range keys {
			got += fmt.Sprintf("%d%q ", k.Source, k.Account)
		}
		if err != nil || got != tc.want {
			t.Errorf("of all sources, %s: %s, %v, want %s", name, got, err, tc.want)
		}
	}
	db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('account', 'shop' || g))).*
		FROM objects o, generate_series(1, 10001 - 6) g WHERE account = 'c' AND object_id = '1'`)
	keys, err := versioning.FindKeys(t.Context(), db.Pool, 0, nil, "plan", "1")
	if !errors.Is(err, events.ErrInvalid) {
		t.Errorf("10,001 objects with one id: %d keys, %v", len(keys), err)
	}
	db.Exec(t, `DELETE FROM objects WHERE account = 'shop1'`)
	if keys, err = versioning.FindKeys(t.Context(), db.Pool, 0, nil, "plan", "1"); err != nil || len(keys) != 10_000 {
		t.Errorf("10,000 objects with one id: %d keys, %v", len(keys), err)
	}
	if _, err := versioning.ListObjects(t.Context(), db.Pool, versioning.ObjectFilter{}, events.MakeCursor(1, 2),
		0); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("a cursor of another list: %v", err)
	}
}

func TestStore_statementsOfTables_fitTheSchema(t *testing.T) {
	t.Parallel()
	testkit.PrepareStatements(t, versioning.TableStatements())
}
