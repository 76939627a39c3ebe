package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
)

// What one instance exports another imports, and whoever asks is told what came of it.
func TestExportAndImport(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	for i := range 3 {
		a.append(t, "stripe", fmt.Sprint("evt_", i), fmt.Sprintf(`{"id":"evt_%d"}`, i))
	}
	a.append(t, "shop", "w1", "\xff")
	path := filepath.Join(t.TempDir(), "x.ndjson.zst")
	a.run(t, "export", path).want(t, 0, "events          4\n", "")
	a.run(t, "export", path).want(t, 1, "", "is there already: delete it, or name another")
	a.run(t, "export", "-", "--key", "evt_1").want(t, 0, `"body":"{\"id\":\"evt_1\"}"`, "")
	a.run(t, "export", path+".2", "--type", "none.*", "-o", "json").want(t, 0, `"events": 0,`, "")
	b.append(t, "stripe", "evt_0", `{"id":"evt_0","other":1}`)
	b.run(t, "import", path, "--dry-run").want(t, 0, "would be new  3\n", "")
	b.run(t, "import", path).want(t, 0, "conflict   1: other content under a key that is there", "")
	b.run(t, "import", path, "-o", "json").want(t, 0, `"duplicate": 3,`, "")
	b.run(t, "events", "list", "--origin", "import").want(t, 0, "evt_2", "")
	text := a.run(t, "export", "-").out
	if r := execute(t.Context(), text+"torn", "--dir", b.dir, "import", "-", "--bad", path+".bad"); r.status != 1 || !strings.Contains(r.errs, "stdin:5: ") || !strings.Contains(r.out, "bad        1: no events") {
		t.Errorf("%+v", r)
	}
	if bad, err := os.ReadFile(path + ".bad"); string(bad) != "torn\n" || err != nil {
		t.Errorf("bad entries %q, %v", bad, err)
	}
}

func TestExportAndImportAreUsedSo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"export"}, 2, "takes FILE, got 0"},
		{[]string{"export", "x", "--compress", "lzma"}, 2, "write none, gzip or zstd"},
		{[]string{"export", "-", "--resume"}, 2, "--resume goes on with a file"},
		{[]string{"export", "x", "--source", "nobody"}, 2, "known are shop, stripe"},
		{[]string{"export", "x", "--ids", "1", "--object-type", "a", "--object", "b"}, 2, "give the one or the other"},
		{[]string{"import"}, 2, "takes FILE..., got none"},
		{[]string{"import", "x", "--format", "xml"}, 2, "write postern, events, list, csv or bodies"},
		{[]string{"import", "x", "--map", "id=a"}, 2, `no field "id"; known are account, body`},
		{[]string{"import", "x", "--header", "what"}, 2, "each as Name: value"},
		{[]string{"import", "x", "--received-at", "soon"}, 2, "2026-03-01T12:00:00Z"},
		{[]string{"import", "x", "y", "--bad", "z"}, 2, "leave out --bad"},
		{[]string{"import", "x", "y", "--name", "z"}, 2, "--name is that of one file"},
		{[]string{"import", "/nowhere.ndjson"}, 1, "/nowhere.ndjson"},
		{[]string{"--config", "/nowhere.yaml", "import", "x"}, 1, "/nowhere.yaml"},
	} {
		if r := b.run(t, c.args...); r.status != c.status || !strings.Contains(r.errs, c.errs) {
			t.Errorf("%v: %+v, want %d and %q", c.args, r, c.status, c.errs)
		}
	}
}

