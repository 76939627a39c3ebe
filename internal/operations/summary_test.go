package operations_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

const (
	insertRun = `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at, bound,
		updated_at) VALUES ('rebuild', '{}', '', '', `
	insertEffect = `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id,
		run, template_data, destination, planned_at, updated_at, lease_until, state)
		SELECT 'k', 1, 'r', 1, '', 't', '1', 1,
		0, '{}', 'd', now(), now(), CASE WHEN state = 'running' THEN now() END, state FROM (SELECT `
	insertSteps = `INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint,
		attempts, reserved_at) SELECT effect, 's', 0, 'unknown', 'd', '{}', '', 1, now() FROM effects; `
	insertCheckpoint = `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		SELECT job, run, 5, '', now(), now() FROM runs; `
)

// Each kind of things is in the summary while there are such things, and leads to their list.
func TestSummarize_eachKind_isListedWithItsList(t *testing.T) {
	t.Parallel()
	db, sources := withSources(t)
	operator := db.Role(t, "operator")
	summarize := func() (found []string) {
		t.Helper()
		s, err := operations.Summarize(t.Context(), operator, operations.SummaryParams{})
		testkit.Must(t, err)
		for _, i := range s.Items {
			params := map[string]any{"/events": new(operations.EventParams), "/runs": new(operations.RunParams),
				"/outcomes": new(operations.OutcomeParams), "/effects": new(operations.EffectParams),
				"/rejections": new(operations.RejectionParams), "/source-types": new(operations.SourceTypeParams),
				"/refetches": new(operations.PendingRefetchParams), "/spools": new(operations.Page),
				"/processes": new(operations.Page)}[i.Path]
			if err := operations.Parse(params, i.Params); err != nil || i.Count != 1 || i.AtLeast ||
				i.Since.IsZero() != (i.Kind == "outdated_configurations") {
				t.Errorf("%+v: %v", i, err)
			}
			found = append(found, i.Kind)
		}
		return found
	}
	outcome := func(status string) string {
		return `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
			attempts, at, rule_version)
			SELECT id, 0, source, 0, '', '', '', '` + status + `', '', 1, now(), 1 FROM events`
	}
	eventOfAge := func(age string) string {
		return `WITH made AS (
				SELECT floor(extract(epoch FROM clock_now() - interval '` + age + `') * 1000)::bigint << 20 AS id)
			INSERT INTO events SELECT (jsonb_populate_record(e, jsonb_build_object('id', m.id, 'event_id', m.id))).*
			FROM events e, made m WHERE e.event_id = 'k'`
	}
	db.Exec(t, `SELECT ensure_partitions(clock_ms() - 86400000, clock_ms())`)
	appendEvent(t, db, sources["stripe"], "k")
	db.Exec(t, outcome("applied"))
	for _, row := range []struct{ kind, insert, remove string }{
		{"", "SELECT", ""},
		{"sources_only_rejected", `INSERT INTO activity_minutes (minute, source, rejected)
			VALUES (floor(extract(epoch FROM now()) / 60), 1, 1)`, "activity_minutes"},
		{"", `INSERT INTO activity_minutes (minute, source, rejected, duplicates)
			VALUES (floor(extract(epoch FROM now()) / 60), 1, 1, 1)`, "activity_minutes"},
		{"dead_outcomes", `DELETE FROM outcomes; ` + outcome("dead"), "outcomes"},
		{"", outcome("applied"), ""},
		{"", eventOfAge("90 seconds"), ""},
		{"events_without_outcome", eventOfAge("150 seconds"), "outcomes"},
		{"", outcome("applied"), ""},
		{"effects_with_unknown_outcome", insertEffect + `'running' AS state) s; ` + insertSteps, "effects"},
		{"effects_needing_review", insertEffect + `'needs_review' AS state) s`, "effects"},
		{"effects_awaiting_approval", insertEffect + `'awaiting_approval' AS state) s`, "effects"},
		{"runs_awaiting_approval", insertRun + `'awaiting_approval', '', '{}', now(), NULL, 5, now())`, "runs"},
		{"failed_runs", insertRun + `'failed', '', '{}', now(), now(), 5, now())`, "runs"},
		{"", insertRun + `'failed', '', '{}', now(), now() - interval '25 hours', 5, now())`, "runs"},
		{"refetches_suspended", `INSERT INTO refetch_requests (source, account, object_type, object_id, reason,
			requested_by, requested_at, due, start_after, attempts, error, lease_owner, lease_until)
			VALUES (1, '', 't', '1', '', '', now(), 'infinity', 0, 2, '', '', '-infinity')`, "refetch_requests"},
		{"spools_not_empty", `INSERT INTO spools (spool, location, drained_at, reported_at, deliveries, bytes,
			oldest_at)
			VALUES ('a', '', '-infinity', now(), 3, 100, now())`, "spools"},
		{"processes_not_ready", `INSERT INTO processes (id, kind, host, pid, version, admin_address, started_at,
			reported_at, not_ready, config_loaded_at, config_digest, config_problem, can_reprocess)
			VALUES ('one', 'gateway', 'here', 7, '1', '', now(), now(), 'no', now(), '', '', true)`, "processes"},
		{"outdated_configurations", `INSERT INTO processes (id, kind, host, pid, version, admin_address, started_at,
			reported_at, not_ready, config_loaded_at, config_digest, config_problem, can_reprocess)
			VALUES ('one', 'gateway', 'here', 7, '1', '', now(), now(), '', now(), '', 'a typo', true)`, "processes"},
		{"silent_types", `INSERT INTO source_types VALUES (1, 'a', now() - interval '9 days', now() - 
			interval '5 hours', 20)`, "source_types"},
		{"rebuilds_awaiting_decision", insertRun + `'paused', '', '{}', now(), NULL, 5, now()); ` + insertCheckpoint,
			"checkpoints; DELETE FROM runs"},
		{"", insertRun + `'paused', '', '{}', now(), NULL, 6, now()); ` + insertCheckpoint,
			"checkpoints; DELETE FROM runs"},
	} {
		db.Exec(t, row.insert)
		want := []string{row.kind}
		if row.kind == "" {
			want = nil
		}
		testkit.Equal(t, fmt.Sprintf("kinds after %.200s", row.insert), want, summarize())
		if row.remove != "" {
			db.Exec(t, `DELETE FROM `+row.remove)
		}
	}
}

// The summary reads no large table completely.
func TestSummarize_largeTables_plansUseIndexes(t *testing.T) {
	t.Parallel()
	// a sequential scan remains where no index serves
	tx := testkit.OpenTx(t, testkit.Database(t).Pool, "SET LOCAL enable_seqscan = off")
	plan, err := postgres.Collect(t.Context(), tx, pgx.RowTo[string], "EXPLAIN "+operations.SummarySQL, 1000)
	testkit.Must(t, err)
	large := regexp.MustCompile(`Seq Scan on (activity|outcomes|effect|runs|refetch|checkpoints)\w*`)
	ended := regexp.MustCompile(`Index Cond: \(\(?ended_at > `)
	if text := strings.Join(plan, "\n"); large.MatchString(text) || !ended.MatchString(text) {
		t.Errorf("%q in %s", large.FindAllString(text, -1), text)
	}
}
