package main

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// rebuilds carries out rebuilds of the source stripe, whose events the simulated provider reads.
func (b *testBundle) rebuilds(t *testing.T) {
	t.Helper()
	pool := b.db.Role(t, "processor")
	p, err := processor.New(processor.Options{Pool: pool, Settings: processor.DefaultSettings, ID: "test", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"stripe": {Number: b.known.Number["stripe"], Config: &provider.Source{Name: "stripe"}, Provider: sim.Provider{}}}})
	if err != nil {
		t.Fatal(err)
	}
	carried := &rebuild.Runner{Pool: pool, Processor: p, Settings: rebuild.DefaultSettings}
	applied.Carry(t, pool, "test", 1, map[string]runs.Carry{rebuild.Job: carried.Carry})
}

// A rebuild is asked for, compared, swapped, and thrown away.
func TestRebuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{`{"object_id": "obj_1", "object": {"a": 1}, "time": 1700000000000000, "unit": 1, "rank": 1}`,
		`{"object_id": "obj_2", "object": {"a": {"b": 1}}, "time": 1700000000000000, "unit": 1, "rank": 1}`} {
		b.append(t, "stripe", body, body)
	}
	b.run(t, "rebuild").want(t, 2, "", "name the source to rebuild")
	b.run(t, "rebuild", "--source", "nobody").want(t, 2, "", "no source")
	b.run(t, "rebuild", "--source", "stripe", "--compare", "--yes").want(t, 2, "", "give --compare or --yes")
	b.run(t, "rebuild", "--source", "stripe", "--check").want(t, 2, "", "give --compare too")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "--reason", "a test").want(t, 0, "waiting", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait").want(t, 2, "", "run 1 is an open rebuild of this source")
	b.run(t, "rebuild", "compare", "1", "--check").want(t, 1, "not at rest", "nothing is proved: the rebuild is not at rest (waiting)")
	b.run(t, "rebuild", "discard", "1").want(t, 2, "", "nobody can be asked here: give --yes\n")
	b.run(t, "rebuild", "swap", "1").want(t, 2, "", "nobody can be asked here: give --yes\n")
	b.run(t, "runs", "show", "1").want(t, 0, "waiting", "")
	b.run(t, "rebuild", "discard", "1", "--yes").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "compare", "1").want(t, 2, "", "rebuild 1 is cancelled")
	b.run(t, "rebuild", "swap", "7").want(t, 3, "", "run 7: not found")
	b.rebuilds(t)
	// The refused one took the number 2.
	b.run(t, "rebuild", "--source", "stripe").want(t, 0, "your decision: postern rebuild compare 3 shows what differs; then postern rebuild swap 3", "")
	b.run(t, "runs", "list").want(t, 0, "waits for your decision: postern rebuild compare 3", "")
	b.run(t, "objects", "list", "--source", "stripe").want(t, 0, "No objects.", "the objects of source stripe are as before rebuild 3, which waits for your decision")
	b.run(t, "objects", "list", "--source", "shop").want(t, 0, "No objects.", "")
	b.run(t, "rebuild", "compare", "3", "--check").want(t, 1, "only staged", "2 objects not the same")
	b.run(t, "rebuild", "swap", "3", "--yes").want(t, 0, "2 objects swapped, 2 objects grown, 0 objects emptied", "")
	b.run(t, "objects", "list").want(t, 0, "obj_2", "")
	b.run(t, "objects", "list", "--outdated").want(t, 0, "No objects.", "")
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE objects SET state = '{"a": {"b": 2}}', rule_version = 0 WHERE object_id = 'obj_2'`); err != nil {
		t.Fatal(err)
	}
	b.run(t, "objects", "list", "--outdated").want(t, 0, "obj_2", "")
	compare := b.run(t, "rebuild", "--source", "stripe", "--compare")
	compare.want(t, 0, "a.b", "")
	compare.want(t, 0, "then postern rebuild swap 4", "")
	found := b.run(t, "rebuild", "compare", "4", "-o", "json", "--check")
	var compared struct {
		Counts map[string]int
		Items  []rebuild.Difference
	}
	if err := json.Unmarshal([]byte(found.out), &compared); err != nil || found.status != 1 || compared.Counts["same"] != 1 || len(compared.Items) != 1 || compared.Items[0].Paths[0] != "a.b" {
		t.Errorf("%v in status %d, %s", err, found.status, found.out)
	}
	b.run(t, "rebuild", "swap", "4", "-y").want(t, 0, "1 objects swapped, 1 objects grown", "")
	b.run(t, "rebuild", "--source", "stripe", "--compare", "--check", "-o", "json").want(t, 0, `{"items": []`, "")
	if _, err := b.db.Pool.Exec(t.Context(), `UPDATE objects SET state = '{"a": 3}', last_event_id = 9000000000000000000 WHERE object_id = 'obj_1'`); err != nil {
		t.Fatal(err)
	}
	b.run(t, "rebuild", "compare", "5", "--check").want(t, 1, "ahead of the rebuild", "1 object ahead of the rebuild, and not proved: let it catch up (postern runs resume 5)")
	b.run(t, "rebuild", "discard", "5", "-y").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "--source", "stripe", "--yes", "-o", "json").want(t, 0, `"processed": 2,`, "")
	b.run(t, "runs", "list", "--job", "rebuild", "--status", "done").want(t, 0, "rebuild", "")
}

// What is expected of a rebuild of one type are the events of that type, as those are what it counts.
func TestRebuildOfOneTypeExpectsItsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", `{"object_id": "obj_1"}`, `{"object_id": "obj_2"}`)
	b.run(t, "rebuild", "--source", "stripe", "--type", "nothing", "--no-wait", "-o", "json").want(t, 0, `"expected": 0,`, "")
	b.run(t, "rebuild", "discard", "1", "--yes").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "-o", "json").want(t, 0, `"expected": 1,`, "")
}

// The line of whoever watches says what the rebuild does.
func TestWatcherTellsTheStage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		run  runs.Run
		want string
	}{
		{runs.Run{Status: runs.Waiting}, ""}, {runs.Run{Status: runs.Running}, "clearing what another left"}, {runs.Run{Status: runs.Running, Cursor: 5}, "copying bases"},
		{runs.Run{Status: runs.Running, Cursor: 5, Bound: 9}, "staging"}, {runs.Run{Status: runs.Running, Cursor: 9, Bound: 9}, "caught up"},
		{runs.Run{Status: runs.Paused, Cursor: 9, Bound: 9}, "staged"}, {runs.Run{Status: runs.Done, Cursor: 9, Bound: 9}, ""},
	} {
		c.run.Job = rebuild.Job
		if got := rebuild.Stage(&c.run); got != c.want {
			t.Errorf("%+v is %q, want %q", c.run, got, c.want)
		}
	}
}
