package app_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// reloading is a process with a configuration file of the test.
type reloading struct {
	*testBundle
	file   string
	head   string
	hangup chan struct{}
	log    *lockedLog
	reads  atomic.Int64
}

// lockedLog records what a process logs.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newReloading returns a process with its own file that is not started yet. Its connection to the
// database may use a proxy.
func newReloading(t *testing.T, way func(*testkit.DB) string) *reloading {
	t.Helper()
	r := &reloading{testBundle: &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t)},
		file: filepath.Join(t.TempDir(), "postern.yaml"), hangup: make(chan struct{}, 1), log: &lockedLog{}}
	url := r.db.URL
	if way != nil {
		url = way(r.db)
	}
	r.head = fmt.Sprintf("database: {url: %q}\nnats: {url: %q}\ningest: {listen: '127.0.0.1:0'}\nadmin: {listen: "+
		"'127.0.0.1:0'}\n", url, r.nats.URL)
	return r
}

// begin writes the file with the given sources and starts a process with it, whose log is recorded.
func (r *reloading) begin(t *testing.T, sources string, o app.Options) {
	t.Helper()
	r.write(t, sources)
	o.Loader = config.NewLoader(r.file, config.ForGateway,
		func(*config.Config) error { r.reads.Add(1); return nil })
	var err error
	if r.cfg, err = o.Loader.Load(); err != nil {
		t.Fatal(err)
	}
	o.Logger, o.Hangup = slog.New(slog.NewTextHandler(r.log, nil)), r.hangup
	r.app = r.start(t, o)
}

// startReloading starts gateway and processor with a file with the given sources. every is the
// interval of checks of the file.
func startReloading(t *testing.T, sources string, every time.Duration) *reloading {
	t.Helper()
	r := newReloading(t, nil)
	r.begin(t, sources, app.Options{Gateway: true, Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.ReloadInterval = every
		reportOften(tuning)
		impatient(tuning)
	}})
	return r
}

// write replaces the configuration.
func (r *reloading) write(t *testing.T, sources string) {
	t.Helper()
	replace(t, r.file, r.head+"sources:\n"+sources)
}

// replace writes a file atomically.
func replace(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path+".next", []byte(text), 0o600))
	testkit.Must(t, os.Rename(path+".next", path))
}

// secretOf returns the value of a secret by its name.
func secretOf(name string) string { return "whsec_secret_of_" + name }

// source is a Stripe source in the file, with the named secrets.
func source(name string, secrets ...string) string {
	var list []string
	for _, s := range secrets {
		list = append(list, "{name: "+s+", value: "+secretOf(s)+"}")
	}
	return "  " + name + ": {provider: stripe, secrets: [" + strings.Join(list, ", ") + "]}\n"
}

// reloads returns how often the process has reloaded with a result.
func (r *reloading) reloads(t *testing.T, result string) int {
	t.Helper()
	families := scrape(t, r.app)
	if families["postern_config_reload_last_success_timestamp_seconds"] == nil {
		t.Fatal("the page has no time of a reload")
	}
	for _, m := range families["postern_config_reloads_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() == result {
			return int(m.GetCounter().GetValue())
		}
	}
	t.Fatalf("the page has no reloads that are %s", result)
	return 0
}

// reload requests a reload and waits until it has ended with a result.
func (r *reloading) reload(t *testing.T, result string) {
	t.Helper()
	before := r.reloads(t, result)
	r.hangup <- struct{}{}
	r.reloaded(t, result, before+1)
}

func (r *reloading) reloaded(t *testing.T, result string, n int) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if got := r.reloads(t, result); got < n {
			return fmt.Errorf("%d reloads %s, want %d; log:\n%s", got, result, n, r.log)
		}
		return nil
	})
}

// reportsProblem waits until the process reports a problem with its configuration that is like a
// pattern.
func (r *reloading) reportsProblem(t *testing.T, pattern string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := r.db.QueryStrings(t, `SELECT id FROM processes WHERE config_problem LIKE $1`, pattern); len(n) != 1 {
			return fmt.Errorf("%q, want %q", r.db.QueryStrings(t, `SELECT config_problem FROM processes`), pattern)
		}
		return nil
	})
}

// logs fails unless the log contains all the texts.
func (r *reloading) logs(t *testing.T, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if log := r.log.String(); !strings.Contains(log, text) {
			t.Errorf("the log does not say %q:\n%s", text, log)
		}
	}
}

var numbered atomic.Int64

