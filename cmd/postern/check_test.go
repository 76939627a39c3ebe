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

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
)

func TestConfigCheckForDev(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	noError(t, os.WriteFile(file, []byte("sources: {a: {provider: stripe, secrets: [{name: n, value: "+config.DemoStripeSecret+"}]}}\n"), 0o600))
	execute(t.Context(), "", "config", "check", "--dev", file).want(t, 0, "can be used; sources: a", "")
	r := execute(t.Context(), "", "config", "check", file)
	if r.status != 1 || !strings.Contains(r.errs, "database.url") || !strings.Contains(r.errs, "config check --dev") || !strings.Contains(r.errs, "demo secret") {
		t.Errorf("status %d: %s", r.status, r.errs)
	}
}

// A demo source's address is not the one that a provider signs; where none is signed, the real secret is enough.
func TestDevWithARealSecretNeedsARealAddress(t *testing.T) {
	t.Parallel()
	demo := &config.Config{Sources: config.DemoSources()}
	for name, refused := range map[string]bool{"twilio": true, "square": true, "stripe": false, "slack": false, "hmac": false, "nobody": false} {
		if err := realAddress(demo, name); (err != nil) != refused {
			t.Errorf("%s: %v", name, err)
		}
	}
	demo.Sources["twilio"].URL = "https://hooks.example/webhooks/twilio"
	if err := realAddress(demo, "twilio"); err != nil {
		t.Error(err)
	}
}

// What `config check` finds is what a running daemon refuses at a reload, word for word.
func TestConfigCheckFindsWhatAReloadRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, folder := filepath.Join(dir, "postern.yaml"), filepath.Join(dir, "folder")
	noError(t, os.Mkdir(folder, 0o700))
	loader := config.NewLoader(file, config.ForGateway, nil)
	for name, sources := range map[string]string{
		"good":               "a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"a secret's folder":  "a: {provider: stripe, secrets: [{name: n, file: '" + folder + "'}]}",
		"no secret's file":   "a: {provider: stripe, secrets: [{name: n, file: '" + filepath.Join(dir, "none") + "'}]}",
		"no variable":        "a: {provider: stripe, secrets: [{name: n, env: POSTERN_TEST_NOT_SET}]}",
		"demo secret":        "a: {provider: stripe, secrets: [{name: n, value: " + config.DemoStripeSecret + "}]}",
		"provider's own":     "a: {provider: shopify, secrets: [{name: n, value: whsec_secret_of_a_test}]}",
		"two that are wrong": "a: {provider: nobody, secrets: [{name: n, value: whsec_secret_of_a_test}], tolerance: 1ms}",
		"syntax":             "a: [",
	} {
		noError(t, os.WriteFile(file, []byte("database: {url: postgres://x}\nsources:\n  "+sources+"\n"), 0o600))
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

// What may not be meant is told beside the answer, which stays what it is.
func TestConfigCheckWarns(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf("ingest: {spool: {dir: %q, max_bytes: 1048576GiB, unsafe_dir: true}}\nsources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n", t.TempDir())
	noError(t, os.WriteFile(file, []byte(text), 0o600))
	r := execute(t.Context(), "", "config", "check", "--dev", file)
	r.want(t, 0, "can be used; sources: a", "postern: warning: ingest.spool.unsafe_dir is on")
	r.want(t, 0, "", "postern: warning: ingest.spool.dir: ")
}

// What an instance stands on is told as a table and as JSON, with what to do; an error makes the status 1, and what is away keeps nothing else from being looked at.
func TestDoctor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.run(t, "doctor")
	r.want(t, 1, "postgres.fsync", " errors and ")
	r.want(t, 1, "ALTER SYSTEM RESET fsync", "")
	r.want(t, 1, "nats.reached", "")
	var told doctor.Report
	if r := b.run(t, "doctor", "-o", "json", "--database-disk", "1GiB"); json.Unmarshal([]byte(r.out), &told) != nil || told.Errors == 0 || len(told.Checks) < 15 {
		t.Errorf("%+v", r)
	}
	b.run(t, "doctor", "--all").want(t, 1, "postgres.reached                  ok ", "")
	file := filepath.Join(t.TempDir(), "postern.yaml")
	noError(t, os.WriteFile(file, []byte("database: {url: 'postgres://nobody@127.0.0.1:1/none'}\nsources: {shop: {provider: nobody}}\n"), 0o600))
	r = b.run(t, "doctor", "--config", file)
	r.want(t, 1, "config.valid", " errors and ")
	r.want(t, 1, "postgres.reached", "")
	b.run(t, "doctor", "--database-disk", "much").want(t, 2, "", "--database-disk")
	b.run(t, "doctor", "--config", "/nowhere.yaml").want(t, 1, "/nowhere.yaml", "1 error")
}

