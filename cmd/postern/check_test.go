package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

func TestConfigCheck_dev_allowsDemoSecrets(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "postern.yaml", "sources: {a: {provider: stripe, secrets: [{name: n, value: "+
		config.DemoStripeSecret+"}]}}\n")
	execute(t.Context(), "", "config", "check", "--dev", file).want(t, 0, "is valid; sources: a", "")
	r := execute(t.Context(), "", "config", "check", file)
	if r.status != 1 || !strings.Contains(r.errs, "database.url") || !strings.Contains(r.errs, "config check --dev") ||
		!strings.Contains(r.errs, "demo secret") {
		t.Errorf("status %d: %s", r.status, r.errs)
	}
}

// The address of a demo source is not the one that a provider signs. If the provider signs no
// address, the real secret is sufficient.
func TestDev_realSecretForDemoAddress_isRejected(t *testing.T) {
	t.Parallel()
	demo := &config.Config{Sources: config.DemoSources()}
	for name, refused := range map[string]bool{"twilio": true, "square": true, "stripe": false, "slack": false,
		"hmac": false, "nobody": false} {
		if err := checkSignedAddress(demo, name); (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	demo.Sources["twilio"].URL = "https://hooks.example/webhooks/twilio"
	if err := checkSignedAddress(demo, "twilio"); err != nil {
		t.Error(err)
	}
}

// `config check` reports the same errors, word for word, as a running daemon at a reload.
func TestConfigCheck_invalidSources_areReportedLikeByReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "postern.yaml"), filepath.Join(dir, "folder")
	testkit.Must(t, os.Mkdir(folder, 0o700))
	loader := config.NewLoader(file, config.ForGateway, nil)
	for name, sources := range map[string]string{
		"good":              "a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"a secret's folder": "a: {provider: stripe, secrets: [{name: n, file: '" + folder + "'}]}",
		"no secret's file":  "a: {provider: stripe, secrets: [{name: n, file: '" + filepath.Join(dir, "none") + "'}]}",
		"no variable":       "a: {provider: stripe, secrets: [{name: n, env: POSTERN_TEST_NOT_SET}]}",
		"demo secret":       "a: {provider: stripe, secrets: [{name: n, value: " + config.DemoStripeSecret + "}]}",
		"provider's own":    "a: {provider: shopify, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"two that are wrong": "a: {provider: nobody, secrets: [{name: n, value: " +
			"whsec_secret_of_a_test}], tolerance: 1ms}",
		"syntax": "a: [",
	} {
		testkit.Must(t, os.WriteFile(file, []byte("database: {url: postgres://x}\nsources:\n  "+sources+"\n"), 0o600))
		_, refused := loader.Load()
		var out, errs strings.Builder
		status := run(t.Context(), []string{"config", "check", file}, nil, &out, &errs)
		if (refused == nil) != (status == 0) || (refused == nil) != (name == "good") {
			t.Errorf("%s: status %d, a reload says %v", name, status, refused)
		}
		if refused != nil && strings.TrimSpace(errs.String()) != refused.Error() {
			t.Errorf("%s: told\n%s\na reload says\n%v", name, errs.String(), refused)
		}
	}
}

// Warnings are printed in addition to the result and do not change it.
func TestConfigCheck_likelyMistakes_areWarnings(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "postern.yaml", fmt.Sprintf("ingest: {spool: {dir: %q, max_bytes: 1048576GiB, unsafe_dir: "+
		"true}}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n", t.TempDir()))
	r := execute(t.Context(), "", "config", "check", "--dev", file)
	r.want(t, 0, "is valid; sources: a", "postern: warning: ingest.spool.unsafe_dir is on")
	r.want(t, 0, "", "postern: warning: ingest.spool.dir: ")
}

// The checks of an instance are printed as a table and as JSON, with what to do. An error makes the
// status 1, and an unavailable server does not prevent other checks.
func TestDoctor_printsChecksAndExitStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.want(t, "doctor", 1, "postgres.fsync", " errors and ")
	r.want(t, 1, "ALTER SYSTEM RESET fsync", "")
	r.want(t, 1, "nats.reached", "")
	var report doctor.Report
	if r := b.run(t, "doctor", "-o", "json", "--database-disk", "1GiB"); json.Unmarshal([]byte(r.out),
		&report) != nil || report.Errors == 0 || len(report.Checks) < 15 {
		t.Errorf("%+v", r)
	}
	b.want(t, "doctor --all", 1, "postgres.reached                  ok ", "")
	file := writeFile(t, "postern.yaml",
		"database: {url: 'postgres://nobody@127.0.0.1:1/none'}\nsources: {shop: {provider: nobody}}\n")
	r = b.run(t, "doctor", "--config", file)
	r.want(t, 1, "config.valid", " errors and ")
	r.want(t, 1, "postgres.reached", "")
	b.want(t, "doctor --database-disk much", 2, "", "--database-disk")
	b.want(t, "doctor --config /nowhere.yaml", 1, "/nowhere.yaml", "1 error")
}

// A gateway reports the location of its spool in the database, so that no command needs the
// folder's name.
func TestVerifyAndDoctor_damagedFileInALocalSpool_isReportedUntilRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	folder := t.TempDir()
	damaged := filepath.Join(folder, "00000000000000000001.spool.damaged")
	for file, text := range map[string]string{filepath.Join(folder, "name"): "local\n", damaged: "no segment"} {
		testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	b.db.Exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes) VALUES
		('local', $1, now(), now(), now(), 0, 0), ('renamed', $1, now(), now(), now(), 0, 0),
			('far', 'elsewhere:' || $2, now(), now(), now(), 0, 0)`, spool.Location(folder), folder)
	b.want(t, "verify", 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "verify", "--spool", folder).want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.want(t, "doctor", 1, "1 file quarantined in "+folder, "")
	// A stopped gateway removes its report.
	b.db.Exec(t, `DELETE FROM spools WHERE spool = 'local'`)
	file := writeFile(t, "gateway.yaml",
		fmt.Sprintf("database: {url: %q}\ningest: {spool: {dir: %q, unsafe_dir: true}}\n", b.db.URL, folder))
	b.run(t, "--config", file, "verify").want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "--config", file, "doctor").want(t, 1, "1 file quarantined in "+folder, "")
	testkit.Must(t, os.Remove(damaged))
	b.run(t, "--config", file, "verify").want(t, 0, "violations  none", "")
	b.db.Exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes)
		VALUES ('local', $1, now(), now(), now(), 0, 0)`, spool.Location(folder))
	b.want(t, "verify", 0, "violations  none", "")
	if r := b.run(t, "doctor", "--all"); !strings.Contains(r.out, "0 files quarantined in "+folder) {
		t.Error(r.out)
	}
}