// delivery returns a new delivery, signed with a secret.
func delivery(t *testing.T, secret string) *provider.Delivery {
	t.Helper()
	body := fmt.Sprintf(`{"id":"evt_reload_%d","object":"event","type":"customer.updated","created":%d,`+
		`"data":{"object":{"id":"cus_1","object":"customer"}}}`, numbered.Add(1), time.Now().Unix())
	d, err := stripe.Stripe{}.Sign(&provider.Source{Secrets: []provider.Secret{{Name: secret,
		Value: []byte(secretOf(secret))}}}, provider.Sample{Body: []byte(body)}, time.Now())
	testkit.Must(t, err)
	return d
}

// answers fails unless a delivery with the secret gets the status.
func (r *reloading) answers(t *testing.T, source, secret string, want int) {
	t.Helper()
	if status, body := r.post(t, source, delivery(t, secret)); status != want {
		t.Errorf("source %s, secret %s: status %d, want %d: %s", source, secret, status, want, body)
	}
}

// rotation sends deliveries to a source whose secrets are rotated. Each is signed with a secret
// that is valid at that time.
type rotation struct {
	*reloading
	client *http.Client
	group  sync.WaitGroup
	done   atomic.Bool
	sent   atomic.Int64
	// mu is locked while a secret is in use. Secrets round and round+1 are valid, or only one of
	// them while that changes.
	mu    sync.RWMutex
	round int64
	only  int64
}

func rotated(n int64) string { return fmt.Sprintf("secret%d", n) }

// sources are the sources of a round: the rotating one, an unchanged one, and one that is added and
// removed.
func (*rotation) sources(n int64) string {
	return source("rotating", rotated(n), rotated(n+1)) + source("steady", "steady") +
		source(fmt.Sprintf("passing-%d", n), "passing")
}

// set waits for open deliveries and changes the secret of the others; with only 0, two secrets
// alternate.
func (r *rotation) set(round, only int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round, r.only = round, only
}

func (r *rotation) run(t *testing.T) {
	for n := int64(0); !r.done.Load() && !t.Failed(); n++ {
		r.mu.RLock()
		name, secret := "rotating", rotated(r.round+n%2)
		if r.only > 0 {
			secret = rotated(r.only)
		}
		if n%4 == 3 {
			name, secret = "steady", "steady"
		}
		r.send(t, name, secret)
		r.mu.RUnlock()
		r.sent.Add(1)
	}
}

func (r *rotation) send(t *testing.T, source, secret string) {
	if a, err := r.try(t, r.client, source, delivery(t, secret)); err != nil || a.status != http.StatusOK {
		t.Errorf("source %s, %s in round %d: status %d, %s, %v", source, secret, r.round, a.status, a.body, err)
	}
}

// Ten thousand deliveries during twenty reloads that rotate secrets and change other sources: none
// is rejected. Short runs use a fifth of them.
func TestReload_underLoad_rejectsNoDelivery(t *testing.T) {
	t.Parallel()
	const clients = 8
	deliveries, reloads := int64(10_000), int64(20)
	if testing.Short() {
		deliveries, reloads = 2_000, 5
	}
	r := &rotation{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}
	t.Cleanup(r.client.CloseIdleConnections)
	r.reloading = startReloading(t, r.sources(0), time.Hour)
	end := func() { r.done.Store(true); r.group.Wait() }
	t.Cleanup(end)
	for range clients {
		r.group.Go(func() { r.run(t) })
	}
	for n := range reloads {
		if t.Failed() {
			break
		}
		testkit.Eventually(t, 2*time.Minute, func() error {
			if sent := r.sent.Load(); sent < (n+1)*deliveries/reloads && !t.Failed() {
				return fmt.Errorf("%d deliveries sent in %d rounds", sent, n)
			}
			return nil
		})
		r.set(n, n+1) // both files have it
		r.write(t, r.sources(n+1))
		r.reload(t, "ok")
		r.answers(t, fmt.Sprintf("passing-%d", n+1), "passing", 200)
		r.answers(t, fmt.Sprintf("passing-%d", n), "passing", 404)
		r.set(n+1, 0)
	}
	end()
	t.Logf("%d deliveries during %d reloads", r.sent.Load(), r.reloads(t, "ok"))
	r.db.WantRows(t, int(r.sent.Load()), `events e JOIN sources s ON s.number = e.source
		WHERE s.name IN ('rotating', 'steady')`)
}

