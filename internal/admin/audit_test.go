package admin_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// changed is a request that changes something: its route, and the expected audit entries, one for
// each line of target. A request without an action changes nothing.
type changed struct{ route, path, body, action, target string }

// audited are requests for every route that changes something, in a valid order. RUN is the number
// of the last run.
var audited = []changed{
	{"/replays", "/replays", `{"source": "stripe", "mode": "force", "reason": "why"}`, "replay",
		"mode=force&source=stripe"},
	{"/runs/:id/approve", "/runs/RUN/approve", `{"reason": "why"}`, "runs approve", "run RUN"},
	{"/runs/:id/pause", "/runs/RUN/pause", `{"reason": "why"}`, "runs pause", "run RUN"},
	{"/runs/:id/resume", "/runs/RUN/resume", `{"reason": "why"}`, "runs resume", "run RUN"},
	{"/runs/:id/cancel", "/runs/RUN/cancel", `{"reason": "why"}`, "runs cancel", "run RUN"},
	{"/retries", "/retries", `{"event": "k", "reason": "why"}`, "retry", "event=k"},
	{"/rebuilds", "/rebuilds", `{"source": "stripe", "reason": "why"}`, "rebuild", "source=stripe"},
	{"/rebuilds/:id/swap", "/rebuilds/RUN/swap", `{"reason": "why"}`, "rebuild swap", "run RUN"},
	{"/rebuilds/:id/discard", "/rebuilds/RUN/discard", `{"reason": "why"}`, "rebuild discard", "run RUN"},
	{"/schedules/:name/pause", "/schedules/nightly/pause", `{"reason": "why"}`, "schedules pause", "schedule nightly"},
	{"/schedules/:name/resume", "/schedules/nightly/resume", `{"reason": "why"}`, "schedules resume",
		"schedule nightly"},
	{"/schedules/:name/run", "/schedules/nightly/run", `{"reason": "why"}`, "schedules run", "schedule nightly"},
	{"/reconciliations", "/reconciliations", `{"source": "stripe", "reason": "why"}`, "reconcile", "source=stripe"},
	{"/refetches", "/refetches", `{"source": "stripe", "type": "order", "object_id": "7", "reason": "why"}`,
		"refetches add", "object_id=7&source=stripe&type=order"},
	{"/refetches/cancel", "/refetches/cancel",
		`{"source": "stripe", "type": "order", "object_id": "7", "reason": "why"}`,
		"refetches cancel", "object_id=7&source=stripe&type=order"},
	{"/objects/overwrite", "/objects/overwrite",
		`{"source": "stripe", "type": "order", "object_id": "7", "reason": "why"}`,
		"objects overwrite", "object_id=7&overwrite=true&source=stripe&type=order"},
	{"/objects/announce", "/objects/announce", `{"source": "stripe", "type": "order", "reason": "why"}`,
		"objects announce", "source=stripe&type=order"},
	{"/spools/:name/remove", "/spools/gone/remove", `{"reason": "why"}`, "spool remove",
		"spool gone, here:/spool, last reported with 3 deliveries"},
	{"/feed-cursors/:name/remove", "/feed-cursors/old/remove", `{"reason": "why"}`, "feed remove",
		"feed cursor old at 0a0b0c0d-0"},
	{"/feed-epochs", "/feed-epochs", `{"reason": "why"}`, "feed new-epoch", "epoch EPOCH"},
	{"/stream/republish-passes", "/stream/republish-passes", `{"reason": "why"}`, "stream republish",
		"pass 2"}, // the first was rolled back
	{"/rejections/verify", "/rejections/verify", `{"source": "stripe", "rejection_reason": "wrong_signature"}`, "", ""},
	{"/rejections/reprocess", "/rejections/reprocess", `{"ids": "1", "reason": "why"}`, "rejections reprocess",
		"rejection 1 of source stripe"},
	{"/effects/:id/approve", "/effects/1/approve", `{"reason": "why"}`, "effects approve", "effect 1"},
	{"/effects/:id/reject", "/effects/2/reject", `{"reason": "why"}`, "effects reject", "effect 2"},
	{"/effects/:id/resolve", "/effects/3/resolve",
		`{"step": "mail", "done": true, "captured": {"id": 820982911946154508}, "reason": "why"}`, "effects resolve",
		"effect 3; captured=%7B%22id%22%3A820982911946154508%7D&done=true&step=mail"},
	{"/effects/:id/retry", "/effects/4/retry", `{"reason": "why"}`, "effects retry", "effect 4"},
	{"/effects/:id/compensate", "/effects/5/compensate", `{"partial": true, "reason": "why"}`, "effects compensate",
		"effect 5; partial=true"},
	{"/effects/approve", "/effects/approve", `{"ids": "6,7,6", "reason": "why"}`, "effects approve",
		"effect 6\neffect 7"},
	{"/effects/reject", "/effects/reject", `{"ids": "8", "reason": "why"}`, "effects reject", "effect 8"},
	{"/effects/retry", "/effects/retry", `{"ids": "9", "reason": "why"}`, "effects retry", "effect 9"},
}

