package archive_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// instance is a log with all demo sources and a simulated source.
type instance struct {
	db        *testkit.DB
	gateway   *pgxpool.Pool
	operator  *pgxpool.Pool
	sources   events.Sources
	endpoints []config.Endpoint
}

func setup(t *testing.T) *instance {
	t.Helper()
	in := &instance{db: testkit.Database(t), endpoints: (&config.Config{Sources: config.DemoSources()}).Endpoints()}
	in.gateway, in.operator = in.db.Role(t, "gateway"), in.db.Role(t, "operator")
	in.endpoints = append(in.endpoints, config.Endpoint{Provider: sim.Provider{},
		Source: &provider.Source{Name: "sim"}})
	return in
}

// register registers all sources.
func (in *instance) register(t *testing.T) {
	t.Helper()
	names := map[string]string{}
	for _, e := range in.endpoints {
		names[e.Source.Name] = e.Provider.Name()
	}
	var err error
	in.sources, err = events.RegisterSources(t.Context(), in.gateway, names)
	testkit.Must(t, err)
}

func (in *instance) append(t *testing.T, batch ...events.Delivery) (ids []int64) {
	t.Helper()
	receipts, err := events.Append(t.Context(), in.gateway, batch)
	testkit.Must(t, err)
	for _, of := range receipts {
		for _, r := range of {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// simple returns a delivery of the simulated source with one event per key.
func (in *instance) simple(body string, keys ...string) events.Delivery {
	d := events.Delivery{Source: in.sources.Number["sim"], ReceivedAt: time.UnixMicro(1_790_000_000_123_456),
		Origin: events.OriginWebhook, Headers: []byte(`{"A": "b"}`),
		Verification: []byte(`{"scheme": "sim", "secret": "main"}`), Body: []byte(body)}
	for _, key := range keys {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing.made", Account: "acct", ObjectType: "thing",
			ObjectID: "o" + key, OccurredAt: time.UnixMicro(1_780_000_000_000_001), APIVersion: "v1",
			Fingerprint: provider.BodyFingerprint([]byte(body + key))})
	}
	return d
}

// deliveries returns deliveries of all samples of all providers, several per object, and histories
// with changes whose order is ambiguous.
func (in *instance) deliveries(t *testing.T, seed uint64) (all []events.Delivery) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	for _, e := range in.endpoints {
		for _, sample := range e.Provider.Samples() {
			for n := range 3 {
				at := time.Unix(1_790_000_000+int64(random.IntN(4)), 0)
				varied, err := e.Provider.MakeVariant(sample, n+1, at, n == 2)
				testkit.Must(t, err)
				all = append(all, in.ingest(t, e, varied, at))
			}
		}
	}
	h := sim.Generate(random, sim.Options{Objects: 20, Changes: 12, Contents: 4, Unit: 3, Gap: 4, ChangeSets: 70,
		DuplicateEvents: 20, Deletes: 15, Partial: 10})
	for i, e := range h.Events {
		all = append(all, events.Delivery{Source: in.sources.Number["sim"], ReceivedAt: e.ReceivedAt,
			Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body,
			Events: []provider.Event{{Key: fmt.Sprint("k", i), Type: "thing", ObjectType: "thing", ObjectID: e.Object,
				Fingerprint: provider.BodyFingerprint(e.Body)}}})
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// ingest verifies and appends a delivery like the gateway.
func (in *instance) ingest(t *testing.T, e config.Endpoint, s provider.Sample, at time.Time) events.Delivery {
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
	return events.Delivery{Source: in.sources.Number[e.Source.Name], ReceivedAt: d.ReceivedAt,
		Origin: events.OriginWebhook, Headers: events.AppendHeaders(nil, e.Provider.Headers(), d),
		Verification: []byte(`{"scheme":"test","secret":"main"}`), Body: d.Body, Events: evs}
}

// apply applies all events of the log.
func (in *instance) apply(t *testing.T) {
	t.Helper()
	sources := map[string]apply.Source{}
	for _, e := range in.endpoints {
		sources[e.Source.Name] = apply.Source{Number: in.sources.Number[e.Source.Name], Config: e.Source,
			Provider: e.Provider}
	}
	p, err := apply.New(apply.Options{Pool: in.db.Role(t, "processor"), Settings: apply.DefaultSettings,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), Sources: sources})
	testkit.Must(t, err)
	ids, err := events.IDsAfter(t.Context(), in.db.Pool, 0, 1<<62, 100_000)
	testkit.Must(t, err)
	for len(ids) > 0 {
		n := min(len(ids), 200)
		_, err := p.ApplyStored(t.Context(), apply.Target{}, ids[:n], false)
		testkit.Must(t, err)
		ids = ids[n:]
	}
}

// objects returns what must be equal in two instances with the same events in different orders:
// everything that does not depend on the order.
func (in *instance) objects(t *testing.T) []string {
	t.Helper()
	return in.db.QueryStrings(t, `SELECT s.name || (to_jsonb(o) -
		'{source,revision,last_event_id,refetch_after,created_at,updated_at}'::text[])::text
		FROM objects o JOIN sources s ON s.number = o.source ORDER BY s.name, account, object_type, object_id`)
}

// log returns all data of the log's events except ids and origins.
func (in *instance) log(t *testing.T) []string {
	t.Helper()
	return in.db.QueryStrings(t, `SELECT s.name || (to_jsonb(e) -
		'{id,source,origin,delivery_id,body,verification}'::text[])::text || (e.verification - 'imported')::text ||
			encode(coalesce(e.body, h.body), 'hex')
		FROM events e JOIN sources s ON s.number = e.source JOIN events h ON h.id = e.delivery_id ORDER BY 1`)
}

// export exports the whole log as a stream.
func (in *instance) export(t *testing.T, f events.Filter) []byte {
	t.Helper()
	var out bytes.Buffer
	_, err := archive.ExportToWriter(t.Context(), archive.ExportParams{Pool: in.operator, Filter: f,
		Compression: archive.None}, &out)
	testkit.Must(t, err)
	return out.Bytes()
}

// importParams returns the parameters of an import into this instance.
func (in *instance) importParams() archive.ImportParams {
	im := archive.ImportParams{Pool: in.gateway, Sources: map[string]archive.Source{}, Now: time.Now()}
	for _, e := range in.endpoints {
		im.Sources[e.Source.Name] = archive.Source{Provider: e.Provider, Config: e.Source}
	}
	return im
}

// importText imports text as a file.
func (in *instance) importText(t *testing.T, im archive.ImportParams, name string, text []byte) (archive.ImportResult,
	error) {
	t.Helper()
	path := write(t, name, string(text))
	if im.Report == nil {
		im.Report = func(where string, why error) { t.Errorf("%s: %v", where, why) }
	}
	return archive.Import(t.Context(), im, path)
}

func (in *instance) wantImport(t *testing.T, im archive.ImportParams, name string, text []byte,
	want archive.ImportResult) {
	t.Helper()
	got, err := in.importText(t, im, name, text)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("import %s: %v\n%s", name, err, diff)
	}
}

