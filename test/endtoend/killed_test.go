package endtoend_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// settings are both daemons' configuration: every address free, and an auditor that does not make a test wait.
const settings = `
database: {url: %q}
nats: {url: %q}
ingest: {listen: "127.0.0.1:0", drain_delay: 1ms}
admin: {listen: "127.0.0.1:0"}
log: {format: json}
rejections: {max_count: %d}
processor:
  auditor: {every: 200ms, min_age: 1s, lease: 2s}
  changes: {sweep_after: 2s}
sources:
  stripe: {provider: stripe, secrets: [{name: main, value: %s}]}
  shop: {provider: shopify, account: %s, secrets: [{name: main, value: %s}]}
`

const mostRejections = 20

type testBundle struct {
	db      *testkit.DB
	nats    *testkit.Server
	bin     string
	config  string
	clients *clients
	daemons map[string]*process
}

// setup starts both daemons.
func setup(t *testing.T, all []sent) *testBundle {
	t.Helper()
	b := prepare(t, all)
	b.start(t, "gateway")
	b.start(t, "processor")
	return b
}

// prepare is setup before the daemons start.
func prepare(t *testing.T, all []sent) *testBundle {
	t.Helper()
	b := &testBundle{bin: build(t), db: testkit.Database(t), nats: testkit.JetStream(t), clients: newClients(all), daemons: map[string]*process{}}
	b.config = filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf(settings, b.db.URL, b.nats.URL, mostRejections, stripeSecret, shop, shopifySecret)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *testBundle) start(t *testing.T, daemon string) {
	t.Helper()
	p, at := start(t, filepath.Join(b.bin, daemon), "--config", b.config)
	b.daemons[daemon] = p
	if daemon == "gateway" {
		url := "http://" + at.Ingest
		b.clients.url.Store(&url)
	}
}

// kill ends daemons without warning and starts them again.
func (b *testBundle) kill(t *testing.T, daemons ...string) {
	t.Helper()
	for _, d := range daemons {
		b.daemons[d].kill()
	}
	for _, d := range daemons {
		b.start(t, d)
	}
}

// after waits until so many deliveries are through.
func (b *testBundle) after(t *testing.T, done <-chan struct{}, n int) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func() error {
		select {
		case <-done:
			return nil
		default:
		}
		if got := b.clients.answered.Load(); got < int64(n) {
			return fmt.Errorf("%d deliveries are through, want %d", got, n)
		}
		return nil
	})
}

func (b *testBundle) everyEventHasAnOutcome(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 60*time.Second, func() error {
		var open, failed int
		err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE o.event_id IS NULL), count(*) FILTER (WHERE o.status = 'failed')
			FROM events e LEFT JOIN outcomes o ON o.event_id = e.id AND o.run = 0`).Scan(&open, &failed)
		if err != nil || open+failed > 0 {
			return fmt.Errorf("%d events without an outcome, %d failed, %v", open, failed, err)
		}
		return nil
	})
}