// changing prepares an instance in which all of these changes are possible.
func changing(t *testing.T) *testBundle {
	t.Helper()
	b := setup(t)
	b.append(t, "stripe", "k")
	b.plan(t, runs.Schedule{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC",
		Overlap: runs.OverlapSkip, Missed: runs.MissedRun, Parameters: map[string]string{"source": "stripe"}})
	b.db.Exec(t, `INSERT INTO spools (spool, location, drained_at, reported_at, deliveries, bytes)
		VALUES ('gone', 'here:/spool', '-infinity', now() - interval '1 h', 3, 100)`)
	b.db.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
		VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	b.db.Exec(t, `INSERT INTO feed_cursors
		SELECT name, CASE name WHEN 'old' THEN '0a0b0c0d' ELSE epochs[1] END, 0, NULL, now(), now(), 'me', NULL
			FROM change_feed, unnest('{old,r}'::text[]) AS name`)
	b.effects(t)
	b.reject(t, 1, testSecret)
	return b
}

// effects plans one effect for each possible change: 1 and 2 await approval, 3 has a step with an
// unknown outcome, 4 failed, 5 is done.
func (b *testBundle) effects(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `
		INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
			template_data, state, destination, planned_at, updated_at)
		SELECT 'mail:' || n, 1, 'mail', $1, '', 'order', n::text, 7, 0,
			'{"event": {"key": "k", "type": "order.updated", "origin": "webhook"}}', state, 'post',
			'2026-01-02T03:04:05Z', '2026-01-02T03:04:05Z'
		FROM unnest('{awaiting_approval,awaiting_approval,needs_review,needs_review,done}'::text[])
			WITH ORDINALITY AS d(state, n)`,
		b.known.Number["stripe"])
	b.db.Exec(t, `
		INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts,
			reserved_at,
			ended_at, captured, resolved_by, undoable)
		SELECT n, 'mail', 0, state, 'post', '{"method": "POST", "path": "/mail"}', '\x01', 1, '2026-01-02T03:04:06Z',
			'2026-01-02T03:04:07Z', '{"id": "m_1"}', 'operator', false
		FROM (VALUES (3, 'unknown'), (4, 'failed'), (5, 'done')) AS d(n, state)`)
}

// moreEffects copies effects: 6, 7 and 8 await approval as 1, and 9 failed as 4.
func (b *testBundle) moreEffects(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `INSERT INTO effects OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(e, jsonb_build_object(
			'effect', e.effect + n, 'key', 'more:' || e.effect + n))).*
		FROM effects e JOIN (VALUES (1, 5), (1, 6), (1, 7), (4, 5)) AS d(effect, n) ON e.effect = d.effect;
		INSERT INTO effect_steps SELECT (jsonb_populate_record(s, '{"effect": 9}')).* FROM effect_steps s
			WHERE effect = 4`)
}

