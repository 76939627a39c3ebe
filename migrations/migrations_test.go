package migrations_test

import (
	"context"
	"fmt"
	"io/fs"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/golden"
	"github.com/postern-gateway/postern/migrations"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func files(t *testing.T) []fs.DirEntry {
	t.Helper()
	entries, err := migrations.Files.ReadDir(".")
	if err != nil || len(entries) == 0 {
		t.Fatalf("embedded migrations: %d, %v", len(entries), err)
	}
	return entries
}

func TestMigrations_numbers_haveNoGaps(t *testing.T) {
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

func TestMigrations_header_statesPurposeAndLocks(t *testing.T) {
	t.Parallel()
	for _, f := range files(t) {
		text, err := migrations.Files.ReadFile(f.Name())
		must(t, err)
		header, _, ok := strings.Cut(string(text), "-- +goose Up")
		if !ok || !strings.HasPrefix(header, "-- ") || !strings.Contains(header, "\n-- Locks: ") {
			t.Errorf("%s: want comments that tell the purpose and a line \"-- Locks: ...\" before \"-- +goose Up\"",
				f.Name())
		}
		if strings.Contains(string(text), "-- +goose Down") {
			t.Errorf("%s: migrations go forward only", f.Name())
		}
	}
}

func TestMigrate_emptyDatabase_appliesOnce(t *testing.T) {
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

func TestSchema_dump_isCurrent(t *testing.T) {
	t.Parallel()
	golden.Page(t, "schema.sql", dump(t, testkit.Database(t).URL))
}

// must ends the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// equal reports how a value differs from the one that is wanted.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, opts...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestBodyJSON_numbersThatExpand_areOmitted(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	many := func(number string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(number+",", 20_000), ",") + "]"
	}
	tests := map[string]struct {
		body string
		json bool
	}{
		"20,000 of 1e100000":           {many("1e100000"), false},
		"20,000 of 1e-16000":           {many("1e-16000"), false},
		"an exponent of 301":           {`{"a":1e301}`, false},
		"an exponent of 300":           {`{"a":[1E+300,-2e-0300]}`, true},
		"beside such a text":           {`{"\"e": "1e999", "b":1e999}`, false},
		"a text, and a key, like that": {`{"a9e9999": "f1e100000\\", "b": "\"1e9999", "c": 1}`, true},
		"no JSON":                      {`a=1e999`, false},
		"NUL in a text":                {`{"a":"\u0000"}`, false},
	}
	for name, tt := range tests {
		start := time.Now()
		var is bool
		err := db.Pool.QueryRow(t.Context(), `SELECT coalesce(length(body_json($1)::text) > 0, false)`,
			[]byte(tt.body)).Scan(&is)
		if err != nil || is != tt.json {
			t.Errorf("%s: JSON %t, want %t (%v, after %s)", name, is, tt.json, err, time.Since(start))
		}
	}
	if _, err := db.Pool.Exec(t.Context(), `SELECT body_json, body_json_omitted FROM mirror.events`); err != nil {
		t.Error(err)
	}
}
