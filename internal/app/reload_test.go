package app_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

// reloading is a process whose configuration is a file of the test's.
type reloading struct {
	*testBundle
	file   string
	head   string
	hangup chan struct{}
	log    *lockedLog
	reads  atomic.Int64
}

// lockedLog keeps what a process logs.
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

// startReloading starts gateway and processor on a file with the given sources. every is how often they look at it.
func startReloading(t *testing.T, sources string, every time.Duration) *reloading {
	t.Helper()
	r := &reloading{testBundle: &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t)}, file: filepath.Join(t.TempDir(), "postern.yaml"),
		hangup: make(chan struct{}, 1), log: &lockedLog{}}
	r.head = fmt.Sprintf("database: {url: %q}\nnats: {url: %q}\ningest: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0'}\n", r.db.URL, r.nats.URL)
	r.write(t, sources)
	loader := config.NewLoader(r.file, config.ForGateway, func(*config.Config) error { r.reads.Add(1); return nil })
	var err error
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Gateway: true, Processor: true, Loader: loader, Hangup: r.hangup,
		Tune: func(tuning *app.Tuning) {
			tuning.ReloadEvery = every
			patient(tuning)
			impatient(tuning)
		}})
	return r
}

// startLogged is start with a log that is kept.
func (r *reloading) startLogged(t *testing.T, o app.Options) *app.App {
	t.Helper()
	o.Config, o.Logger = r.cfg, slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	a, err := app.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	a.Start()
	t.Cleanup(func() { stop(t, a) })
	return a
}

// write replaces the configuration.
func (r *reloading) write(t *testing.T, sources string) {
	t.Helper()
	replace(t, r.file, r.head+"sources:\n"+sources)
}

// replace writes a file in one step, so that nobody sees a part of it.
func replace(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// secretOf is the value of a secret by its name.
func secretOf(name string) string { return "whsec_secret_of_" + name }

// source is a source of Stripe's in the file, with secrets of some names.
func source(name string, secrets ...string) string {
	var list []string
	for _, s := range secrets {
		list = append(list, "{name: "+s+", value: "+secretOf(s)+"}")
	}
	return "  " + name + ": {provider: stripe, secrets: [" + strings.Join(list, ", ") + "]}\n"
}

// reloads is how often the process has reloaded with a result.
func (r *reloading) reloads(t *testing.T, result string) int {
	t.Helper()
	res, err := http.Get("http://" + r.app.AdminAddr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^postern_config_reloads_total\{result="` + result + `"\} (\d+)$`).FindSubmatch(page)
	if m == nil || !bytes.Contains(page, []byte("\npostern_config_reload_last_success_timestamp_seconds ")) {
		t.Fatalf("the page has no reloads:\n%s", page)
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reload asks for a reload and waits until it has ended with a result.
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

var numbered atomic.Int64

// delivery is a new one, signed with a secret.
func delivery(t *testing.T, secret string) *provider.Delivery {
	t.Helper()
	body := fmt.Sprintf(`{"id":"evt_reload_%d","object":"event","type":"customer.updated","created":%d,"data":{"object":{"id":"cus_1","object":"customer"}}}`,
		numbered.Add(1), time.Now().Unix())
	d, err := stripe.Stripe{}.Sign(&provider.Source{Secrets: []provider.Secret{{Name: secret, Value: []byte(secretOf(secret))}}}, provider.Sample{Body: []byte(body)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// answers fails unless a delivery with the secret is answered so.
func (r *reloading) answers(t *testing.T, source, secret string, want int) {
	t.Helper()
	if status, body := r.post(t, source, delivery(t, secret)); status != want {
		t.Errorf("source %s, secret %s: status %d, want %d: %s", source, secret, status, want, body)
	}
}

// rotation sends deliveries to a source whose secrets are rotated, each signed with one that is valid then.
type rotation struct {
	*reloading
	client *http.Client
	group  sync.WaitGroup
	done   atomic.Bool
	sent   atomic.Int64
	// mu is held while a secret is in use. Secrets round and round+1 are taken, or only one of them while that changes.
	mu    sync.RWMutex
	round int64
	only  int64
}

func rotated(n int64) string { return fmt.Sprintf("secret%d", n) }

// sources are the file's in a round: the rotating one, one that stays, and one that comes and goes.
func (*rotation) sources(n int64) string {
	return source("rotating", rotated(n), rotated(n+1)) + source("steady", "steady") + source(fmt.Sprintf("passing-%d", n), "passing")
}

// set waits for deliveries under way and changes what others are signed with; only 0: with two secrets in turn.
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
	d := delivery(t, secret)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+r.app.Addr()+"/webhooks/"+source, bytes.NewReader(d.Body))
	if err != nil {
		t.Error(err)
		return
	}
	req.Header = d.Header
	res, err := r.client.Do(req)
	if err != nil {
		t.Error(err)
		return
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK || err != nil {
		t.Errorf("source %s, %s in round %d: status %d, %s, %v", source, secret, r.round, res.StatusCode, body, err)
	}
}

// Ten thousand deliveries during twenty reloads that rotate secrets and add and remove other sources: not one is refused.
func TestReloadsRefuseNobody(t *testing.T) {
	t.Parallel()
	const deliveries, reloads, clients = 10_000, 20, 8
	r := &rotation{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}}
	t.Cleanup(r.client.CloseIdleConnections)
	r.reloading = startReloading(t, r.sources(0), time.Hour)
	end := func() { r.done.Store(true); r.group.Wait() }
	t.Cleanup(end)
	for range clients {
		r.group.Go(func() { r.run(t) })
	}
	for n := int64(0); n < reloads && !t.Failed(); n++ {
		testkit.Eventually(t, 2*time.Minute, func() error {
			if sent := r.sent.Load(); sent < (n+1)*deliveries/reloads && !t.Failed() {
				return fmt.Errorf("%d deliveries sent in %d rounds", sent, n)
			}
			return nil
		})
		r.set(n, n+1) // what both files know
		r.write(t, r.sources(n+1))
		r.reload(t, "ok")
		r.answers(t, fmt.Sprintf("passing-%d", n+1), "passing", 200)
		r.answers(t, fmt.Sprintf("passing-%d", n), "passing", 404)
		r.set(n+1, 0)
	}
	end()
	t.Logf("%d deliveries during %d reloads", r.sent.Load(), r.reloads(t, "ok"))
	var stored int64
	if err := r.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events e JOIN sources s ON s.number = e.source WHERE s.name IN ('rotating', 'steady')`).Scan(&stored); err != nil ||
		stored != r.sent.Load() || stored < deliveries {
		t.Errorf("%d of %d deliveries are stored, %v", stored, r.sent.Load(), err)
	}
}

// An old secret is taken until it is removed, a new one from when it is added.
func TestSecretIsRotated(t *testing.T) {
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
		t.Errorf("%d of two changes and one reload without any are told as changes:\n%s", n, r.log)
	}
}