// state returns everything that an operator can change, as text.
func (b *testBundle) state(t *testing.T) []string {
	t.Helper()
	return b.db.QueryStrings(t, `SELECT r::text FROM runs r UNION ALL SELECT s::text FROM schedules s UNION ALL
		SELECT h::text
		FROM refetch_requests h UNION ALL SELECT p::text FROM republish_passes p UNION ALL SELECT e::text
			FROM effects e UNION ALL SELECT s::text FROM effect_steps s UNION ALL SELECT p::text FROM spools p UNION ALL
				SELECT a::text FROM audit a UNION ALL SELECT c::text FROM feed_cursors c UNION ALL SELECT f::text
			FROM change_feed f UNION ALL SELECT r::text FROM rejections r UNION ALL SELECT event_id FROM events
			ORDER BY 1`)
}

const (
	auditColumns = `INSERT (actor, via, address, action, target, reason, run) ON audit `
	revokeAudit  = `REVOKE ` + auditColumns + `FROM postern_operator, postern_gateway`
	grantAudit   = `GRANT ` + auditColumns + `TO postern_operator, postern_gateway`
)

// eachChange calls do with each of the requests of audited, with the number of the last run.
func (b *testBundle) eachChange(t *testing.T, do func(changed)) {
	t.Helper()
	for _, c := range audited {
		// the number of a run that was rolled back is not used again
		last := strings.NewReplacer("RUN", b.db.QueryStrings(t, `SELECT coalesce(max(run), 0)::text FROM runs`)[0])
		c.path, c.target = last.Replace(c.path), last.Replace(c.target)
		do(c)
	}
}

// Each route that changes something writes one audit entry, in the transaction of the change. If
// the entry cannot be written, nothing is changed. A route that is not in the table fails here.
func TestChange_everyRoute_isAudited(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.moreEffects(t)
	missing := map[string]bool{}
	for _, r := range routes(t, b.handler) {
		if r.Method == http.MethodPost { // a PUT is a reader's report of its own progress
			missing[strings.TrimPrefix(r.Path, "/api/v1")] = true
		}
	}
	b.eachChange(t, func(c changed) {
		delete(missing, c.route)
		before := b.state(t)
		post := func(want int, changes bool) {
			t.Helper()
			if status, body := b.post(t, c.path, c.body); status != want {
				t.Errorf("%s: %d %v, want %d", c.route, status, body, want)
			}
			if !changes {
				testkit.Equal(t, fmt.Sprint("state after status ", want, " of ", c.route), before, b.state(t))
			}
		}
		if c.action == "" {
			post(200, false)
			return
		}
		b.db.Exec(t, revokeAudit)
		post(500, false)
		b.db.Exec(t, grantAudit)
		post(200, true)
		c.target = strings.ReplaceAll(c.target, "EPOCH", b.db.QueryStrings(t,
			`SELECT epochs[cardinality(epochs)] FROM change_feed`)[0])
		var want []string
		for target := range strings.SplitSeq(c.target, "\n") {
			want = append(want, strings.Join([]string{c.action, target, "why", "loopback", "loopback", "t"}, " | "))
		}
		testkit.Equal(t, "audit of "+c.route, want, b.db.QueryStrings(t, `SELECT concat_ws(' | ', action, target,
			reason, actor, via, database_user = session_user) FROM audit ORDER BY id`))
		b.db.Exec(t, `ALTER TABLE audit DISABLE TRIGGER ALL; DELETE FROM audit; ALTER TABLE audit ENABLE TRIGGER ALL`)
	})
	if len(missing) > 0 {
		t.Errorf("these routes change something, but have no row in the table: %v", slices.Sorted(maps.Keys(missing)))
	}
}

