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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Whatever happened and wherever the log was cut: the bases and what remains of the log make the mirror, bit for bit.
func TestBasesAndTheRestOfTheLogMakeTheMirror(t *testing.T) {
	t.Parallel()
	seed := testkit.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	for n := range 3 {
		days := 3 + r.IntN(4)
		b := setup(t, seed+uint64(n), days, 40)
		before := b.rows(t, same("objects"))
		for keep := days; keep > 1; { // dropped at once, or some days at a time
			keep = max(1, keep-1-r.IntN(3))
			b.do(t, retention.Policy{Bodies: keep})
			b.remakes(t, int64(1000+keep))
		}
		equal(t, "the mirror changed", before, b.rows(t, same("objects")))
		if len(b.stored(t)) == 0 || b.stored(t)[0] < b.days[days-2][0] {
			t.Errorf("%d events are left, the first %d", len(b.stored(t)), b.stored(t)[0])
		}
	}
}

// remakes does what a rebuild does and compares.
func (b *testBundle) remakes(t *testing.T, run int64) {
	t.Helper()
	b.exec(t, `TRUNCATE staged`)
	b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
	must(t, errOf(b.proc.ApplyStored(t.Context(), processor.Target{Run: run, Into: 1}, b.stored(t), false)))
	if diff := cmp.Diff(b.rows(t, same("objects")), b.rows(t, same("staged"))); diff != "" {
		t.Errorf("bases and %d events: %s", len(b.stored(t)), diff)
	}
}

var errCrash = errors.New("crashed here")

