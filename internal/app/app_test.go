package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

type testBundle struct {
	db   *testkit.DB
	nats *testkit.Server
	app  *app.App
	cfg  *config.Config
}

// setup starts gateway and processor with their own database and stream.
func setup(t *testing.T, tune func(*app.Tuning)) *testBundle {
	t.Helper()
	b := configured(t, nil)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true, Tune: tune})
	return b
}

// configured is setup with another configuration; it starts nothing.
func configured(t *testing.T, edit func(*config.Config)) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t), cfg: config.Default()}
	b.cfg.Sources = config.DemoSources()
	b.cfg.Database.URL, b.cfg.NATS.URL = settings.URL(b.db.URL), settings.URL(b.nats.URL)
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	if edit != nil {
		edit(b.cfg)
	}
	return b
}

// patient uses long timeouts, so that a busy machine does not look like an unavailable database.
func patient(tuning *app.Tuning) {
	in := &tuning.Ingest
	in.Deadline, in.StallAfter, in.AcquireTimeout = 30*time.Second, 30*time.Second, 30*time.Second
}

// start starts a process that stops at the end of the test.
func (b *testBundle) start(t *testing.T, o app.Options) *app.App {
	t.Helper()
	a := b.launch(t, o)
	t.Cleanup(func() { stop(t, a) })
	return a
}

// launch starts a process that the test stops. By default it uses the test's configuration and no
// log.
func (b *testBundle) launch(t *testing.T, o app.Options) *app.App {
	t.Helper()
	if o.Config == nil {
		o.Config = b.cfg
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	tune := o.Tune
	o.Tune = func(tuning *app.Tuning) {
		patient(tuning)
		if tune != nil {
			tune(tuning)
		}
	}
	a, err := app.New(t.Context(), o)
	testkit.Must(t, err)
	a.Start()
	return a
}

// stop stops a process like Run and returns how long that took.
func stop(t *testing.T, a *app.App) time.Duration {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), app.StopTimeout)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
	return time.Since(began)
}

// waitRows waits until the query has the given number of rows; from is a table, and what follows it
// in a query.
func (b *testBundle) waitRows(t *testing.T, want int, from string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.db.QueryStrings(t, `SELECT count(*)::text FROM `+from, args...)[0]; n != fmt.Sprint(want) {
			return fmt.Errorf("%s rows, want %d: %s", n, want, from)
		}
		return nil
	})
}

// sign returns a signed delivery of a sample, changed so that it is event n of its object.
func (b *testBundle) sign(t *testing.T, source, eventType string, n int, at time.Time) *provider.Delivery {
	t.Helper()
	p, _ := all.Named(b.cfg.Sources[source].Provider)
	var src *provider.Source
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == source {
			src = e.Source
		}
	}
	for _, s := range p.Samples() {
		if s.Type != eventType {
			continue
		}
		varied, err := p.MakeVariant(s, n, at, false)
		testkit.Must(t, err)
		d, err := p.Sign(src, varied, at)
		testkit.Must(t, err)
		return d
	}
	t.Fatalf("provider %s has no sample %s", source, eventType)
	return nil
}

type receipt struct {
	EventID    string `json:"event_id"`
	ID         string `json:"id"`
	Duplicate  bool   `json:"duplicate"`
	ReceivedAt string `json:"received_at"`
	Conflict   bool   `json:"conflict"`
}

// answer is the response to a delivery.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// try sends a delivery with a client.
func (b *testBundle) try(t *testing.T, client *http.Client, source string, d *provider.Delivery) (answer, error) {
	url := "http://" + b.app.Addr() + "/webhooks/" + source
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader(d.Body))
	if err != nil {
		return answer{}, err
	}
	req.Header = d.Header
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, body}, err
}

func (b *testBundle) post(t *testing.T, source string, d *provider.Delivery) (int, []byte) {
	t.Helper()
	a, err := b.try(t, http.DefaultClient, source, d)
	testkit.Must(t, err)
	return a.status, a.body
}

func (b *testBundle) mustPost(t *testing.T, source string, d *provider.Delivery) receipt {
	t.Helper()
	status, body := b.post(t, source, d)
	var r receipt
	if err := json.Unmarshal(body, &r); status != http.StatusOK || err != nil {
		t.Fatalf("status %d, %s (%v)", status, body, err)
	}
	return r
}

// outcome waits for the outcome of an event.
func (b *testBundle) outcome(t *testing.T, id string) (status string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		return b.db.Pool.QueryRow(t.Context(), `SELECT status FROM outcomes WHERE event_id = $1::bigint AND run = 0`,
			id).Scan(&status)
	})
	return status
}

