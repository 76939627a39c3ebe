package oracles_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/shopify"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// restTypes are the types that REST answers, which its SDK has a class for under the same name.
var restTypes = []string{"collection", "customer", "draft_order", "fulfillment", "inventory_item", "inventory_level",
	"location", "order", "product", "shop", "theme", "variant"}

var shop = &provider.Source{Account: shopifyfake.Shop}

// shopCalls are all calls that we make of an API of a version: for types, and for the key.
func shopCalls(t *testing.T, version string) (calls []provider.Call) {
	t.Helper()
	s, api := shopify.Shopify{}, &provider.API{Version: version}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for objectType, list := range s.Lists(shop, api, shopifyfake.Shop) {
		cursor := map[string]string{"inventory_level": "7 8"}[objectType]
		if cursor == "" {
			cursor = "7"
		}
		for _, at := range []string{"", cursor} {
			calls = append(calls, s.ListObjects(shop, api, shopifyfake.Shop, objectType, time.Time{}, time.Time{}, at))
			if list.ByChange {
				calls = append(calls, s.ListObjects(shop, api, shopifyfake.Shop, objectType, since,
					since.Add(time.Hour), at))
			}
		}
	}
	for _, objectType := range restTypes {
		id := map[string]string{"inventory_level": "7:8"}[objectType]
		if id == "" {
			id = "7"
		}
		call, ok := s.Fetch(shop, api, shopifyfake.Shop, objectType, id)
		if !ok {
			t.Errorf("a %s is not read", objectType)
		}
		calls = append(calls, call, s.ObjectCredentialCheck(shop, api, shopifyfake.Shop, objectType, id))
	}
	step, ok := s.SecondCall(api, shopifyfake.Shop, "fulfillment", "7",
		[]byte(`{"data":{"object":{"order":{"legacyResourceId":"9"}}}}`))
	if !ok {
		t.Error("a fulfillment is not read below its order")
	}
	return append(calls, step)
}

// Each query that we send is one of the schemas that Shopify publishes, with its variables and what
// it searches by.
func TestShopifySchema_ourQueries_areValid(t *testing.T) {
	t.Parallel()
	for version, schema := range shopifySchemas(t) {
		queries := 0
		for _, c := range shopCalls(t, version) {
			if c.Method != http.MethodPost {
				continue
			}
			queries++
			var g graph
			if err := json.Unmarshal(c.Body, &g); err != nil {
				t.Fatal(err)
			}
			if _, err := g.against(schema); err != nil {
				t.Errorf("%s: %v: %s", version, err, c.Body)
			}
		}
		if queries < 30 {
			t.Errorf("%s: only %d queries are sent", version, queries)
		}
	}
}

// What our fake answers to our queries is what Shopify's schema says of them.
func TestShopifyFake_responses_matchSchema(t *testing.T) {
	t.Parallel()
	f := shopifyfake.New(t, shopifyfake.Options{Seed: 1})
	f.RunSteps(300)
	schema := shopifySchemas(t)[shopifyfake.Version]
	calls := shopCalls(t, shopifyfake.Version)
	for _, o := range f.CurrentObjects() {
		if c, ok := (shopify.Shopify{}).Fetch(shop, &provider.API{Version: shopifyfake.Version}, shopifyfake.Shop,
			o.Type, o.ID); ok {
			calls = append(calls, c)
		}
	}
	for _, c := range calls {
		// nobody gave that cursor
		if c.Method != http.MethodPost || strings.Contains(string(c.Body), `"after":"7`) ||
			strings.Contains(string(c.Body), `"after":"8`) {
			continue
		}
		r := httptest.NewRequestWithContext(t.Context(), c.Method, c.Path, strings.NewReader(string(c.Body)))
		r.Header = c.Header.Clone()
		shopify.Shopify{}.Authorize(&provider.API{Key: provider.Secret{Value: []byte(shopifyfake.Key)}}, r.Header)
		w := httptest.NewRecorder()
		f.ServeHTTP(w, r)
		var g graph
		var a struct{ Data, Errors any }
		if err := json.Unmarshal(c.Body, &g); err != nil {
			t.Fatal(err)
		}
		op, err := g.against(schema)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || a.Errors != nil {
			t.Errorf("%s: the fake answers %d %.300s (%v)", c.Body, w.Code, w.Body, err)
			continue
		}
		for _, wrong := range answered(schema, op.SelectionSet, a.Data, "data") {
			t.Errorf("%s: %s", c.Body, wrong)
		}
	}
}

