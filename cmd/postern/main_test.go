package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) {
	if os.Getenv(runMain) != "" { // this process was started by a test
		main()
	}
	testkit.Main(m)
}

// testBundle is an instance without running daemons: a database and its instance file.
type testBundle struct {
	dir   string
	db    *testkit.DB
	known events.Sources
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := &testBundle{dir: t.TempDir(), db: testkit.Database(t)}
	var err error
	if b.known, err = events.RegisterSources(t.Context(), b.db.Pool,
		map[string]string{"stripe": "stripe", "shop": "shopify"}); err != nil {
		t.Fatal(err)
	}
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, IngestURL: "http://127.0.0.1:1"})
	return b
}

func (b *testBundle) write(t *testing.T, in *config.Instance) {
	t.Helper()
	testkit.Must(t, config.WriteInstance(b.dir, in))
}

// writeStripe writes the file of an instance whose only source is stripe.
func (b *testBundle) writeStripe(t *testing.T) {
	t.Helper()
	b.write(t, &config.Instance{DatabaseURL: b.db.URL,
		Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
}

// result is the result of a command line.
type result struct {
	status    int
	out, errs string
}

// run runs a command line with the instance.
func (b *testBundle) run(t *testing.T, args ...string) result {
	t.Helper()
	return execute(t.Context(), "", append([]string{"--dir", b.dir}, args...)...)
}

// shellWord matches a word of a command line; a word with spaces is in single quotes.
var shellWord = regexp.MustCompile(`'[^']*'|\S+`)

// want runs a command line with the instance, and checks its result as result.want does.
func (b *testBundle) want(t *testing.T, line string, status int, out, errs string) result {
	t.Helper()
	var args []string
	for _, word := range shellWord.FindAllString(line, -1) {
		args = append(args, strings.Trim(word, "'"))
	}
	r := b.run(t, args...)
	r.want(t, status, out, errs)
	return r
}

func execute(ctx context.Context, in string, args ...string) result {
	var out, errs bytes.Buffer
	status := run(ctx, args, strings.NewReader(in), &out, &errs)
	return result{status, out.String(), errs.String()}
}

// want fails unless a command ended with a status and its outputs contain the given texts.
func (r result) want(t *testing.T, status int, out, errs string) {
	t.Helper()
	if r.status != status || !strings.Contains(r.out, out) || !strings.Contains(r.errs, errs) {
		t.Errorf("status %d, want %d; want %q in\n%s\nand %q in\n%s", r.status, status, out, r.out, errs, r.errs)
	}
	if status != 0 && strings.Count(r.errs, "\n") != 1 {
		t.Errorf("an error is one line: %q", r.errs)
	}
}

// contains fails unless the command succeeded and printed all the texts.
func (r result) contains(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		r.want(t, 0, text, "")
	}
}

// writeFile writes a file of the test and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// store stores an event of a source as a gateway does.
func (b *testBundle) store(t *testing.T, source, body string, e provider.Event) int64 {
	t.Helper()
	e.Fingerprint = provider.BodyFingerprint([]byte(body))
	receipts, err := events.Append(t.Context(), b.db.Pool,
		[]events.Delivery{{Source: b.known.Number[source], ReceivedAt: time.Now(), Origin: events.OriginWebhook,
			Headers:      []byte(`{"Stripe-Signature":"t=1"}`),
			Verification: []byte(`{"scheme":"stripe-v1","secret":"main"}`),
			Body:         []byte(body), Events: []provider.Event{e}}})
	testkit.Must(t, err)
	return receipts[0][0].ID
}

// append stores an event about a customer.
func (b *testBundle) append(t *testing.T, source, key, body string) int64 {
	t.Helper()
	return b.store(t, source, body, provider.Event{Key: key, Type: "customer.updated", ObjectType: "customer",
		ObjectID: "cus_1", OccurredAt: time.Unix(1_790_000_000, 0)})
}

// insertObject stores an object of an account.
func (b *testBundle) insertObject(t *testing.T, source, account string, last int64) {
	t.Helper()
	_, err := b.db.Pool.Exec(t.Context(), `
		INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen,
			version_rank, tied_states, overflow, time_from, time_to,
		  refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision,
		  	rule_version, created_at, updated_at)
		VALUES ($1, $2, 'customer', 'cus_1', false, 1790000000000000, 0, 1, '[]', false, 0, 0, 1790000001000000, true,
			false, '\x00', '\x00', '{"name": "Ada"}', false,
		  $3, 4, 1, now(), now())`, b.known.Number[source], account, last)
	testkit.Must(t, err)
}

// applier applies events of the source stripe, which are of the given provider.
func (b *testBundle) applier(t *testing.T, p provider.Provider) *apply.Applier {
	t.Helper()
	applier, err := apply.New(apply.Options{Pool: b.db.Role(t, "processor"), Settings: apply.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]apply.Source{"stripe": {Number: b.known.Number["stripe"],
			Config: &provider.Source{Name: "stripe"}, Provider: p}}})
	testkit.Must(t, err)
	return applier
}