// Rejected requests, and those that changed nothing, have no audit entry. Changes with a token are
// recorded under its name.
func TestAudit_filters_selectEntries(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, reader, operator := b.guarded(t, admin.Options{RequireTokens: true})
	for _, c := range []struct{ path, body, token string }{
		{"/replays", `{"source": "nobody"}`, operator}, {"/replays", `{"source": "stripe", "preview": true}`, operator},
		{"/runs/99/pause", `{}`, operator},
		{"/replays", `{"source": "stripe"}`, reader}, {"/replays", `{"source": "stripe"}`, "x"},
		{"/replays", `{"source": "stripe", "reason": "once", "idempotency_key": "k"}`, operator},
		{"/replays", `{"source": "stripe", "reason": "twice", "idempotency_key": "k"}`, operator},
	} {
		postAs(h, c.path, c.body, "", "Bearer "+c.token)
	}
	testkit.Equal(t, "audit", []string{"deploy | token | 192.0.2.1:1234 | replay | source=stripe | once | 1"},
		b.db.QueryStrings(t, `SELECT concat_ws(' | ', actor, via, address, action, target, reason, run) FROM audit`))
	testkit.Equal(t, "actor of the run", []string{"token deploy, from 192.0.2.1:1234"},
		b.db.QueryStrings(t, `SELECT actor FROM runs`))
	b.wantItems(t, map[string]string{"/audit": "run 1", "/audit?target=stripe": "run 1",
		"/audit?target=s_ripe": "run ", "/audit?target=s%25e": "run ",
		"/audit?actor=deploy&action=replay&run=1&since=1h": "run 1",
		"/audit?action=rep": "run ", "/audit?actor=ada": "run ", "/audit?until=1h": "run "})
}

// responseText returns a response as text.
func responseText(res *httptest.ResponseRecorder) string {
	return fmt.Sprint(res.Code, " ", res.Header().Get("Content-Type"), " ", res.Body)
}

// isReplayed reports whether a response is that of an earlier request with the same key.
func isReplayed(res *httptest.ResponseRecorder) bool {
	return res.Header().Get("Idempotency-Replayed") == "true"
}

// With an idempotency key, each route that changes something is executed once and returns the same
// response again. A different request with the key is rejected.
func TestIdempotencyKey_everyRoute_changesOnce(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.moreEffects(t)
	b.eachChange(t, func(c changed) {
		if c.action == "" {
			return
		}
		first := postAs(b.handler, c.path, c.body, `"key"`, "")
		state := b.state(t)
		if first.Code != 200 || isReplayed(first) {
			t.Errorf("%s: %s", c.route, responseText(first))
		}
		again := postAs(b.handler, c.path, c.body, "key", "")
		if testkit.Equal(t, c.route+" again", responseText(first), responseText(again)); !isReplayed(again) {
			t.Errorf("%s again: %v", c.route, again.Header())
		}
		for _, other := range []struct {
			name, path, body, key, want string
		}{
			{"another body", c.path, c.body + " ", "key", "422 "},
			{"another query", c.path + "?x=y", c.body, "key", "422 "},
			{"half a key", c.path, c.body, `"key`, "400 application/problem+json "},
		} {
			got := responseText(postAs(b.handler, other.path, other.body, other.key, ""))
			if !strings.HasPrefix(got, other.want) ||
				strings.HasPrefix(got, "400") && !strings.Contains(got, "write it in quotes") {
				t.Errorf("%s with %s: %s", c.route, other.name, got)
			}
		}
		testkit.Equal(t, "state after "+c.route+" again", state, b.state(t))
	})
}

// A key belongs to its token: the same key of another token is a different key.
func TestIdempotencyKey_otherToken_isSeparate(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, _, operator := b.guarded(t, admin.Options{})
	for i, authorization := range []string{"", "Bearer " + operator, "", "Bearer " + operator} {
		res := postAs(h, "/replays", `{"source": "stripe"}`, "k", authorization)
		if res.Code != 200 || isReplayed(res) != (i > 1) {
			t.Errorf("%d: replayed %t: %s", i, isReplayed(res), responseText(res))
		}
	}
	b.db.WantRows(t, 2, "runs")
}