// Ended before any step and carried on by another, retention ends in the same state as undisturbed.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	const seed = 42
	policy := retention.Policy{Bodies: 2, Keys: 3, Outcomes: 3, Rejections: 1}
	end := func(crash int) (state map[string][]string, steps []string) {
		b := setup(t, seed, 5, 3)
		b.folder = t.TempDir()
		b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) SELECT 1, 'r', '', '', now() - interval '3 days' * (i % 2), '{}', '\x00', 1
			FROM generate_series(1, 6) i`)
		b.ask(t, policy)
		r := b.runner()
		r.AtStep(func(name string) error {
			if steps = append(steps, name); len(steps) == crash {
				return errCrash
			}
			return nil
		})
		status, err := b.carry(t, r)
		if crash > 0 && errors.Is(err, errCrash) {
			r.AtStep(nil)
			status, err = b.carry(t, r)
		}
		if err != nil || status != runs.Done {
			t.Fatalf("ended before step %d %v: %s, %v", crash, steps, status, err)
		}
		b.remakes(t, 1000)
		return map[string][]string{"bases": b.rows(t, same("bases")), "objects": b.rows(t, same("objects")),
			"tables":  b.rows(t, `SELECT relname FROM pg_class WHERE relname ~ '^events_' AND relkind = 'r' ORDER BY 1`),
			"retired": b.rows(t, `SELECT name || ' ' || events || ' ' || (dropped_at IS NOT NULL) FROM retired ORDER BY name`),
			"kept": b.rows(t, `SELECT 'events ' || count(*) FROM events UNION ALL SELECT 'keys ' || count(*) FROM event_keys
				UNION ALL SELECT 'outcomes ' || count(*) FROM outcomes WHERE run = 0 UNION ALL SELECT 'rejections ' || count(*) FROM rejections`)}, steps
	}
	want, steps := end(0)
	if len(want["retired"]) != 2 || len(steps) < 15 {
		t.Fatalf("%v %v", want, steps)
	}
	for crash := range steps {
		if got, _ := end(crash + 1); cmp.Diff(want, got) != "" {
			t.Errorf("ended before step %d (%s): %s", crash+1, steps[crash], cmp.Diff(want, got))
		}
	}
}

// A partition that holds what is unfinished stays whole, and says why; the others go.
func TestWhatIsUnfinishedStays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why   string
		spoil func(t *testing.T, b *testBundle)
		drops int
	}{
		{"still to be tried again", func(t *testing.T, b *testBundle) {
			b.exec(t, `UPDATE outcomes SET status = 'failed', due = now() WHERE event_id = $1`, b.days[1][0])
		}, 2},
		{"the auditor has not passed", func(t *testing.T, b *testBundle) { b.audited(t, b.days[1][0]) }, 1},
		{"no final outcome", func(t *testing.T, b *testBundle) { b.exec(t, `DELETE FROM outcomes WHERE event_id = $1`, b.days[1][0]) }, 2},
		{"run 1 (replay, waiting) has yet to read it", func(t *testing.T, b *testBundle) {
			must(t, errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: "replay", Asked: struct{}{}})))
		}, 0},
	} {
		t.Run(c.why, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 7, 5, 20)
			before := len(b.stored(t))
			c.spoil(t, b)
			b.ask(t, retention.Policy{Bodies: 1, Outcomes: 1, Keys: 1})
			_, err := b.carry(t, b.runner())
			if err == nil || !strings.Contains(err.Error(), c.why) {
				t.Fatalf("%v; want it to say %q", err, c.why)
			}
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
				t.Errorf("%d events are left of %d, want %d", got, before, left)
			}
		})
	}
}

// Keys, outcomes and rejections go at their own ages, and never before the events they belong to.
func TestAges(t *testing.T) {
	t.Parallel()
	b := setup(t, 9, 6, 30)
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) SELECT 1, 'r', '', '', now() - interval '1 day' * i, '{}', '\x00', 1 FROM generate_series(0, 9) i`)
	count := func(sql string) string { return b.rows(t, `SELECT count(*)::text FROM `+sql)[0] }
	sum := func(days ...[]int64) string {
		n := 0
		for _, d := range days {
			n += len(d)
		}
		return fmt.Sprint(n)
	}
	b.do(t, retention.Policy{Rejections: 4})
	if count("rejections") != "5" && count("rejections") != "4" {
		t.Errorf("%s rejections", count("rejections"))
	}
	old, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: "replay", Asked: struct{}{}})
	must(t, err)
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() - interval '5 days', told_at = now() WHERE run = `+fmt.Sprint(old))
	b.do(t, retention.Policy{Runs: 6})
	if count("runs WHERE job = 'replay'") != "1" {
		t.Error("a run was forgotten before its age")
	}
	b.do(t, retention.Policy{Runs: 4})
	if count("runs WHERE job = 'replay'") != "0" {
		t.Error("a run was not forgotten")
	}
	// A partition that has to stay keeps its keys and outcomes, whatever their age.
	replayRun, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: "replay", Asked: struct{}{}})
	must(t, err)
	b.ask(t, retention.Policy{Bodies: 1, Keys: 1, Outcomes: 2})
	if _, err := b.carry(t, b.runner()); err == nil {
		t.Fatal("what a replay reads is dropped")
	}
	b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = now() WHERE ended_at IS NULL`)
	if got := [3]string{count("events"), count("event_keys"), count("outcomes WHERE run = 0")}; got != [3]string{sum(b.days...), sum(b.days...), sum(b.days...)} {
		t.Errorf("run %d holds all, and left are %v", replayRun, got)
	}
	preview, err := retention.Now(t.Context(), b.operator, retention.Policy{Bodies: 1, Keys: 2, Outcomes: 3})
	must(t, err)
	view, err := retention.Preview(t.Context(), b.operator, preview)
	must(t, err)
	all := b.exec(t, `SELECT 1 FROM event_keys`)
	b.do(t, retention.Policy{Bodies: 1, Keys: 2, Outcomes: 3})
	if count("events") != sum(b.days[4:]...) {
		t.Errorf("%s events", count("events"))
	}
	// An age of days cuts in the middle of a day, so what is a day older is surely gone, and what is a day younger surely there.
	for table, of := range map[string]struct{ days int }{"event_keys": {2}, "outcomes": {3}} {
		oldest := map[string]string{"event_keys": "id", "outcomes": "event_id"}[table]
		limit := b.days[5-of.days-1]
		if n := count(fmt.Sprintf("%s WHERE %s <= %d", table, oldest, limit[0])); n != "0" {
			t.Errorf("%s: %s are left that are too old", table, n)
		}
		if n := count(fmt.Sprintf("%s WHERE %s >= %d", table, oldest, b.days[5-of.days][0])); n < sum(b.days[5-of.days:]...) && table == "event_keys" {
			t.Errorf("%s: %s of the younger are left", table, n)
		}
	}
	if gone := all - b.exec(t, `SELECT 1 FROM event_keys`); view.Forget["keys"] != gone {
		t.Errorf("%d keys were to be forgotten, %d are", view.Forget["keys"], gone)
	}
	goes, _ := view.Drops()
	if len(goes) != 4 {
		t.Errorf("%d partitions were to go", len(goes))
	}
}