// A gateway tells the database where its spool is, so neither command needs the folder's name.
func TestVerifyAndDoctor_damagedFileInALocalSpool_isReportedUntilRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	folder := t.TempDir()
	damaged := filepath.Join(folder, "00000000000000000001.spool.damaged")
	for file, text := range map[string]string{filepath.Join(folder, "name"): "local\n", damaged: "no segment"} {
		noError(t, os.WriteFile(file, []byte(text), 0o600))
	}
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes) VALUES
		('local', $1, now(), now(), now(), 0, 0), ('renamed', $1, now(), now(), now(), 0, 0), ('far', 'elsewhere:' || $2, now(), now(), now(), 0, 0)`, spool.Place(folder), folder)
	b.run(t, "verify").want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "verify", "--spool", folder).want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "doctor").want(t, 1, "1 file set apart for a person in "+folder, "")
	// A gateway that is stopped takes back what it told of its spool.
	b.db.Exec(t, `DELETE FROM spools WHERE spool = 'local'`)
	file := filepath.Join(t.TempDir(), "gateway.yaml")
	text := fmt.Sprintf("database: {url: %q}\ningest: {spool: {dir: %q, unsafe_dir: true}}\n", b.db.URL, folder)
	noError(t, os.WriteFile(file, []byte(text), 0o600))
	b.run(t, "--config", file, "verify").want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "--config", file, "doctor").want(t, 1, "1 file set apart for a person in "+folder, "")
	noError(t, os.Remove(damaged))
	b.run(t, "--config", file, "verify").want(t, 0, "violations  none", "")
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes)
		VALUES ('local', $1, now(), now(), now(), 0, 0)`, spool.Place(folder))
	b.run(t, "verify").want(t, 0, "violations  none", "")
	if r := b.run(t, "doctor", "--all"); !strings.Contains(r.out, "0 files set apart for a person in "+folder) {
		t.Error(r.out)
	}
}

