package admin_test

import (
	"bufio"
	"context"
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
	for _, id := range ids {
		if b.db.QueryStrings(t, fmt.Sprintf(`SELECT count(*)::text FROM objects WHERE source = %d AND object_type = '%s'
			AND object_id = '%s'`, b.known.Number[source], kind, id))[0] == "0" {
			b.object(t, source, "", kind, id, false)
		}
	}
	_, err := b.db.Pool.Exec(t.Context(), `UPDATE objects SET revision = revision + 1, tied_states = '[{}]'
		WHERE source = $1 AND object_type = $2 AND object_id = ANY ($3)`, b.known.Number[source], kind, ids)
	must(t, err)
	_, err = b.db.Pool.Exec(t.Context(), `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT array_agg($1::int), array_agg(''::text), array_agg($2::text), $3, now() FROM unnest($3::text[])`,
		b.known.Number[source], kind, ids)
	must(t, err)
	b.number(t)
}

func (b *testBundle) number(t *testing.T) {
	t.Helper()
	_, _, err := changes.Number(t.Context(), b.role(t, "processor"))
	must(t, err)
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
	status, body := b.get(t, "/api/v1/changes?"+query)
	text, err := json.Marshal(body)
	must(t, err)
	if must(t, json.Unmarshal(text, &l)); status != 200 || l.Next == "" {
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

// The members are those of the feed over NATS, read from the object as it is now. Without states
// they are those of the change.
func TestChanges_states_areCurrent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a", "erased", "gone")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": 2}', revision = 7 WHERE object_id = 'a'`)
	b.db.Exec(t, `UPDATE objects SET state = NULL, tied_states = '[]' WHERE object_id = 'erased'`)
	b.db.Exec(t, `UPDATE objects SET state = NULL, tied_states = '[]', version_at = -9223372036854775808,
		version_rank = 0 WHERE object_id = 'gone'`)
	type members struct {
		Revision                     int64
		Deleted, Redacted, Ambiguous bool
		Event                        string
		State                        string
	}
	of := func(query string) (all []members) {
		_, body := b.get(t, "/api/v1/changes?"+query)
		for _, item := range body["items"].([]any) {
			it := item.(map[string]any)
			m := members{Revision: int64(it["revision"].(float64)), Deleted: it["deleted"].(bool),
				Redacted: it["redacted"].(bool)}
			if state, ok := it["state"]; ok {
				text, err := json.Marshal(state)
				must(t, err)
				m.State, m.Event, m.Ambiguous = string(text), it["event_id"].(string), it["ambiguous"].(bool)
			}
			all = append(all, m)
		}
		return all
	}
	const event = "1152921504606846977"
	if diff := cmp.Diff([]members{{7, false, false, false, event, `{"a":2}`}, {2, false, true, false, event, "null"},
		{2, true, false, false, event, "null"}}, of("")); diff != "" {
		t.Error(diff)
	}
	testkit.Equal(t, "without states", []members{{2, false, false, false, "", ""}, {2, false, false, false, "", ""},
		{2, false, false, false, "", ""}}, of("states=false"))
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
	for query, want := range map[string]string{"after=17": "400 is not a cursor", "wait=2m": "400 up to 1m0s",
		"wait=x": "400 up to 1m0s", "limit=0": "400 give 1 to 1000", "source=none": "400 not known",
		"type=a&x=b": "400 does not exist", "after=" + epoch + "-2": "410 Start again without",
		"after=0a0b0c0d-0": "410 Start again without"} {
		status, p := b.get(t, "/api/v1/changes?"+query)
		if code, says, _ := strings.Cut(want, " "); fmt.Sprint(status) != code ||
			!strings.Contains(fmt.Sprint(p["detail"]), says) {
			t.Errorf("%s: %d %v", query, status, p)
		}
	}
	b.db.Exec(t, `UPDATE change_feed SET server = 'restored'`)
	b.changed(t, "stripe", "plan", "a")
	if l := b.list(t, "after="+last); l.ids() != "a" || strings.HasPrefix(l.Next, epoch) {
		t.Errorf("a cursor from before the restore: %+v", l)
	}
}

// feedServer serves the API with short time limits, which requests that wait must outlive.
func (b *testBundle) feedServer(t *testing.T, o admin.Options) *httptest.Server {
	t.Helper()
	o.Pool, o.Logger = b.role(t, "operator"), testkit.Logger(t)
	o.Changes = changes.NewReader(o.Pool, o.Logger)
	s := httptest.NewUnstartedServer(admin.New(o))
	s.Config.ReadTimeout, s.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	s.Config.RegisterOnShutdown(o.Changes.Close)
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(o.Changes.Close)
	return s
}