// Whoever's login may not append is told how that is changed, before anything is read.
func TestImportByALoginThatMayNotAppend(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := b.db.Pool.Exec(t.Context(), "DROP ROLE IF EXISTS import_operator; CREATE ROLE import_operator LOGIN NOINHERIT; GRANT postern_operator TO import_operator"); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(b.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("user", "import_operator")
	u.RawQuery = q.Encode()
	b.write(t, &config.Instance{DatabaseURL: u.String()})
	path := filepath.Join(t.TempDir(), "x.ndjson")
	b.run(t, "export", path).want(t, 0, "events          0", "")
	b.run(t, "import", path, "--dry-run").want(t, 0, "would be new  0", "")
	b.run(t, "import", path).want(t, 1, "", `GRANT postern_gateway TO "import_operator"`)
}

// Providers' own events are read as the configured source reads them; no secret is needed for it.
func TestImportOfProvidersOwnFiles(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cfg := write("postern.yaml", `
sources:
  orders:
    provider: hmac
    secrets: [{name: a, env: NOT_SET_HERE}]
    scheme: {header: X-Sig}
    events: {key: '{json:id}', type: '{json:type}'}
`)
	events := write("orders.ndjson", "{\"id\":\"o1\",\"type\":\"order.made\"}\n{\"id\":\"o2\",\"type\":\"order.made\"}\n")
	b.run(t, "--config", cfg, "import", events).want(t, 1, "", "name it with --source")
	b.run(t, "--config", cfg, "import", events, "--source", "stripe").want(t, 1, "", "add it to the configuration")
	b.run(t, "--config", cfg, "import", events, "--source", "orders", "-o", "json").want(t, 0, `"new": 2,`, "")
	var listed []map[string]any
	if err := json.Unmarshal([]byte(b.run(t, "events", "list", "--source", "orders", "-o", "json").out), &listed); err != nil || len(listed) != 2 {
		t.Errorf("%v, %v", listed, err)
	}
	wrong := write("wrong.yaml", "sources: {orders: {provider: nobody, secrets: [{name: a, env: X}]}}\n")
	b.run(t, "--config", wrong, "import", events, "--source", "orders").want(t, 1, "", "nobody")
	// Without a configuration the sources are those of the demo that the dev instance has.
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
	page := write("page.json", `{"object":"list","data":[{"id":"evt_9","object":"event","type":"customer.updated"}],"has_more":false}`)
	b.run(t, "import", page, "--source", "stripe").want(t, 0, "new        1\n", "")
	if r := b.run(t, "import", page, "--source", "stripe"); strings.Contains(r.out, "has_more") {
		t.Errorf("of the last page: %s", r.out)
	}
	page = write("page.json", `{"object":"list","data":[],"has_more":true}`)
	b.run(t, "import", page, "--source", "stripe").want(t, 0, "The last page says has_more: ", "")
	b.run(t, "import", page, "--source", "stripe", "-o", "json").want(t, 0, `"more": true`, "")
	page = write("page.json", `{"events":[{"id":"evt_10"}]}`)
	b.run(t, "import", page, "--source", "stripe", "--format", "list").want(t, 1, "bad        1: ", `page.json:1: an object without a list under "data"`)
}

// Rows that nothing names need a file with a name, and are in conflict only where their columns were mapped otherwise before: that is an error.
func TestImportOfRowsThatNothingNames(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	cfg, rows := filepath.Join(dir, "postern.yaml"), filepath.Join(dir, "orders.csv")
	const text = "json,what\n{},order.made\n{},order.made\n"
	for path, text := range map[string]string{
		cfg:  "sources: {orders: {provider: hmac, secrets: [{name: a, env: X}], scheme: {header: X-Sig}, events: {type: '{json:what}'}}}",
		rows: text,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"--config", cfg, "--dir", b.dir, "import", "--source", "orders", "--format", "csv", "--map"}
	run := func(more ...string) result { return execute(t.Context(), text, append(slices.Clone(args), more...)...) }
	run("event_type=what", rows).want(t, 0, "new        2\n", "")
	run("event_type=what", rows).want(t, 0, "duplicate  2\n", "")
	run("event_type=what", "-").want(t, 1, "new        0\n", "give the input a name with --name")
	run("event_type=what", "-", "--name", "orders.csv").want(t, 0, "duplicate  2\n", "")
	run("event_type=what,body=json", rows).want(t, 1, "conflict   2: ", "imported before with another --map")
	run("event_type=what,body=json", rows, "--name", "anew").want(t, 0, "new        2\n", "")
}

// What the help shows can be done.
func TestExamplesOfExportAndImport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"postern.yaml": "sources: {stripe: {provider: stripe, secrets: [{name: a, env: X}]}, shop: {provider: shopify, accounts: ['*'], account: demo.myshopify.com, secrets: [{name: a, env: X}]}, github: {provider: github, secrets: [{name: a, env: X}]}}",
		"orders.csv":   "webhook_id,topic,created_at,payload\nw1,orders/create,2026-03-01 10:00:00+00,{}\n",
		"bodies/1":     `{"action":"opened","issue":{"id":1,"number":1}}`,
	} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	b.append(t, "stripe", "evt_1", "{}")
	ran := 0
	for _, cmd := range []*cobra.Command{newExportCommand(&cli{}), newImportCommand(&cli{})} {
		for line := range strings.Lines(cmd.Example) {
			_, line, _ = strings.Cut(line, "postern ")
			line, _, _ = strings.Cut(line, " |")
			args := []string{"--config", filepath.Join(dir, "postern.yaml"), "--dir", b.dir}
			for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(line, -1) {
				word = strings.Trim(word, "'")
				if _, err := os.Stat(filepath.Join(dir, word)); err == nil || strings.Contains(word, ".ndjson") {
					word = filepath.Join(dir, word)
				}
				args = append(args, word)
			}
			if slices.Contains(args, "--resume") { // of what was begun there is nothing left
				if err := os.Remove(filepath.Join(dir, "events.ndjson.zst")); err != nil {
					t.Fatal(err)
				}
			}
			if r := execute(t.Context(), `{"object":"list","data":[]}`, args...); r.status != 0 {
				t.Errorf("%s: %+v", line, r)
			}
			ran++
		}
	}
	if ran != 9 {
		t.Errorf("%d examples were run", ran)
	}
	b.run(t, "events", "list", "--origin", "import").want(t, 0, "orders/create", "")
}