// wantRows compares the result of a query with one text column.
func (in *instance) wantRows(t *testing.T, sql string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, in.db.QueryStrings(t, sql), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", sql, diff)
	}
}

func TestMain(m *testing.M) { testkit.Main(m) }

// An export of one instance, imported into an empty one even in another order, makes the same log
// and the same objects. A second import changes nothing.
func TestImport_exportedLog_makesSameObjects(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	ds := from.deliveries(t, testkit.Seed(t))
	total := 0
	for len(ds) > 0 {
		n := min(len(ds), 37)
		total += len(from.append(t, ds[:n]...))
		ds = ds[n:]
	}
	text := from.export(t, events.Filter{})
	if lines := bytes.Count(text, []byte("\n")); lines != len(from.log(t)) {
		t.Errorf("%d lines of %d events", lines, len(from.log(t)))
	}
	stored := int64(len(from.log(t)))
	to.wantImport(t, to.importParams(), "all.ndjson", text, archive.ImportResult{Read: stored, Added: stored})
	to.wantImport(t, to.importParams(), "all.ndjson", text, archive.ImportResult{Read: stored, Duplicate: stored})
	to.register(t)
	testkit.Equal(t, "the logs differ", from.log(t), to.log(t))
	to.wantRows(t, `SELECT DISTINCT origin FROM events`, events.OriginImport)
	from.apply(t)
	to.apply(t)
	a, b := from.objects(t), to.objects(t)
	testkit.Equal(t, "the objects differ", a, b)
	if ambiguous := strings.Count(strings.Join(a, ""), `"ambiguous": true`); len(a) < 60 || ambiguous == 0 {
		t.Errorf("%d objects, %d of them ambiguous: too little to tell", len(a), ambiguous)
	}
	// An imported log can be exported again with the same result.
	third := setup(t)
	third.wantImport(t, third.importParams(), "again.ndjson", to.export(t, events.Filter{}),
		archive.ImportResult{Read: stored, Added: stored})
	testkit.Equal(t, "the third log differs", from.log(t), third.log(t))
}

