package retention_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// For any history and any drops, the retained objects and the rest of the log give the mirror, bit
// for bit.
func TestRetention_anyDrops_mirrorCanBeRebuilt(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for n := range 3 {
		days := 3 + r.IntN(4)
		b := setup(t, seed+uint64(n), days, 40)
		before := b.rows(t, sharedColumnsSQL("objects"))
		for keep := days; keep > 1; { // dropped at once, or some days at a time
			keep = max(1, keep-1-r.IntN(3))
			b.runPolicy(t, retention.Policy{Bodies: keep})
			b.checkRebuild(t, int64(1000+keep))
		}
		equal(t, "the mirror changed", before, b.rows(t, sharedColumnsSQL("objects")))
		if len(b.stored(t)) == 0 || b.stored(t)[0] < b.days[days-2][0] {
			t.Errorf("%d events remain, the first %d", len(b.stored(t)), b.stored(t)[0])
		}
	}
}

// checkRebuild does the work of a rebuild and compares.
func (b *testBundle) checkRebuild(t *testing.T, run int64) {
	t.Helper()
	b.exec(t, `TRUNCATE staged_objects`)
	b.exec(t, `INSERT INTO staged_objects SELECT * FROM retained_objects`)
	must(t, errOf(b.proc.ApplyStored(t.Context(), apply.Target{Run: run, Staging: &apply.Staging{Table: 1}},
		b.stored(t), false)))
	if diff := cmp.Diff(b.rows(t, sharedColumnsSQL("objects")),
		b.rows(t, sharedColumnsSQL("staged_objects"))); diff != "" {
		t.Errorf("retained objects and %d events: %s", len(b.stored(t)), diff)
	}
}

var errCrash = errors.New("crashed here")

// If retention is interrupted before any step and another process continues, it ends in the same
// state as without the interruption.
func TestRetention_crashAtEachStep_endsInSameState(t *testing.T) {
	t.Parallel()
	const seed = 42
	policy := retention.Policy{Bodies: 2, Keys: 3, Outcomes: 3, Rejections: 1}
	end := func(crash int) (state map[string][]string, steps []string) {
		b := setup(t, seed, 5, 3)
		b.folder = t.TempDir()
		b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
			SELECT 1, 'r', '', '', now() - interval '3 days' * (i % 2), '{}', '\x00', 1
			FROM generate_series(1, 6) i`)
		b.requestRun(t, policy)
		r := b.runner()
		r.OnStep(func(name string) error {
			if steps = append(steps, name); len(steps) == crash {
				return errCrash
			}
			return nil
		})
		status, err := b.executeOpenRun(t, r)
		if crash > 0 && errors.Is(err, errCrash) {
			r.OnStep(nil)
			status, err = b.executeOpenRun(t, r)
		}
		if err != nil || status != runs.Done {
			t.Fatalf("ended before step %d %v: %s, %v", crash, steps, status, err)
		}
		b.checkRebuild(t, 1000)
		return map[string][]string{"retained_objects": b.rows(t, sharedColumnsSQL("retained_objects")),
			"objects": b.rows(t, sharedColumnsSQL("objects")), "tables": b.rows(t, `SELECT relname FROM pg_class
				WHERE relname ~ '^events_' AND relkind = 'r' ORDER BY 1`),
			"dropped_partitions": b.rows(t, `SELECT name || ' ' || events || ' ' || (dropped_at IS NOT NULL)
				FROM dropped_partitions ORDER BY name`),
			"kept": b.rows(t, `SELECT 'events ' || count(*) FROM events UNION ALL SELECT 'keys ' || count(*)
				FROM event_keys
				UNION ALL SELECT 'outcomes ' || count(*) FROM outcomes WHERE run = 0 UNION ALL
					SELECT 'rejections ' || count(*) FROM rejections`)}, steps
	}
	want, steps := end(0)
	if len(want["dropped_partitions"]) != 2 || len(steps) < 15 {
		t.Fatalf("%v %v", want, steps)
	}
	for crash, name := range steps {
		if testing.Short() && slices.Contains(steps[:crash], name) {
			continue // the same step for another partition or range
		}
		if got, _ := end(crash + 1); cmp.Diff(want, got) != "" {
			t.Errorf("ended before step %d (%s): %s", crash+1, name, cmp.Diff(want, got))
		}
	}
}

// A partition with unfinished events stays completely, with the reason; the others are dropped.
func TestRetention_unfinishedEvents_keepTheirPartition(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		reason string
		change func(t *testing.T, b *testBundle)
		drops  int
	}{
		{"still to be retried", func(t *testing.T, b *testBundle) {
			b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() WHERE event_id = $1`, b.days[1][0])
		}, 2},
		{"the republisher has not passed", func(t *testing.T, b *testBundle) { b.moveRepublisher(t, b.days[1][0]) }, 1},
		{"no final outcome", func(t *testing.T, b *testBundle) {
			b.exec(t, `DELETE FROM outcomes WHERE event_id = $1`, b.days[1][0])
		}, 2},
		{"run 1 (replay, queued) must still read it", func(t *testing.T, b *testBundle) {
			must(t, errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: "replay", Params: struct{}{}})))
		}, 0},
	} {
		t.Run(c.reason, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 7, 5, 20)
			before := len(b.stored(t))
			c.change(t, b)
			b.requestRun(t, retention.Policy{Bodies: 1, Outcomes: 1, Keys: 1})
			b.executeAndFail(t, b.runner(), c.reason)
			left := before
			for day := range b.days[:3] {
				if c.drops == 2 && day != 1 || c.drops == 1 && day == 0 {
					left -= len(b.days[day])
				}
			}
			if c.drops > 0 && left == before {
				t.Fatal("the test drops nothing")
			}
			if got := len(b.stored(t)); got != left {
				t.Errorf("%d events remain of %d, want %d", got, before, left)
			}
		})
	}
}