// restClass is what Shopify's SDK for Node says of a resource of the REST API.
type restClass struct{ paths, members, all []string }

var (
	restPath   = regexp.MustCompile(`"http_method": "get".*"path": "([^"]+)"`)
	restMember = regexp.MustCompile(`(?m)^    (\w+): `)
	restAll    = regexp.MustCompile(`(?s)interface AllArgs \{(.*?)\}`)
	restArg    = regexp.MustCompile(`(\w+)\?: `)
)

// readRest reads the class of a type, of the newest version that the SDK has.
func readRest(t *testing.T, objectType string) (c restClass) {
	t.Helper()
	root := filepath.Join("node", "node_modules", "@shopify", "shopify-api", "dist")
	versions, err := filepath.Glob(filepath.Join(root, "cjs", "rest", "admin", "20*"))
	if err != nil || len(versions) == 0 {
		t.Fatalf("the SDK has no REST API: run `make prerequisites`, which says why if it cannot fetch it (%v)", err)
	}
	version := filepath.Base(slices.Max(versions))
	read := func(kind, ending string) string {
		f, err := os.Open(filepath.Join(root, kind, "rest", "admin", version, objectType+ending))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // it is read
		text, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, m := range restPath.FindAllStringSubmatch(read("cjs", ".js"), -1) {
		c.paths = append(c.paths, m[1])
	}
	types := read("ts", ".d.ts")
	_, class, _ := strings.Cut(types, "export declare class")
	for _, m := range restMember.FindAllStringSubmatch(class, -1) {
		c.members = append(c.members, m[1])
	}
	if all := restAll.FindStringSubmatch(types); all != nil {
		for _, m := range restArg.FindAllStringSubmatch(all[1], -1) {
			c.all = append(c.all, m[1])
		}
	}
	return c
}

// placeholder is a part of a path of the SDK's.
var placeholder = regexp.MustCompile(`<\w+>`)

// Each object and list that we read by REST, Shopify's own SDK has under that path and with those
// parameters, and an object with the members that it tells of one we take for a whole one with a
// version.
func TestShopifySchema_restReads_areKnown(t *testing.T) {
	t.Parallel()
	s, classes := shopify.Shopify{}, map[string]restClass{}
	for _, objectType := range restTypes {
		classes[objectType] = readRest(t, objectType)
	}
	read := 0
	for _, c := range shopCalls(t, shopifyfake.Version) {
		if c.Method == http.MethodPost {
			continue
		}
		read++
		path, known := strings.TrimPrefix(c.Path, "/admin/api/"+shopifyfake.Version+"/"), false
		for _, class := range classes {
			for _, template := range class.paths {
				if !fits(placeholder.ReplaceAllString(strings.TrimSuffix(template, ".json"), "{}"),
					strings.TrimSuffix(path, ".json")) {
					continue
				}
				known = true
				for name := range c.Query {
					if !slices.Contains(class.all, name) {
						t.Errorf("%s has no parameter %s", template, name)
					}
				}
			}
		}
		if !known {
			t.Errorf("Shopify's SDK knows no GET %s", path)
		}
	}
	if read < 15 {
		t.Errorf("only %d calls read by REST", read)
	}
	for objectType, class := range classes {
		object := map[string]any{}
		for _, name := range class.members {
			object[name] = nil
		}
		for _, name := range []string{"id", "inventory_item_id", "location_id"} {
			if _, ok := object[name]; ok {
				object[name] = 7
			}
		}
		if _, ok := object["updated_at"]; ok {
			object["updated_at"] = "2026-01-02T03:04:05Z"
		}
		id, body := "7", any(map[string]any{objectType: object})
		if objectType == "inventory_level" {
			id, body = "7:7", map[string]any{"inventory_levels": []any{object}}
		}
		o, err := s.Snapshot(shop, &provider.Snapshot{Account: shopifyfake.Shop, ObjectType: objectType, ObjectID: id,
			Body: must(json.Marshal(body))})
		if err != nil || o.State == nil || !o.HasAt {
			t.Errorf("a %s as Shopify's SDK has it is read as %+v (%v)", objectType, o, err)
		}
	}
}