// The report says what was checked, what waits and what is wrong, as text, as JSON and in the exit
// status.
func TestVerify_reportsViolationsAndProgress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "verify", 0, "violations  none", "")
	id := b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "shop", "w1", `{}`)
	r := b.want(t, "verify", 0, "waiting     events without an outcome yet: 2, the oldest since ", "")
	r.want(t, 0, "1 events of source stripe were not checked against their fingerprints", "")
	b.want(t, "verify --wait 1ns", 1, "waits_too_long: 1\n", "1 violation of 1 kind\n")
	b.db.Exec(t, `DELETE FROM event_keys`)
	b.run(t, "verify").want(t, 1, fmt.Sprintf(
		"\n%d  stripe  -        -       it has no key  INSERT INTO postern.event_keys", id), "2 violations of 1 kind\n")
	b.db.Exec(t, `INSERT INTO verify_reports (stored_by, report)
		SELECT 'ada', '{}' FROM generate_series(1, $1::int)`, operations.KeptVerifyReports)
	b.want(t, "verify --store-report", 1, "", "2 violations of 1 kind\n")
	if got := b.db.QueryStrings(t, `SELECT concat_ws(' ', count(*), max(id) - min(id),
		count(*) FILTER (WHERE report->'findings'->0->>'count' = '2'),
		bool_or(report::text LIKE '%it has no key%'),
		(SELECT count(*) FROM audit WHERE action = 'verify' AND target LIKE 'report % violations: 2'))
		FROM verify_reports`); got[0] != "20 19 1 f 1" {
		t.Errorf("the stored reports: %s", got[0])
	}
	b.want(t, "verify --most 1", 1, "and 1 more\n", "2 violations")
	var report verify.Report
	if r := b.run(t, "verify", "-o", "json"); r.status != 1 || json.Unmarshal([]byte(r.out), &report) != nil ||
		report.Violations() != 2 || report.Findings[0].Items[0].Event != id {
		t.Errorf("%+v", r)
	}
	folder := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(folder, "1790000000000000-00.quarantined"), []byte("odd"), 0o600))
	r = b.run(t, "verify", "--spool", folder)
	r.want(t, 1, "1790000000000000-00.quarantined  quarantined  1           0       1        -       0        no    "+
		"needs an operator\n", "3 violations of 2 kinds\n")
	r.want(t, 1, "\nspool_quarantined: 1\n", "")
	r.want(t, 1, "DETAIL", "")
	b.want(t, "verify --spool /nowhere", 1, "", "ingest.spool.dir")
	b.db.Exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes) VALUES
		('full', 'gw-1:/spool', now(), now() - interval '20 minutes', now(), 4711, 100), ('dark', 'gw-2:/spool', now(),
			now() - interval '1 day', now() - interval '1 day', 0, 0)`)
	r = b.run(t, "verify")
	r.want(t, 1, "waiting  acknowledged deliveries in spool full (gw-1:/spool), as "+
		"reported by its gateway: 4711, the oldest since ", "3 violations of 2 kinds\n")
	r.want(t, 1, "the last report about spool dark (gw-2:/spool) was at ", "")
	r.want(t, 1, "postern spool list shows its reports", "")
	if r := b.run(t, "verify", "-o", "json"); json.Unmarshal([]byte(r.out), &report) != nil ||
		len(report.Waiting) != 2 || report.Waiting[1].Count != 4711 {
		t.Errorf("%+v", r)
	}
	b.want(t, "verify --sample -1", 2, "", "are 0 or more")
	b.want(t, "verify --signatures --config /nowhere.yaml", 1, "", "/nowhere.yaml")
}

// The list shows the spools and the runs that wait for them, and the command prints what may be
// lost with a removed spool.
func TestSpool_listAndRemove(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "spool list", 0, "No spools: no gateway with a spool is running", "")
	b.db.Exec(t, `INSERT INTO spools (spool, location, registered_at, drained_at, reported_at, deliveries, bytes,
		oldest_at) VALUES
		('full', 'there:/spool', '2026-01-01Z', '2026-01-02Z', '2026-01-03Z', 3, 100, '2026-01-02T12:00Z'),
			('here', 'here:/spool', now(), now(), now(), 0, 0, null), ('dark', 'there:/spool', now(), '-infinity', null,
			null, null, null)`)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.want(t, "redact --event evt_1 --yes --no-wait --reason why", 0, "", "")
	r := b.want(t, "spool list", 0, "OLDEST                       LAST EMPTY                   AWAITED BY RUNS\n", "")
	r.want(t, 0, "full   there:/spool  2026-01-01T00:00:00.000000Z  2026-01-03T00:00:00.000000Z  3           100    "+
		"2026-01-02T12:00:00.000000Z  2026-01-02T00:00:00.000000Z  1\n", "")
	b.want(t, "spool remove full", 2, "", "give a reason with --reason")
	b.want(t, "spool remove full --reason why", 2, "", "add --yes")
	b.want(t, "spool remove nobody --reason why --yes", 3, "", "the database has no spool of this name")
	b.want(t, "spool remove here --reason why --yes", 2, "", "pass --force")
	b.run(t, "spool", "remove", "full", "--reason", "why", "--yes").want(t, 0,
		"Spool full is removed: no redaction waits for it. Its last report was at 2026-01-03T00:00:00.000000Z: it "+
			"held 3 deliveries (100 bytes). These, and what the gateway acknowledged later without the database, are "+
			"lost with its disk if they are not in the log.\n", "")
	b.want(t, "spool remove dark --reason why --yes", 2, "", "it is unknown whether its gateway runs")
	b.want(t, "spool remove dark --reason why --yes --force", 0, "Its content is unknown", "")
	var s redaction.Spool
	if r := b.run(t, "spool", "remove", "here", "--reason", "why", "--yes", "--force", "-o",
		"json"); json.Unmarshal([]byte(r.out), &s) != nil || s.Name != "here" || *s.Deliveries != 0 {
		t.Errorf("%+v", r)
	}
}

// The status combines the backlog in the log with the state of NATS. Without NATS it shows the log
// only.
func TestStreamStatus_withAndWithoutNATS(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "stripe", "evt_2", `{"id":"evt_2"}`)
	r := b.want(t, "stream status", 1, "events without an outcome    2, the oldest since ",
		"the streams are not known: nats.url is not set here")
	r.want(t, 1, "of these in no stream        not known\n", "")
	r.want(t, 1, "republisher                  none: no processor runs\n", "")
	nats := testkit.JetStream(t)
	conn, err := stream.Connect(stream.Options{URL: nats.URL, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	defer conn.Close()
	limits := stream.DefaultLimits
	limits.MaxBytes = 1 << 20
	testkit.Must(t, conn.Ensure(t.Context(), limits))
	if ack := conn.PublishEvents(t.Context(), []stream.Event{{Source: "stripe"}})[0]; ack.Err != nil {
		t.Fatal(ack.Err)
	}
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, NATSURL: nats.URL})
	r = b.want(t, "stream status", 0, "of these in no stream        about 1\n", "")
	r.want(t, 0, "\nPOSTERN_EVENTS: 1 messages of at most 1000000, 0 MiB of at most 1\nCONSUMER   PENDING  "+
		"UNACKNOWLEDGED  REDELIVERED  WAITING\nprocessor  1        0               0            0\n", "")
	r.want(t, 0, "\nPOSTERN_RUNS: does not exist\n", "")
	var status operations.StreamView
	if r := b.run(t, "stream", "status", "-o", "json"); json.Unmarshal([]byte(r.out), &status) != nil ||
		status.Unapplied.Count != 2 || status.NotInStream != 1 || len(status.Streams) != 4 || status.Failure != "" {
		t.Errorf("%+v", r)
	}
	nats.Stop(t)
	b.want(t, "stream status", 1, "events without an outcome    2",
		"the streams are not known: no server of nats://127.0.0.1:")
}

// The command prints what a pass has published, once it has ended.
func TestStreamRepublish_waitsForEndOfPass(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "stream republish --no-wait --reason 'a wiped disk'", 0,
		"Pass 1 is requested; postern stream status shows", "")
	b.want(t, "stream status", 1,
		"requested                    1 pass requested with postern stream republish, not ended yet\n", "")
	ended := make(chan struct{})
	go func() { // as the republisher does
		defer close(ended)
		testkit.Eventually(t, 60*time.Second, func() error {
			tag, err := b.db.Pool.Exec(t.Context(), `UPDATE republish_passes SET ended_at = clock_now(), missing = 7,
				due = 1 WHERE id = 2`)
			if err == nil && tag.RowsAffected() == 0 {
				err = fmt.Errorf("no pass is requested yet")
			}
			return err
		})
	}()
	r := b.run(t, "stream", "republish", "-o", "json")
	<-ended
	var v processor.RepublishView
	if json.Unmarshal([]byte(r.out), &v) != nil || r.status != 0 || v.Missing != 7 || v.ID != 2 || v.EndedAt == nil ||
		v.RequestedBy == "" {
		t.Errorf("%+v", r)
	}
	if said := describeRepublish(&v); said != "Pass 2 has ended: 7 events without "+
		"an outcome and 1 failed event republished." {
		t.Error(said)
	}
	b.db.WantRows(t, 1, `republish_passes WHERE id = 1 AND requested_by = $1 AND reason = 'a wiped disk'`,
		operator().Name)
}
