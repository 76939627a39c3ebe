package shopify_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// fakeTypes are the types of the fake shop.
var fakeTypes = []string{"collection", "customer", "draft_order", "fulfillment", "inventory_item", "inventory_level",
	"location", "order", "product", "theme"}

// wholeObjectTypes are the types whose lists contain whole objects.
var wholeObjectTypes = map[string]bool{"customer": true, "order": true, "product": true}

// readAllPages reads all pages of a list and returns the versions of the objects by id.
func readAllPages(t *testing.T, fake *shopifyfake.Fake, objectType string, since, until time.Time) map[string]int64 {
	t.Helper()
	src, api := apiOf(t, fake)
	out := map[string]int64{}
	for _, one := range listObjects(t, src, api, objectType, since, until) {
		if _, twice := out[one.ObjectID]; twice {
			t.Fatalf("%s %s is listed twice", objectType, one.ObjectID)
		}
		out[one.ObjectID] = one.At
		if !one.HasAt {
			t.Fatalf("%s %s is listed without its version", objectType, one.ObjectID)
		}
		if whole := wholeObjectTypes[objectType] || objectType == "fulfillment"; whole != (one.Body != nil) {
			t.Fatalf("%s %s from %s: listed with %q", objectType, one.ObjectID, since, one.Body)
		}
		if one.Body != nil && snapshot(t, objectType, one.ObjectID, one.Body).At != one.At {
			t.Fatalf("%s %s is listed as of %d: %s", objectType, one.ObjectID, one.At, one.Body)
		}
	}
	return out
}

func listObjects(t *testing.T, src *provider.Source, api *provider.API, objectType string, since,
	until time.Time) []provider.ListedObject {
	t.Helper()
	all, _ := providertest.Listing{Lister: shopify.Shopify{}, Source: src, API: api, Account: shopifyfake.Shop,
		Type:  objectType,
		Since: since, Until: until}.Read(t)
	return all
}

func snapshot(t *testing.T, objectType, id string, body []byte) provider.Observation {
	t.Helper()
	o, err := shopify.Shopify{}.Snapshot(nil, &provider.Snapshot{Account: shopifyfake.Shop, ObjectType: objectType,
		ObjectID: id, Body: body})
	if err != nil {
		t.Fatalf("%s %s: %v: %s", objectType, id, err, body)
	}
	return o
}

// versions are the expected result: objects that exist and changed since the given time.
func versions(t *testing.T, fake *shopifyfake.Fake, objectType string, since time.Time) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, o := range fake.CurrentObjects() {
		if o.Type != objectType || o.Body == nil {
			continue
		}
		wrapped := fmt.Appendf(nil, `{%q:%s}`, objectType, o.Body)
		if objectType == "inventory_level" {
			wrapped = fmt.Appendf(nil, `{"inventory_levels":[%s]}`, o.Body)
		}
		if at := snapshot(t, objectType, o.ID, wrapped).At; at >= since.UnixMicro() {
			out[o.ID] = at
		}
	}
	return out
}

// Every list contains all objects with their versions, and a list by change those that changed. It
// includes objects that lists hide by default.
func TestLists_everyType_showsEveryObject(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, MaxPageSize: 3, Objects: 12})
	fake.RunSteps(700)
	middle := fake.Now().Truncate(time.Second)
	src, api := apiOf(t, fake)
	lists := shopify.Shopify{}.Lists(src, api, shopifyfake.Shop)
	if diff := cmp.Diff(fakeTypes, slices.Sorted(maps.Keys(lists))); diff != "" {
		t.Errorf("the listed types differ from those of the fake shop: %s", diff)
	}
	for _, objectType := range fakeTypes {
		want := versions(t, fake, objectType, time.Time{})
		if diff := cmp.Diff(want, readAllPages(t, fake, objectType, time.Time{}, time.Time{})); diff != "" ||
			len(want) < 2 {
			t.Errorf("%s, %d of them: %s", objectType, len(want), diff)
		}
	}
	fake.RunSteps(40)
	for _, objectType := range fakeTypes {
		if !lists[objectType].ByChange || objectType == "fulfillment" {
			continue
		}
		want := versions(t, fake, objectType, middle)
		got := readAllPages(t, fake, objectType, middle, fake.Now())
		if all := readAllPages(t, fake, objectType, time.Time{}, time.Time{}); len(got) >= len(all) &&
			objectType != "location" {
			t.Errorf("%s: %d of %d are listed as changed, so this test proves nothing", objectType, len(got), len(all))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s by change: %s", objectType, diff)
		}
	}
	all, some := readAllPages(t, fake, "fulfillment", time.Time{}, time.Time{}),
		readAllPages(t, fake, "fulfillment", middle, fake.Now())
	for id, at := range all {
		if at >= middle.UnixMicro() && some[id] != at {
			t.Errorf("the fulfillment %s changed and is not listed", id)
		}
	}
	if len(some) >= len(all) {
		t.Errorf("%d of %d fulfillments are listed as changed", len(some), len(all))
	}
}

