package endtoend_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

// smallDisk is a disk of 40 MiB, and what the spool may take of it; where this account may not mount one, a folder and the smallest bound there is.
func smallDisk(t *testing.T) (dir, most string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=40m"); err != nil {
		t.Logf("no small disk could be mounted (%v): the spool is bounded by its own setting", err)
		return dir, "64MiB"
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return dir, "1GiB"
}

// large sends a delivery of half a MiB under a key, and tells what it was answered.
func (b *testBundle) large(t *testing.T, key string) (status int, retry string, acknowledged bool) {
	t.Helper()
	src := &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "main", Value: []byte(stripeSecret)}}}
	body := fmt.Sprintf(`{"id": %q, "object": "event", "type": "ping", "created": %d, "data": {"object": {"text": %q}}}`, key, time.Now().Unix(), strings.Repeat("x", 512<<10))
	d, err := stripe.Stripe{}.Sign(src, provider.Sample{Type: "ping", Body: []byte(body)}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, *b.clients.url.Load()+"/webhooks/stripe", bytes.NewReader(d.Body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = d.Header
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var receipt struct {
		EventID string `json:"event_id"`
	}
	return res.StatusCode, res.Header.Get("Retry-After"), json.Unmarshal(answer, &receipt) == nil && res.StatusCode == 200 && receipt.EventID == key
}

// PostgreSQL is away until the spool's disk is full: from then on deliveries are answered 503, also by a gateway that is killed and starts on the full disk. Back again, all that was
// acknowledged comes into the log by itself, and the disk takes deliveries as before.
func TestFullSpoolDisk(t *testing.T) {
	t.Parallel()
	b := prepare(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	dir, most := smallDisk(t)
	text := fmt.Sprintf(settings, proxy.URL, b.nats.URL, mostRejections, stripeSecret, shop, shopifySecret)
	text = strings.Replace(text, `ingest: {`, fmt.Sprintf(`ingest: {spool: {dir: %q, unsafe_dir: true, max_bytes: %s}, `, filepath.Join(dir, "spool"), most), 1)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(t, "gateway")
	proxy.Cut()
	var acknowledged []string
	full := func() {
		t.Helper()
		for n := range 5 {
			if status, retry, _ := b.large(t, fmt.Sprint("evt_refused_", n)); status != 503 || retry == "" {
				t.Errorf("on a full disk: status %d, Retry-After %q", status, retry)
			}
		}
	}
	for n := 0; ; n++ {
		key := fmt.Sprint("evt_kept_", n)
		status, _, ok := b.large(t, key)
		if !ok && (status != 503 || n < 10) || n > 500 {
			t.Fatalf("delivery %d: status %d", n, status)
		}
		if !ok {
			break
		}
		acknowledged = append(acknowledged, key)
	}
	t.Logf("%d deliveries were acknowledged before the disk was full", len(acknowledged))
	full()
	b.kill(t, "gateway")
	full()
	proxy.Restore()
	testkit.Eventually(t, 2*time.Minute, func() error {
		var stored int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE event_id = ANY ($1) AND length(body) > 500000`, acknowledged).Scan(&stored); err != nil || stored != len(acknowledged) {
			return fmt.Errorf("%d of %d acknowledged events are in the log (%v)", stored, len(acknowledged), err)
		}
		return nil
	})
	proxy.Cut() // the disk has room again
	testkit.Eventually(t, time.Minute, func() error {
		if status, _, ok := b.large(t, "evt_again"); !ok {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	proxy.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		var stored int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE event_id = 'evt_again'`).Scan(&stored); err != nil || stored != 1 {
			return fmt.Errorf("%d (%v)", stored, err)
		}
		return nil
	})
	b.daemons["gateway"].interrupt(t)
}