// An old secret is valid until it is removed, a new one from the moment it is added. An invalid
// file changes nothing, and the log says what is wrong, where, and what to do. Events of a source
// that a reload added are applied.
func TestReload_rotatedSecret_acceptsBothUntilRemoved(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "old"), time.Hour)
	for _, step := range []struct {
		secrets  []string
		old, new int
	}{{[]string{"old"}, 200, 401}, {[]string{"old", "new"}, 200, 200}, {[]string{"new"}, 401, 200}} {
		r.write(t, source("a", step.secrets...))
		r.reload(t, "ok")
		r.answers(t, "a", "old", step.old)
		r.answers(t, "a", "new", step.new)
	}
	if n := strings.Count(r.log.String(), "sources=1 changed=a\n"); n != 2 {
		t.Errorf("%d of two changes and one reload without any are logged as changes:\n%s", n, r.log)
	}

	for name, c := range map[string]struct{ sources, want string }{
		"no YAML": {"  a: [", "postern.yaml:6"},
		"unknown key": {"  a: {provider: stripe, secrest: []}\n",
			`postern.yaml:6: sources.a.secrest: unknown field \"secrest\"; did you mean secrets?`},
		"unknown provider": {"  a: {provider: nobody, secrets: [{name: n, value: whsec_secret_of_a_test}]}\n",
			`postern.yaml:6: sources.a.provider: provider \"nobody\" does not exist: name one of`},
		"no secret file": {"  a: {provider: stripe, secrets: [{name: n, file: /nowhere}]}\n",
			"postern.yaml:6: sources.a.secrets.0: secret \\\"n\\\": stat /nowhere"},
		"demo secret": {source("a", config.DemoStripeSecret), "allowed in postern dev only"},
		"nothing":     {"", "has no sources any more"},
		"another provider": {"  a: {provider: shopify, account: s.myshopify.com, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}]}\n", "source a is stored as provider stripe, the configuration says shopify: " +
			"use another name for the new source"},
	} {
		r.write(t, c.sources)
		before := len(r.log.String())
		r.reload(t, "failed")
		said := r.log.String()[before:]
		if !strings.Contains(said, c.want) || strings.Count(said, "level=ERROR") != 1 ||
			!strings.Contains(said, "the old sources stay in use") {
			t.Errorf("%s: want one error with %q:\n%s", name, c.want, said)
		}
		r.answers(t, "a", "new", 200)
	}
	r.write(t, source("a", "new")+source("b", "s"))
	r.reload(t, "ok")
	if status := r.outcome(t, r.mustPost(t, "b", delivery(t, "s")).ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
}

// The configuration and secret files are checked at an interval. Settings that need a restart are
// named.
func TestReload_changedFiles_areApplied(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(t.TempDir(), "secret")
	replace(t, secret, secretOf("first")+"\n")
	inFile := "  a: {provider: stripe, secrets: [{name: n, file: '" + secret + "'}]}\n"
	r := startReloading(t, inFile, 5*time.Millisecond)
	r.answers(t, "a", "first", 200)
	replace(t, secret, secretOf("second")+"\n")
	r.reloaded(t, "ok", 1)
	r.answers(t, "a", "second", 200)
	r.answers(t, "a", "first", 401)
	r.head = strings.Replace(r.head, "ingest: {", "ingest: {deadline: 3s, ", 1)
	r.write(t, inFile+source("b", "other"))
	r.reloaded(t, "ok", 2)
	r.answers(t, "b", "other", 200)
	r.logs(t, "changed settings that need a restart: ingest.deadline", "sources=2 added=b")
	if n := r.reads.Load(); n != 3 {
		t.Errorf("the configuration was loaded %d times, want once and for each of two changes", n)
	}
	r.reportsProblem(t, "changed settings that need a restart: ingest.deadline")
	r.write(t, "  a: {provider: strip}\n")
	r.reportsProblem(t, "the changed configuration cannot be loaded, the old sources stay in use: %strip%")
	r.head = strings.Replace(r.head, "deadline: 3s, ", "", 1)
	r.write(t, inFile)
	r.reportsProblem(t, "")
}

