package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/testkit"
)

// changed makes the revision of an object of a source without accounts greater, and numbers the
// change. It inserts the object first if it is new.
func (b *testBundle) changed(t *testing.T, source, kind string, ids ...string) {
	t.Helper()
	number := b.known.Number[source]
	for _, id := range ids {
		if b.db.QueryStrings(t, `SELECT count(*)::text FROM objects WHERE source = $1 AND object_type = $2
			AND object_id = $3`, number, kind, id)[0] == "0" {
			b.object(t, source, "", kind, id, false)
		}
	}
	b.db.Exec(t, `UPDATE objects SET revision = revision + 1, tied_states = '[{}]'
		WHERE source = $1 AND object_type = $2 AND object_id = ANY ($3)`, number, kind, ids)
	b.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT array_agg($1::int), array_agg(''::text), array_agg($2::text), $3, now() FROM unnest($3::text[])`,
		number, kind, ids)
	_, _, err := changes.Number(t.Context(), b.role(t, "processor"))
	testkit.Must(t, err)
}

// changeList is a page of changes.
type changeList struct {
	Items []changes.Item `json:"items"`
	Next  string         `json:"next_cursor"`
	More  bool           `json:"has_more"`
}

func (l *changeList) ids() string {
	var all []string
	for i := range l.Items {
		all = append(all, l.Items[i].ObjectID)
	}
	return strings.Join(all, " ")
}

// list reads a page with the checks of get.
func (b *testBundle) list(t *testing.T, query string) (l changeList) {
	t.Helper()
	status, body := b.get(t, "/changes?"+query)
	text, err := json.Marshal(body)
	testkit.Must(t, err)
	if testkit.Must(t, json.Unmarshal(text, &l)); status != 200 || l.Next == "" {
		t.Fatalf("%s: %d %s", query, status, text)
	}
	return l
}

func TestChanges_filtersAndPages_returnEachObjectOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if first := b.list(t, ""); len(first.Items) != 0 || first.More {
		t.Errorf("an empty mirror: %+v", first)
	}
	b.changed(t, "stripe", "plan", "a", "b")
	b.changed(t, "shop", "order", "c")
	middle := b.list(t, "").Next
	b.changed(t, "stripe", "plan", "a")
	for query, want := range map[string]string{"": "b c a", "after=" + middle: "a", "source=shop": "c",
		"type=plan": "b a", "id=c": "c", "account=": "b c a", "account=x": "", "after=latest": "", "type=none": "",
		"states=false": "b c a"} {
		for _, limit := range []int{1, 2, 1000} {
			var got []string
			for page, next := (changeList{More: true}), ""; page.More; next = page.Next {
				query := query + fmt.Sprint("&limit=", limit)
				if next != "" {
					query = strings.Replace("after="+next+"&"+query, "after=latest&", "", 1)
					query = strings.Replace(query, "after="+middle+"&limit", "limit", 1)
				}
				if page = b.list(t, query); len(page.Items) > limit {
					t.Errorf("%s: %d items", query, len(page.Items))
				}
				got = append(got, strings.Fields(page.ids())...)
			}
			if strings.Join(got, " ") != want {
				t.Errorf("%s, pages of %d: %v, want %s", query, limit, got, want)
			}
		}
	}
}

// A reader that starts with a misspelt type gets an error. A type that is only similar to a known
// one is accepted as soon as an object has it.
func TestChanges_misspeltType_isInvalid(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.handler = b.withSources(t)
	b.changed(t, "stripe", "plan", "a")
	const misspelt = `400 no object has the type "subscripton"; did you mean subscription?`
	b.wantResponses(t, [][2]string{
		{"GET /changes?source=stripe&type=subscripton", misspelt},
		{"GET /changes?source=stripe&type=subscripton&after=latest&wait=30s", misspelt},
		{"GET /changes?type=subscripton", `200 {"items": []}`}, // another source may have it
		{"GET /changes?type=subscripton&source=shop", `200 {"items": []}`},
		{"GET /changes?type=subscription", `200 {"items": []}`},
		{"GET /changes?type=none", `200 {"items": []}`},
		{"GET /changes?source=stripe&type=subscripton&after=" + b.list(t, "").Next, `200 {"items": []}`},
	})
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('account', 'a' || g))).*
		FROM objects o, generate_series(1, 1000) g`)
	// not all accounts are searched
	b.wantResponses(t, [][2]string{{"GET /changes?source=stripe&type=subscripton", `200 {"items": []}`}})
	b.db.Exec(t, `DELETE FROM objects WHERE account <> ''`)
	b.wantResponses(t, [][2]string{{"GET /changes?source=stripe&type=subscripton", misspelt}})
	b.changed(t, "stripe", "subscripton", "b")
	if found := b.list(t, "source=stripe&type=subscripton"); found.ids() != "b" {
		t.Errorf("objects %q, want b", found.ids())
	}
}