// open sends a request to /changes.
func openChanges(t *testing.T, s *httptest.Server, query string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/changes?"+query, nil)
	must(t, err)
	for name := range header {
		req.Header.Set(name, header.Get(name))
	}
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
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
	s := b.feedServer(t, admin.Options{})
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

// message is a Server-Sent Event.
type message struct{ id, data string }

// readMessage reads the next message with data.
func readMessage(lines *bufio.Scanner) (m message, ok bool) {
	for lines.Scan() {
		switch name, text, _ := strings.Cut(lines.Text(), ": "); {
		case name == "id":
			m.id = text
		case name == "data":
			m.data = text
		case name == "" && m.data != "":
			return m, true
		}
	}
	return m, false
}

// A reader whose stream is cut again and again, and who continues after the last id, ends with the
// revisions of the mirror.
func TestChanges_streamIsCut_continuesWithoutLoss(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.feedServer(t, admin.Options{})
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
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/changes?source=stripe", nil)
		must(t, err)
		req.Header.Set("Accept", "text/event-stream")
		req.Header.Set("Last-Event-ID", last)
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		if kind := res.Header.Get("Content-Type"); res.StatusCode != 200 || kind != "text/event-stream" {
			t.Fatalf("%s %s", res.Status, kind)
		}
		for lines, n := bufio.NewScanner(res.Body), 0; n < 5 && !done; n++ {
			m, ok := readMessage(lines)
			if !ok {
				t.Fatal("the stream ended")
			}
			var item changes.Item
			must(t, json.Unmarshal([]byte(m.data), &item))
			seen[item.ObjectID], last = fmt.Sprint(item.Revision), m.id
			select {
			case <-written:
				done = cmp.Equal(seen, mirror())
			default:
			}
		}
		cancel()
		_ = res.Body.Close()
	}
	if cuts < 5 {
		t.Errorf("the stream was cut %d times only", cuts)
	}
	res := openChanges(t, s, "", http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {"0a0b0c0d-1"}})
	if res.StatusCode != http.StatusGone {
		t.Errorf("an id of another instance: %s", res.Status)
	}
}

// A stream and a request that waits end soon after their token was revoked, and both end with the
// process.
func TestChanges_revokedToken_endsWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, token, _ := b.guarded(t, admin.Options{RequireTokens: true})
	s := b.feedServer(t, admin.Options{RequireTokens: true,
		Tokens: &adminauth.TokenCache{DB: b.role(t, "operator")}})
	if res := openChanges(t, s, "", nil); res.StatusCode != 401 {
		t.Errorf("without a token: %s", res.Status)
	}
	header := http.Header{"Authorization": {"Bearer " + token}, "Accept": {"text/event-stream"}}
	stream := openChanges(t, s, "", header)
	if stream.StatusCode != 200 {
		t.Fatal(stream.Status)
	}
	wait := waited(t, s, "wait=60s", http.Header{"Authorization": header["Authorization"]})
	b.db.Exec(t, `UPDATE tokens SET revoked_at = now()`)
	_, _ = io.Copy(io.Discard, stream.Body) // ends within 10 s
	if l := <-wait; !strings.HasPrefix(l.Next, "401") {
		t.Errorf("a request that waited: %+v", l)
	}
}

func TestChanges_shutdown_endsWaiting(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := b.feedServer(t, admin.Options{})
	stream := openChanges(t, s, "", http.Header{"Accept": {"text/event-stream"}})
	wait := waited(t, s, "wait=60s", nil)
	lines := bufio.NewScanner(stream.Body)
	readTail(t, lines, "id: ")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, s.Config.Shutdown(ctx))
	for lines.Scan() { // ends, because the server has closed the stream
	}
	if l := <-wait; strings.HasPrefix(l.Next, "5") || len(l.Items) != 0 {
		t.Errorf("a request that waited: %+v", l)
	}
}

// put sends a report of a reader.
func (b *testBundle) put(t *testing.T, name, body string) (status int, result map[string]any) {
	t.Helper()
	res, req := send(b.handler, http.MethodPut, "/feed-cursors/"+name, body, nil)
	checkDescribed(t, req, body, res)
	must(t, json.Unmarshal(res.Body.Bytes(), &result))
	return res.Code, result
}

