package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/verify"
)

// A gateway tells the database where its spool is, so neither command needs the folder's name.
func TestVerifyAndDoctor_damagedFileInALocalSpool_isReportedUntilRemoved(t *testing.T) {
	t.Parallel()
	b := setup(t)
	folder := t.TempDir()
	damaged := filepath.Join(folder, "00000000000000000001.spool.damaged")
	for file, text := range map[string]string{filepath.Join(folder, "name"): "local\n", damaged: "no segment"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	b.run(t, "--config", file, "verify").want(t, 1, "\nspool_damaged: 1\n", "1 violation of 1 kind\n")
	b.run(t, "--config", file, "doctor").want(t, 1, "1 file set apart for a person in "+folder, "")
	if err := os.Remove(damaged); err != nil {
		t.Fatal(err)
	}
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
	if _, err := b.db.Pool.Exec(t.Context(), `DELETE FROM event_keys`); err != nil {
		t.Fatal(err)
	}
	b.run(t, "verify").want(t, 1, fmt.Sprintf("\n%d  stripe  -        -       no key leads to it  INSERT INTO postern.event_keys", id), "2 violations of 1 kind\n")
	b.run(t, "verify", "--most", "1").want(t, 1, "and 1 more\n", "2 violations")
	var told verify.Report
	if r := b.run(t, "verify", "-o", "json"); r.status != 1 || json.Unmarshal([]byte(r.out), &told) != nil || told.Violations() != 2 || told.Findings[0].Items[0].Event != id {
		t.Errorf("%+v", r)
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "1790000000000000-00.refused"), []byte("odd"), 0o600); err != nil {
		t.Fatal(err)
	}
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