func (b *testBundle) outcome(t *testing.T, event int64, status string) {
	t.Helper()
	key := versioning.Key{Source: b.known.Number["stripe"], Type: "customer", ID: "cus_1"}
	_, err := b.db.Pool.Exec(t.Context(), `
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version,
			decided_by, attempts, at, rule_version)
		VALUES ($1, 0, $3, $4, '', 'customer', 'cus_1', $2, 'newer than what was stored',
			'{"final":false,"at":1790000000000000,"seen":0,"rank":1}', NULL, 1, now(), 1)`,
		event, status, key.Source, key.Hash())
	testkit.Must(t, err)
}

func TestCommands_wrongUsage_explainsRemedy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, tc := range []struct {
		args   []string
		status int
		errs   string
	}{
		{[]string{"bogus"}, 2, `no command "bogus" in postern`},
		{[]string{"events", "bogus"}, 2, `no command "bogus" in postern events; there are list, show, tail`},
		{[]string{"events", "show"}, 2, "postern events show takes ID, got 0"},
		{[]string{"events", "list", "--bogus"}, 2, "unknown flag: --bogus; see postern events list --help"},
		{[]string{"events", "list", "-o", "xml"}, 2, "write -o table or -o json"},
		{[]string{"events", "list", "--limit", "x"}, 2, `--limit "x" is not valid: write a whole number; see postern`},
		{[]string{"events", "list", "--limit", "-1"}, 2, "--limit must not be negative; 0 lists all"},
		{[]string{"events", "list", "--since", "soon"}, 2, "an RFC 3339 time, a date, or how long ago"},
		{[]string{"events", "list", "--status", "lost"}, 2, "use one of pending, applied"},
		{[]string{"events", "list", "--source", "nobody"}, 2, "the known sources are shop, stripe"},
		{[]string{"events", "list", "--object-id", "\xff"}, 2, "object_id: the text contains"},
		{[]string{"objects", "show", "stripe", "customer", "\xff"}, 2, `ID "\xff" is not valid UTF-8`},
		{[]string{"events", "show", "evt_none"}, 3, "event evt_none: not found"},
		{[]string{"events", "show", "17"}, 3, "event 17: not found"},
		{[]string{"objects", "show", "stripe", "customer", "none"}, 3, "not found"},
		{[]string{"objects", "show", "nobody", "customer", "none"}, 3, "the known sources are shop, stripe"},
		{[]string{"rejections", "show", "1"}, 3, "rejection 1: not found"},
		{[]string{"rejections", "show", "x"}, 2, `"x" is not an id: postern rejections list shows them`},
		{[]string{"conflicts", "show", "1"}, 3, "conflict 1: not found"},
		{[]string{"--config", "/nowhere.yaml", "events", "list"}, 1, "/nowhere.yaml"},
		{[]string{"--dir", t.TempDir(), "events", "list"}, 1, "start one with `postern dev"},
	} {
		b.run(t, tc.args...).want(t, tc.status, "", tc.errs)
	}
}

func TestCommands_helpAndExamples_exist(t *testing.T) {
	t.Parallel()
	commands := newRootCommand().Commands()
	for len(commands) > 0 {
		cmd := commands[0]
		commands = append(commands[1:], cmd.Commands()...)
		if cmd.Short == "" || !cmd.HasSubCommands() && cmd.Example == "" {
			t.Errorf("%s: short %q, example %q", cmd.CommandPath(), cmd.Short, cmd.Example)
		}
		execute(t.Context(), "", append(strings.Fields(cmd.CommandPath())[1:], "--help")...).want(t, 0, "Usage:", "")
	}
}