// Keys, outcomes and rejections expire at their own ages, and never before the events they belong
// to.
func TestRetention_ages_expireRowsNotBeforeEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, 9, 6, 30)
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT 1, 'r', '', '', now() - interval '1 day' * i, '{}', '\x00', 1 FROM generate_series(0, 9) i`)
	count := func(sql string) string { return b.rows(t, `SELECT count(*)::text FROM `+sql)[0] }
	sum := func(days ...[]int64) string {
		n := 0
		for _, d := range days {
			n += len(d)
		}
		return fmt.Sprint(n)
	}
	b.runPolicy(t, retention.Policy{Rejections: 4})
	if count("rejections") != "5" && count("rejections") != "4" {
		t.Errorf("%s rejections", count("rejections"))
	}
	old, err := runs.Create(t.Context(), b.operator, runs.Request{Job: "replay", Params: struct{}{}})
	must(t, err)
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() - interval '5 days', published_at = now()
		WHERE run = `+fmt.Sprint(old))
	b.runPolicy(t, retention.Policy{Runs: 6})
	b.db.WantRows(t, 1, "runs WHERE job = 'replay'")
	b.runPolicy(t, retention.Policy{Runs: 4})
	b.db.WantRows(t, 0, "runs WHERE job = 'replay'")
	// A partition that must stay keeps its keys and outcomes, whatever their age.
	replayRun, err := runs.Create(t.Context(), b.operator, runs.Request{Job: "replay", Params: struct{}{}})
	must(t, err)
	b.requestRun(t, retention.Policy{Bodies: 1, Keys: 1, Outcomes: 2})
	if _, err := b.executeOpenRun(t, b.runner()); err == nil {
		t.Fatal("events that a replay must read are dropped")
	}
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() WHERE ended_at IS NULL`)
	if got := [3]string{count("events"), count("event_keys"),
		count("outcomes WHERE run = 0")}; got != [3]string{sum(b.days...), sum(b.days...), sum(b.days...)} {
		t.Errorf("run %d must read everything, but these remain: %v", replayRun, got)
	}
	preview, err := retention.NewParams(t.Context(), b.operator, retention.Policy{Bodies: 1, Keys: 2, Outcomes: 3})
	must(t, err)
	view, err := retention.Preview(t.Context(), b.operator, preview)
	must(t, err)
	all := b.exec(t, `SELECT 1 FROM event_keys`)
	b.runPolicy(t, retention.Policy{Bodies: 1, Keys: 2, Outcomes: 3})
	if count("events") != sum(b.days[4:]...) {
		t.Errorf("%s events", count("events"))
	}
	// An age ends in the middle of a day. Rows that are a day older must be expired, and rows that
	// are a day younger must remain.
	b.db.WantRows(t, 0, "event_keys WHERE id <= $1", b.days[2][0])
	b.db.WantRows(t, 0, "outcomes WHERE event_id <= $1", b.days[1][0])
	b.checkText(t, sum(b.days[4:]...), `SELECT count(*)::text FROM event_keys WHERE id >= $1`, b.days[4][0])
	if gone := all - b.exec(t, `SELECT 1 FROM event_keys`); view.Expired["keys"] != gone {
		t.Errorf("%d keys were to expire, %d did", view.Expired["keys"], gone)
	}
	goes, _ := view.PlannedDrops()
	if len(goes) != 4 {
		t.Errorf("%d partitions were to be dropped", len(goes))
	}
}

// Appends continue while a partition is being detached, even if a reader delays the detaching. The
// next run finishes an interrupted detaching.
func TestRetention_detachWaits_appendsContinue(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 4, 20)
	reader := openTx(t, b.db.Pool, `SELECT count(*) FROM events`)
	b.requestRun(t, retention.Policy{Bodies: 1})
	h := leaseRun(t, b.pool, "first", time.Millisecond, retention.Job)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.runner().Execute(ctx, h, b.proc.Logger)
		ended <- err
	}()
	b.awaitNonZero(t, `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
	slowest := time.Duration(0)
	for range 50 {
		began := time.Now()
		one, err := b.db.Pool.Exec(t.Context(), `INSERT INTO events SELECT ((clock_ms() << 20) |
			(nextval('event_sequence') & 1048575)), source, event_id, event_type, account, object_type, object_id,
				occurred_at,
			received_at, origin, api_version, headers, verification, fingerprint, delivery_id, delivery_index, body
				FROM events WHERE id = $1`, b.days[3][0])
		if err != nil || one.RowsAffected() != 1 {
			t.Fatal(one, err)
		}
		slowest = max(slowest, time.Since(began))
	}
	if slowest > 2*time.Second {
		t.Errorf("an append took %s", slowest)
	}
	t.Logf("the slowest append took %s", slowest)
	cancel()
	if err := <-ended; err == nil {
		t.Error("an interrupted run ends without an error")
	}
	b.checkText(t, "1", `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
	must(t, reader.Rollback(t.Context()))
	testkit.Eventually(t, time.Minute, func() error { // the interrupted session may hold its lock for a moment
		status, err := b.executeOpenRun(t, b.runner())
		if err == nil && status != runs.Done {
			err = errors.New(string(status))
		}
		return err
	})
	b.checkText(t, "2", `SELECT count(*)::text FROM dropped_partitions WHERE dropped_at IS NOT NULL`)
}

// For a source that is not in the configuration, retention keeps the mirror's current rows, because
// it cannot read the events.
func TestRetention_sourceRemoved_copiesMirrorRows(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 4, 20)
	touched := b.rows(t, `SELECT DISTINCT object_id FROM outcomes WHERE event_id = ANY($1) AND object <> 0 ORDER BY 1`,
		append(b.days[0], b.days[1]...))
	b.log.AddSource(t, "other")
	b.proc = b.applier(t, "other")
	b.runPolicy(t, retention.Policy{Bodies: 1})
	equal(t, "retained_objects", touched, b.rows(t, `SELECT object_id FROM retained_objects ORDER BY 1`))
	b.proc = b.applier(t, "sim")
	b.checkRebuild(t, 1000)
}

// However many processors request it, there is one run a day, and none while another is open.
func TestRequestDaily_manyProcesses_oneRunPerDay(t *testing.T) {
	t.Parallel()
	b := setup(t, 15, 1, 3)
	policy := retention.Params{Policy: retention.Policy{Bodies: 5}}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if err := retention.RequestOnce(t.Context(), b.pool, policy); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	open := func() string { return b.rows(t, `SELECT count(*)::text FROM runs WHERE job = 'retention'`)[0] }
	if open() != "1" {
		t.Fatalf("%s runs", open())
	}
	must(t, errOf(b.executeOpenRun(t, b.runner())))
	for day, want := range []string{"1", "2"} {
		b.setClock(t, -2*day)
		if err := retention.RequestOnce(t.Context(), b.pool, policy); err != nil || open() != want {
			t.Errorf("%s runs after %d days, %v; want %s", open(), 2*day, err, want)
		}
	}
}

// All ages are counted from the time in the parameters, including the age of runs, however late the
// run is executed.
func TestRetention_timeInParams_agesCountFromIt(t *testing.T) {
	t.Parallel()
	b := setup(t, 18, 1, 2)
	for _, ended := range []string{"9 days", "11 days"} {
		b.exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, ended_at,
			updated_at, published_at)
			SELECT 'replay', '{}', '', $1::text, 'done', '', '{}', t, t, t, t
				FROM (SELECT clock_now() - $1::text::interval AS t) s`, ended)
	}
	params := &retention.Params{Policy: retention.Policy{Runs: 7}, At: time.Now().UTC().AddDate(0, 0, -3)}
	view, err := retention.Preview(t.Context(), b.operator, params)
	if err != nil || view.Expired[retention.CountRuns] != 1 {
		t.Errorf("%v, %v", view.Expired, err)
	}
	must(t, errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: retention.Job, Params: params})))
	b.executeToEnd(t, b.runner())
	if left := b.rows(t, `SELECT reason FROM runs WHERE job = 'replay'`); len(left) != 1 || left[0] != "9 days" {
		t.Errorf("the remaining runs ended %v ago", left)
	}
}

