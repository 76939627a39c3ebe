package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	diff "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// eventPagings are edits of the example configuration with another paging of events.
var eventPagings = map[string][]string{
	"field": nil,
	"address": {"/events/field", "/events/url", `, after: "{cursor}"}`, "}", "          field: meta.next",
		"          address: meta.next"},
	"link": {"/events/field", "/events/link", `, after: "{cursor}"}`, "}", "          field: meta.next",
		"          link: true"},
	"window": {"/events/field", "/events/window", `, after: "{cursor}"}`, "}", "          field: meta.next",
		"          window: true"},
}

// countLog returns the number of events and of keys in the log.
func (b *restEnv) countLog(t *testing.T) (stored, keys int) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*), (SELECT count(*) FROM event_keys) FROM events`).Scan(
		&stored, &keys); err != nil {
		t.Fatal(err)
	}
	return stored, keys
}

// withRepublisher applies the events without an outcome before each attempt, as the republisher
// does.
func (b *restEnv) withRepublisher(execute runs.Executor) runs.Executor {
	return func(ctx context.Context, h *runs.Lease, log *slog.Logger) (runs.Status, error) {
		rows, err := b.DB.Pool.Query(ctx, `SELECT id FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o
			WHERE o.event_id = e.id)`)
		if err != nil {
			return "", err
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return "", err
		}
		if _, err := b.proc.PublishAndApply(ctx, left); err != nil {
			return "", err
		}
		return execute(ctx, h, log)
	}
}

// Half of the webhooks are lost, processes are killed (with one paging), and the API fails. After a
// run over its events the log has each event once, the mirror equals the API, and the counts are
// those of an undisturbed run. Late webhooks are duplicates.
func TestReconcile_configuredAPIEvents_areAppendedOnce(t *testing.T) {
	t.Parallel()
	for kind, edits := range eventPagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			edits := append([]string{"limit: 100", "limit: 6"}, edits...)
			calm, wild := newRESTEnv(t, edits...), newRESTEnv(t, edits...)
			var n atomic.Int64
			wild.fake.NextFault = func(*http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%13 == 4:
					return restfake.ServerError
				case i%13 == 9:
					return restfake.ConnectionDropped
				case i == 21:
					return restfake.Throttled
				}
				return restfake.NoFault
			}
			counts := map[*restEnv]counts{}
			for _, b := range []*restEnv{calm, wild} {
				b.runner.Settings.InitialInterval, b.runner.Settings.MaxInterval = 10*time.Second, 20*time.Minute
				b.changeAndDeliverHalf(t, 7, 150)
				execute := b.runner.Execute
				if b == wild && kind == "field" {
					execute = b.withRepublisher(killRepeatedly(t, b.runner))
				}
				b.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: execute})
				r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Events,
					Since: b.fake.Now().Add(-20 * time.Minute)})
				if r.Status != runs.Done || r.Counts[reconcile.Processed] != 150 || r.Counts[reconcile.Missing] == 0 ||
					r.Counts[reconcile.Present]+r.Counts[reconcile.Missing] != 150 {
					t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
				}
				counts[b] = r.Counts
				wantNone(t, b.thingDifferences(t))
				b.deliver(t, b.fake.Events())
				if stored, keys := b.countLog(t); stored != 150 || keys != 150 {
					t.Errorf("the log has %d events under %d keys, of 150", stored, keys)
				}
			}
			if d := diff.Diff(nonzero(counts[calm]), nonzero(counts[wild])); d != "" {
				t.Errorf("counts (-undisturbed +killed): %s", d)
			}
		})
	}
}

// A second run starts a little before the watermark. A dry run appends nothing.
func TestReconcile_configuredAPIEvents_moveTheWatermark(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t, "retention: 720h", "retention: 2h")
	b.changeAndDeliverHalf(t, 8, 60)
	b.startReconciler(t, b.runner)
	before, _ := b.countLog(t)
	dry := b.runToEnd(t, reconcile.Params{Scope: reconcile.Events, DryRun: true})
	b.wantRows(t, `SELECT subject FROM watermarks`)
	if now, _ := b.countLog(t); dry.Counts[reconcile.Missing] != int64(60-before) || now != before {
		t.Errorf("a dry run counted %v; %d of 60 events existed, now %d", dry.Counts, before, now)
	}
	if r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Counts[reconcile.Missing] != int64(60-before) {
		t.Errorf("counts %v, with 60 events of which %d existed", r.Counts, before)
	}
	since, until := b.completeRange(t, "", reconcile.Events)
	if first := b.fake.Now().Add(-2 * time.Hour); since.Before(first.Add(-time.Minute)) ||
		since.After(first.Add(time.Minute)) || b.fake.Now().Sub(until) > time.Minute {
		t.Errorf("complete from %s until %s, at %s", since, until, b.fake.Now())
	}
	b.runner.Limits.Overlap = 10 * time.Second
	b.fake.Set("fresh", "new", time.Minute)
	b.fake.Advance(time.Minute)
	if r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Counts[reconcile.Processed] != 1 ||
		r.Counts[reconcile.Missing] != 1 {
		t.Errorf("a second run counted %v, with one new event", r.Counts)
	}
}

// Events that cannot be matched with webhooks, or are of another account, are rejected with a
// remedy. Nothing is appended.
func TestReconcile_unreadableConfiguredEvents_appendNothing(t *testing.T) {
	t.Parallel()
	for want, of := range map[string]struct {
		edits  []string
		params reconcile.Params
	}{
		"it contains no key":     {edits: []string{`key: "{json:id}"`, `key: "{json:name}"`}},
		"event 0 has no time at": {edits: []string{"at: {path: thing.changed", "at: {path: thing.moment"}},
		"element 0 is no event":  {edits: []string{"item: event", "item: events"}},
		"finds no list of events": {edits: []string{"/events/field", "/events/none",
			", path: error.code, equals: no_such_thing", ""}},
		"lists the events of all its accounts together:": {params: reconcile.Params{Account: "shop_2"}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			b := newRESTEnv(t, of.edits...)
			b.fake.Set("a", "one", time.Second)
			b.fake.Advance(time.Minute)
			b.startReconciler(t, b.runner)
			of.params.Scope = reconcile.Events
			run := b.startOwnRun(t, of.params)
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, want) })
			if stored, _ := b.countLog(t); stored != 0 {
				t.Errorf("%d events were appended", stored)
			}
		})
	}
}

// A key of another account, which has the same event ids at other times, fails runs before they
// append, delete or complete anything. With the right key they succeed, though some pages are
// around each event.
func TestAccountCheck_configuredAPIOtherKey_failsTheRun(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string]int{"empty": 0, "another": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRESTEnv(t, "limit: 100", "limit: 4")
			for i := range 30 {
				b.fake.Set(fmt.Sprint("ours_", i), "one", 100*time.Millisecond)
			}
			b.deliver(t, b.fake.Events())
			b.fake.Set("ours_0", "two", time.Second) // without a webhook
			b.fake.Advance(2 * time.Minute)
			other := restfake.New(t, restfake.Options{Start: b.fake.Now().Add(-3 * time.Minute)})
			for i := range theirs {
				other.Set(fmt.Sprint("theirs_", i), "one", 100*time.Millisecond)
			}
			other.Advance(b.fake.Now().Sub(other.Now()))
			ours := b.endpoint.API.BaseURL
			b.endpoint.API.BaseURL = other.URL
			stop := b.startReconciler(t, b.sourceRunner(t))
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Events, DryRun: true},
				{Scope: reconcile.Objects}, {Scope: reconcile.Objects, Type: "thing", DryRun: true},
				{Scope: reconcile.Object, Type: "thing", ID: "ours_1"}} {
				wantRunFailed(t, b.waitForEnd(t, b.startOwnRun(t, o)), "its key is of another account, or of another "+
					"mode (test or live), or api.events is another list")
			}
			b.wantNothingChanged(t)
			stop()
			b.endpoint.API.BaseURL = ours
			b.StartRunner(t, "two", 1, map[string]runs.Executor{reconcile.Job: b.sourceRunner(t).Execute})
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Objects, Type: "thing"}} {
				if r := b.waitForEnd(t, b.startOwnRun(t, o)); r.Status != runs.Done ||
					r.Counts[reconcile.Processed] == 0 {
					t.Errorf("%s with the right key: %s %v: %s", o.Scope, r.Status, r.Counts, r.Detail)
				}
			}
			if refetches := b.fake.RequestCount("/things/"); refetches != 0 {
				t.Errorf("%d refetches, though an event verifies the key", refetches)
			}
			wantNone(t, b.thingDifferences(t))
		})
	}
}
