package shopify_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// filed reads the list of a type by a bulk operation: the versions of the objects by their ids.
func filed(t *testing.T, fake *shopifyfake.Fake, objectType string, types map[string]provider.APIType) map[string]int64 {
	t.Helper()
	src, api := apiOf(t, fake)
	api.Types = types
	api.Bulk = shopify.Shopify{}.FileTypes(api)
	f := provider.File{}
	for cursor := ""; !f.Ready; cursor = f.Cursor(0) {
		v, header, body := answered(t, api, shopify.Shopify{}.ListObjects(src, api, shopifyfake.Shop, objectType, time.Time{}, time.Time{}, cursor))
		var ok bool
		var err error
		if f, ok, err = (shopify.Shopify{}).ObjectFile(objectType, cursor, header, body); err != nil || !ok || v.Kind != provider.Found || f.Name == "" {
			t.Fatalf("%s: %+v, %+v, %v: %s", objectType, v, f, err, body)
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Range", "bytes=0-")
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
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

// An operation tells of all that is there what the pages tell.
func TestBulkLists(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{Seed: 3, Objects: 12, Bulk: shopifyfake.Bulk{Running: 1}})
	fake.Live(700)
	for _, objectType := range faked {
		if objectType == "fulfillment" {
			continue // which no connection lists
		}
		want := versions(t, fake, objectType, time.Time{})
		if diff := cmp.Diff(want, filed(t, fake, objectType, nil)); diff != "" || len(want) < 2 {
			t.Errorf("%s, %d of them: %s", objectType, len(want), diff)
		}
	}
}

// What a list of 10,000 objects costs in calls of the shop's API, each way; decision 0037 has the figures.
func TestCallsOfALongList(t *testing.T) {
	t.Parallel()
	fake := shopifyfake.New(t, shopifyfake.Options{})
	const n = 10_000
	for range n {
		fake.Create("order")
		fake.Create("draft_order") // which REST lists in no one list
	}
	calls := func(of map[string]int64) int {
		if len(of) != n {
			t.Fatalf("%d are listed", len(of))
		}
		defer fake.Forget()
		return len(fake.Requests())
	}
	got := map[string]int{"REST, whole": calls(walked(t, fake, "order", time.Time{}, time.Time{})), "GraphQL, pages": calls(walked(t, fake, "draft_order", time.Time{}, time.Time{})),
		"bulk operation": calls(filed(t, fake, "order", nil))}
	if diff := cmp.Diff(map[string]int{"REST, whole": 101, "GraphQL, pages": 40, "bulk operation": 2}, got); diff != "" {
		t.Error(diff)
	}
	downloads, leaked := fake.Downloads()
	if len(downloads) != 1 || len(leaked) > 0 {
		t.Errorf("%d downloads, %q", len(downloads), leaked)
	}
	t.Logf("%d orders: %v", n, got)
}

func TestBulkAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		body string
		kind provider.VerdictKind
	}{
		{`{"data":{"bulk":{"status":"RUNNING","createdAt":"2026-01-01T00:00:00Z","objectCount":"7"}}}`, provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`, provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"0","fileSize":null,"url":null}}}`, provider.Found},
		{`{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","url":null}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"COMPLETED","url":null}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"FAILED","errorCode":"TIMEOUT","objectCount":"7","url":null,"partialDataUrl":"https://files.example/x"}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"FAILED","errorCode":"ACCESS_DENIED"}}}`, provider.Refused},
		{`{"data":{"bulk":{"status":"CANCELING"}}}`, provider.Expired},
		{`{"data":{"bulk":{"status":"EXPIRED","url":"https://files.example/x"}}}`, provider.Expired},
		{`{"data":{"bulk":null}}`, provider.Expired},
		{`{"data":{"bulk":7}}`, provider.Expired},
		{`{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`, provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"LIMIT_REACHED","message":"x"}]}}}`, provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":null,"message":"A bulk query operation for this app and shop is already in progress: 4."}]}}}`, provider.Found},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"INVALID","message":"x"}]}}}`, provider.Refused},
		{`{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":null,"message":"x"}]}}}`, provider.Refused},
	} {
		if v := (shopify.Shopify{}).Answer(http.StatusOK, nil, []byte(test.body)); v.Kind != test.kind {
			t.Errorf("%s: %+v, want %s", test.body, v, test.kind)
		}
	}
}

