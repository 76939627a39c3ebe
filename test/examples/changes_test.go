package examples_test

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// mirror changes objects and numbers the changes, as a processor does.
type mirror struct {
	db *testkit.DB
}

func (m *mirror) change(t *testing.T, set string, ids ...string) {
	t.Helper()
	m.db.Exec(t, `
INSERT INTO objects AS o (source, account, object_type, object_id, version_final, version_at, version_seen,
  version_rank, tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash,
  state, sanitized, last_event_id, revision, rule_version, created_at, updated_at)
SELECT 1, '', 'thing', id, false, 1, 0, 1, '[{}]', false, 1, 1, 0, false, false, '', '', '{"n": 1}', false, 1, 1, 1,
  now(), now() FROM unnest($1::text[]) AS id ORDER BY id
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET revision = o.revision + 1, `+set, ids)
	m.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT array_agg(1), array_agg(''::text), array_agg('thing'::text), $1, now() FROM unnest($1::text[])`, ids)
	for more := true; more; {
		var err error
		if _, more, err = changes.Number(t.Context(), m.db.Pool); err != nil {
			t.Fatal(err)
		}
	}
}

// existing are the objects that a copy has: all that are not deleted, and that an event makes.
const existing = `objects WHERE NOT deleted AND version_at > -9223372036854775808`

// states returns the states of a table, as the programs name them.
func (m *mirror) states(t *testing.T, table, source string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, row := range m.db.QueryStrings(t, `SELECT concat_ws(' ', `+source+`, account, object_type, object_id)
		|| '=' || coalesce(replace(state::text, ' ', ''), 'null') FROM `+table) {
		name, state, _ := strings.Cut(row, "=")
		all[name] = state
	}
	return all
}

// sqlLogin is a login of a user's program, as examples/changes/README.md describes it.
const sqlLogin = `
DO $$ BEGIN CREATE ROLE feed_reader LOGIN IN ROLE postern_reader; EXCEPTION WHEN duplicate_object THEN END $$;
CREATE SCHEMA app AUTHORIZATION feed_reader`

// Each program is killed several times while objects change, among them one that is redacted and
// two that are removed. At the end its copy equals the mirror, also after a restore that ended its
// cursor.
func TestChanges_programsAreKilled_copiesEqualMirror(t *testing.T) {
	t.Parallel()
	bin, err := testkit.Programs("examples/changes")
	if err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string][]string{
		"go": {filepath.Join(bin, "changes"), "FILE"}, "python": {"python3", "feed.py", "FILE"},
		"node": {"node", "feed.mjs", "FILE"}, "sql": {"psql", "-qX", "-f", "feed.sql", "URL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			m := &mirror{db}
			shop := map[string]string{"shop": "shopify"}
			if _, err := events.RegisterSources(t.Context(), db.Pool, shop); err != nil {
				t.Fatal(err)
			}
			reader := changes.NewReader(db.Role(t, "operator"), nil)
			server := httptest.NewServer(admin.New(admin.Options{Pool: reader.Pool, Changes: reader,
				RequireTokens: true, Tokens: &adminauth.TokenCache{DB: reader.Pool}}))
			defer server.Close()
			defer reader.Close()
			token, _, err := adminauth.CreateToken(t.Context(), reader.Pool, "copy", adminauth.Reader, "ada",
				time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "copy.json")
			copied := func() map[string]string { return readCopy(t, file) }
			if name == "sql" {
				db.Exec(t, sqlLogin)
				copied = func() map[string]string {
					if db.QueryStrings(t, `SELECT coalesce(to_regclass('app.copies')::text, '')`)[0] == "" {
						return nil
					}
					return m.states(t, "app.copies", "source")
				}
			}
			loginURL, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			query := loginURL.Query()
			query.Set("user", "feed_reader")
			loginURL.RawQuery = query.Encode()
			start := func() *exec.Cmd {
				var args []string
				for _, arg := range command {
					args = append(args, strings.NewReplacer("FILE", file, "URL", loginURL.String()).Replace(arg))
				}
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Dir = filepath.Join("..", "..", "examples", "changes")
				cmd.Env = append(environment(), "POSTERN_URL="+server.URL, "POSTERN_TOKEN="+token,
					"PGOPTIONS=-c search_path=app")
				cmd.Stderr = t.Output()
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				return cmd
			}
			equal := func() {
				t.Helper()
				testkit.Eventually(t, time.Minute, func() error {
					if diff := cmp.Diff(m.states(t, existing, "'shop'"), copied()); diff != "" {
						return fmt.Errorf("the copy differs (-mirror +copy):\n%s", diff)
					}
					return nil
				})
			}
			n, changes := 0, 40
			if testing.Short() {
				changes = 12
			}
			for round := range 4 {
				for range changes {
					n++
					m.change(t, fmt.Sprintf(`state = '{"n": %d}'`, n), fmt.Sprint("o", n%50), fmt.Sprint("p", n%7))
				}
				cmd := start()
				for range changes / 2 { // while it reads
					n++
					m.change(t, fmt.Sprintf(`state = '{"n": %d}'`, n), fmt.Sprint("o", n%50), fmt.Sprint("p", n%7))
				}
				switch round {
				case 1:
					equal() // so that the copy has the states that are redacted or removed now
					m.change(t, `state = NULL, tied_states = '[]'`, "p1")
					m.change(t, `deleted = true`, "p2")
					m.change(t, `state = NULL, tied_states = '[]', version_at = -9223372036854775808`, "p3")
					equal()
				case 2:
					db.Exec(t, `UPDATE change_feed SET epochs = epochs || 'feed0002'::text,
						epoch_starts = epoch_starts || 0::bigint`)
				case 3:
					equal()
				}
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
		})
	}
}

func readCopy(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	var own struct{ Objects map[string]json.RawMessage }
	if err == nil {
		err = json.Unmarshal(text, &own)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for name, state := range own.Objects {
		all[name] = strings.ReplaceAll(string(state), " ", "")
	}
	return all
}

// The programs stay short: 40 lines without the heads of Go files and empty lines.
func TestChanges_programs_areShort(t *testing.T) {
	t.Parallel()
	head := regexp.MustCompile(`(?ms)\A// .*?^package main$.*?^\)\n`)
	for _, name := range []string{"main.go", "feed.mjs", "feed.py", "feed.sql"} {
		lines := 0
		for line := range strings.Lines(head.ReplaceAllString(read(t, "../../examples/changes/"+name), "")) {
			if strings.TrimSpace(line) != "" {
				lines++
			}
		}
		if lines > 40 {
			t.Errorf("%s has %d lines", name, lines)
		}
	}
}