// Who asks is told what was looked at and what waits, and whether something is wrong, by words, as JSON, and by the exit status.
func TestVerify(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "verify").want(t, 0, "violations  none", "")
	id := b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "shop", "w1", `{}`)
	r := b.run(t, "verify")
	r.want(t, 0, "waiting     events without an outcome yet: 2, the oldest since ", "")
	r.want(t, 0, "1 events of source stripe were not compared with their fingerprints", "")
	b.run(t, "verify", "--wait", "1ns").want(t, 1, "waits_too_long: 1\n", "1 violation of 1 kind\n")
	b.db.Exec(t, `DELETE FROM event_keys`)
	b.run(t, "verify").want(t, 1, fmt.Sprintf("\n%d  stripe  -        -       no key leads to it  INSERT INTO postern.event_keys", id), "2 violations of 1 kind\n")
	b.run(t, "verify", "--most", "1").want(t, 1, "and 1 more\n", "2 violations")
	var told verify.Report
	if r := b.run(t, "verify", "-o", "json"); r.status != 1 || json.Unmarshal([]byte(r.out), &told) != nil || told.Violations() != 2 || told.Findings[0].Items[0].Event != id {
		t.Errorf("%+v", r)
	}
	folder := t.TempDir()
	noError(t, os.WriteFile(filepath.Join(folder, "1790000000000000-00.refused"), []byte("odd"), 0o600))
	r = b.run(t, "verify", "--spool", folder)
	r.want(t, 1, "1790000000000000-00.refused  refused  1           0       1        -       0        no    stays for a person\n", "3 violations of 2 kinds\n")
	r.want(t, 1, "\nspool_refused: 1\n", "")
	r.want(t, 1, "WHAT", "")
	b.run(t, "verify", "--spool", "/nowhere").want(t, 1, "", "ingest.spool.dir")
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes) VALUES
		('full', 'gw-1:/spool', now(), now() - interval '20 minutes', now(), 4711, 100), ('dark', 'gw-2:/spool', now(), now() - interval '1 day', now() - interval '1 day', 0, 0)`)
	r = b.run(t, "verify")
	r.want(t, 1, "waiting  deliveries that are acknowledged and in spool full (gw-1:/spool), as its gateway told: 4711, the oldest since ", "3 violations of 2 kinds\n")
	r.want(t, 1, "nobody has told of spool dark (gw-2:/spool) since ", "")
	r.want(t, 1, "postern spool list shows what it tells", "")
	if r := b.run(t, "verify", "-o", "json"); json.Unmarshal([]byte(r.out), &told) != nil || len(told.Waiting) != 2 || told.Waiting[1].Count != 4711 {
		t.Errorf("%+v", r)
	}
	b.run(t, "verify", "--sample", "-1").want(t, 2, "", "are 0 or more")
	b.run(t, "verify", "--signatures", "--config", "/nowhere.yaml").want(t, 1, "", "/nowhere.yaml")
}

// A person sees which spools there are and who waits for them, and is told what may be lost with one that is forgotten.
func TestSpools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "spool", "list").want(t, 0, "No spools: no gateway that has one runs", "")
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes, oldest_at) VALUES
		('full', 'there:/spool', '2026-01-01Z', '2026-01-02Z', '2026-01-03Z', 3, 100, '2026-01-02T12:00Z'), ('here', 'here:/spool', now(), now(), now(), 0, 0, null), ('dark', 'there:/spool', now(), '-infinity', null, null, null, null)`)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.run(t, "redact", "--event", "evt_1", "--yes", "--no-wait", "--reason", "why").want(t, 0, "", "")
	r := b.run(t, "spool", "list")
	r.want(t, 0, "OLDEST                       LAST EMPTY                   WAITED FOR BY RUNS\n", "")
	r.want(t, 0, "full   there:/spool  2026-01-01T00:00:00.000000Z  2026-01-03T00:00:00.000000Z  3           100    2026-01-02T12:00:00.000000Z  2026-01-02T00:00:00.000000Z  1\n", "")
	b.run(t, "spool", "forget", "full").want(t, 2, "", "say why with --reason")
	b.run(t, "spool", "forget", "full", "--reason", "why").want(t, 2, "", "give --yes")
	b.run(t, "spool", "forget", "nobody", "--reason", "why", "--yes").want(t, 3, "", "knows of none with this name")
	b.run(t, "spool", "forget", "here", "--reason", "why", "--yes").want(t, 2, "", "or give --force")
	b.run(t, "spool", "forget", "full", "--reason", "why", "--yes").want(t, 0, "Spool full is forgotten: no redaction waits for it. "+
		"It was last told of at 2026-01-03T00:00:00.000000Z, to hold 3 deliveries (100 bytes). These, and what the gateway acknowledged without the database after that, are lost with its disk where they are not in the log.\n", "")
	b.run(t, "spool", "forget", "dark", "--reason", "why", "--yes").want(t, 2, "", "nothing says whether its gateway runs")
	b.run(t, "spool", "forget", "dark", "--reason", "why", "--yes", "--force").want(t, 0, "Nobody knows what is in it", "")
	var s redaction.Spool
	if r := b.run(t, "spool", "forget", "here", "--reason", "why", "--yes", "--force", "-o", "json"); json.Unmarshal([]byte(r.out), &s) != nil || s.Name != "here" || *s.Deliveries != 0 {
		t.Errorf("%+v", r)
	}
}