// The members are those of the feed over NATS, read from the object as it is now.
func TestChanges_states_areCurrent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a", "erased", "gone")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": 2}', revision = 7 WHERE object_id = 'a'`)
	b.db.Exec(t, `UPDATE objects SET state = NULL, tied_states = '[]' WHERE object_id = 'erased'`)
	b.db.Exec(t, `UPDATE objects SET state = NULL, tied_states = '[]', version_at = -9223372036854775808,
		version_rank = 0 WHERE object_id = 'gone'`)
	for _, c := range []struct {
		request, want string
		states        int
	}{
		{"GET /changes", `200 {"items": [
			{"revision": 7, "deleted": false, "redacted": false, "ambiguous": false, "event_id": "1152921504606846977",
				"state": {"a": 2}},
			{"revision": 2, "deleted": false, "redacted": true, "ambiguous": false, "event_id": "1152921504606846977",
				"state": null},
			{"revision": 2, "deleted": true, "redacted": false, "ambiguous": false, "event_id": "1152921504606846977",
				"state": null}]}`, 3},
		{"GET /changes?states=false", `200 {"items": [{"revision": 7, "deleted": false, "redacted": false},
			{"revision": 2, "deleted": false, "redacted": true},
			{"revision": 2, "deleted": true, "redacted": false}]}`, 0},
	} {
		body := b.wantResponses(t, [][2]string{{c.request, c.want}})
		if n := strings.Count(fmt.Sprint(body), " state:"); n != c.states {
			t.Errorf("%s: %d items have a state, want %d", c.request, n, c.states)
		}
	}
}

// A page ends at 8 MiB of states, after the first object at the earliest.
func TestChanges_largeStates_endPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a", "b", "c", "d")
	b.db.Exec(t, `ALTER TABLE objects ALTER state SET STORAGE EXTERNAL`)
	b.db.Exec(t, `UPDATE objects SET state = jsonb_build_object('x', repeat('x', 3 << 20)) WHERE object_id <> 'd'`)
	b.db.Exec(t, `UPDATE objects SET state = jsonb_build_object('x', repeat('x', 9 << 20)) WHERE object_id = 'd'`)
	var pages []string
	for l := (changeList{More: true}); l.More; {
		query := ""
		if l.Next != "" {
			query = "after=" + l.Next
		}
		l = b.list(t, query)
		pages = append(pages, l.ids())
	}
	testkit.Equal(t, "pages", []string{"a b", "c", "d"}, pages)
}

func TestChanges_wrongRequests_areProblems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a")
	last := b.list(t, "").Next
	epoch, _, _ := strings.Cut(last, "-")
	b.wantResponses(t, [][2]string{
		{"GET /changes?after=17", "400 is not a cursor"},
		{"GET /changes?wait=2m", "400 up to 1m0s"},
		{"GET /changes?wait=x", "400 up to 1m0s"},
		{"GET /changes?limit=0", "400 give 1 to 1000"},
		{"GET /changes?source=none", "400 not known"},
		{"GET /changes?type=a&x=b", "400 does not exist"},
		{"GET /changes?after=" + epoch + "-2", "410 Then start again without"},
		{"GET /changes?after=0a0b0c0d-0", "410 Then start again without"},
	})
	b.db.Exec(t, `UPDATE change_feed SET server = 'restored'`)
	b.changed(t, "stripe", "plan", "a")
	if l := b.list(t, "after="+last); l.ids() != "a" || strings.HasPrefix(l.Next, epoch) {
		t.Errorf("a cursor from before the restore: %+v", l)
	}
}

// waited reads pages with a wait in the background.
func waited(t *testing.T, s *httptest.Server, query string, header http.Header) <-chan changeList {
	t.Helper()
	out := make(chan changeList, 1)
	go func() {
		var l changeList
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/changes?"+query, nil)
		req.Header = header
		if res, err := http.DefaultClient.Do(req); err == nil {
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if json.Unmarshal(text, &l) != nil || res.StatusCode != 200 {
				l.Next = fmt.Sprintf("%s %s", res.Status, text)
			}
		}
		out <- l
	}()
	return out
}