// Appends go on while a partition is detached, also where a reader holds the detaching up; one that is interrupted is finished the next time.
func TestIngestionGoesOnMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t, 11, 4, 20)
	reader := hold(t, b.db.Pool, `SELECT count(*) FROM events`)
	b.ask(t, retention.Policy{Bodies: 1})
	h := taken(t, b.pool, "first", time.Millisecond, retention.Job)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := b.runner().Carry(ctx, h, b.proc.Logger)
		ended <- err
	}()
	b.awaitSome(t, `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
	slowest := time.Duration(0)
	for range 50 {
		began := time.Now()
		one, err := b.db.Pool.Exec(t.Context(), `INSERT INTO events SELECT ((clock_ms() << 20) | (nextval('event_sequence') & 1048575)), source, event_id, event_type, account, object_type, object_id, occurred_at,
			received_at, origin, api_version, headers, verification, fingerprint, delivery_id, delivery_index, body FROM events WHERE id = $1`, b.days[3][0])
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
		t.Error("an interrupted run ends well")
	}
	b.says(t, "1", `SELECT count(*)::text FROM pg_inherits WHERE inhdetachpending`)
	must(t, reader.Rollback(t.Context()))
	testkit.Eventually(t, time.Minute, func() error { // the interrupted session may hold its lock for a moment
		status, err := b.carry(t, b.runner())
		if err == nil && status != runs.Done {
			err = errors.New(string(status))
		}
		return err
	})
	b.says(t, "2", `SELECT count(*)::text FROM retired WHERE dropped_at IS NOT NULL`)
}

// What a processor cannot read, since the source is not in its configuration, is kept as the mirror has it.
func TestSourceThatIsNoLongerConfigured(t *testing.T) {
	t.Parallel()
	b := setup(t, 13, 4, 20)
	touched := b.rows(t, `SELECT DISTINCT object_id FROM outcomes WHERE event_id = ANY($1) AND object <> 0 ORDER BY 1`, append(b.days[0], b.days[1]...))
	b.log.Add(t, "other")
	b.proc = b.processor(t, "other")
	b.do(t, retention.Policy{Bodies: 1})
	equal(t, "bases", touched, b.rows(t, `SELECT object_id FROM bases ORDER BY 1`))
	b.proc = b.processor(t, "sim")
	b.remakes(t, 1000)
}

// However many processors ask, there is one run a day, and none beside one that is open.
func TestDaily(t *testing.T) {
	t.Parallel()
	b := setup(t, 15, 1, 3)
	policy := retention.Order{Policy: retention.Policy{Bodies: 5}}
	ended := make(chan error)
	for range 8 {
		go func() { ended <- retention.Ask(t.Context(), b.pool, policy) }()
	}
	for range 8 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	open := func() string { return b.rows(t, `SELECT count(*)::text FROM runs WHERE job = 'retention'`)[0] }
	if open() != "1" {
		t.Fatalf("%s runs", open())
	}
	must(t, errOf(b.carry(t, b.runner())))
	for day, want := range []string{"1", "2"} {
		b.clock(t, -2*day)
		if err := retention.Ask(t.Context(), b.pool, policy); err != nil || open() != want {
			t.Errorf("%s runs after %d days, %v; want %s", open(), 2*day, err, want)
		}
	}
}

// All ages count from the time that was previewed, also that of the history of runs, however late the run comes.
func TestAgesCountFromTheOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, 18, 1, 2)
	for _, ended := range []string{"9 days", "11 days"} {
		b.exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at, told_at)
			SELECT 'replay', '{}', '', $1::text, 'done', '', '{}', t, t, t, t FROM (SELECT clock_now() - $1::text::interval AS t) s`, ended)
	}
	order := &retention.Order{Policy: retention.Policy{Runs: 7}, At: time.Now().UTC().AddDate(0, 0, -3)}
	view, err := retention.Preview(t.Context(), b.operator, order)
	if err != nil || view.Forget[retention.CountRuns] != 1 {
		t.Errorf("%v, %v", view.Forget, err)
	}
	must(t, errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: order})))
	b.finishes(t, b.runner())
	if left := b.rows(t, `SELECT reason FROM runs WHERE job = 'replay'`); len(left) != 1 || left[0] != "9 days" {
		t.Errorf("left are those that ended %v ago", left)
	}
}