// An object that changes while a list is read is listed once, and no other object is skipped.
func TestListObjects_changesBetweenPages_hideNothing(t *testing.T) {
	t.Parallel()
	var fake *shopifyfake.Fake
	busy := false
	fake = shopifyfake.New(t, shopifyfake.Options{Seed: 5, MaxPageSize: 2, Objects: 12, BeforeRequest: func() {
		if busy {
			fake.RunSteps(1)
		}
	}})
	fake.RunSteps(300)
	for _, objectType := range []string{"product", "order", "inventory_level"} {
		before := versions(t, fake, objectType, time.Time{})
		busy = true
		got := readAllPages(t, fake, objectType, time.Time{}, time.Time{})
		busy = false
		after := versions(t, fake, objectType, time.Time{})
		maps.DeleteFunc(before, func(id string, _ int64) bool { _, stays := after[id]; return !stays })
		for id := range before {
			if got[id] == 0 {
				t.Errorf("%s %s existed all the time and is not listed", objectType, id)
			}
		}
	}
}

// An unknown cursor gives Expired, not the end of the list.
func TestAnswer_lostCursor_isExpired(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, MaxPageSize: 2, Objects: 12})
	fake.RunSteps(300)
	src, api := apiOf(t, fake)
	for _, objectType := range fakeTypes {
		if objectType == "fulfillment" || wholeObjectTypes[objectType] {
			continue // its cursor is an id, which does not expire
		}
		list := func(cursor string) provider.Call {
			return shopify.Shopify{}.ListObjects(src, api, shopifyfake.Shop, objectType, time.Time{}, time.Time{},
				cursor)
		}
		_, header, body := callAPI(t, api, list(""))
		_, next, err := shopify.Shopify{}.ObjectPage(src, api, shopifyfake.Shop, objectType, "", header, body)
		if err != nil || next == "" {
			t.Fatalf("%s: %q, %v", objectType, next, err)
		}
		fake.ScriptFaults(shopifyfake.CursorExpired)
		if v, _, body := callAPI(t, api, list(next)); v.Kind != provider.Expired {
			t.Errorf("%s: %+v: %s", objectType, v, body)
		}
	}
}

func TestObjectPage_malformedPage_isError(t *testing.T) {
	t.Parallel()
	for _, objectType := range fakeTypes {
		for _, body := range []string{``, `{}`, `{"data":{}}`, `{"data":{"page":null,"locations":null}}`, `[]`,
			`{"orders":null}`,
			`{"data":{"page":{"nodes":[],"pageInfo":{"hasNextPage":true}}}}`,
			`{"data":{"page":{"nodes":[{"id":"gid://shopify/Order/x","updatedAt":"2026-01-01T00:00:00Z"}]}}}`,
			`{"data":{"page":{"nodes":[{"id":"gid://shopify/Order/7"}]}}}`,
			`{"orders":[{"id":7,"updated_at":"2026-01-01T00:00:00Z","fulfillments":[{}]},{"id":6}]}`,
			`{"products":[{"id":7}]}`,
			`{"customers":[{"id":8,"updated_at":"2026-01-01T00:00:00Z"},` +
				`{"id":7,"updated_at":"2026-01-01T00:00:00Z"}]}`} {
			if page, next, err := (shopify.Shopify{}).ObjectPage(nil, nil, "", objectType, "", nil,
				[]byte(body)); err == nil {
				t.Errorf("%s: %s is a page of %d, followed by %q", objectType, body, len(page), next)
			}
		}
	}
}

