package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestReplayIsAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 3 {
		b.append(t, "stripe", fmt.Sprint("evt_", i), "{}")
	}
	b.run(t, "replay").want(t, 2, "3 events of 1 object, stored ", "nobody can be asked here: give --yes, or --preview to")
	b.run(t, "replay", "--preview", "--exact", "-o", "json").want(t, 0, `"events": 3,`, "")
	b.run(t, "replay", "--status", "dead", "--preview").want(t, 0, "", "postern retry --status dead tries them again")
	b.run(t, "runs", "list").want(t, 0, "No runs.", "")
	b.run(t, "replay", "--key", "evt_none", "--exact", "--yes").want(t, 0, "No events are chosen.", "")
	b.run(t, "runs", "show", "1").want(t, 3, "", "run 1: not found")
	b.run(t, "replay", "--source", "stripe", "--exact", "--yes", "--no-wait", "--reason", "mended the rule").want(t, 0, "3 events of 1 object, stored ", "")
	b.run(t, "runs", "list").want(t, 0, "mended the rule", "")
	b.run(t, "runs", "show", "1").want(t, 0, "0 processed", "")
	b.run(t, "runs", "pause", "1").want(t, 0, "paused", "")
	b.run(t, "runs", "watch", "1").want(t, 0, "run 1 paused: 0 of about 3 events", "")
	b.run(t, "runs", "cancel", "1").want(t, 0, "cancelled", "")
	b.run(t, "runs", "resume", "1").want(t, 2, "", "run 1 is cancelled, so it cannot become waiting")
	b.run(t, "runs", "pause", "x").want(t, 2, "", `"x" is no id`)
}

