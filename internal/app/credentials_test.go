package app_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/testkit"
)

// canary is what no header may carry into the store or the log.
const canary = "c4n4ry-0f-4-s3cr3t"

// carriers are headers that carry credentials, of proxies, of browsers and of APIs.
var carriers = []string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "Api-Key", "X-Auth-Token", "X-Access-Token", "X-Csrf-Token", "X-Amz-Security-Token", "X-Gitlab-Token",
	"X-Goog-Channel-Token", "X-Vault-Token", "X-Webhook-Secret", "X-Hub-Secret", "X-Session-Id", "X-Forwarded-Client-Cert"}

// laden is a delivery with a canary in every header that may carry a credential and has no value of the sender's.
func laden(d *provider.Delivery) *provider.Delivery {
	for _, name := range carriers {
		if len(d.Header.Values(name)) == 0 {
			d.Header.Set(name, "Bearer "+canary)
		}
	}
	return d
}

// lines is a log that is written to by many.
type lines struct {
	mu sync.Mutex
	bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Buffer.String()
}

// Whatever credentials come along with a delivery of any provider, taken or refused: none is in the database or the log, nor is a secret of ours, also where the sender sends that itself.
func TestNoCredentialIsStored(t *testing.T) {
	t.Parallel()
	b, log := configured(t, nil), &lines{}
	a, err := app.New(t.Context(), app.Options{Config: b.cfg, Gateway: true, Logger: slog.New(slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})), Tune: patient})
	if err != nil {
		t.Fatal(err)
	}
	b.app = a
	a.Start()
	stop := sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	refused := 0
	for name, source := range b.cfg.Sources {
		p, _ := all.Named(source.Provider)
		sample := p.Samples()[0].Type
		if status, body := b.post(t, name, laden(b.sign(t, name, sample, 1, time.Now()))); status/100 != 2 {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if status, _ := b.post(t, name, forge(p, b.sign(t, name, sample, 2, time.Now()))); status/100 == 4 {
			refused++
		}
	}
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.db.Rows(t, `SELECT count(*)::text FROM rejections`)[0]; n != fmt.Sprint(refused) {
			return fmt.Errorf("%s rejections are kept of %d", n, refused)
		}
		return nil
	})
	stop()
	dump, err := exec.CommandContext(t.Context(), "pg_dump", "--data-only", "--inserts", "--dbname", b.db.URL).Output()
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"database": string(dump), "log": log.String()} {
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("the %s holds a credential: %s", where, text[max(0, at-200):min(len(text), at+100)])
		}
		for name, source := range b.cfg.Sources {
			for _, secret := range source.Secrets {
				if value := string(secret.Value); strings.Contains(text, value) {
					t.Errorf("the %s holds the secret of %s", where, name)
				}
			}
		}
	}
	if !strings.Contains(string(dump), "evt_") || refused < len(b.cfg.Sources)/2 {
		t.Errorf("%d were refused, and the dump has %d bytes: the test has seen too little", refused, len(dump))
	}
}

// forge spoils a delivery: what the provider wants kept of it is the sender's word, all else may be a credential.
func forge(p provider.Provider, d *provider.Delivery) *provider.Delivery {
	for name := range laden(d).Header {
		switch {
		case name == "Content-Type":
		case slices.Contains(p.Headers(), name):
			d.Header[name] = []string{"forged"}
		default:
			d.Header[name] = []string{canary}
		}
	}
	return d
}