// The events of a delivery keep their indexes, whichever of them are selected. Its body is stored
// once if they are in one batch.
func TestImport_eventsOfOneDelivery_shareBody(t *testing.T) {
	t.Parallel()
	from := setup(t)
	from.register(t)
	from.append(t, from.simple("one", "a"))
	from.append(t, from.simple("many", "a", "b", "c", "d", "e")) // a is a duplicate at the second index of the holder
	from.append(t, from.simple("last", "z"))
	for _, c := range []struct {
		filter events.Filter
		keep   string
		bodies int
		want   []string
	}{
		{events.Filter{}, "", 3, []string{"a 0 one", "b 1 many", "c 2 many", "d 3 many", "e 4 many", "z 0 last"}},
		{events.Filter{Key: "d"}, "", 1, []string{"d 3 many"}},
		{events.Filter{}, `"event_id":"c"`, 1, []string{"c 2 many"}},
		{events.Filter{}, `"delivery_index":`, 3, []string{"a 0 one", "b 1 many", "c 2 many", "d 3 many", "e 4 many",
			"z 0 last"}},
	} {
		to := setup(t)
		var text []byte
		for line := range bytes.Lines(from.export(t, c.filter)) {
			if bytes.Contains(line, []byte(c.keep)) {
				text = append(text, line...)
			}
		}
		n := int64(len(c.want))
		to.wantImport(t, to.importParams(), "some.ndjson", text, archive.ImportResult{Read: n, Added: n})
		to.wantRows(t, `SELECT e.event_id || ' ' || e.delivery_index || ' ' ||
			convert_from(coalesce(e.body, h.body), 'UTF8') FROM events e JOIN events h ON h.id = e.delivery_id
			ORDER BY 1`, c.want...)
		if bodies := len(to.db.QueryStrings(t, `SELECT 'x' FROM events WHERE body IS NOT NULL`)); bodies != c.bodies {
			t.Errorf("%+v: %d bodies stored, want %d", c.filter, bodies, c.bodies)
		}
	}
}

// A refetch is read in another way than a webhook, so its origin stays.
func TestImport_refetches_keepOrigin(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	for _, origin := range []string{events.OriginWebhook, events.OriginReconcile, events.OriginImport} {
		d := from.simple(origin, origin)
		d.Origin = origin
		from.append(t, d)
	}
	to.wantImport(t, to.importParams(), "all.ndjson", from.export(t, events.Filter{}),
		archive.ImportResult{Read: 3, Added: 3})
	to.wantRows(t, `SELECT event_id || ' ' || origin || ' ' || (verification->'imported'->>'origin') FROM events
		ORDER BY 1`, "import import import", "reconcile reconcile reconcile", "webhook import webhook")
}
