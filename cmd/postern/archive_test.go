package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

// Another instance can import an export, and both commands print the result.
func TestExport_importIntoEmptyDatabase_restoresAllEvents(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	for i := range 3 {
		a.append(t, "stripe", fmt.Sprint("evt_", i), fmt.Sprintf(`{"id":"evt_%d"}`, i))
	}
	a.append(t, "shop", "w1", "\xff")
	path := filepath.Join(t.TempDir(), "x.ndjson.zst")
	a.run(t, "export", path).want(t, 0, "events          4\n", "")
	a.run(t, "export", path).want(t, 1, "", "delete it, or use another name")
	a.want(t, "export - --key evt_1", 0, `"body":"{\"id\":\"evt_1\"}"`, "")
	a.run(t, "export", path+".2", "--type", "none.*", "-o", "json").want(t, 0, `"events": 0,`, "")
	b.append(t, "stripe", "evt_0", `{"id":"evt_0","other":1}`)
	b.run(t, "import", path, "--dry-run").want(t, 0, "would be new  3\n", "")
	b.run(t, "import", path).want(t, 0, "conflict   1: the same event id with different content", "")
	b.run(t, "import", path, "-o", "json").want(t, 0, `"duplicate": 3,`, "")
	b.want(t, "events list --origin import", 0, "evt_2", "")
	text := a.run(t, "export", "-").out
	if r := execute(t.Context(), text+"torn", "--dir", b.dir, "import", "-", "--bad", path+".bad"); r.status != 1 ||
		!strings.Contains(r.errs, "stdin:5: ") || !strings.Contains(r.out, "bad        1: not an event") {
		t.Errorf("%+v", r)
	}
	if bad, err := os.ReadFile(path + ".bad"); string(bad) != "torn\n" || err != nil {
		t.Errorf("bad entries %q, %v", bad, err)
	}
}

func TestExportImport_invalidUsage_explainsRemedy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"export"}, 2, "takes FILE, got 0"},
		{[]string{"export", "x", "--compress", "lzma"}, 2, "use none, gzip or zstd"},
		{[]string{"export", "-", "--resume"}, 2, "--resume continues a file"},
		{[]string{"export", "x", "--source", "nobody"}, 2, "the known sources are shop, stripe"},
		{[]string{"export", "x", "--ids", "1", "--object-type", "a", "--object", "b"}, 2, "give one of them"},
		{[]string{"import"}, 2, "takes FILE..., got 0"},
		{[]string{"import", "x", "--format", "xml"}, 2, "use postern or events"},
		{[]string{"import", "x", "--header", "what"}, 2, `header "what": write "Name: value"`},
		{[]string{"import", "x", "--received-at", "soon"}, 2, "2026-03-01T12:00:00Z"},
		{[]string{"import", "x", "y", "--bad", "z"}, 2, "omit --bad"},
		{[]string{"import", "x", "y", "--name", "z"}, 2, "--name names one file"},
		{[]string{"import", "/nowhere.ndjson"}, 1, "/nowhere.ndjson"},
		{[]string{"--config", "/nowhere.yaml", "import", "x"}, 1, "/nowhere.yaml"},
	} {
		if r := b.run(t, c.args...); r.status != c.status || !strings.Contains(r.errs, c.errs) {
			t.Errorf("%v: %+v, want %d and %q", c.args, r, c.status, c.errs)
		}
	}
}

// A login without the right to append gets an error with the remedy before anything is read.
func TestImport_loginWithoutAppendRight_fails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	testkit.ExecSQL(t, b.db.Pool, "DROP ROLE IF EXISTS import_operator; CREATE ROLE import_operator LOGIN "+
		"NOINHERIT; GRANT postern_operator TO import_operator")
	u, err := url.Parse(b.db.URL)
	testkit.Must(t, err)
	q := u.Query()
	q.Set("user", "import_operator")
	u.RawQuery = q.Encode()
	b.write(t, &config.Instance{DatabaseURL: u.String()})
	path := filepath.Join(t.TempDir(), "x.ndjson")
	b.run(t, "export", path).want(t, 0, "events          0", "")
	b.run(t, "import", path, "--dry-run").want(t, 0, "would be new  0", "")
	b.run(t, "import", path).want(t, 1, "", `GRANT postern_gateway TO "import_operator"`)
}

// Provider files are read like deliveries of the configured source, without a secret.
func TestImport_providerFiles_appendsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := writeFile(t, "postern.yaml", `
sources:
  orders:
    provider: hmac
    secrets: [{name: a, env: NOT_SET_HERE}]
    scheme: {header: X-Sig}
    events: {key: '{json:id}', type: '{json:type}'}
`)
	events := writeFile(t, "orders.ndjson",
		"{\"id\":\"o1\",\"type\":\"order.made\"}\n{\"id\":\"o2\",\"type\":\"order.made\"}\n")
	b.run(t, "--config", cfg, "import", events).want(t, 1, "", "name it with --source")
	b.run(t, "--config", cfg, "import", events, "--source", "stripe").want(t, 1, "", "add it to the configuration")
	b.run(t, "--config", cfg, "import", events, "--source", "orders", "-o", "json").want(t, 0, `"new": 2,`, "")
	var listed []map[string]any
	if err := json.Unmarshal([]byte(b.run(t, "events", "list", "--source", "orders", "-o", "json").out),
		&listed); err != nil || len(listed) != 2 {
		t.Errorf("%v, %v", listed, err)
	}
	wrong := writeFile(t, "wrong.yaml", "sources: {orders: {provider: nobody, secrets: [{name: a, env: X}]}}\n")
	b.run(t, "--config", wrong, "import", events, "--source", "orders").want(t, 1, "", "nobody")
	// Without a configuration, the sources are the demo sources of the dev instance.
	b.writeStripe(t)
	page := writeFile(t, "page.ndjson", `{"id":"evt_9","object":"event","type":"customer.updated"}`)
	b.run(t, "import", page, "--source", "stripe").want(t, 0, "new        1\n", "")
	page = writeFile(t, "page.json", `{"object":"list","data":[],"has_more":true}`)
	b.run(t, "import", page, "--source", "stripe").want(t, 1, "", "a page of an API")
	page = writeFile(t, "page.ndjson", `{"events":[{"id":"evt_10"}]}`)
	b.run(t, "import", page, "--source", "stripe").want(t, 1, "bad        1: ", "page.ndjson:1: ")
}

