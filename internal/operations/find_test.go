package operations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestFind_text_findsEverythingWithID(t *testing.T) {
	t.Parallel()
	db, sources := withSources(t)
	operator := db.Role(t, "operator")
	db.StopClock(t, time.Now()) // both events have the same millisecond
	one := appendEvent(t, db, sources["stripe"], "evt_1")
	two := appendEvent(t, db, sources["shop"], "evt_1")
	db.InsertObjects(t, 1)
	db.Exec(t, `
		INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "a", "object_id": "evt_1", "deleted": true,
			"object_type": "token", "updated_at": "2099-01-01"}')).* FROM objects o;
		INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
			VALUES (1, 'wrong_signature', '', '', now() - interval '1 min', '{}', '', 1);
		INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, updated_at)
			VALUES ('replay', '{}', '', '', 'done', '', '{}', now() - interval '1 h', now(), now());
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, state,
			destination, planned_at, updated_at)
			VALUES ('receipt:7', 1, 'receipt', 1, '', 'order', '7', 1, 0, 'done', 'mail', now(), now());
		INSERT INTO schedules VALUES ('stripe', 'replay', '', '', 'skip', 'skip', '{}', '2026-01-01', 0, NULL, '', NULL,
			NULL, '', now());
		INSERT INTO dropped_partitions (name, id_from, id_to, retained_to, events, bytes, run, ready_at, dropped_at,
			updated_at) VALUES ('old', 1000, 2000, 0, 0, 0, 1, now(), now(), now());
		INSERT INTO event_keys (source, key, id, fingerprint)
			VALUES (1, substr(sha256('evt_old'), 1, 16), 1500, '\x00')`)
	run := appendEvent(t, db, sources["shop"], "run 1")
	for text, want := range map[string]string{
		"evt_1":                      fmt.Sprintf("object evt_1, event %d, event %d", two, one),
		" evt_1\n":                   fmt.Sprintf("object evt_1, event %d, event %d", two, one),
		"EVT_1":                      "",
		"evt_":                       "",
		fmt.Sprint(one):              fmt.Sprintf("event %d", one),
		fmt.Sprintf("event %d", one): fmt.Sprintf("event %d", one),
		"1":                          "effect 1, rejection 1, run 1",
		"run 1":                      fmt.Sprintf("event %d, run 1", run),
		"Run  #1":                    "run 1",
		"rejection 1":                "rejection 1",
		"effect 1":                   "effect 1",
		"customer 1":                 "",
		"run 2":                      "",
		"receipt:7":                  "effect 1",
		"obj_000001":                 "object obj_000001",
		"stripe":                     "schedule stripe, source stripe",
		"evt_old":                    "event 1500",
		"1500":                       "",
		"'; DROP TABLE":              "",
		strings.Repeat("ä", 1000):    "",
	} {
		found, err := operations.Find(t.Context(), operator, operations.FindParams{Q: text})
		testkit.Must(t, err)
		var got []string
		for _, f := range found.Items {
			got = append(got, f.Kind+" "+f.ID)
		}
		if strings.Join(got, ", ") != want || found.Truncated {
			t.Errorf("%q: %q, truncated %t, want %q", text, strings.Join(got, ", "), found.Truncated, want)
		}
	}
	for _, text := range []string{"", " ", strings.Repeat("ä", 1001)} {
		if _, err := operations.Find(t.Context(), db.Pool, operations.FindParams{Q: text}); !errors.Is(err,
			events.ErrInvalid) {
			t.Errorf("%d bytes: %v", len(text), err)
		}
	}
}