func TestEvents_listAndShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "events list", 0, "No events.", "")
	if r := b.run(t, "events", "list", "-o", "json"); r.out != "[]\n" {
		t.Errorf("no events as JSON: %q", r.out)
	}
	id := b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1","other":true}`)
	b.append(t, "shop", "evil\x1b[31m", `{}`)
	b.outcome(t, id, "applied")
	r := b.want(t, "events list", 0, "customer.updated", "")
	if strings.Contains(r.out, "\x1b") || !strings.Contains(r.out, "evil·[31m") {
		t.Errorf("control characters reach the terminal: %q", r.out)
	}
	b.want(t, "events list --status applied -o json", 0, fmt.Sprintf(`"id":"%d"`, id), "")
	for _, arg := range []string{"evt_1", fmt.Sprint(id)} {
		r := b.run(t, "events", "show", arg)
		r.contains(t, "evt_1, customer.updated", "applied", "newer than what was stored",
			"at 2026-09-21T", "Conflicts", `"id": "evt_1"`, `"secret": "main"`)
	}
	if r := b.run(t, "events", "show", "evt_1", "--raw"); r.out != `{"id":"evt_1"}` {
		t.Errorf("raw: %q", r.out)
	}
	var life map[string]any
	if r := b.run(t, "events", "show", "evt_1", "-o", "json"); json.Unmarshal([]byte(r.out), &life) != nil ||
		len(life["conflicts"].([]any)) != 1 {
		t.Errorf("json: %s", r.out)
	}
	b.want(t, "outcomes list --event evt_1", 0, "newer than what was stored", "")
	b.want(t, "outcomes list --status dead", 0, "No outcomes.", "")
	b.want(t, "outcomes failures", 0, "No event has failed or is dead.", "")
	b.want(t, "conflicts list", 0, "evt_1", "")
	b.want(t, "conflicts show 1", 0, `"other": true`, "")
	b.append(t, "stripe", "same", `{}`)
	b.append(t, "shop", "same", `{}`)
	b.want(t, "events show same", 4, "", "2 events have the key same")
	b.want(t, "events show same --source shop", 0, "shop", "")
}