func TestObjectFile(t *testing.T) {
	t.Parallel()
	date := http.Header{"Date": {"Thu, 01 Jan 2026 00:00:20 GMT"}}
	at := provider.File{Name: "4"}.Cursor(9)
	for _, test := range []struct {
		cursor, body string
		want         provider.File
	}{
		{"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/4"},"userErrors":[]}}}`, provider.File{Name: "4", Wait: time.Second}},
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"OPERATION_IN_PROGRESS","message":"x"}]}}}`, provider.File{Wait: time.Minute}},
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"LIMIT_REACHED","message":"x"}]}}}`, provider.File{Wait: time.Minute}},
		{at, `{"data":{"bulk":{"status":"RUNNING","createdAt":"2026-01-01T00:00:00Z","objectCount":"7"}}}`, provider.File{Name: "4", Wait: 5 * time.Second}},
		{at, `{"data":{"bulk":{"status":"CREATED","createdAt":"2025-01-01T00:00:00Z","objectCount":"0"}}}`, provider.File{Name: "4", Wait: time.Minute}},
		{at, `{"data":{"bulk":{"status":"COMPLETED","objectCount":"7","fileSize":"70","url":"https://files.example/x"}}}`, provider.File{Name: "4", Ready: true, URL: "https://files.example/x", Size: 70}},
		{at, `{"data":{"bulk":{"status":"COMPLETED","objectCount":"0","url":null}}}`, provider.File{Name: "4", Ready: true}},
	} {
		f, ok, err := shopify.Shopify{}.ObjectFile("order", test.cursor, date, []byte(test.body))
		if (f.Why == "") != f.Ready {
			t.Errorf("%s: says %q", test.body, f.Why)
		}
		if f.Why = ""; err != nil || !ok || f != test.want {
			t.Errorf("%s: %+v, %t, %v, want %+v", test.body, f, ok, err, test.want)
		}
	}
	for _, bad := range [][2]string{
		{"", `{"data":{"started":{"bulkOperation":null,"userErrors":[{"code":"INVALID","message":"shpat_x"}]}}}`}, {"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/Order/4"},"userErrors":[]}}}`},
		{"", `{"data":{"started":{"bulkOperation":{"id":"gid://shopify/BulkOperation/../4"}}}}`}, {at, `{"data":{"bulk":{"status":"MOONLIT"}}}`}, {at, `{"data":{"bulk":{"objectCount":{}}}}`},
	} {
		if f, ok, err := (shopify.Shopify{}).ObjectFile("order", bad[0], date, []byte(bad[1])); err == nil || strings.Contains(err.Error(), "shpat") {
			t.Errorf("%s: %+v, %t, %v", bad[1], f, ok, err)
		}
	}
	for _, page := range []string{`{"orders":[]}`, `{"data":{"page":{}}}`, `[]`} {
		if f, ok, err := (shopify.Shopify{}).ObjectFile("order", "", date, []byte(page)); ok || err != nil {
			t.Errorf("the page %s: %+v, %v", page, f, err)
		}
	}
	for _, line := range []string{`{}`, `{"id":"gid://shopify/Order/7"}`, `{"id":"gid://shopify/Order/x","updatedAt":"2026-01-01T00:00:00Z"}`, `{"id":`, `[]`} {
		for _, objectType := range []string{"order", "inventory_level"} {
			if one, ok, err := (shopify.Shopify{}).ObjectLine(objectType, []byte(line)); err == nil {
				t.Errorf("%s %s: %+v, %t", objectType, line, one, ok)
			}
		}
	}
}

func TestBulkIsChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		api provider.API
		bad string
	}{
		{provider.API{Bulk: []string{"order", "inventory_level"}}, ""},
		{provider.API{Bulk: []string{"order"}, Version: "unstable"}, ""},
		{provider.API{Bulk: []string{"order"}, Version: "2025-10"}, "2026-01 or later"},
		{provider.API{Bulk: []string{"fulfillment"}}, "no bulk operation"},
	} {
		err := shopify.Shopify{}.CompleteAPI(&test.api)
		if (err == nil) != (test.bad == "") || err != nil && !strings.Contains(err.Error(), test.bad) {
			t.Errorf("%+v: %v", test.api, err)
		}
	}
	api := &provider.API{Version: "2026-07", Bulk: []string{"order"}}
	if call := (shopify.Shopify{}).ListObjects(nil, api, "", "order", time.Unix(1, 0), time.Unix(2, 0), ""); strings.Contains(string(call.Body), "bulk") {
		t.Errorf("what changed is asked for by %s", call.Body)
	}
	if call := (shopify.Shopify{}).ListObjects(nil, api, "", "order", time.Time{}, time.Time{}, "7"); call.Method == http.MethodPost {
		t.Errorf("a list by pages goes on by %s", call.Body)
	}
}