// unpacked is the text of an export.
func unpacked(t *testing.T, path string) string {
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

// quoted is a body as an export has it.
func quoted(t *testing.T, body string) string {
	t.Helper()
	text, err := json.Marshal(body)
	must(t, err)
	return string(text)
}

// Where a folder is set, what goes is in it first, as it was; a file that is something else keeps its partition.
func TestExportBeforeTheDrop(t *testing.T) {
	t.Parallel()
	b := setup(t, 19, 5, 20)
	b.folder = t.TempDir()
	parts := b.rows(t, `SELECT relname FROM pg_class WHERE relname ~ '^events_' AND relkind = 'r' ORDER BY 1`)
	foreign := filepath.Join(b.folder, parts[1]+".ndjson.zst")
	must(t, os.WriteFile(foreign, []byte("{}\n"), 0o600))
	demands, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: retention.Order{Policy: retention.Policy{Bodies: 1}, Export: true}})
	must(t, err)
	without := b.runner()
	without.Folder = ""
	if _, err := b.carry(t, without); err == nil || !strings.Contains(err.Error(), "has no retention.export") || len(b.rows(t, `SELECT name FROM retired`)) > 0 {
		t.Errorf("without a folder: %v", err)
	}
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE run = $1`, demands)
	bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, b.days[0])
	b.ask(t, retention.Policy{Bodies: 1})
	b.refuses(t, b.runner(), parts[1]+": its export cannot be trusted")
	if got := len(b.stored(t)); got != len(b.days[1])+len(b.days[3])+len(b.days[4]) {
		t.Errorf("%d events are left", got)
	}
	text := unpacked(t, filepath.Join(b.folder, parts[0]+".ndjson.zst"))
	if lines := strings.Count(text, "\n"); lines != len(bodies) || len(bodies) != len(b.days[0]) {
		t.Errorf("%d lines for %d events", lines, len(b.days[0]))
	}
	for _, body := range bodies {
		if !strings.Contains(text, quoted(t, body)) {
			t.Errorf("%s is not in the file", body)
		}
	}
	must(t, os.Remove(foreign))
	must(t, errOf(b.carry(t, b.runner())))
	noted := b.rows(t, `SELECT name || ' ' || (export->>'events') || ' ' || (events = (export->>'events')::bigint) FROM retired ORDER BY name`)
	if len(noted) != 3 || !strings.HasSuffix(noted[1], "true") {
		t.Errorf("noted %v", noted)
	}
}

// An order without a time counts from when its run was made; one that cannot be carried out says why, once and for all.
func TestOrdersSayWhatIsWrong(t *testing.T) {
	t.Parallel()
	b := setup(t, 21, 5, 20)
	before := len(b.stored(t))
	for _, c := range []struct{ asked, says string }{
		{`{"bodies": 1}`, ""}, {`{"bodies": -1}`, "invalid: a retention of -1 days"}, {`{"keys": 3}`, "invalid: "},
		{`{"bodies": 5, "keys": 4}`, "invalid: "}, {`{"bodies": 5, "outcomes": 1}`, "invalid: "},
		{`{"bodies": 90, "at": "soon"}`, "read what was asked for: "},
		{`{"bodies": 90, "of": "stripe"}`, "read what was asked for: json: unknown field \"of\""},
	} {
		must(t,
			errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: json.RawMessage(c.asked)})))
		status, err := b.carry(t, b.runner())
		if c.says == "" && (err != nil || status != runs.Done) || c.says != "" && (err == nil || !strings.HasPrefix(err.Error(), c.says) || strings.Contains(err.Error(), "%!")) {
			t.Errorf("%s: %s, %v", c.asked, status, err)
		}
		b.exec(t, `UPDATE runs SET status = 'cancelled', ended_at = clock_now() WHERE ended_at IS NULL`)
	}
	if left := len(b.stored(t)); left >= before {
		t.Errorf("%d of %d events are left", left, before)
	}
}