// Not parallel: the environment belongs to the whole process.
func TestCommands_environmentVariable_namesDatabase(t *testing.T) {
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{}`)
	t.Setenv("POSTERN_DATABASE_URL", b.db.URL)
	execute(t.Context(), "", "events", "list").want(t, 0, "evt_1", "")
	execute(t.Context(), "", "--dir", t.TempDir(), "events", "list").want(t, 1, "",
		"to use the database of POSTERN_DATABASE_URL omit --dir")
	// A dev instance's sources do not apply to another database.
	b.writeStripe(t)
	execute(t.Context(), "", "--dir", b.dir, "replay", "--dry-run").want(t, 1, "",
		"the configuration of the sources is not known here: name it with --config FILE")
	other := writeFile(t, "postern.yaml", "database: {url: postgres:///nowhere}\n")
	execute(t.Context(), "", "--config", other, "events", "list").want(t, 0, "evt_1", "")
	b.write(t, knownInstance(t, b.db))
	b.want(t, "events list", 0, "evt_1", "") // both name the same database
	t.Setenv("POSTERN_DATABASE_URL", setup(t).db.URL)
	b.want(t, "events list", 1, "", "POSTERN_DATABASE_URL names another database than the instance in "+b.dir)
	t.Setenv("POSTERN_DATABASE_URL", "postgres://u:s3cret@127.0.0.1:1/x")
	r := execute(t.Context(), "", "--dir", b.dir, "events", "list")
	if r.want(t, 1, "", "check that the server is running"); strings.Contains(r.errs, "s3cret") {
		t.Errorf("the password is shown: %s", r.errs)
	}
	t.Setenv("POSTERN_DATABSE_URL", b.db.URL)
	b.want(t, "events list", 1, "", "POSTERN_DATABSE_URL: is not a setting; did you mean POSTERN_DATABASE_URL?")
}

// The limit applies to all pages of the query together, and 0 means all.
func TestEventsList_limitAbovePageSize_readsSeveralPages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const stored = 1100
	delivery := events.Delivery{Source: 1, ReceivedAt: time.Now(), Origin: events.OriginWebhook, Headers: []byte(`{}`),
		Verification: []byte(`{}`)}
	for n := range stored {
		delivery.Events = append(delivery.Events, provider.Event{Key: fmt.Sprint("evt_", n), Type: "x"})
	}
	if _, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{delivery}); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[string]int{"2": 2, "1000": 1000, "1050": 1050, "0": stored, "5000": stored} {
		r := b.run(t, "events", "list", "--limit", limit, "-o", "json")
		var raw []json.RawMessage
		if err := json.Unmarshal([]byte(r.out), &raw); err != nil || len(raw) != want {
			t.Errorf("limit %s: %d events, want %d; %v", limit, len(raw), want, err)
		}
	}
	if r := b.run(t, "events", "list", "--limit", "0"); strings.Count(r.out, "\n") != stored+1 {
		t.Errorf("table: %d lines", strings.Count(r.out, "\n"))
	}
}

func TestObjects_listAndShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "evt_1", `{}`)
	b.outcome(t, id, "ambiguous")
	b.insertObject(t, "stripe", "", id)
	b.insertObject(t, "shop", "a.example", 5)
	b.insertObject(t, "shop", "b.example", 5)
	b.want(t, "objects list --ambiguous --source stripe", 0, "ambiguous, refetch pending", "")
	b.want(t, "objects list --deleted", 0, "No objects.", "")
	for _, names := range [][]string{{"--type", "--id"}, {"--object-type", "--object-id"},
		{"--object-type", "--object"}} {
		for objectID, found := range map[string]string{"cus_1": "a.example", "cus_2": "No objects."} {
			b.run(t, "objects", "list", names[0], "customer", names[1], objectID).want(t, 0, found, "")
		}
		b.run(t, "objects", "list", names[0], "invoice").want(t, 0, "No objects.", "")
	}
	b.want(t, "objects list --type customer --object-type invoice", 2, "", "they mean the same, so give one")
	b.want(t, "events list --object-type customer --object cus_2", 0, "No events.", "")
	b.want(t, "outcomes list --object cus_2", 0, "No outcomes.", "")
	b.want(t, "objects announce --object-type customer --source stripe --yes", 0, "1 object will be announced.", "")
	b.want(t, "objects announce -y", 0, "3 objects will be announced.", "")
	b.want(t, "objects history stripe customer cus_1", 0, "newer", "")
	b.want(t, "objects history stripe customer cus_1 -o json", 0, `"event_id":"evt_1"`, "")
	b.want(t, "objects history stripe customer none", 3, "", "not found")
	r := b.run(t, "objects", "show", "stripe", "customer", "cus_1")
	r.contains(t, "at 2026-09-21T14:13:20Z, rank 1 (the provider's time)",
		"different contents of exactly the same version",
		"from 2026-09-21T14:13:21", "evt_1", "ambiguous: newer", `"name": "Ada"`)
	var object map[string]any
	r = b.run(t, "objects", "show", "stripe", "customer", "cus_1", "-o", "json")
	testkit.Must(t, json.Unmarshal([]byte(r.out), &object))
	for _, name := range []string{"source", "account", "object_type", "object_id", "version", "state", "deleted",
		"ambiguous", "refetch_after", "revision", "last_event_id", "updated_at"} {
		if _, ok := object[name]; !ok {
			t.Errorf("%s is missing in %s", name, r.out)
		}
	}
	b.want(t, "objects show shop customer cus_1", 4, "", `choose one account: "a.example", "b.example"`)
	b.want(t, "objects show shop customer cus_1 --account b.example", 0, "5, no longer in the log", "")
	b.db.Exec(t, `UPDATE objects SET version_at = 7`)
	b.want(t, "objects show stripe customer cus_1", 0, "(the object's own number)", "")
}

func TestRejections_listAndShow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES (1, 'wrong_signature', 'no v1 matches', '192.0.2.1', now(), '{"A":"b"}', 'abc', 900)`)
	b.want(t, "rejections list --rejection-reason wrong_signature", 0, "no v1 matches", "")
	r := b.run(t, "rejections", "show", "1")
	r.want(t, 0, "the signature does not match any configured secret; usually the secret is wrong", "")
	r.want(t, 0, "900 bytes, truncated", "")
	if r := b.run(t, "rejections", "show", "1", "--raw"); r.out != "abc" || r.errs != "postern: only 3 of 900 bytes "+
		"are stored\n" {
		t.Errorf("--raw: %+v", r)
	}
}