// A file that cannot be used changes nothing, and the log says what is wrong, where, and what to do.
func TestBrokenFileKeepsTheOldSources(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "good"), time.Hour)
	for name, c := range map[string]struct{ sources, want string }{
		"no YAML":          {"  a: [", "postern.yaml:6"},
		"unknown key":      {"  a: {provider: stripe, secrest: []}\n", `postern.yaml:6: sources.a.secrest: unknown field \"secrest\"; did you mean secrets?`},
		"unknown provider": {"  a: {provider: nobody, secrets: [{name: n, value: whsec_secret_of_a_test}]}\n", `postern.yaml:6: sources.a.provider: provider \"nobody\" is not known: name one of`},
		"no secret file":   {"  a: {provider: stripe, secrets: [{name: n, file: /nowhere}]}\n", "postern.yaml:6: sources.a.secrets.0: secret \\\"n\\\": stat /nowhere"},
		"demo secret":      {source("a", config.DemoStripeSecret), "allowed only in postern dev"},
		"nothing":          {"", "names no source any more"},
		"another provider": {"  a: {provider: shopify, account: s.myshopify.com, secrets: [{name: n, value: whsec_secret_of_a_test}]}\n", "source a is stored as provider stripe, the configuration says shopify: name the new one differently"},
	} {
		r.write(t, c.sources)
		before := len(r.log.String())
		r.reload(t, "failed")
		said := r.log.String()[before:]
		if !strings.Contains(said, c.want) || strings.Count(said, "level=ERROR") != 1 || !strings.Contains(said, "the old sources go on") {
			t.Errorf("%s: want one error that says %q:\n%s", name, c.want, said)
		}
		r.answers(t, "a", "good", 200)
	}
	r.write(t, source("a", "better"))
	r.reload(t, "ok")
	r.answers(t, "a", "better", 200)
}

// The files are looked at from time to time, a secret's file too; what is not the sources' needs a restart, and is named.
func TestChangedFilesAreReloaded(t *testing.T) {
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
	if want := "changed settings that need a restart: ingest.deadline"; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, r.log)
	}
	if want := "sources=2 added=b"; !strings.Contains(r.log.String(), want) {
		t.Errorf("the log does not say %q:\n%s", want, r.log)
	}
	if n := r.reads.Load(); n != 3 {
		t.Errorf("the configuration was loaded %d times, want once and for each of two changes", n)
	}
}

// Events of a source that a reload brought are applied.
func TestProcessorFollowsTheSources(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "s"), time.Hour)
	r.write(t, source("a", "s")+source("b", "s"))
	r.reload(t, "ok")
	if status := r.outcome(t, r.mustPost(t, "b", delivery(t, "s")).ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
}

// A database that is away keeps a reload waiting, not failing for good.
func TestReloadWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	db, nats := testkit.Database(t), testkit.JetStream(t)
	proxy := testkit.Proxy(t, db.URL)
	r := &reloading{testBundle: &testBundle{db: db, nats: nats}, file: filepath.Join(t.TempDir(), "postern.yaml"), hangup: make(chan struct{}, 1), log: &lockedLog{}}
	r.head = fmt.Sprintf("database: {url: %q}\nnats: {url: %q}\ningest: {listen: '127.0.0.1:0'}\nadmin: {listen: '127.0.0.1:0'}\n", proxy.URL, nats.URL)
	r.write(t, source("a", "s"))
	loader := config.NewLoader(r.file, config.ForGateway, func(*config.Config) error { r.reads.Add(1); return nil })
	var err error
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Gateway: true, Loader: loader, Hangup: r.hangup, Tune: func(tuning *app.Tuning) { tuning.ReloadEvery = 5 * time.Millisecond }})
	proxy.Cut()
	r.write(t, source("a", "s")+source("b", "s"))
	r.reloaded(t, "failed", 1)
	failed := r.reads.Load()
	testkit.Eventually(t, time.Minute, func() error { // each read but the last ends in a try
		if n := r.reads.Load() - failed; n < 4 {
			return fmt.Errorf("%d further tries; log:\n%s", n, r.log)
		}
		return nil
	})
	proxy.Restore()
	r.reloaded(t, "ok", 1)
	testkit.Eventually(t, time.Minute, func() error { // the store is believed to be away for a moment
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
func (r *reloading) applied(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if left := r.db.Rows(t, `SELECT e.event_id FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`); len(left) > 0 {
			return fmt.Errorf("%d events are not applied", len(left))
		}
		return nil
	})
}