// readExport returns the text of an export.
func readExport(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	must(t, err)
	defer func() { _ = file.Close() }()
	z, err := zstd.NewReader(file)
	must(t, err)
	defer z.Close()
	text, err := io.ReadAll(z)
	must(t, err)
	return string(text)
}

// jsonString returns a body as an export contains it.
func jsonString(t *testing.T, body string) string {
	t.Helper()
	text, err := json.Marshal(body)
	must(t, err)
	return string(text)
}

// If a folder is set, each dropped partition is exported first, unchanged. A file with another
// content keeps its partition from being dropped.
func TestRetention_folder_exportsBeforeDrop(t *testing.T) {
	t.Parallel()
	b := setup(t, 19, 5, 20)
	b.folder = t.TempDir()
	parts := b.rows(t, `SELECT relname FROM pg_class WHERE relname ~ '^events_' AND relkind = 'r' ORDER BY 1`)
	otherFile := filepath.Join(b.folder, parts[1]+".ndjson.zst")
	must(t, os.WriteFile(otherFile, []byte("{}\n"), 0o600))
	exportRun, err := runs.Create(t.Context(), b.operator,
		runs.Request{Job: retention.Job, Params: retention.Params{Policy: retention.Policy{Bodies: 1}, Export: true}})
	must(t, err)
	without := b.runner()
	without.Folder = ""
	if _, err := b.executeOpenRun(t, without); err == nil || !strings.Contains(err.Error(),
		"has no retention.export") || len(b.rows(t, `SELECT name FROM dropped_partitions`)) > 0 {
		t.Errorf("without a folder: %v", err)
	}
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE run = $1`, exportRun)
	bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, b.days[0])
	b.requestRun(t, retention.Policy{Bodies: 1})
	b.executeAndFail(t, b.runner(), parts[1]+": its export cannot be trusted")
	if got := len(b.stored(t)); got != len(b.days[1])+len(b.days[3])+len(b.days[4]) {
		t.Errorf("%d events remain", got)
	}
	text := readExport(t, filepath.Join(b.folder, parts[0]+".ndjson.zst"))
	if lines := strings.Count(text, "\n"); lines != len(bodies) || len(bodies) != len(b.days[0]) {
		t.Errorf("%d lines for %d events", lines, len(b.days[0]))
	}
	for _, body := range bodies {
		if !strings.Contains(text, jsonString(t, body)) {
			t.Errorf("%s is not in the file", body)
		}
	}
	must(t, os.Remove(otherFile))
	must(t, errOf(b.executeOpenRun(t, b.runner())))
	recorded := b.rows(t, `SELECT name || ' ' || (export->>'events') || ' ' || (events = (export->>'events')::bigint)
		FROM dropped_partitions ORDER BY name`)
	if len(recorded) != 3 || !strings.HasSuffix(recorded[1], "true") {
		t.Errorf("recorded %v", recorded)
	}
}

// Parameters without a time count from the request of the run. Invalid parameters fail with the
// reason.
func TestRetention_invalidParams_failWithReason(t *testing.T) {
	t.Parallel()
	b := setup(t, 21, 5, 20)
	before := len(b.stored(t))
	for _, c := range []struct{ asked, message string }{
		{`{"bodies": 1}`, ""}, {`{"bodies": -1}`, "invalid: a retention of -1 days"}, {`{"keys": 3}`, "invalid: "},
		{`{"bodies": 5, "keys": 4}`, "invalid: "}, {`{"bodies": 5, "outcomes": 1}`, "invalid: "},
		{`{"bodies": 90, "at": "soon"}`, "read the parameters: "},
		{`{"bodies": 90, "of": "stripe"}`, "read the parameters: json: unknown field \"of\""},
	} {
		must(t, errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: retention.Job,
			Params: json.RawMessage(c.asked)})))
		status, err := b.executeOpenRun(t, b.runner())
		if c.message == "" && (err != nil || status != runs.Done) || c.message != "" &&
			(err == nil || !strings.HasPrefix(err.Error(), c.message) || strings.Contains(err.Error(), "%!")) {
			t.Errorf("%s: %s, %v", c.asked, status, err)
		}
		b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = clock_now() WHERE ended_at IS NULL`)
	}
	if left := len(b.stored(t)); left >= before {
		t.Errorf("%d of %d events remain", left, before)
	}
}
