package archive_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// instance is a log with all the demo's sources and a simulated one.
type instance struct {
	db        *testkit.DB
	gateway   *pgxpool.Pool
	operator  *pgxpool.Pool
	known     events.Sources
	endpoints []config.Endpoint
}

func setup(t *testing.T) *instance {
	t.Helper()
	in := &instance{db: testkit.Database(t), endpoints: (&config.Config{Sources: config.DemoSources()}).Endpoints()}
	in.gateway, in.operator = in.db.Role(t, "gateway"), in.db.Role(t, "operator")
	in.endpoints = append(in.endpoints, config.Endpoint{Provider: sim.Provider{}, Source: &provider.Source{Name: "sim"}})
	return in
}

// register makes all sources known.
func (in *instance) register(t *testing.T) {
	t.Helper()
	names := map[string]string{}
	for _, e := range in.endpoints {
		names[e.Source.Name] = e.Provider.Name()
	}
	var err error
	if in.known, err = events.RegisterSources(t.Context(), in.gateway, names); err != nil {
		t.Fatal(err)
	}
}

func (in *instance) append(t *testing.T, batch ...events.Delivery) (ids []int64) {
	t.Helper()
	receipts, err := events.Append(t.Context(), in.gateway, batch)
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range receipts {
		for _, r := range of {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// simple is a delivery of the simulated source with an event for each key.
func (in *instance) simple(body string, keys ...string) events.Delivery {
	d := events.Delivery{Source: in.known.Number["sim"], ReceivedAt: time.UnixMicro(1_790_000_000_123_456), Origin: events.OriginWebhook,
		Headers: []byte(`{"A": "b"}`), Verification: []byte(`{"scheme": "sim", "secret": "main"}`), Body: []byte(body)}
	for _, key := range keys {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing.made", Account: "acct", ObjectType: "thing", ObjectID: "o" + key,
			OccurredAt: time.UnixMicro(1_780_000_000_000_001), APIVersion: "v1", Fingerprint: provider.BodyFingerprint([]byte(body + key))})
	}
	return d
}

// deliveries are what all providers send of all their samples, several of each object, and histories with changes that nothing orders.
func (in *instance) deliveries(t *testing.T, seed uint64) (all []events.Delivery) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	for _, e := range in.endpoints {
		for _, sample := range e.Provider.Samples() {
			for n := range 3 {
				at := time.Unix(1_790_000_000+int64(random.IntN(4)), 0)
				varied, err := e.Provider.Vary(sample, n+1, at, n == 2)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, in.door(t, e, varied, at))
			}
		}
	}
	h := sim.Generate(random, sim.Options{Objects: 20, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70, Twins: 20, Deletes: 15, Partial: 10})
	for i, e := range h.Events {
		all = append(all, events.Delivery{Source: in.known.Number["sim"], ReceivedAt: e.ReceivedAt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body,
			Events: []provider.Event{{Key: fmt.Sprint("k", i), Type: "thing", ObjectType: "thing", ObjectID: e.Object, Fingerprint: provider.BodyFingerprint(e.Body)}}})
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// door takes a delivery as the gateway does.
func (in *instance) door(t *testing.T, e config.Endpoint, s provider.Sample, at time.Time) events.Delivery {
	t.Helper()
	d, err := e.Provider.Sign(e.Source, s, at)
	if err != nil {
		t.Fatalf("%s %s: %v", e.Source.Name, s.Type, err)
	}
	d.ReceivedAt = at.Add(2 * time.Second)
	evs, err := e.Provider.Identify(e.Source, d)
	if err != nil {
		t.Fatalf("%s %s: %v", e.Source.Name, s.Type, err)
	}
	return events.Delivery{Source: in.known.Number[e.Source.Name], ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook, Headers: events.AppendHeaders(nil, e.Provider.Headers(), d),
		Verification: []byte(`{"scheme":"test","secret":"main"}`), Body: d.Body, Events: evs}
}

// apply applies everything that is in the log.
func (in *instance) apply(t *testing.T) {
	t.Helper()
	sources := map[string]processor.Source{}
	for _, e := range in.endpoints {
		sources[e.Source.Name] = processor.Source{Number: in.known.Number[e.Source.Name], Config: e.Source, Provider: e.Provider}
	}
	p, err := processor.New(processor.Options{Pool: in.db.Role(t, "processor"), Settings: processor.DefaultSettings, ID: t.Name(), Logger: slog.New(slog.DiscardHandler),
		Metrics: prometheus.NewRegistry(), Sources: sources})
	if err != nil {
		t.Fatal(err)
	}
	rows, err := in.db.Pool.Query(t.Context(), `SELECT id FROM events ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	for len(ids) > 0 {
		n := min(len(ids), 200)
		if _, err := p.ApplyStored(t.Context(), processor.Target{}, ids[:n], false); err != nil {
			t.Fatal(err)
		}
		ids = ids[n:]
	}
}

// objects are what must be equal in two instances that had the same events, in whatever order: all that does not tell of the order itself.
func (in *instance) objects(t *testing.T) []string {
	t.Helper()
	return in.rows(t, `SELECT s.name || (to_jsonb(o) - '{source,revision,last_event_id,look_after,created_at,updated_at}'::text[])::text
		FROM objects o JOIN sources s ON s.number = o.source ORDER BY s.name, account, object_type, object_id`)
}

// log is all that the log holds of its events but for ids, and where they came from.
func (in *instance) log(t *testing.T) []string {
	t.Helper()
	return in.rows(t, `SELECT s.name || (to_jsonb(e) - '{id,source,origin,delivery_id,body,verification}'::text[])::text || (e.verification - 'imported')::text || encode(coalesce(e.body, h.body), 'hex')
		FROM events e JOIN sources s ON s.number = e.source JOIN events h ON h.id = e.delivery_id ORDER BY 1`)
}

func (in *instance) rows(t *testing.T, sql string, args ...any) []string {
	t.Helper()
	rows, err := in.db.Pool.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// export is everything as a stream.
func (in *instance) export(t *testing.T, f events.Filter) []byte {
	t.Helper()
	var out bytes.Buffer
	if _, err := archive.Stream(t.Context(), archive.Exporting{Pool: in.operator, Filter: f, Compression: archive.None}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// order is an import into this instance.
func (in *instance) order() archive.Importing {
	im := archive.Importing{Pool: in.gateway, Sources: map[string]archive.Source{}, Now: time.Now()}
	for _, e := range in.endpoints {
		im.Sources[e.Source.Name] = archive.Source{Provider: e.Provider, Config: e.Source}
	}
	return im
}

// take imports text as a file.
func (in *instance) take(t *testing.T, im archive.Importing, name string, text []byte) (archive.Imported, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if im.Report == nil {
		im.Report = func(where string, why error) { t.Errorf("%s: %v", where, why) }
	}
	return archive.Import(t.Context(), im, path)
}

func (in *instance) wantImport(t *testing.T, im archive.Importing, name string, text []byte, want archive.Imported) {
	t.Helper()
	got, err := in.take(t, im, name, text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("import %s: %v\n%s", name, err, diff)
	}
}

func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	t.Logf("seed %d", s)
	return s
}