// An error response is stored like any other. Requests that only read, and responses with status
// 5xx, are executed again. A request that is invalid does not use up its key: the corrected request
// may have it.
func TestIdempotencyKey_responses_areStoredByKind(t *testing.T) {
	t.Parallel()
	b := changing(t)
	ask := func(path, body, key string, want int, replayed bool) string {
		t.Helper()
		res := postAs(b.handler, path, body, key, "")
		if res.Code != want || isReplayed(res) != replayed {
			t.Errorf("%s %s with key %s, replayed %t: %s", path, body, key, isReplayed(res), responseText(res))
		}
		return responseText(res)
	}
	const replay, preview, invalid = `{"source": "stripe"}`, `{"source": "stripe", "preview": true, "exact": true}`,
		`{"source": "stripe", "mode": "x"}`
	missing := ask("/runs/1/pause", "{}", "error", 404, false)
	ask("/replays", replay, "run", 200, false)
	testkit.Equal(t, "an error response again", missing, ask("/runs/1/pause", "{}", "error", 404, true))
	ask("/runs/1/pause", "{}", "another", 200, false)
	for _, events := range []string{`"events":1,`, `"events":2,`} {
		if text := ask("/replays", preview, "preview", 200, false); !strings.Contains(text, events) {
			t.Errorf("a preview: %s", text)
		}
		b.append(t, "stripe", "another")
	}
	ask("/replays", replay, "preview", 422, false)
	ask("/replays", invalid, "invalid", 400, false)
	ask("/replays", invalid, "invalid", 400, false)
	ask("/replays", replay, "invalid", 200, false)
	ask("/replays", `{"source": "shop"}`, "invalid", 422, false)
	b.db.Exec(t, `ALTER TABLE runs RENAME TO elsewhere`)
	ask("/replays", replay, "fault", 500, false)
	b.db.Exec(t, `ALTER TABLE elsewhere RENAME TO runs`)
	ask("/replays", replay, "fault", 200, false)
}

// If the response cannot be stored, the change is rolled back.
func TestIdempotencyKey_responseNotStored_rollsBack(t *testing.T) {
	t.Parallel()
	b := changing(t)
	before := b.state(t)
	b.db.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'the disk is full' USING
		ERRCODE = '53100'; END$$;
		CREATE TRIGGER refuse BEFORE UPDATE ON idempotency_keys FOR EACH ROW
			WHEN (NEW.status IS NOT NULL) EXECUTE FUNCTION refuse()`)
	const source = `{"source": "stripe"}`
	for path, body := range map[string]string{"/replays": source, "/reconciliations": source, "/rebuilds": source,
		"/schedules/nightly/pause": ""} {
		if res := postAs(b.handler, path, body, "k", ""); res.Code != 503 {
			t.Errorf("%s: %s", path, responseText(res))
		}
	}
	testkit.Equal(t, "state", before, b.state(t))
}

// While a request is in progress, the same request gets status 409. Afterwards it gets the
// response.
func TestIdempotencyKey_requestInProgress_returns409(t *testing.T) {
	t.Parallel()
	b := changing(t)
	lock := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE runs IN EXCLUSIVE MODE`)
	ask := func() *httptest.ResponseRecorder {
		return postAs(b.handler, "/replays", `{"source": "stripe"}`, "k", "")
	}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- ask() }()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.db.QueryStrings(t,
			`SELECT count(*)::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`,
			lock.Conn().PgConn().PID()); n[0] != "1" {
			return errors.New("nobody waits")
		}
		return nil
	})
	if res := ask(); res.Code != http.StatusConflict || res.Header().Get("Retry-After") == "" {
		t.Errorf("beside the first: %s", responseText(res))
	}
	testkit.Must(t, lock.Rollback(t.Context()))
	answer := responseText(<-first)
	if res := ask(); responseText(res) != answer || res.Code != 200 {
		t.Errorf("%s\nthen %s", answer, responseText(res))
	}
}

// Many simultaneous requests start one run.
func TestIdempotencyKey_concurrentRequests_changeOnce(t *testing.T) {
	t.Parallel()
	b := changing(t)
	var mu sync.Mutex
	answers := map[string]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				res := postAs(b.handler, "/replays", `{"source": "stripe"}`, "k", "")
				if res.Code == http.StatusConflict {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				answers[responseText(res)]++
				return
			}
		})
	}
	wg.Wait()
	if runs := b.db.QueryStrings(t, `SELECT run::text FROM runs`); len(runs) != 1 || len(answers) != 1 {
		t.Errorf("%d runs, answers %v", len(runs), answers)
	}
}
