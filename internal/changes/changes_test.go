package changes_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

var must, equal = testkit.Must, testkit.Equal

func TestMain(m *testing.M) { testkit.Main(m) }

// change is a transaction that changes objects, as applying does.
func change(ctx context.Context, pool *pgxpool.Pool, ids ...string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
INSERT INTO objects AS o (source, account, object_type, object_id, version_final, version_at, version_seen,
	version_rank, tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash,
	state, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
SELECT 1, '', 'thing', id, false, 1, 0, 1, '[{}]', false, 1, 1, 0, false, false, '', '', '{}', false, 1, 1, 1, now(),
	now()
FROM unnest($1::text[]) AS id ORDER BY id
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET revision = o.revision + 1`, ids)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
INSERT INTO outbox (sources, accounts, types, ids, created_at)
SELECT array_agg(1), array_agg(''::text), array_agg('thing'::text), $1, now() FROM unnest($1::text[])`, ids)
		return err
	})
}

// numberAll numbers all changes that are committed and not locked.
func numberAll(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	for more := true; more; {
		var err error
		_, more, err = changes.Number(t.Context(), pool)
		must(t, err)
	}
}

// read reads everything after a number. It returns the objects' ids and the number to continue
// after.
func read(t *testing.T, pool *pgxpool.Pool, after int64, f changes.Filter, limit int) (ids []string, end int64) {
	t.Helper()
	feed, err := changes.ReadFeed(t.Context(), pool)
	must(t, err)
	for end = after; ; {
		page, next, err := changes.Read(t.Context(), pool, end, feed.Newest, f, limit)
		must(t, err)
		for _, c := range page {
			ids = append(ids, c.ID)
		}
		if end = next; end >= feed.Newest {
			return ids, end
		}
	}
}