// A request that waits gets the first change that its filter selects, and else an empty page with a
// cursor that has moved.
func TestChanges_wait_endsWithSelectedChange(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.streamServer(t, admin.Options{})
	b.changed(t, "stripe", "plan", "a")
	start := b.list(t, "").Next
	all, some := waited(t, s, "wait=60s&after="+start, nil), waited(t, s, "wait=60s&type=price&after="+start, nil)
	moved := waited(t, s, "wait=3s&type=none&after="+start, nil)
	latest := waited(t, s, "wait=60s&after=latest&type=late", nil)
	time.AfterFunc(time.Second, func() { b.changed(t, "stripe", "plan", "b") }) // longer than the server's time limits
	if l := <-all; l.ids() != "b" {
		t.Errorf("without a filter: %+v", l)
	}
	select {
	case l := <-some:
		t.Errorf("a change that was not selected ended the wait: %+v", l)
	default:
	}
	b.changed(t, "stripe", "price", "c")
	if l := <-some; l.ids() != "c" {
		t.Errorf("with a filter: %+v", l)
	}
	if l := <-moved; len(l.Items) != 0 || l.Next != b.list(t, "").Next {
		t.Errorf("nothing selected: %+v, want the cursor of the newest change", l)
	}
	b.changed(t, "stripe", "late", "d")
	if l := <-latest; l.ids() != "d" {
		t.Errorf("after the latest: %+v", l)
	}
}

// A reader whose stream is cut again and again, and who continues after the last id, ends with the
// revisions of the mirror.
func TestChanges_streamIsCut_continuesWithoutLoss(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.streamServer(t, admin.Options{})
	const rounds, objects = 60, 7
	written := make(chan struct{})
	go func() {
		defer close(written)
		for i := range rounds {
			b.changed(t, "stripe", "plan", fmt.Sprint("p", i%objects), fmt.Sprint("q", i%3))
		}
	}()
	seen, last, cuts := map[string]string{}, "", 0
	mirror := func() map[string]string {
		all := map[string]string{}
		for _, row := range b.db.QueryStrings(t, `SELECT object_id || ' ' || revision FROM objects`) {
			id, revision, _ := strings.Cut(row, " ")
			all[id] = revision
		}
		return all
	}
	for done := false; !done; cuts++ {
		res, lines := openStream(t, s, "/changes?source=stripe", http.Header{"Accept": {"text/event-stream"},
			"Last-Event-Id": {last}})
		if kind := res.Header.Get("Content-Type"); res.StatusCode != 200 || kind != "text/event-stream" {
			t.Fatalf("%s %s", res.Status, kind)
		}
		for n := 0; n < 5 && !done; n++ {
			var item changes.Item
			id, data := readMessage(t, lines)
			testkit.Must(t, json.Unmarshal([]byte(data), &item))
			seen[item.ObjectID], last = fmt.Sprint(item.Revision), id
			select {
			case <-written:
				done = cmp.Equal(seen, mirror())
			default:
			}
		}
		_ = res.Body.Close()
	}
	if cuts < 5 {
		t.Errorf("the stream was cut %d times only", cuts)
	}
	res, _ := openStream(t, s, "/changes", http.Header{"Accept": {"text/event-stream"},
		"Last-Event-Id": {"0a0b0c0d-1"}})
	if res.StatusCode != http.StatusGone {
		t.Errorf("an id of another instance: %s", res.Status)
	}
}

