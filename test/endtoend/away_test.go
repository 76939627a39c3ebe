package endtoend_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// PostgreSQL is cut off and hangs while deliveries come in, and the gateway is killed meanwhile and starts without it. Nobody is refused for that; in the end the log holds what was
// acknowledged, from the spool too, each event has its outcome, and the mirror is what the rule makes of the log.
func TestPostgreSQLAwayLosesNothing(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	m := mix(t, seed, 1, 80)
	b := prepare(t, m.all)
	proxy := testkit.Proxy(t, b.db.URL)
	spool := filepath.Join(t.TempDir(), "spool")
	text := fmt.Sprintf(settings, proxy.URL, b.nats.URL, mostRejections, stripeSecret, shop, shopifySecret)
	text = strings.Replace(text, `ingest: {`, fmt.Sprintf(`ingest: {spool: {dir: %q, unsafe_dir: true}, `, spool), 1)
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(t, "gateway")
	b.start(t, "processor")
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); b.clients.send(ctx, 12) }()
	for i, step := range []func(){
		proxy.Cut,
		func() { b.kill(t, "gateway") },
		proxy.Restore,
		proxy.Stall,
		func() { b.kill(t, "gateway") },
		proxy.Restore,
	} {
		b.after(t, done, len(m.all)*(i+1)/8)
		step()
	}
	<-done
	if left := len(b.clients.next); left > 0 {
		t.Fatalf("%d deliveries are not sent yet", left)
	}
	for _, w := range b.clients.wrong {
		t.Error(w)
	}
	spooled := 0
	for _, p := range b.clients.promises {
		if p.Spooled {
			spooled++
		}
	}
	t.Logf("%d deliveries, %d acknowledged, %d of them from the spool, %d tries again", len(m.all), len(b.clients.promises), spooled, b.clients.retries)
	if spooled < len(m.all)/8 {
		t.Errorf("only %d deliveries went to the spool", spooled)
	}
	testkit.Eventually(t, time.Minute, func() error {
		left, err := filepath.Glob(filepath.Join(spool, "*.spool"))
		if err != nil || len(left) > 1 { // one is made ahead
			return fmt.Errorf("the spool still has %v, %v", left, err)
		}
		return nil
	})
	b.everyEventHasAnOutcome(t)
	stored := b.readLog(t)
	b.checkPromises(t, stored)
	b.checkOrigins(t, m, stored)
	b.checkMirror(t, stored)
	for _, name := range []string{"gateway", "processor"} {
		b.daemons[name].interrupt(t)
	}
}