// Whoever watches sees how it goes on and what came of it; a failure is one of the command too.
func TestWatching(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	for _, c := range []struct {
		end    runs.Status
		detail string
		dead   int64
		status int
		errs   string
	}{{runs.Done, "", 0, 0, ""}, {runs.Failed, "the order cannot be read", 0, 1, "failed: the order cannot be read"},
		{runs.Done, "", 2, 1, "0 events failed and 2 are dead: see postern outcomes list --run 3"}} {
		watched := make(chan result, 1)
		go func() { watched <- b.run(t, "replay", "--yes") }()
		var h *runs.Hold
		testkit.Eventually(t, time.Minute, func() (err error) {
			if h, err = runs.Take(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); err == nil && h == nil {
				err = errors.New("nothing asked for")
			}
			return err
		})
		h.Counts["applied"], h.Counts[replay.Processed], h.Counts[replay.Deduplicated] = 1, 1, 1
		h.Counts["dead"] = c.dead
		if _, err := h.Advance(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if err := h.End(t.Context(), c.end, c.detail); err != nil {
			t.Fatal(err)
		}
		r := <-watched
		if r.status != c.status || !strings.Contains(r.out, "1 processed, 1 applied") || !strings.Contains(r.out, ", 1 of them deduplicated") || !strings.Contains(r.errs, c.errs) {
			t.Errorf("status %d\n%s\n%s", r.status, r.out, r.errs)
		}
	}
}

// The line of a watcher has the rate and the time that is left.
func TestWatcherTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := &watcher{out: &out}
	now := time.Unix(1_790_000_000, 0)
	r := &runs.Run{Run: 3, Status: runs.Running, Expected: 1000, Counts: map[string]int64{replay.Processed: 100}}
	w.tell(r, now)
	r.Counts[replay.Processed] = 300
	w.tell(r, now.Add(time.Second)) // told too lately
	w.tell(r, now.Add(20*time.Second))
	const want = "run 3 running: 100 of about 1000 events\nrun 3 running: 300 of about 1000 events, 10/s, about 1m10s left\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Ctrl-C ends the watching and not the run.
func TestInterruptedWatching(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.run(t, "replay", "--yes", "--no-wait").want(t, 0, "waiting", "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r := execute(ctx, "", "--dir", b.dir, "runs", "watch", "1"); r.status != 1 {
		t.Errorf("%+v", r)
	}
	b.run(t, "runs", "show", "1").want(t, 0, "waiting", "")
}

const customer = `{"id": "evt_1", "object": "event", "type": "customer.updated", "created": 1790000000, "api_version": "2026-01-28", "data": {"object":
  {"id": "cus_1", "object": "customer", "name": "Grace", "created": 1780000000, "metadata": {"a": "1"}}}}`

// A dry run shows what would change, as text and as JSON, and needs to know how a source reads its events.
func TestDryRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", customer)
	b.append(t, "shop", "evt_2", "{}")
	b.run(t, "replay", "--dry-run", "--source", "stripe").want(t, 2, "", "source stripe is not in the configuration used here")
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
	r := b.run(t, "replay", "--dry-run")
	r.want(t, 0, "stripe customer cus_1 (new)\n", "")
	r.want(t, 0, "state ", "")
	r.want(t, 0, "2 processed, 1 applied, 1 failed. 1 object would change, 1 of them new. Nothing was written.\n", "")
	b.run(t, "replay", "--dry-run", "--source", "stripe", "-o", "json").want(t, 0, `{"counts":{"applied":1,"processed":1},"new":1,"objects":1}`+"\n", "")
	b.object(t, "stripe", "", 17)
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE objects SET version_at = 1780000000000000, state_hash = sha256('x'), exact_hash = sha256('x'), tie_set = '[{}]'`); err != nil {
		t.Fatal(err)
	}
	b.run(t, "replay", "--dry-run", "--source", "stripe").want(t, 0, `"Ada" -> "Grace"`, "")
	b.run(t, "replay", "--dry-run", "--key", "none").want(t, 0, "0 processed. 0 objects would change", "")
	b.run(t, "runs", "list").want(t, 0, "No runs.", "")
}

// With force a run waits for an approval, which is kept with its reason.
func TestApproval(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.run(t, "replay", "--mode", "all", "--yes").want(t, 2, "", "known are state, missing, force")
	b.run(t, "replay", "--mode", "force", "--preview").want(t, 0, "Of their effects, at most 0 happen again", "")
	b.run(t, "replay", "--mode", "force", "--yes").want(t, 0, "It begins when somebody approves it: postern runs approve 1 --reason WHY", "")
	b.run(t, "runs", "resume", "1").want(t, 2, "", "run 1 is proposed: approve it or cancel it (postern runs approve 1 --reason WHY, postern runs cancel 1)")
	if h, err := runs.Take(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); h != nil || err != nil {
		t.Errorf("%+v %v", h, err)
	}
	b.run(t, "runs", "approve", "1").want(t, 2, "", "say why with --reason")
	b.run(t, "runs", "approve", "2", "--reason", "x").want(t, 3, "", "run 2: not found")
	b.run(t, "runs", "resume", "1").want(t, 2, "", "run 1 is proposed")
	b.run(t, "runs", "approve", "1", "--reason", "agreed with finance").want(t, 0, "agreed with finance", "")
	b.run(t, "runs", "approve", "1", "--reason", "again").want(t, 2, "", "run 1 is waiting and waits for nobody's approval")
	if h, err := runs.Take(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); h == nil || err != nil || !strings.Contains(string(h.Asked), `"force"`) {
		t.Errorf("%+v %v", h, err)
	}
	b.run(t, "replay", "--mode", "force", "--yes").want(t, 0, "proposed", "")
	b.run(t, "runs", "cancel", "2").want(t, 0, "cancelled", "")
}

func TestRetryIsAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "evt_1", "{}")
	b.append(t, "stripe", "evt_2", "{}")
	b.outcome(t, id, "dead")
	b.run(t, "retry", "--status", "applied").want(t, 2, "", "known are failed, dead")
	b.run(t, "retry", "evt_9").want(t, 3, "", "evt_9: not found")
	b.run(t, "retry", "evt_1", "--ids", "7").want(t, 2, "", "give the one or the other")
	b.run(t, "retry", "--run", "7").want(t, 3, "", "run 7: not found")
	b.run(t, "retry", "evt_2").want(t, 0, "No failed or dead events are chosen.", "")
	b.run(t, "retry", "--preview", "-o", "json").want(t, 0, `"events": 1,`, "")
	b.run(t, "retry", "evt_1").want(t, 2, "1 event failed or dead, stored ", "nobody can be asked here")
	b.run(t, "retry", "evt_1", "--failure", "newer than", "--reason", "mended", "--yes", "--no-wait").want(t, 0, "mended", "")
	b.run(t, "runs", "list", "--job", "retry").want(t, 0, "retry", "")
	b.run(t, "retry", "evt_1", "--yes", "--no-wait", "--once-key", "k").want(t, 0, "once key", "")
	b.run(t, "retry", "evt_1", "--yes", "--no-wait", "--once-key", "k").want(t, 0, "was asked for with this key before", "")
	b.run(t, "retry", "--yes", "--no-wait", "--once-key", "k").want(t, 2, "", "asked for something else (retry event=evt_1)")
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := b.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	// While the first run is at its last events none are left to choose: who asks with its key gets that run all the same.
	exec(`UPDATE outcomes SET status = 'applied' WHERE event_id = $1`, id)
	again := b.run(t, "retry", "evt_1", "--yes", "--no-wait", "--once-key", "k")
	again.want(t, 0, "No failed or dead events are chosen.", "")
	again.want(t, 0, "Run 2 was asked for with this key before", "")
	exec(`UPDATE runs SET status = 'failed', ended_at = now(), detail = 'as it was' WHERE run = 2`)
	b.run(t, "retry", "evt_1", "--yes", "--once-key", "k").want(t, 1, "Run 2 was asked for", "as it was")
	b.run(t, "retry", "evt_2", "--yes", "--once-key", "k").want(t, 2, "No failed or dead", "asked for something else (retry event=evt_1)")
	b.run(t, "retry", "evt_1", "--preview", "--once-key", "k").want(t, 0, "No failed or dead events are chosen.", "")
	if none := b.run(t, "retry", "evt_1", "--yes", "--once-key", "unused"); strings.Contains(none.out, "Run") {
		t.Error(none.out)
	}
	exec(`UPDATE outcomes SET status = 'dead' WHERE event_id = $1`, id)
	b.run(t, "retry", "--run", "1", "--yes").want(t, 2, "", "run 1 is a retry, and only the failures of a replay")
}

// The outcome of a run stands beside the live one, and names it.
func TestOutcomesNameTheOriginal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "evt_1", "{}")
	b.outcome(t, id, "applied")
	if _, err := b.db.Pool.Exec(t.Context(), `INSERT INTO outcomes SELECT event_id, 5, source, object, account, object_type, object_id, 'failed', reason, version, decided_by, attempts, now() + interval '1 h', at, rule_version FROM outcomes`); err != nil {
		t.Fatal(err)
	}
	b.run(t, "outcomes", "list", "--run", "5").want(t, 0, "failed (live: applied)", "")
	b.run(t, "outcomes", "list", "--run", "5", "-o", "json").want(t, 0, `"original":{"run":0,"status":"applied"}`, "")
	b.run(t, "outcomes", "list", "--run", "0", "-o", "json").want(t, 0, `"original":null`, "")
	r := b.run(t, "events", "show", "evt_1")
	if r.want(t, 0, "the live outcome, applied", ""); strings.Contains(r.out, "tried again") {
		t.Error(r.out)
	}
}