// readFile reads the list of a type with a bulk operation and returns the versions of the objects
// by id.
func readFile(t *testing.T, fake *shopifyfake.Fake, objectType string,
	types map[string]provider.APIType) map[string]int64 {
	t.Helper()
	src, api := apiOf(t, fake)
	api.Types = types
	api.Bulk = shopify.Shopify{}.FileTypes(api)
	f := provider.File{}
	for cursor := ""; !f.Ready; cursor = f.Cursor(0) {
		v, header, body := callAPI(t, api, shopify.Shopify{}.ListObjects(src, api, shopifyfake.Shop, objectType,
			time.Time{}, time.Time{}, cursor))
		var ok bool
		var err error
		if f, ok, err = (shopify.Shopify{}).ObjectFile(objectType, cursor, header, body); err != nil || !ok ||
			v.Kind != provider.Found || f.Name == "" {
			t.Fatalf("%s: %+v, %+v, %v: %s", objectType, v, f, err, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL, nil)
	testkit.Must(t, err)
	req.Header.Set("Range", "bytes=0-")
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	defer resp.Body.Close()
	file, err := io.ReadAll(resp.Body)
	if err != nil || int64(len(file)) != f.Size {
		t.Fatalf("%d bytes of %d, %v", len(file), f.Size, err)
	}
	out := map[string]int64{}
	for line := range bytes.Lines(file) {
		one, ok, err := shopify.Shopify{}.ObjectLine(objectType, line)
		if err != nil {
			t.Fatalf("%s: %v: %s", objectType, err, line)
		}
		if ok {
			out[one.ObjectID] = one.At
		}
	}
	return out
}

// A bulk operation lists the same objects as the pages.
func TestObjectFile_bulkTypes_listEveryObject(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, Objects: 12,
		BulkPlan: shopifyfake.BulkPlan{PollsUntilDone: 1}})
	fake.RunSteps(700)
	for _, objectType := range fakeTypes {
		if objectType == "fulfillment" {
			continue // no connection lists these
		}
		want := versions(t, fake, objectType, time.Time{})
		if diff := cmp.Diff(want, readFile(t, fake, objectType, nil)); diff != "" || len(want) < 2 {
			t.Errorf("%s, %d of them: %s", objectType, len(want), diff)
		}
	}
}

// The number of API calls for a list of 10,000 objects, for each way.
func TestListObjects_longList_needsFewCalls(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{})
	const n = 10_000
	for range n {
		fake.Create("order")
		fake.Create("draft_order") // REST has no single list of these
	}
	calls := func(of map[string]int64) int {
		if len(of) != n {
			t.Fatalf("%d are listed", len(of))
		}
		defer fake.ResetRequests()
		return len(fake.Requests())
	}
	got := map[string]int{"REST, whole": calls(readAllPages(t, fake, "order", time.Time{}, time.Time{})),
		"GraphQL, pages": calls(readAllPages(t, fake, "draft_order", time.Time{}, time.Time{})),
		"bulk operation": calls(readFile(t, fake, "order", nil))}
	if diff := cmp.Diff(map[string]int{"REST, whole": 101, "GraphQL, pages": 40, "bulk operation": 2},
		got); diff != "" {
		t.Error(diff)
	}
	downloads, leaked := fake.FileRequests()
	if len(downloads) != 1 || len(leaked) > 0 {
		t.Errorf("%d downloads, %q", len(downloads), leaked)
	}
	t.Logf("%d orders: %v", n, got)
}

func TestAnswer_bulkOperations_giveVerdict(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body string
		kind provider.VerdictKind
	}{
		{`{"data":{"bulk":{"status":"RUNNING","createdAt":"2026-01-01T00:00:00Z","objectCount":"7"}}}`, provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`,
			provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"0","fileSize":null,"url":null}}}`, provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","url":null}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"COMPLETED","url":null}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"FAILED","errorCode":"TIMEOUT","objectCount":"7","url":null,"partialDataUrl":"https://files.example/x"}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"FAILED","errorCode":"ACCESS_DENIED"}}}`, provider.Rejected},
		{`{"data":{"bulk":{"status":"CANCELING"}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"EXPIRED","url":"https://files.example/x"}}}`, provider.Expired},
		{`{"data":{"bulk":null}}`, provider.Expired},
		{`{"data":{"bulk":7}}`, provider.Expired},
		{`{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`,
			provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"LIMIT_REACHED","message":"x"}]}}}`,
			provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[` +
			`{"code":null,"message":"A bulk query operation ` +
			`for this app and shop is already in progress: 4."}]}}}`, provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"INVALID","message":"x"}]}}}`,
			provider.Rejected},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":null,"message":"x"}]}}}`, provider.Rejected},
	} {
		if v := (shopify.Shopify{}).Answer(http.StatusOK, nil, []byte(test.body)); v.Kind != test.kind {
			t.Errorf("%s: %+v, want %s", test.body, v, test.kind)
		}
	}
}