// What is left to publish is told from both sides, and without NATS what the log knows.
func TestStreamStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "stripe", "evt_2", `{"id":"evt_2"}`)
	r := b.run(t, "stream", "status")
	r.want(t, 1, "events without an outcome    2, the oldest since ", "the streams are not known: nats.url is not set here")
	r.want(t, 1, "of these in no stream        not known\n", "")
	r.want(t, 1, "auditor                      none: no processor runs\n", "")
	nats := testkit.JetStream(t)
	conn, err := stream.Connect(stream.Options{URL: nats.URL, Logger: slog.New(slog.DiscardHandler)})
	noError(t, err)
	defer conn.Close()
	limits := stream.DefaultLimits
	limits.MaxBytes = 1 << 20
	noError(t, conn.Ensure(t.Context(), limits))
	if ack := conn.PublishEvents(t.Context(), []stream.Event{{Source: "stripe"}})[0]; ack.Err != nil {
		t.Fatal(ack.Err)
	}
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, NATSURL: nats.URL})
	r = b.run(t, "stream", "status")
	r.want(t, 0, "of these in no stream        about 1\n", "")
	r.want(t, 0, "\nPOSTERN_EVENTS: 1 messages of at most 1000000, 0 MiB of at most 1\nCONSUMER   PENDING  UNACKNOWLEDGED  REDELIVERED  WAITING\nprocessor  1        0               0            0\n", "")
	r.want(t, 0, "\nPOSTERN_RUNS: there is none\n", "")
	var told admin.StreamView
	if r := b.run(t, "stream", "status", "-o", "json"); json.Unmarshal([]byte(r.out), &told) != nil || told.Unapplied.Count != 2 || told.NotInStream != 1 || len(told.Streams) != 4 || told.Trouble != "" {
		t.Errorf("%+v", r)
	}
	nats.Stop(t)
	b.run(t, "stream", "status").want(t, 1, "events without an outcome    2", "the streams are not known: no server of nats://127.0.0.1:")
}

// Who asks for a pass is told what it has published, once it has ended.
func TestStreamHeal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "stream", "heal", "--no-wait", "--reason", "a wiped disk").want(t, 0, "Pass 1 is asked for; postern stream status shows", "")
	b.run(t, "stream", "status").want(t, 1, "asked for                    1 pass by postern stream heal, not ended yet\n", "")
	ended := make(chan struct{})
	go func() { // as the auditor does
		defer close(ended)
		testkit.Eventually(t, 60*time.Second, func() error {
			tag, err := b.db.Pool.Exec(t.Context(), `UPDATE auditor_passes SET ended_at = clock_now(), missing = 7, due = 1 WHERE id = 2`)
			if err == nil && tag.RowsAffected() == 0 {
				err = fmt.Errorf("nobody has asked yet")
			}
			return err
		})
	}()
	r := b.run(t, "stream", "heal", "-o", "json")
	<-ended
	var v processor.HealView
	if json.Unmarshal([]byte(r.out), &v) != nil || r.status != 0 || v.Missing != 7 || v.Heal != 2 || v.EndedAt == nil || v.WantedBy == "" {
		t.Errorf("%+v", r)
	}
	if said := healWords(&v); said != "Pass 2 has ended: 7 events without an outcome and 1 failed event published again." {
		t.Error(said)
	}
	var by, reason string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT wanted_by, reason FROM auditor_passes WHERE id = 1`).Scan(&by, &reason); err != nil || by != operator().Name || reason != "a wiped disk" {
		t.Errorf("%q, %q, %v", by, reason, err)
	}
}
