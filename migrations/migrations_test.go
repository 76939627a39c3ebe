package migrations_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/migrations"
)

// update rewrites schema.sql.
var update = flag.Bool("update", false, "rewrite schema.sql from the migrations")

func TestMain(m *testing.M) { testkit.Main(m) }

func files(t *testing.T) []fs.DirEntry {
	t.Helper()
	entries, err := migrations.Files.ReadDir(".")
	if err != nil || len(entries) == 0 {
		t.Fatalf("embedded migrations: %d, %v", len(entries), err)
	}
	return entries
}

func TestNumberedWithoutGaps(t *testing.T) {
	t.Parallel()
	shape := regexp.MustCompile(`^(\d{4})_[a-z][a-z_]*\.sql$`)
	for i, f := range files(t) {
		m := shape.FindStringSubmatch(f.Name())
		if m == nil {
			t.Errorf("%s: want NNNN_subject.sql", f.Name())
			continue
		}
		if want := fmt.Sprintf("%04d", i+1); m[1] != want {
			t.Errorf("%s: want number %s, without a gap or a double", f.Name(), want)
		}
	}
}

func TestHeaderTellsPurposeAndLocks(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		text, err := migrations.Files.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		header, _, ok := strings.Cut(string(text), "-- +goose Up")
		if !ok || !strings.HasPrefix(header, "-- ") || !strings.Contains(header, "\n-- Locks: ") {
			t.Errorf("%s: want comments that tell the purpose and a line \"-- Locks: ...\" before \"-- +goose Up\"", f.Name())
		}
		if strings.Contains(string(text), "-- +goose Down") {
			t.Errorf("%s: migrations go forward only", f.Name())
		}
	}
}

func TestApplyOnceToAnEmptyDatabase(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyDatabase(t, "")
	for _, want := range []int{len(files(t)), 0} {
		if got, err := postgres.Migrate(t.Context(), db.URL); err != nil || got != want {
			t.Fatalf("applied %d, %v; want %d", got, err, want)
		}
	}
}

// noise is what pg_dump writes that says nothing of the schema, or differs between its releases.
var noise = regexp.MustCompile(`(?m)^(--.*|SET .*|SELECT pg_catalog\.set_config.*|\\(un)?restrict .*)\n`)

func dump(t *testing.T, url string) string {
	t.Helper()
	cmd := exec.CommandContext(context.Background(), "pg_dump", "--schema-only", "--dbname", url)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("pg_dump (it comes with PostgreSQL: make prerequisites): %v: %s", err, complaint.String())
	}
	text := noise.ReplaceAllString(string(out), "")
	return strings.TrimSpace(regexp.MustCompile(`\n{3,}`).ReplaceAllString(text, "\n\n")) + "\n"
}

func TestSchemaDumpIsCurrent(t *testing.T) {
	t.Parallel()
	got := dump(t, testkit.Database(t).URL)
	if *update {
		if err := os.WriteFile("schema.sql", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("schema.sql is not what the migrations make; look at the difference, then run: go test ./migrations -update\n%s", diff)
	}
}