func TestSetup_initConfigMigrateVersion(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "postern.yaml")
	b := setup(t)
	b.run(t, "init", path).want(t, 0, "postern config check "+path, "")
	b.run(t, "init", path).want(t, 1, "", "--force")
	b.run(t, "init", "--force", path).want(t, 0, "Wrote", "")
	b.want(t, "init -", 0, "sources:", "")
	b.run(t, "config", "check", path).want(t, 1, "", "postern.yaml:37: sources.stripe.secrets.0: secret \"first\": "+
		"the variable STRIPE_WEBHOOK_SECRET is not set")
	secret := writeFile(t, "secret", "whsec_secret_of_a_test\n")
	good := fmt.Sprintf("database: {url: %q}\nsources: {live: {provider: stripe, secrets: [{name: one, file: %q}]}}\n",
		b.db.URL, secret)
	testkit.Must(t, os.WriteFile(path, []byte(good), 0o600))
	b.run(t, "config", "check", path).want(t, 0, "is valid; sources: live", "")
	b.run(t, "config", "check", "--config", path).want(t, 0, "is valid; sources: live", "")
	b.run(t, "config", "check", "--config", path, path).want(t, 0, "is valid; sources: live", "")
	b.run(t, "config", "check", "--config", path, "other.yaml").want(t, 2, "",
		"takes one file, got other.yaml and --config "+path)
	b.want(t, "config check", 2, "", "takes FILE, got 0 arguments; see postern config check --help")
	b.run(t, "config", "check", path+".none").want(t, 1, "", "no such file or directory: name an existing file, or "+
		"create one with `postern init`")
	b.run(t, "config", "check", filepath.Dir(path)).want(t, 1, "", "it is a folder: name a file in it")
	b.run(t, "--config", path, "events", "list").want(t, 0, "No events.", "")
	b.run(t, "--config", path, "migrate", "up").want(t, 0, "0 migrations applied", "")
	b.want(t, "migrate status", 0, "0002_log", "")
	b.want(t, "migrate status -o json", 0, `"number":1`, "")
	testkit.Must(t, os.WriteFile(path, []byte("database: {url: postgres://x}\n"), 0o600))
	b.run(t, "config", "check", path).want(t, 0, "is valid; sources: -", "names no source, so nothing can be received")
	b.want(t, "version", 0, "postern ", "")
	b.want(t, "version -o json", 0, `"rule_version"`, "")
	b.want(t, "completion bash", 0, "postern", "")
}

func TestEventsTail_printsEachEventOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "old", `{}`)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out, done := &syncBuffer{}, make(chan int)
	go func() {
		done <- run(ctx, []string{"--dir", b.dir, "events", "tail", "-o", "json"}, strings.NewReader(""), out, out)
	}()
	n := 0
	testkit.Eventually(t, 10*time.Second, func() error {
		n++
		b.append(t, "stripe", fmt.Sprint("new_", n), `{}`)
		if lines := strings.Count(out.String(), "\n"); lines < 3 {
			return fmt.Errorf("%d lines", lines)
		}
		return nil
	})
	stop()
	if status := <-done; status != 0 {
		t.Errorf("status %d: %s", status, out.String())
	}
	seen := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		var e struct {
			EventID string `json:"event_id"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil || seen[e.EventID] || e.EventID == "old" {
			t.Errorf("line %q: %v", line, err)
		}
		seen[e.EventID] = true
	}
}

func TestObjectsAnnounce_withoutYesAndTerminal_sendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertObject(t, "stripe", "a.example", b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`))
	b.want(t, "objects announce", 2, "", "add --yes")
	if rows := b.db.QueryStrings(t, `SELECT batch::text FROM outbox`); len(rows) != 0 {
		t.Errorf("the outbox has %v", rows)
	}
	for want, chosen := range map[string][2]string{
		"Publish every object of the mirror to the feed of changes again?":                  {},
		"Publish every object of source stripe to the feed of changes again?":               {"stripe", ""},
		"Publish every object of type price of source stripe to the feed of changes again?": {"stripe", "price"},
	} {
		if got := announceQuestion(chosen[0], chosen[1]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