// Writers change objects, two processes number the changes, and readers follow meanwhile. Each
// reader ends with the last number and revision of each object, and reads ascending numbers.
func TestNumber_concurrentWritersAndReaders_skipNothing(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	const writers, rounds = 4, 60
	var writing sync.WaitGroup
	g, ctx := errgroup.WithContext(t.Context())
	for w := range writers {
		writing.Add(1)
		g.Go(func() error {
			defer writing.Done()
			for n := range rounds {
				if err := change(ctx, db.Pool, fmt.Sprint("own", w, n%7), fmt.Sprint("shared", n%5)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	done := make(chan struct{})
	go func() { writing.Wait(); close(done) }()
	for range 2 {
		g.Go(func() error {
			for last := false; ; {
				_, more, err := changes.Number(ctx, pool)
				if err != nil || last && !more {
					return err
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		})
	}
	numbered := make(chan struct{})
	seen := make([]map[string][2]int64, 3)
	var readers errgroup.Group
	for i := range seen {
		seen[i] = map[string][2]int64{}
		readers.Go(func() error {
			for at, last := int64(0), false; ; {
				feed, err := changes.ReadFeed(t.Context(), pool)
				if err != nil {
					return err
				}
				page, err := changes.ReadPage(t.Context(), pool, changes.Query{After: feed.At(at), Limit: i + 2})
				if err != nil {
					return err
				}
				for _, c := range page.Items {
					if c.Number <= at {
						return fmt.Errorf("change %d came after %d", c.Number, at)
					}
					at, seen[i][c.ObjectID] = c.Number, [2]int64{c.Number, c.Revision}
				}
				if last && !page.HasMore {
					return nil
				}
				select {
				case <-numbered:
					last = true
				case <-t.Context().Done():
					return t.Context().Err()
				default:
				}
			}
		})
	}
	err := g.Wait()
	close(numbered)
	must(t, err)
	must(t, readers.Wait())
	want, id, last := map[string][2]int64{}, "", [2]int64{}
	must(t, postgres.ForEach(t.Context(), db.Pool, `SELECT c.object_id, c.number, o.revision
		FROM changes c JOIN objects o USING (source, account, object_type, object_id)`, nil,
		[]any{&id, &last[0], &last[1]}, func() error { want[id] = last; return nil }))
	equal(t, "objects with a number", []string{fmt.Sprint(len(want))},
		db.QueryStrings(t, `SELECT count(*)::text FROM objects`))
	for i := range seen {
		equal(t, "numbers and revisions that a reader saw last", want, seen[i])
	}
}

func TestNumber_rowThatTheSenderHasLocked_isNumberedLater(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	must(t, change(t.Context(), db.Pool, "a"))
	must(t, change(t.Context(), db.Pool, "b"))
	tx, err := db.Pool.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `UPDATE outbox SET sent_at = now(), sequence = 1 WHERE ids = '{a}'`)
	must(t, err)
	numberAll(t, pool)
	ids, end := read(t, pool, 0, changes.Filter{}, 10)
	equal(t, "while the row of a is locked", []string{"b"}, ids)
	must(t, tx.Commit(t.Context()))
	numberAll(t, pool)
	ids, _ = read(t, pool, end, changes.Filter{}, 10)
	equal(t, "after it was unlocked", []string{"a"}, ids)
}

func TestRead_filtersAndPages_returnLastChanges(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	for _, ids := range [][]string{{"a", "b"}, {"c"}, {"a"}} {
		must(t, change(t.Context(), db.Pool, ids...))
		numberAll(t, pool)
	}
	db.Exec(t, `UPDATE changes SET account = 'x' WHERE object_id = 'c'`)
	account := "x"
	for name, c := range map[string]struct {
		filter changes.Filter
		want   []string
	}{
		"all, each object once":  {changes.Filter{}, []string{"b", "c", "a"}},
		"source, account, type":  {changes.Filter{Source: 1, Account: &account, Type: "thing"}, []string{"c"}},
		"id":                     {changes.Filter{ID: "a"}, []string{"a"}},
		"type that does not fit": {changes.Filter{Type: "other"}, nil},
	} {
		for _, limit := range []int{1, 2, 100} {
			ids, _ := read(t, pool, 0, c.filter, limit)
			equal(t, fmt.Sprintf("%s, %d a page", name, limit), c.want, ids)
		}
	}
}

func TestReadPage_specialObjects_areMarked(t *testing.T) {
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 'stripe')`)
	pool, reader := db.Role(t, "processor"), db.Role(t, "reader")
	for set, want := range map[string][2]bool{
		`deleted = true`:                       {true, false},
		`state = NULL, tied_states = '[]'`:     {false, true},
		`state = NULL, tied_states = '[null]'`: {},
		`version_at = -9223372036854775808, state = NULL, tied_states = '[]'`: {true, false},
	} {
		must(t, change(t.Context(), db.Pool, "a"))
		db.Exec(t, `UPDATE objects SET deleted = false, version_at = 1, state = '{}', tied_states = '[{}]'`)
		db.Exec(t, `UPDATE objects SET `+set)
		numberAll(t, pool)
		feed, err := changes.ReadFeed(t.Context(), pool)
		must(t, err)
		for _, states := range []bool{false, true} {
			page, err := changes.ReadPage(t.Context(), pool, changes.Query{After: feed.At(0), Limit: 10, States: states,
				MaxBytes: 1 << 20})
			must(t, err)
			got := page.Items[0]
			equal(t, set, want, [2]bool{got.Deleted, got.Redacted})
			equal(t, "the object", "thing a", got.ObjectType+" "+got.ObjectID)
		}
		var got [2]bool
		must(t, reader.QueryRow(t.Context(), `SELECT deleted, redacted FROM mirror.changes`).Scan(&got[0], &got[1]))
		equal(t, "mirror.changes, "+set, want, got)
	}
}

// A row of the outbox may commit after a row with a later time, and a swap dates its rows back. The
// times of the changes never decrease in the order of their numbers.
func TestNumber_rowsWithEarlierTimes_getTimesInTheOrderOfNumbers(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 'stripe')`)
	pool := db.Role(t, "processor")
	day := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	for _, pass := range [][]int{{10}, {5, 20, 15}, {12}, {30}} { // minutes
		for _, minute := range pass {
			must(t, change(t.Context(), db.Pool, fmt.Sprint("at ", minute)))
			db.Exec(t, `UPDATE outbox SET created_at = $1 WHERE ids = ARRAY[$2::text]`,
				day.Add(time.Duration(minute)*time.Minute), fmt.Sprint("at ", minute))
		}
		numberAll(t, pool)
	}
	want := []string{"at 10 00:10", "at 5 00:10", "at 20 00:20", "at 15 00:20", "at 12 00:20", "at 30 00:30"}
	const timesSQL = `SELECT object_id || to_char(changed_at AT TIME ZONE 'UTC', ' HH24:MI') FROM mirror.changes
		ORDER BY number`
	equal(t, "times by SQL", want, db.QueryStrings(t, timesSQL))
	feed, err := changes.ReadFeed(t.Context(), pool)
	must(t, err)
	page, err := changes.ReadPage(t.Context(), pool, changes.Query{After: feed.At(0), Limit: 10})
	must(t, err)
	var got []string
	for _, it := range page.Items {
		got = append(got, it.ObjectID+it.ChangedAt.UTC().Format(" 15:04"))
	}
	equal(t, "times by HTTP", want, got)
	must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		number, _, err := changes.NumberBefore(t.Context(), tx, day.Add(18*time.Minute))
		equal(t, "last change before minute 18", int64(2), number)
		return err
	}))
}

// Postern deletes no object. After a manual DELETE, readers continue with the next one.
func TestReadPage_changeWithoutObject_isLeftOut(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	must(t, change(t.Context(), db.Pool, "a", "b", "c", "d"))
	numberAll(t, pool)
	db.Exec(t, `DELETE FROM objects WHERE object_id IN ('a', 'c')`)
	feed, err := changes.ReadFeed(t.Context(), pool)
	must(t, err)
	for limit := 1; limit <= 5; limit++ {
		var ids []string
		page := changes.Page{HasMore: true}
		q := changes.Query{After: feed.At(0), Limit: limit, States: true, MaxBytes: 1}
		for n := 0; page.HasMore && n < 10; n++ {
			page, err = changes.ReadPage(t.Context(), pool, q)
			must(t, err)
			for _, it := range page.Items {
				ids = append(ids, it.ObjectID)
			}
			must(t, q.After.UnmarshalText([]byte(page.Next)))
		}
		equal(t, fmt.Sprint("objects with pages of ", limit), []string{"b", "d"}, ids)
	}
}

// After a restore the mirror continues at an older number on another server or timeline. Cursors up
// to that number stay valid; cursors after it do not, also when the numbers have passed them.
func TestCheck_afterRestore_onlySharedPartIsValid(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	step := func() changes.Feed {
		must(t, change(t.Context(), db.Pool, "a"))
		numberAll(t, pool)
		feed, err := changes.ReadFeed(t.Context(), pool)
		must(t, err)
		return feed
	}
	before := step()
	shared := before.At(before.Newest)
	lost := before.At(before.Newest + 1)
	if _, err := before.Check(lost); !errors.Is(err, changes.ErrCursorEnded) {
		t.Errorf("a cursor ahead of the changes: %v", err)
	}
	db.Exec(t, `UPDATE change_feed SET server = 'another/00000001'`)
	step()
	after := step()
	if after.At(0).Epoch == shared.Epoch {
		t.Fatal("no new epoch on another server")
	}
	// readers by SQL compare their cursors with the same rule
	bySQL := func(c changes.Cursor) string {
		return db.QueryStrings(t, `SELECT coalesce($2 <= (valid_up_to ->> $1)::bigint, false)::text
			FROM mirror.change_feed`, c.Epoch, c.Number)[0]
	}
	equal(t, "a cursor of the first epoch that is ahead", "false", bySQL(changes.Cursor{Epoch: shared.Epoch,
		Number: shared.Number + 1}))
	for _, c := range []struct {
		cursor changes.Cursor
		valid  bool
	}{{changes.Cursor{}, true}, {shared, true}, {lost, false}, {after.At(after.Newest), true},
		{changes.Cursor{Epoch: "elsewhere", Number: 0}, false}} {
		number, err := after.Check(c.cursor)
		if c.cursor.Epoch != "" {
			equal(t, "by SQL, cursor "+c.cursor.String(), fmt.Sprint(c.valid), bySQL(c.cursor))
		}
		if c.valid {
			must(t, err)
			equal(t, "number of "+c.cursor.String(), c.cursor.Number, number)
		} else {
			if !errors.Is(err, changes.ErrCursorEnded) {
				t.Errorf("cursor %s: %v", c.cursor, err)
			}
		}
	}
	db.Exec(t, `UPDATE change_feed SET server = ''`)
	unchanged := step()
	equal(t, "epoch where the server was unknown", after.At(0), unchanged.At(0))
}

// A dump may be restored into another database of the same server, where the numbers go back too.
// The database of a test is such a copy: of a template.
func TestNumber_copiedDatabase_beginsEpoch(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	original, err := changes.ReadFeed(t.Context(), pool)
	must(t, err)
	var epochs []string
	for _, id := range []string{"a", "b"} {
		must(t, change(t.Context(), db.Pool, id))
		numberAll(t, pool)
		feed, err := changes.ReadFeed(t.Context(), pool)
		must(t, err)
		epochs = append(epochs, feed.At(0).Epoch)
	}
	if original.At(0).Epoch == epochs[0] {
		t.Error("no new epoch in the copy")
	}
	equal(t, "epoch of the next change", epochs[0], epochs[1])
}

func TestParseCursor_texts_areReadOrRejected(t *testing.T) {
	for text, valid := range map[string]bool{"": true, "0a1b2c3d-17": true, "0a1b2c3d-0": true, "17": false,
		"-17": false, "a-": false, "a--1": false, "a-+1": false, "a-01": false, "a-1-2": false,
		"a-99999999999999999999": false} {
		c, err := changes.ParseCursor(text)
		if (err == nil) != valid {
			t.Errorf("ParseCursor(%q): %v", text, err)
		}
		if err == nil && c.String() != text {
			t.Errorf("ParseCursor(%q) = %v", text, c)
		}
	}
}

// A cursor stands still from the first observation with unread changes until its reader reports
// another position.
func TestObserveCursors_unreadChanges_standStill(t *testing.T) {
	db := testkit.Database(t)
	pool, operator := db.Role(t, "processor"), db.Role(t, "operator")
	behind := func() (all []string) {
		found, err := changes.ObserveCursors(t.Context(), pool, 10)
		must(t, err)
		for _, c := range found {
			if !c.BehindSince.IsZero() {
				all = append(all, fmt.Sprint(c.Name, " ", c.LagChanges))
			}
		}
		return all
	}
	report := func(r changes.CursorReport) {
		must(t, pgx.BeginFunc(t.Context(), operator, func(tx pgx.Tx) error {
			_, err := changes.MoveCursor(t.Context(), tx, r)
			return err
		}))
	}
	report(changes.CursorReport{Name: "r", Latest: true})
	report(changes.CursorReport{Name: "s", Latest: true})
	equal(t, "without changes", []string(nil), behind())
	must(t, change(t.Context(), db.Pool, "a", "b"))
	numberAll(t, pool)
	equal(t, "with changes", []string{"r 2", "s 2"}, behind())
	since := db.QueryStrings(t, `SELECT behind_since::text FROM feed_cursors ORDER BY name`)
	report(changes.CursorReport{Name: "r", Latest: true})
	report(changes.CursorReport{Name: "s"})
	equal(t, "after a report of each", []string{"s 2"}, behind())
	equal(t, "since when the one that did not move is behind", since[1:],
		db.QueryStrings(t, `SELECT behind_since::text FROM feed_cursors WHERE name = 's'`))
}

// A reader with a rare filter does not compare the same changes again, and wakes for the first
// change that is selected. Many readers of one page share one read.
func TestReader_rareFilter_movesWhileItWaits(t *testing.T) {
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	r := changes.NewReader(db.Role(t, "operator"), nil)
	defer r.Close()
	const readers = 200
	q := changes.Query{Filter: changes.Filter{ID: "rare"}, Limit: 10, States: true, MaxBytes: 1 << 20}
	pages := make(chan changes.Page, readers)
	for range readers {
		go func() {
			page, err := r.Wait(t.Context(), q)
			if err != nil {
				t.Error(err)
			}
			pages <- page
		}()
	}
	for i := range 20 {
		must(t, change(t.Context(), db.Pool, fmt.Sprint("o", i)))
		numberAll(t, pool)
	}
	must(t, change(t.Context(), db.Pool, "rare"))
	numberAll(t, pool)
	for range readers {
		page := <-pages
		if len(page.Items) != 1 || page.Items[0].ObjectID != "rare" || page.Items[0].Number != 21 {
			t.Fatalf("%+v", page)
		}
	}
}

// A page reads the rows that it returns, or compares with its filter, however many there are.
func TestReadPage_manyObjects_readsItsRows(t *testing.T) {
	db := testkit.Database(t)
	db.InsertObjects(t, 30_000)
	db.Exec(t, `INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (1, 'a', 'stripe')`)
	db.Exec(t, `INSERT INTO changes SELECT source, account, object_type, object_id, row_number() OVER (), now()
		FROM objects`)
	db.Exec(t, `UPDATE change_feed SET newest = 30000`)
	feed, err := changes.ReadFeed(t.Context(), db.Pool)
	must(t, err)
	const readSQL = `SELECT sum(seq_tup_read + idx_tup_fetch)::bigint FROM pg_stat_xact_user_tables
		WHERE relname IN ('objects', 'changes')`
	db.WithEachPlan(t, func(name string, tx pgx.Tx) {
		for _, c := range []struct {
			filter   changes.Filter
			items    int
			mostRead int64
		}{{changes.Filter{}, 100, 300}, {changes.Filter{ID: "obj_000001"}, 0, 10_100}} {
			var before, after int64
			must(t, tx.QueryRow(t.Context(), readSQL).Scan(&before))
			page, err := changes.ReadPage(t.Context(), tx, changes.Query{Filter: c.filter, After: feed.At(15_000),
				Limit: 100, States: true, MaxBytes: 1 << 20})
			must(t, err)
			must(t, tx.QueryRow(t.Context(), readSQL).Scan(&after))
			if len(page.Items) != c.items || after-before > c.mostRead {
				t.Errorf("%s, %+v: %d items, %d rows read", name, c.filter, len(page.Items), after-before)
			}
		}
		var before, after int64
		must(t, tx.QueryRow(t.Context(), readSQL).Scan(&before))
		_, err := tx.Exec(t.Context(), `SELECT * FROM mirror.changes WHERE number > $1 ORDER BY number LIMIT 100`,
			15_000)
		must(t, err)
		must(t, tx.QueryRow(t.Context(), readSQL).Scan(&after))
		if after-before > 300 {
			t.Errorf("%s: a page of mirror.changes reads %d rows", name, after-before)
		}
	})
}

// The pages of all readers who wait share a budget, so that they do not fill the memory.
func TestWait_manyReaders_getSmallPages(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	for i := range 4 {
		must(t, change(t.Context(), db.Pool, fmt.Sprint(i)))
	}
	db.Exec(t, `UPDATE objects SET state = jsonb_build_object('text', (SELECT string_agg(md5(n::text), '')
		FROM generate_series(1, 3000) n))`)
	numberAll(t, pool)
	r := changes.NewReader(db.Role(t, "operator"), nil)
	defer r.Close()
	for _, want := range []struct{ readers, items int }{{1, 4}, {500, 1}} {
		for range want.readers - 1 {
			leave, err := r.Join()
			must(t, err)
			defer leave()
		}
		leave, err := r.Join()
		must(t, err)
		page, err := r.Wait(t.Context(), changes.Query{Limit: 10, States: true, MaxBytes: 8 << 20})
		leave()
		must(t, err)
		equal(t, fmt.Sprint("items with ", want.readers, " readers"), want.items, len(page.Items))
	}
}

// NumberBefore finds the last change before a time, also where numbers were given away again, and
// reports changes without a number.
func TestNumberBefore_times_areFound(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := db.Role(t, "processor")
	day := time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC)
	db.Exec(t, `INSERT INTO changes SELECT 1, '', 'thing', n::text, n,
		$1::timestamptz + n * interval '1 min' FROM generate_series(1, 1000) n WHERE n % 3 <> 0 OR n = 999`, day)
	db.Exec(t, `UPDATE change_feed SET newest = 1000`)
	db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		VALUES ('{1}', '{""}', '{thing}', '{1}', $1)`, day.Add(500*time.Minute))
	for minutes, want := range map[int]struct {
		number   int64
		numbered bool
	}{0: {0, true}, 1: {0, true}, 2: {1, true}, 300: {299, true}, 301: {299, true}, 302: {301, true},
		500: {499, true}, 501: {500, false}, 1000: {999, false}, 1001: {1000, false}, 9999: {1000, false}} {
		must(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			got, numbered, err := changes.NumberBefore(t.Context(), tx, day.Add(time.Duration(minutes)*time.Minute))
			if got != want.number || numbered != want.numbered {
				t.Errorf("minute %d: %d, %t, want %v", minutes, got, numbered, want)
			}
			return err
		}))
	}
	empty := testkit.Database(t).Role(t, "processor")
	must(t, pgx.BeginFunc(t.Context(), empty, func(tx pgx.Tx) error {
		got, numbered, err := changes.NumberBefore(t.Context(), tx, day)
		if got != 0 || !numbered {
			t.Errorf("no change: %d, %t", got, numbered)
		}
		return err
	}))
}
