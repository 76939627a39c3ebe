package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/postern-gateway/postern/internal/doctor"
)

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
	if err := os.WriteFile(file, []byte("database: {url: 'postgres://nobody@127.0.0.1:1/none'}\nsources: {shop: {provider: nobody}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = b.run(t, "doctor", "--config", file)
	r.want(t, 1, "config.valid", " errors and ")
	r.want(t, 1, "postgres.reached", "")
	b.run(t, "doctor", "--database-disk", "much").want(t, 2, "", "--database-disk")
	b.run(t, "doctor", "--config", "/nowhere.yaml").want(t, 1, "/nowhere.yaml", "1 error")
}