// The examples in the help work.
func TestExportImport_examplesInDocs_work(t *testing.T) {
	t.Parallel()
	b := setup(t)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"postern.yaml": "sources: {stripe: {provider: stripe, secrets: [{name: a, env: X}]}, github: " +
			"{provider: github, secrets: [{name: a, env: X}]}}",
		"issues.ndjson": `{"action":"opened","issue":{"id":1,"number":1}}`,
	} {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
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
			if slices.Contains(args, "--resume") { // an unfinished export leaves no file
				testkit.Must(t, os.Remove(filepath.Join(dir, "events.ndjson.zst")))
			}
			if r := execute(t.Context(), "", args...); r.status != 0 {
				t.Errorf("%s: %+v", line, r)
			}
			ran++
		}
	}
	if ran != 8 {
		t.Errorf("%d examples were run", ran)
	}
	b.want(t, "events list --origin import", 0, "issues.opened", "")
}

// A day of the log is shown, previewed and, after confirmation, dropped. The rest of its events can
// still be shown.
func TestRetention_showAndRun_printPolicyAndDrops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_young", "{}")
	const clock = `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() + interval ''%d days'''`
	exec := func(sql string, args ...any) {
		t.Helper()
		b.db.Exec(t, sql, args...)
	}
	var id int64
	var at time.Time
	testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `SELECT id, event_time(id) FROM events`).Scan(&id, &at))
	exec(fmt.Sprintf(clock, 40))
	day := at.UTC().Format("2006-01-02")
	b.want(t, "retention show", 0, "never", "the maximum ages of the running processors are not known here")
	b.run(t, "retention", "show", "--bodies", "60").want(t, 0, at.UTC().Truncate(24*time.Hour).AddDate(0, 0,
		61).Format("2006-01-02"), "")
	const cleared = "postern: warning: the data of effects is cleared 3 days after they ended, and events are kept "
	b.want(t, "retention show --effects 3", 0, "3 days", cleared+"forever: a replay with --mode force")
	b.want(t, "retention run --bodies 400 --effects 3 --dry-run", 0, "", cleared+"for 400 days: a replay")
	if r := b.run(t, "retention", "show", "--bodies", "3", "--effects", "3"); strings.Contains(r.errs, "warning") {
		t.Errorf("warns %q of contents that are kept for as long as events", r.errs)
	}
	b.want(t, "retention run", 2, "", "no maximum age is set")
	b.want(t, "retention run --bodies 30 --keys 7", 2, "", "keep keys at least as long as events")
	b.want(t, "retention run --bodies 30 --dry-run", 0,
		day+" is kept for now: the republisher has not passed event "+fmt.Sprint(id), "")
	exec(`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) VALUES ($1, 0, 1, 0, '', '', '', 'dead', 'because', 1, now(), 1)`, id)
	exec(`INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('republisher', 0, $1, '', now(), now())`, id)
	b.want(t, "retention run --bodies 30 --dry-run", 0, day+" has 1 dead event", "")
	b.want(t, "retention run --bodies 30", 2, "These days of the log are dropped",
		"no terminal to ask for confirmation: add --yes, or --dry-run to change nothing")
	b.want(t, "retention run --bodies 30 --yes --no-wait --reason 'a test'", 0, "queued", "")
	b.want(t, "retention run --bodies 30 --yes", 2, "", "a run of retention is open already")

	p := b.applier(t, stripe.Stripe{})
	forgets := &retention.Runner{Pool: p.Pool, MaintenancePool: b.db.Role(t, "maintenance"), Applier: p}
	applied.StartRunner(t, p.Pool, "p", 1, map[string]runs.Executor{retention.Job: forgets.Execute})
	b.want(t, "runs watch 1", 0, "3 partitions dropped", "")
	for _, arg := range []string{"evt_young", fmt.Sprint(id)} {
		b.run(t, "events", "show", arg).contains(t, "by retention, with headers and body", "dead")
	}
	b.want(t, "events show evt_young", 0, "evt_young", "")
	b.want(t, "events show evt_young -o json", 0, `"dropped_at": "20`, "")
	b.want(t, "events show evt_young --raw", 1, "", "retention dropped it")
	b.run(t, "events", "show", fmt.Sprint(id+1)).want(t, 3, "", "kept nothing of an event with this id")
	b.run(t, "events", "show", fmt.Sprint(events.FirstID(at.AddDate(1, 0, 0)))).want(t, 3, "", "no event has this id")
	if out := b.run(t, "retention", "show").out; strings.Contains(out, day) {
		t.Errorf("still shown:\n%s", out)
	}
}