// A reload waits for an unavailable database and does not fail permanently.
func TestReload_databaseUnavailable_retries(t *testing.T) {
	t.Parallel()
	var proxy *testkit.FaultProxy
	r := newReloading(t, func(db *testkit.DB) string {
		proxy = testkit.Proxy(t, db.URL)
		return proxy.URL
	})
	r.begin(t, source("a", "s"),
		app.Options{Gateway: true, Tune: func(tuning *app.Tuning) { tuning.ReloadInterval = 5 * time.Millisecond }})
	proxy.Cut()
	r.write(t, source("a", "s")+source("b", "s"))
	r.reloaded(t, "failed", 1)
	failed := r.reads.Load()
	testkit.Eventually(t, time.Minute, func() error { // each read except the last ends in an attempt
		if n := r.reads.Load() - failed; n < 4 {
			return fmt.Errorf("%d further tries; log:\n%s", n, r.log)
		}
		return nil
	})
	proxy.Restore()
	r.reloaded(t, "ok", 1)
	testkit.Eventually(t, time.Minute, func() error { // the store counts as unavailable for a moment
		if status, body := r.post(t, "b", delivery(t, "s")); status != 200 {
			return fmt.Errorf("status %d: %s", status, body)
		}
		return nil
	})
	if n := r.reloads(t, "failed"); n != 1 {
		t.Errorf("%d failures counted of one; log:\n%s", n, r.log)
	}
}

// applied waits until each event has an outcome.
func (b *testBundle) applied(t *testing.T) {
	t.Helper()
	b.waitRows(t, 0, `events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`)
}

// A processor without a section api opens no connection for it. The first section that a reload
// adds is used immediately by reconciliations, refetches and metrics.
func TestReload_firstSourceWithAPI_isReconciledWithoutARestart(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 21, Running: true, Start: time.Now().Add(-time.Minute)})
	r := startReading(t, shop)
	r.db.WantRows(t, 0, `pg_stat_activity
		WHERE datname = current_database() AND application_name = 'postern_reconcile'`)
	order := reconcile.Params{Source: 1, Scope: reconcile.Events}
	if err := reconcile.CheckReadable(t.Context(), r.db.Role(t, "operator"), &order); !errors.Is(err,
		events.ErrInvalid) {
		t.Errorf("without a section api: %v", err)
	}
	r.write(t, shop+shopAPI(fake, stripefake.Key))
	r.reload(t, "ok")
	if err := reconcile.CheckReadable(t.Context(), r.db.Role(t, "operator"), &order); err != nil {
		t.Errorf("with a section api: %v", err)
	}
	if log := r.log.String(); strings.Contains(log, "restart") {
		t.Errorf("the log requests a restart:\n%s", log)
	}
	fake.RunSteps(20)
	fake.Deliver(func(*provider.Delivery) bool { return true }) // and no webhook arrives
	fake.Advance(time.Since(fake.Now()) + time.Minute)
	if run := r.mustReconcile(t, reconcile.Params{Scope: reconcile.Events}); run.Counts[reconcile.Missing] == 0 {
		t.Errorf("nothing was missing: %v", run.Counts)
	}
	r.waitUntilEqual(t, fake)
	id := fake.Create("", "customer", nil)
	r.db.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_by,
		requested_at, due, start_after)
		VALUES (1, '', 'customer', $1, 'a test', 'test', now(), now(), 0)`, id)
	r.waitRows(t, 0, `refetch_requests`)
}

// A processor whose login may not append works while no source has a section api. A reload that
// adds one fails, names the missing right, and keeps the old sources.
func TestReload_firstSourceWithAPIAndALoginThatMayNotAppend_fails(t *testing.T) {
	t.Parallel()
	r := newReloading(t, nil)
	if _, err := events.RegisterSources(t.Context(), r.db.Pool, map[string]string{"shop": "stripe"}); err != nil {
		t.Fatal(err)
	}
	login := "processor_" + strings.ToLower(rand.Text())
	r.db.Exec(t, "CREATE ROLE "+login+" LOGIN IN ROLE postern_processor, postern_maintenance, postern_operator")
	t.Cleanup(func() {
		if _, err := r.db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+login); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(r.db.URL)
	testkit.Must(t, err)
	q := u.Query()
	q.Set("user", login)
	u.RawQuery = q.Encode()
	r.head = strings.Replace(r.head, strconv.Quote(r.db.URL), strconv.Quote(u.String()), 1)
	r.begin(t, shop, app.Options{Processor: true, AdminListen: "127.0.0.1:0"})
	r.write(t, shop+"    api: {base_url: 'http://127.0.0.1:1', key: {value: sk_test_first}}\n")
	r.reload(t, "failed")
	r.logs(t, "which requires that this process can append to the log", "GRANT postern_gateway TO",
		"the old sources stay in use")
	r.db.Exec(t, "GRANT postern_gateway TO "+login)
	r.reload(t, "ok")
}