// A reader continues where it has reported. Its cursor moves back only if it says so.
func TestFeedCursors_reports_moveCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.changed(t, "stripe", "plan", "a")
	first := b.list(t, "").Next
	b.changed(t, "stripe", "plan", "b")
	last := b.list(t, "").Next
	for i, c := range []struct {
		name, body, want string
	}{
		{"shop", `{"after": "` + first + `", "stalls_after": "15m"}`, "200 " + first},
		{"shop", `{"after": "` + last + `"}`, "200 " + last},
		{"shop", `{"after": "` + last + `"}`, "200 " + last},
		{"shop", `{"after": "` + first + `"}`, "409 The cursor"},
		{"shop", `{"after": "` + first + `", "rewind": true}`, "200 " + first},
		{"shop", `{"stalls_after": "1h"}`, "200 " + first},
		{"new", `{}`, "200 " + strings.Replace(first, "-1", "-0", 1)},
		{"newest", `{"after": "latest"}`, "200 " + last},
		{"shop", `{"after": "0a0b0c0d-1"}`, "410"},
		{"shop", `{"after": "17"}`, "400"},
		{"shop", `{"stalls_after": "x"}`, "400"},
		{"Shop", `{}`, "400"},
	} {
		status, result := b.put(t, c.name, c.body)
		if got := fmt.Sprint(status, " ", result["cursor"]); !strings.HasPrefix(got, strings.TrimSuffix(c.want,
			" The cursor")) {
			t.Errorf("%d: %s %s: %s %v, want %s", i, c.name, c.body, got, result, c.want)
		}
	}
	if l := b.list(t, "feed_cursor=shop"); l.ids() != "b" {
		t.Errorf("after the cursor: %+v", l)
	}
	if status, _ := b.get(t, "/api/v1/changes?feed_cursor=none"); status != 404 {
		t.Errorf("a cursor that does not exist: %d", status)
	}
	b.db.Exec(t, `UPDATE changes SET changed_at = now() - interval '1 h' WHERE object_id = 'b'`)
	_, c := b.get(t, "/api/v1/feed-cursors/shop")
	if lag := c["lag_seconds"].(float64); c["lag_changes"] != 1.0 || lag < 3600 || lag > 3700 ||
		c["stalls_after"] != "1h0m0s" || c["moved_by"] != "loopback" {
		t.Errorf("%v", c)
	}
	if _, p := b.get(t, "/api/v1/feed-cursors"); ids(p, "name") != "new newest shop" {
		t.Errorf("%v", p)
	}
	if got := b.db.QueryStrings(t, `SELECT action || ' ' || target FROM audit`); len(got) != 1 ||
		got[0] != "feed set feed cursor shop, to "+first {
		t.Errorf("the audit says %q", got)
	}
	// after a restore: the stored cursor was restored too, so its reader has read more than it says
	b.db.Exec(t, `UPDATE change_feed SET server = 'another/00000001'`)
	b.changed(t, "stripe", "plan", "c")
	if code, _ := b.get(t, "/api/v1/changes?feed_cursor=shop"); code != 410 {
		t.Errorf("changes after a cursor of an earlier epoch: %d", code)
	}
	if code, _ := b.put(t, "shop", `{"after": "`+first+`"}`); code != 200 {
		t.Errorf("the reader's own cursor, which is before the restore: %d", code)
	}
	status, _ := b.post(t, "/api/v1/feed-epochs", "application/json", `{"reason": "a snapshot"}`)
	if _, c = b.get(t, "/api/v1/feed-cursors/shop"); status != 200 || c["ended"] != true {
		t.Errorf("%d: a cursor of an earlier epoch: %v", status, c)
	}
	if status, _ = b.get(t, "/api/v1/changes?feed_cursor=shop"); status != 410 {
		t.Errorf("changes after a cursor that has ended: %d", status)
	}
	if status, _ = b.put(t, "shop", `{"after": ""}`); status != 200 {
		t.Errorf("a new start: %d", status)
	}
	b.db.Exec(t, `INSERT INTO feed_cursors SELECT 'c' || g, '', 0, NULL, now(), now(), '', NULL
		FROM generate_series(1, 1000) g`)
	if status, p := b.put(t, "more", `{}`); status != 400 || !strings.Contains(fmt.Sprint(p["detail"]), "1000 feed") {
		t.Errorf("more than 1000 cursors: %d %v", status, p)
	}
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