func TestMain(m *testing.M) { testkit.Main(m) }

// Every SQL statement of the product that is a constant can be prepared in the migrated schema.
func TestStatements_migratedSchema_prepare(t *testing.T) {
	t.Parallel()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() || d.Name() == "testdata" || d.Name() == "testkit" {
			return err
		}
		dir := filepath.Join("internal/app", path)
		for name, sql := range testkit.Statements(dir) {
			all[dir+"."+name] = sql
		}
		return nil
	})
	if err != nil || len(all) < 300 {
		t.Fatalf("%d statements, %v", len(all), err)
	}
	testkit.PrepareStatements(t, all)
}

// A delivery becomes an object. Each part uses its own database role, and the gateway's role cannot
// change stored data. The admin address shows the state of the streams, and the republisher makes
// the pass that is requested there.
func TestApp_delivery_becomesObject(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.db.Exec(t, `
		CREATE TABLE actors (place text, who text);
		GRANT INSERT ON actors TO PUBLIC;
		CREATE FUNCTION note_actor() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN INSERT INTO postern.actors VALUES (TG_ARGV[0], current_user); RETURN NULL; END $$;
		CREATE TRIGGER note_actor AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION note_actor('events');
		CREATE TRIGGER note_actor AFTER INSERT ON objects FOR EACH ROW EXECUTE FUNCTION note_actor('objects')`)
	b.app = b.start(t, app.Options{Gateway: true, Processor: true})
	now := time.Now()
	d := b.sign(t, "stripe", "invoice.paid", 1, now)
	first := b.mustPost(t, "stripe", d)
	again := b.mustPost(t, "stripe", d)
	if first.Duplicate || !again.Duplicate || first.ID != again.ID || first.ReceivedAt != again.ReceivedAt {
		t.Errorf("receipts %+v and %+v", first, again)
	}
	if status := b.outcome(t, first.ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
	var objectType, paid string
	var revision int
	err := b.db.Pool.QueryRow(t.Context(), `SELECT object_type, state->>'status', revision FROM mirror.objects`).Scan(
		&objectType, &paid, &revision)
	if err != nil || objectType != "invoice" || paid != "paid" || revision != 1 {
		t.Errorf("object %s %s revision %d, %v", objectType, paid, revision, err)
	}
	// The change is published.
	b.waitRows(t, 1, `outbox WHERE sent_at IS NOT NULL`)
	shop := b.mustPost(t, "shopify", b.sign(t, "shopify", "orders/create", 1, now))
	if status := b.outcome(t, shop.ID); status != "applied" {
		t.Errorf("outcome %s", status)
	}
	actors := b.db.QueryStrings(t, `SELECT DISTINCT place || ': ' || who FROM actors ORDER BY 1`)
	if !slices.Equal(actors, []string{"events: postern_gateway", "objects: postern_processor"}) {
		t.Errorf("%q", actors)
	}
	for _, role := range []string{"gateway", "processor", "operator"} {
		pool := b.db.Role(t, role)
		for _, statement := range []string{`UPDATE events SET body = ''`, `DELETE FROM events`, `TRUNCATE events`,
			`DROP TABLE events`, `DELETE FROM event_keys`} {
			if _, err := pool.Exec(t.Context(), statement); postgres.Code(err) != "42501" &&
				postgres.Code(err) != "2BP01" {
				t.Errorf("%s may %s: %v", role, statement, err)
			}
		}
	}
	base := "http://" + b.app.AdminAddr() + "/api/v1/stream"
	var status struct {
		Failure string           `json:"failure"`
		Streams []map[string]any `json:"streams"`
	}
	testkit.Eventually(t, time.Minute, func() error {
		read(t, base, &status)
		if status.Failure != "" || len(status.Streams) != 4 || status.Streams[0]["missing"] != false {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	res, err := http.Post(base+"/republish-passes", "application/json", strings.NewReader(`{"reason": "a test"}`))
	testkit.Must(t, err)
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("requested a pass: %d", res.StatusCode)
	}
	testkit.Eventually(t, time.Minute, func() error {
		var pass struct {
			EndedAt *time.Time `json:"ended_at"`
			Detail  string     `json:"detail"`
		}
		if read(t, base+"/republish-passes/1", &pass); pass.EndedAt == nil {
			return fmt.Errorf("not ended: %s", pass.Detail)
		}
		return nil
	})
}

func read(t *testing.T, address string, into any) {
	t.Helper()
	res := get(t, address, "")
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(into); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s: %d, %v", address, res.StatusCode, err)
	}
}
