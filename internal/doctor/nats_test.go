package doctor_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Streams that daemons created are accepted. Changed and missing ones are reported.
func TestExamine_streams_areCompared(t *testing.T) {
	t.Parallel()
	events := func(c *jetstream.StreamConfig) {
		c.Name, c.Subjects = stream.EventsStream, []string{"postern.events.>"}
	}
	for name, c := range map[string]struct {
		change  func(t *testing.T, js jetstream.JetStream) error
		check   string
		verdict doctor.Verdict
		found   string
	}{
		"unchanged": {nil, "nats.streams", doctor.OK, "POSTERN_EVENTS is as configured, with 0 messages"},
		"a missing stream": {func(t *testing.T, js jetstream.JetStream) error {
			return js.DeleteStream(t.Context(), stream.EventsStream)
		}, "nats.streams", doctor.Warn, "POSTERN_EVENTS does not exist"},
		"a missing consumer": {func(t *testing.T, js jetstream.JetStream) error {
			return js.DeleteConsumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
		}, "nats.streams", doctor.Error, "consumer processor is missing"},
		"no processor fetches messages": {nil, "nats.consumer", doctor.Warn, "0 messages wait"},
		"in memory": {func(t *testing.T, js jetstream.JetStream) error {
			if err := js.DeleteStream(t.Context(), stream.EventsStream); err != nil {
				return err
			}
			cfg := jetstream.StreamConfig{Storage: jetstream.MemoryStorage}
			events(&cfg)
			_, err := js.CreateStream(t.Context(), cfg)
			return err
		}, "nats.streams", doctor.Error, "storage is Memory, but File is configured"},
		"other limits": {changed(func(c *jetstream.StreamConfig) { c.MaxMsgs = 77 }), "nats.streams", doctor.Warn,
			"max messages is 77"},
		"other subjects": {changed(func(c *jetstream.StreamConfig) { c.Subjects = []string{"mine.>"} }), "nats.streams",
			doctor.Error, "subjects is [mine.>]"},
		"a duplicate window": {changed(func(c *jetstream.StreamConfig) { c.Duplicates = time.Minute }), "nats.streams",
			doctor.Error, "duplicate window is 1m0s"},
		"discard new": {changed(func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew }),
			"nats.streams", doctor.Error, "discard is DiscardNew"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testServer := testkit.JetStream(t)
			conn := connect(t, testServer.URL)
			testkit.Must(t, conn.Ensure(t.Context(), stream.DefaultLimits))
			if c.change != nil {
				nc, err := nats.Connect(testServer.URL)
				testkit.Must(t, err)
				defer nc.Close()
				js, err := jetstream.New(nc)
				if err == nil {
					err = c.change(t, js)
				}
				testkit.Must(t, err)
			}
			r := doctor.Examine(t.Context(), doctor.Options{Conn: conn})
			want(t, r, c.check, c.verdict, c.found)
			want(t, r, "nats.reached", doctor.OK, "version 2.")
			if name == "unchanged" && (r.Errors > 0 || r.Warnings != 1) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// changed changes the stream of events.
func changed(change func(*jetstream.StreamConfig)) func(*testing.T, jetstream.JetStream) error {
	return func(t *testing.T, js jetstream.JetStream) error {
		s, err := js.Stream(t.Context(), stream.EventsStream)
		if err != nil {
			return err
		}
		cfg := s.CachedInfo().Config
		change(&cfg)
		_, err = js.UpdateStream(t.Context(), cfg)
		return err
	}
}

// A server with a different clock, or with a low message size limit, is reported.
func TestExamine_natsServer_isChecked(t *testing.T) {
	t.Parallel()
	small := testkit.JetStreamMaxPayload(t, 64<<10)
	conn := connect(t, small.URL)
	testkit.Must(t, conn.Ensure(t.Context(), stream.DefaultLimits))
	r := doctor.Examine(t.Context(),
		doctor.Options{Conn: conn, Now: func() time.Time { return time.Now().Add(-10 * time.Second) }})
	want(t, r, "nats.payload", doctor.Warn, "larger ones are read from the log")
	want(t, r, "nats.clock", doctor.Warn, "NATS' clock")
	cfg := configured(t)
	cfg.NATS.Replicas = 3
	want(t, doctor.Examine(t.Context(), doctor.Options{Conn: conn, Config: cfg}), "nats.streams", doctor.Error,
		"replicas is 1, but 3 is configured")
	small.Stop(t)
	want(t, doctor.Examine(t.Context(), doctor.Options{Conn: conn}), "nats.reached", doctor.Error, "read the account")
}

// Some checks need the server's monitoring address: those of the folder, its size, and the sync
// interval.
func TestExamine_natsMonitor_isChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body    string
		check   string
		verdict doctor.Verdict
		found   string
	}{
		{`{"jetstream": {"config": {"store_dir": "/var/lib/nats", "sync_interval": 120000000000}}}`, "nats.sync",
			doctor.OK, "synced every 2m0s"},
		{`{"jetstream": {"config": {"store_dir": "/var/lib/nats", "sync_interval": 120000000000, ` +
			`"sync_always": true}}}`,
			"nats.sync", doctor.Warn, "always"},
		{`{"jetstream": {"config": {"store_dir": "/tmp/nats/jetstream"}}}`, "nats.sync", doctor.Warn,
			"emptied when the machine starts"},
		{`{"jetstream": {"config": {"store_dir": "/var/lib/nats", "max_storage": 1048576}}}`, "nats.room", doctor.Warn,
			"1 MiB of streams"},
		{`{"jetstream": {"config": {"store_dir": "/var/lib/nats", "max_storage": 1099511627776}}}`, "nats.room",
			doctor.OK, "1048576 MiB of streams"},
		{`{"jetstream": {}}`, "nats.sync", doctor.Error, "JetStream is not enabled"},
		{`nothing`, "nats.monitor", doctor.Error, "did not return /varz"},
	} {
		respond := func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) }
		s := httptest.NewServer(http.HandlerFunc(respond))
		want(t, doctor.Examine(t.Context(), doctor.Options{Monitor: s.URL + "/"}), c.check, c.verdict, c.found)
		s.Close()
		want(t, doctor.Examine(t.Context(), doctor.Options{Monitor: s.URL}), "nats.monitor", doctor.Error,
			"read NATS' monitoring")
	}
}

// Streams that exceed the limits of their account are reported.
func TestExamine_smallStorage_isReported(t *testing.T) {
	t.Parallel()
	tenant := server.NewAccount("tenant")
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, JetStream: true,
		StoreDir: t.TempDir(), JetStreamMaxMemory: 1 << 20, JetStreamMaxStore: 1 << 30,
		Accounts: []*server.Account{tenant},
		Users:    []*server.User{{Username: "postern", Password: "secret", Account: tenant}}})
	testkit.Must(t, err)
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	if !ns.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	if tenant, err = ns.LookupAccount("tenant"); err == nil {
		err = tenant.EnableJetStream(map[string]server.JetStreamAccountLimits{"": {MaxMemory: 1 << 20,
			MaxStore: 1 << 28, MaxStreams: -1, MaxConsumers: -1}}, nil)
	}
	testkit.Must(t, err)
	conn := connect(t, strings.Replace(ns.ClientURL(), "nats://", "nats://postern:secret@", 1))
	testkit.Must(t, conn.AwaitConnection(t.Context(), time.Minute))
	want(t, doctor.Examine(t.Context(), doctor.Options{Conn: conn}), "nats.disk", doctor.Warn,
		"0 MiB of 256 MiB for streams")
}