// A reader continues where it has reported. Its cursor moves back only if it says so.
func TestFeedCursors_reports_moveCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a")
	first := b.list(t, "").Next
	b.changed(t, "stripe", "plan", "b")
	last := b.list(t, "").Next
	at := func(cursor string) string { return fmt.Sprintf(`200 {"cursor": %q}`, cursor) }
	b.wantResponses(t, [][2]string{
		{`PUT /feed-cursors/shop {"after": "` + first + `", "stalls_after": "15m"}`, at(first)},
		{`PUT /feed-cursors/shop {"after": "` + last + `"}`, at(last)},
		{`PUT /feed-cursors/shop {"after": "` + last + `"}`, at(last)},
		{`PUT /feed-cursors/shop {"after": "` + first + `"}`, "409"},
		{`PUT /feed-cursors/shop {"after": "` + first + `", "rewind": true}`, at(first)},
		{`PUT /feed-cursors/shop {"stalls_after": "1h"}`, at(first)},
		{`PUT /feed-cursors/new {}`, at(strings.Replace(first, "-1", "-0", 1))},
		{`PUT /feed-cursors/newest {"after": "latest"}`, at(last)},
		{`PUT /feed-cursors/shop {"after": "0a0b0c0d-1"}`, "410"},
		{`PUT /feed-cursors/shop {"after": "17"}`, "400"},
		{`PUT /feed-cursors/shop {"stalls_after": "x"}`, "400"},
		{`PUT /feed-cursors/Shop {}`, "400"},
		{"GET /changes?feed_cursor=none", `404 feed cursor "none": not found: create it with PUT ` +
			"/api/v1/feed-cursors/none, or read with after"},
		{"POST /feed-cursors/none/remove {}", `404 feed cursor "none": not found: see postern feed list`},
	})
	if l := b.list(t, "feed_cursor=shop"); l.ids() != "b" {
		t.Errorf("after the cursor: %+v", l)
	}
	b.db.Exec(t, `UPDATE changes SET changed_at = now() - interval '1 h' WHERE object_id = 'b'`)
	c := b.wantResponses(t, [][2]string{{"GET /feed-cursors/shop",
		`200 {"lag_changes": 1, "stalls_after": "1h0m0s", "moved_by": "loopback"}`}})
	if lag := c["lag_seconds"].(float64); lag < 3600 || lag > 3700 {
		t.Errorf("%v", c)
	}
	b.wantItems(t, map[string]string{"/feed-cursors": "name new newest shop"})
	testkit.Equal(t, "audit", []string{"feed set feed cursor shop, to " + first},
		b.db.QueryStrings(t, `SELECT action || ' ' || target FROM audit`))
	// after a restore: the stored cursor was restored too, so its reader has read more than it says
	b.db.Exec(t, `UPDATE change_feed SET server = 'another/00000001'`)
	b.changed(t, "stripe", "plan", "c")
	b.wantResponses(t, [][2]string{
		{"GET /changes?feed_cursor=shop", "410 With `feed_cursor`, send PUT"}, // an earlier epoch
		{`PUT /feed-cursors/shop {"after": "` + first + `"}`, "200"},          // the reader's own position
	})
	b.db.Exec(t, `UPDATE change_feed SET server = 'third/00000001'`)
	b.changed(t, "stripe", "plan", "d")
	b.wantResponses(t, [][2]string{
		{"GET /changes?feed_cursor=shop", "410"},
		{`PUT /feed-cursors/shop {"after": ""}`, "200"}, // its reader starts again, without an operator
	})
	b.db.WantRows(t, 2, "audit") // the cursor went back
	b.wantResponses(t, [][2]string{
		{`POST /feed-epochs {"reason": "a snapshot"}`, "200"},
		{"GET /feed-cursors/shop", `200 {"ended": true}`},
		{"GET /changes?feed_cursor=shop", "410"},
		{`PUT /feed-cursors/shop {"after": "", "rewind": true}`, "200"}, // a new start
	})
	b.db.Exec(t, `INSERT INTO feed_cursors SELECT 'c' || g, '', 0, NULL, now(), now(), '', NULL
		FROM generate_series(1, 1000) g`)
	b.wantResponses(t, [][2]string{{"PUT /feed-cursors/more {}", "400 1000 feed"}})
}

// A reader's token reports its own progress, and may do nothing else. A cursor that an operator has
// set is that of the next reader who reports.
func TestFeedCursors_readersToken_mayReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h, own, operator := b.guarded(t, admin.Options{RequireTokens: true})
	pool := b.db.Role(t, "operator")
	tokens := map[string]string{"shop": own, "operator": operator,
		"other": token(t, pool, "other", adminauth.Approver)}
	for i, c := range []struct {
		by, method, path, body string
		want                   int
	}{{"shop", http.MethodPut, "/feed-cursors/shop", `{}`, 200},
		{"shop", http.MethodPost, "/feed-cursors/shop/remove", `{}`, 403},
		{"shop", http.MethodPost, "/feed-epochs", `{"reason": "why"}`, 403},
		{"shop", http.MethodGet, "/feed-cursors/shop", "", 200},
		{"other", http.MethodPut, "/feed-cursors/shop", `{"after": "latest"}`, 403},
		{"shop", http.MethodPut, "/feed-cursors/shop", `{}`, 200},
		{"operator", http.MethodPut, "/feed-cursors/shop", `{}`, 200},
		{"other", http.MethodPut, "/feed-cursors/shop", `{}`, 200},
		{"shop", http.MethodPut, "/feed-cursors/shop", `{}`, 403}} {
		header := http.Header{"Authorization": {"Bearer " + tokens[c.by]}}
		if res, _ := send(h, c.method, c.path, c.body, header); res.Code != c.want {
			t.Errorf("%d: %s %s by %s: %s", i, c.method, c.path, c.by, responseText(res))
		}
	}
	if res, _ := send(h, http.MethodPut, "/feed-cursors/shop", `{}`, nil); res.Code != 401 {
		t.Errorf("without a token: %s", responseText(res))
	}
}