func TestObjectFile_responses_giveFile(t *testing.T) {
	t.Parallel()
	date := http.Header{"Date": {"Thu, 01 Jan 2026 00:00:20 GMT"}}
	at := provider.File{Name: "4"}.Cursor(9)
	for _, test := range []struct {
		cursor, body string
		want         provider.File
	}{
		{"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`,
			provider.File{Name: "4", Wait: time.Second}},
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[` +
			`{"code":"OPERATION_IN_PROGRESS","message":"x"}]}}}`,
			provider.File{Wait: time.Minute}},
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"LIMIT_REACHED","message":"x"}]}}}`,
			provider.File{Wait: time.Minute}},
		{at, `{"data":{"bulk":{"status":"RUNNING","createdAt":"2026-01-01T00:00:00Z","objectCount":"7"}}}`,
			provider.File{Name: "4", Wait: 5 * time.Second}},
		{at, `{"data":{"bulk":{"status":"CREATED","createdAt":"2025-01-01T00:00:00Z","objectCount":"0"}}}`,
			provider.File{Name: "4", Wait: time.Minute}},
		{at, `{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`, provider.File{Name: "4", Ready: true, URL: "https://files.example/x", Size: 70}},
		{at, `{"data":{"bulk":{"status":"COMPLETED","objectCount":"0","url":null}}}`,
			provider.File{Name: "4", Ready: true}},
	} {
		f, ok, err := shopify.Shopify{}.ObjectFile("order", test.cursor, date, []byte(test.body))
		if (f.Reason == "") != f.Ready {
			t.Errorf("%s: says %q", test.body, f.Reason)
		}
		if f.Reason = ""; err != nil || !ok || f != test.want {
			t.Errorf("%s: %+v, %t, %v, want %+v", test.body, f, ok, err, test.want)
		}
	}
	for _, bad := range [][2]string{
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"INVALID","message":"shpat_x"}]}}}`},
		{"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/Order/4"},"userErrors":[]}}}`},
		{"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/../4"}}}}`},
		{at, `{"data":{"bulk":{"status":"MOONLIT"}}}`}, {at, `{"data":{"bulk":{"objectCount":{}}}}`},
	} {
		if f, ok, err := (shopify.Shopify{}).ObjectFile("order", bad[0], date, []byte(bad[1])); err == nil ||
			strings.Contains(err.Error(), "shpat") {
			t.Errorf("%s: %+v, %t, %v", bad[1], f, ok, err)
		}
	}
	for _, page := range []string{`{"orders":[]}`, `{"data":{"page":{}}}`, `[]`} {
		if f, ok, err := (shopify.Shopify{}).ObjectFile("order", "", date, []byte(page)); ok || err != nil {
			t.Errorf("the page %s: %+v, %v", page, f, err)
		}
	}
	for _, line := range []string{`{}`, `{"id":"gid://shopify/Order/7"}`,
		`{"id":"gid://shopify/Order/x","updatedAt":"2026-01-01T00:00:00Z"}`, `{"id":`, `[]`} {
		for _, objectType := range []string{"order", "inventory_level"} {
			if one, ok, err := (shopify.Shopify{}).ObjectLine(objectType, []byte(line)); err == nil {
				t.Errorf("%s %s: %+v, %t", objectType, line, one, ok)
			}
		}
	}
}

func TestCompleteAPI_bulkTypes_areChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		api provider.API
		bad string
	}{
		{provider.API{Bulk: []string{"order", "inventory_level"}}, ""},
		{provider.API{Bulk: []string{"order"}, Version: "unstable"}, ""},
		{provider.API{Bulk: []string{"order"}, Version: "2025-10"}, "2026-01 or later"},
		{provider.API{Bulk: []string{"fulfillment"}}, "by a bulk operation"},
	} {
		err := shopify.Shopify{}.CompleteAPI(&test.api)
		if (err == nil) != (test.bad == "") || err != nil && !strings.Contains(err.Error(), test.bad) {
			t.Errorf("%+v: %v", test.api, err)
		}
	}
	api := &provider.API{Version: "2026-07", Bulk: []string{"order"}}
	if call := (shopify.Shopify{}).ListObjects(nil, api, "", "order", time.Unix(1, 0), time.Unix(2, 0),
		""); strings.Contains(string(call.Body), "bulk") {
		t.Errorf("changed objects are requested by %s", call.Body)
	}
	if call := (shopify.Shopify{}).ListObjects(nil, api, "", "order", time.Time{}, time.Time{},
		"7"); call.Method == http.MethodPost {
		t.Errorf("a list by pages continues with %s", call.Body)
	}
}
