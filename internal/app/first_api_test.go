package app_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A processor starts without a section api and opens no connection for one. The first section that a reload brings is
// used at once: by reconciliations, by looks, and by the metrics.
func TestReload_firstSourceWithAPI_isReconciledWithoutARestart(t *testing.T) {
	t.Parallel()
	fake := stripefake.New(t, stripefake.Options{Seed: 21, Running: true, Start: time.Now().Add(-time.Minute)})
	r := startReading(t, shop)
	if n := r.sessions(t, "postern_reconcile"); n != 0 {
		t.Errorf("%d connections are open for what no source has", n)
	}
	order := reconcile.Order{Source: 1, What: reconcile.Events}
	if err := reconcile.CheckReadable(t.Context(), r.db.Role(t, "operator"), &order); !errors.Is(err, events.ErrInvalid) {
		t.Errorf("without a section api: %v", err)
	}
	r.write(t, shop+shopAPI(fake, stripefake.Key))
	r.reload(t, "ok")
	if err := reconcile.CheckReadable(t.Context(), r.db.Role(t, "operator"), &order); err != nil {
		t.Errorf("with a section api: %v", err)
	}
	if log := r.log.String(); strings.Contains(log, "restart") {
		t.Errorf("the log asks for a restart:\n%s", log)
	}
	fake.Live(20)
	fake.Deliver(func(*provider.Delivery) bool { return true }) // and none arrives
	fake.Advance(time.Since(fake.Now()) + time.Minute)
	if run := r.done(t, reconcile.Order{What: reconcile.Events}); run.Counts[reconcile.Missing] == 0 {
		t.Errorf("nothing was missing: %v", run.Counts)
	}
	r.become(t, fake)
	id := fake.Create("", "customer", nil)
	r.db.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, wanted_by, made_at, due, after)
		VALUES (1, '', 'customer', $1, 'a test', 'test', now(), now(), 0)`, id)
	testkit.Eventually(t, time.Minute, func() error {
		if n := r.db.Rows(t, `SELECT count(*)::text FROM hints`); n[0] != "0" {
			return fmt.Errorf("%s looks were not made", n[0])
		}
		return nil
	})
}

// A processor whose login may not append runs while no source has a section api. A reload that brings one fails, says
// which right is missing, and leaves the sources as they were.
func TestReload_firstSourceWithAPIAndALoginThatMayNotAppend_fails(t *testing.T) {
	t.Parallel()
	r := startReloading(t, shop, time.Hour)
	stop(t, r.app)
	login := "processor_" + strings.ToLower(rand.Text())
	r.db.Exec(t, "CREATE ROLE "+login+" LOGIN IN ROLE postern_processor, postern_maintenance, postern_operator")
	t.Cleanup(func() {
		if _, err := r.db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+login); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(r.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("user", login)
	u.RawQuery = q.Encode()
	r.head = strings.Replace(r.head, strconv.Quote(r.db.URL), strconv.Quote(u.String()), 1)
	r.write(t, shop)
	loader := config.NewLoader(r.file, config.ForGateway, nil)
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Processor: true, AdminListen: "127.0.0.1:0", Loader: loader, Hangup: r.hangup, Tune: patient})
	r.write(t, shop+"    api: {base_url: 'http://127.0.0.1:1', key: {value: sk_test_first}}\n")
	r.reload(t, "failed")
	for _, want := range []string{"what is fetched from there is appended to the log", "GRANT postern_gateway TO", "the old sources go on"} {
		if log := r.log.String(); !strings.Contains(log, want) {
			t.Errorf("the log does not say %q:\n%s", want, log)
		}
	}
	r.db.Exec(t, "GRANT postern_gateway TO "+login)
	r.reload(t, "ok")
}

// sessions is how many sessions an application has with the database.
func (r *reloading) sessions(t *testing.T, name string) (n int) {
	t.Helper()
	if err := r.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = $1`, name).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
