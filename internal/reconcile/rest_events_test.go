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

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
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

// Half of the webhooks are lost, processes are killed (with one paging), and the API fails. After a
// run over its events the log has each event once, the mirror equals the API, and the counts are
// those of an undisturbed run. Late webhooks are duplicates.
func TestReconcile_configuredAPIEvents_areAppendedOnce(t *testing.T) {
	t.Parallel()
	const events = 60
	for kind, edits := range eventPagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			edits := append([]string{"limit: 100", "limit: 6"}, edits...)
			calm, wild := reconciled.NewRESTEnv(t, edits...), reconciled.NewRESTEnv(t, edits...)
			var n atomic.Int64
			wild.Fake.NextFault = func(*http.Request) restfake.Fault {
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
			counts := map[*reconciled.RESTEnv]reconciled.Counts{}
			for _, b := range []*reconciled.RESTEnv{calm, wild} {
				b.Runner.Settings.InitialInterval, b.Runner.Settings.MaxInterval = 10*time.Second, 20*time.Minute
				reconciled.ChangeAndDeliverHalf(t, b, 7, events)
				execute := b.Runner.Execute
				if b == wild && kind == "field" {
					execute = withRepublisher(b, reconciled.KillRepeatedly(t, b.Runner))
				}
				b.StartRunner(t, "one", 0, map[string]runs.Executor{reconcile.Job: execute})
				r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events,
					Since: b.Fake.Now().Add(-20 * time.Minute)})
				reconciled.WantCounts(t, r, reconciled.Counts{reconcile.Processed: events})
				if n := r.Counts[reconcile.Missing]; n == 0 || r.Counts[reconcile.Present]+n != events {
					t.Errorf("%v", r.Counts)
				}
				counts[b] = r.Counts
				reconciled.WantNone(t, b.ThingDifferences(t))
				b.Deliver(t, b.Fake.Events())
				if stored, keys := countLog(t, b); stored != events || keys != events {
					t.Errorf("the log has %d events under %d keys, of %d", stored, keys, events)
				}
			}
			testkit.Equal(t, "counts", reconciled.Nonzero(counts[calm]), reconciled.Nonzero(counts[wild]))
		})
	}
}

// A second run starts a little before the watermark. A dry run appends nothing.
func TestReconcile_configuredAPIEvents_moveTheWatermark(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, "retention: 720h", "retention: 2h")
	reconciled.ChangeAndDeliverHalf(t, b, 8, 60)
	b.StartReconciler(t, b.Runner)
	before, _ := countLog(t, b)
	dry := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events, DryRun: true})
	b.WantRows(t, `SELECT subject FROM watermarks`)
	if now, _ := countLog(t, b); dry.Counts[reconcile.Missing] != int64(60-before) || now != before {
		t.Errorf("a dry run counted %v; %d of 60 events existed, now %d", dry.Counts, before, now)
	}
	if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Counts[reconcile.Missing] != int64(60-before) {
		t.Errorf("counts %v, with 60 events of which %d existed", r.Counts, before)
	}
	since, until := b.CompleteRange(t, "", reconcile.Events)
	if first := b.Fake.Now().Add(-2 * time.Hour); since.Before(first.Add(-time.Minute)) ||
		since.After(first.Add(time.Minute)) || b.Fake.Now().Sub(until) > time.Minute {
		t.Errorf("complete from %s until %s, at %s", since, until, b.Fake.Now())
	}
	b.Runner.Limits.Overlap = 10 * time.Second
	b.Fake.Set("fresh", "new", time.Minute)
	b.Fake.Advance(time.Minute)
	if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Counts[reconcile.Processed] != 1 ||
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
			b := reconciled.NewRESTEnv(t, of.edits...)
			b.Fake.Set("a", "one", time.Second)
			b.Fake.Advance(time.Minute)
			b.StartReconciler(t, b.Runner)
			of.params.Scope = reconcile.Events
			run := b.StartRun(t, of.params)
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, want) })
			if stored, _ := countLog(t, b); stored != 0 {
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
			b := reconciled.NewRESTEnv(t, "limit: 100", "limit: 4")
			for i := range 30 {
				b.Fake.Set(fmt.Sprint("ours_", i), "one", 100*time.Millisecond)
			}
			b.Deliver(t, b.Fake.Events())
			b.Fake.Set("ours_0", "two", time.Second) // without a webhook
			b.Fake.Advance(2 * time.Minute)
			other := restfake.New(t, restfake.Options{Start: b.Fake.Now().Add(-3 * time.Minute)})
			for i := range theirs {
				other.Set(fmt.Sprint("theirs_", i), "one", 100*time.Millisecond)
			}
			other.Advance(b.Fake.Now().Sub(other.Now()))
			ours := b.Endpoint.API.BaseURL
			b.Endpoint.API.BaseURL = other.URL
			stop := b.StartReconciler(t, b.SourceRunner(t))
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Events, DryRun: true},
				{Scope: reconcile.Objects}, {Scope: reconcile.Objects, Type: "thing", DryRun: true},
				{Scope: reconcile.Object, Type: "thing", ID: "ours_1"}} {
				reconciled.WantRunFailed(t, b.WaitForEnd(t, b.StartRun(t, o)),
					"its key is of another account, or of another "+
						"mode (test or live), or api.events is another list")
			}
			b.WantNothingChanged(t)
			stop()
			b.Endpoint.API.BaseURL = ours
			b.StartRunner(t, "two", 1, map[string]runs.Executor{reconcile.Job: b.SourceRunner(t).Execute})
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Objects, Type: "thing"}} {
				if r := b.WaitForEnd(t, b.StartRun(t, o)); r.Status != runs.Done ||
					r.Counts[reconcile.Processed] == 0 {
					t.Errorf("%s with the right key: %s %v: %s", o.Scope, r.Status, r.Counts, r.Detail)
				}
			}
			if refetches := b.Fake.RequestCount("/things/"); refetches != 0 {
				t.Errorf("%d refetches, though an event verifies the key", refetches)
			}
			reconciled.WantNone(t, b.ThingDifferences(t))
		})
	}
}

// countLog returns the number of events and of keys in the log.
func countLog(t *testing.T, b *reconciled.RESTEnv) (stored, keys int) {
	t.Helper()
	const sql = `SELECT count(*), (SELECT count(*) FROM event_keys) FROM events`
	testkit.Must(t, b.DB.Pool.QueryRow(t.Context(), sql).Scan(&stored, &keys))
	return stored, keys
}

// withRepublisher applies the events without an outcome before each attempt, as the republisher
// does.
func withRepublisher(b *reconciled.RESTEnv, execute runs.Executor) runs.Executor {
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
		if _, err := b.Proc.PublishAndApply(ctx, left); err != nil {
			return "", err
		}
		return execute(ctx, h, log)
	}
}
