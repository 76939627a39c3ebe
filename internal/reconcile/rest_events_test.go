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

// eventPagings are edits of the example whose events are paged otherwise.
var eventPagings = map[string][]string{
	"field":   nil,
	"address": {"/events/field", "/events/url", `, after: "{cursor}"}`, "}", "          field: meta.next", "          address: meta.next"},
	"link":    {"/events/field", "/events/link", `, after: "{cursor}"}`, "}", "          field: meta.next", "          link: true"},
	"window":  {"/events/field", "/events/window", `, after: "{cursor}"}`, "}", "          field: meta.next", "          window: true"},
}

// logged is how many events the log has, and how many keys.
func (b *described) logged(t *testing.T) (stored, keys int) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*), (SELECT count(*) FROM event_keys) FROM events`).Scan(&stored, &keys); err != nil {
		t.Fatal(err)
	}
	return stored, keys
}

// audited has the events that an attempt has left without an outcome applied before the next, as the auditor has.
func (b *described) audited(carry runs.Carry) runs.Carry {
	return func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
		rows, err := b.DB.Pool.Query(ctx, `SELECT id FROM events e WHERE NOT EXISTS (SELECT FROM outcomes o WHERE o.event_id = e.id)`)
		if err != nil {
			return "", err
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return "", err
		}
		if _, err := b.proc.Enter(ctx, left); err != nil {
			return "", err
		}
		return carry(ctx, h, log)
	}
}

// Half of the webhooks are lost, processes end at statements (with one kind of pages) and the
// API has its troubles: after a run over its events the log has each event once, the mirror is
// what the API has, and the counts are those of a run that nothing befell. What a webhook brings
// after all is a duplicate.
func TestEventsOfADescribedAPI(t *testing.T) {
	t.Parallel()
	for kind, edits := range eventPagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			edits := append([]string{"limit: 100", "limit: 6"}, edits...)
			calm, wild := newDescribed(t, edits...), newDescribed(t, edits...)
			var n atomic.Int64
			wild.fake.Fails = func(*http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%13 == 4:
					return restfake.Broken
				case i%13 == 9:
					return restfake.Cut
				case i == 21:
					return restfake.Throttled
				}
				return restfake.None
			}
			counts := map[*described]counts{}
			for _, b := range []*described{calm, wild} {
				b.runner.Settings.Span, b.runner.Settings.MaxSpan = 10*time.Second, 20*time.Minute
				b.live(t, 7, 150)
				carry := b.runner.Carry
				if b == wild && kind == "field" {
					carry = b.audited(dies(t, b.runner))
				}
				b.Carry(t, "one", 0, map[string]runs.Carry{reconcile.Job: carry})
				r := b.ask(t, reconcile.Order{What: reconcile.Events, Since: b.fake.Now().Add(-20 * time.Minute)})
				if r.Status != runs.Done || r.Counts[reconcile.Seen] != 150 || r.Counts[reconcile.Missing] == 0 || r.Counts[reconcile.Present]+r.Counts[reconcile.Missing] != 150 {
					t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
				}
				counts[b] = r.Counts
				none(t, b.differs(t))
				b.deliver(t, b.fake.Events())
				if stored, keys := b.logged(t); stored != 150 || keys != 150 {
					t.Errorf("the log has %d events under %d keys, of 150", stored, keys)
				}
			}
			if d := diff.Diff(nonzero(counts[calm]), nonzero(counts[wild])); d != "" {
				t.Errorf("counts (-undisturbed +killed): %s", d)
			}
		})
	}
}

// A second run begins a little before what is proven, and a dry run appends nothing.
func TestEventsOfADescribedAPIAreProven(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, "kept: 720h", "kept: 2h")
	b.live(t, 8, 60)
	b.carry(t, b.runner)
	before, _ := b.logged(t)
	dry := b.ask(t, reconcile.Order{What: reconcile.Events, DryRun: true})
	b.rows(t, `SELECT what FROM watermarks`)
	if now, _ := b.logged(t); dry.Counts[reconcile.Missing] != int64(60-before) || now != before {
		t.Errorf("a dry run tells %v, and %d of 60 events were there, now %d", dry.Counts, before, now)
	}
	if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Counts[reconcile.Missing] != int64(60-before) {
		t.Errorf("counts %v, of 60 events of which %d were there", r.Counts, before)
	}
	since, until := b.provenOf(t, "", reconcile.Events)
	if first := b.fake.Now().Add(-2 * time.Hour); since.Before(first.Add(-time.Minute)) ||
		since.After(first.Add(time.Minute)) || b.fake.Now().Sub(until) > time.Minute {
		t.Errorf("proven from %s until %s, at %s", since, until, b.fake.Now())
	}
	b.runner.Settings.Overlap = 10 * time.Second
	b.fake.Set("fresh", "new", time.Minute)
	b.fake.Advance(time.Minute)
	if r := b.ask(t, reconcile.Order{What: reconcile.Events}); r.Counts[reconcile.Seen] != 1 || r.Counts[reconcile.Missing] != 1 {
		t.Errorf("a second run tells %v, and one event is new", r.Counts)
	}
}

// What cannot be told apart from a webhook's event, or is another account's alone, is refused with what to do, and nothing is appended.
func TestEventsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for want, of := range map[string]struct {
		edits []string
		order reconcile.Order
	}{
		"nothing in it names it":                         {edits: []string{`key: "{json:id}"`, `key: "{json:name}"`}},
		"event 0 has no time at":                         {edits: []string{"at: {path: thing.changed", "at: {path: thing.moment"}},
		"element 0 is no event":                          {edits: []string{"item: event", "item: events"}},
		"says that there is no list of events":           {edits: []string{"/events/field", "/events/none", ", path: error.code, equals: no_such_thing", ""}},
		"lists the events of all its accounts together:": {order: reconcile.Order{Account: "shop_2"}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, of.edits...)
			b.fake.Set("a", "one", time.Second)
			b.fake.Advance(time.Minute)
			b.carry(t, b.runner)
			of.order.What = reconcile.Events
			run := b.askOnly(t, of.order)
			b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, want) })
			if stored, _ := b.logged(t); stored != 0 {
				t.Errorf("%d events were appended", stored)
			}
		})
	}
}

// A key of another account, which has events of the same names at other times, ends runs and looks before anything is appended, buried or proven; with the right key they go on, whose list
// has some pages around each event.
func TestAKeyOfAnotherDescribedAccount(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string]int{"empty": 0, "another": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, "limit: 100", "limit: 4")
			for i := range 30 {
				b.fake.Set(fmt.Sprint("ours_", i), "one", 100*time.Millisecond)
			}
			b.deliver(t, b.fake.Events())
			b.fake.Set("ours_0", "two", time.Second) // which nobody tells us of
			b.fake.Advance(2 * time.Minute)
			other := restfake.Make(t, restfake.Options{Start: b.fake.Now().Add(-3 * time.Minute)})
			for i := range theirs {
				other.Set(fmt.Sprint("theirs_", i), "one", 100*time.Millisecond)
			}
			other.Advance(b.fake.Now().Sub(other.Now()))
			ours := b.endpoint.API.BaseURL
			b.endpoint.API.BaseURL = other.URL
			stop := b.carry(t, b.sourceRunner(t))
			for _, o := range []reconcile.Order{{What: reconcile.Events}, {What: reconcile.Events, DryRun: true}, {What: reconcile.Objects}, {What: reconcile.Objects, Type: "thing", DryRun: true},
				{What: reconcile.Object, Type: "thing", ID: "ours_1"}} {
				failed(t, b.ended(t, b.askOnly(t, o)), "its key is of another account, or of another mode (test or live), or api.events leads to another list")
			}
			b.unchanged(t)
			stop()
			b.endpoint.API.BaseURL = ours
			b.Carry(t, "two", 1, map[string]runs.Carry{reconcile.Job: b.sourceRunner(t).Carry})
			for _, o := range []reconcile.Order{{What: reconcile.Events}, {What: reconcile.Objects, Type: "thing"}} {
				if r := b.ended(t, b.askOnly(t, o)); r.Status != runs.Done || r.Counts[reconcile.Seen] == 0 {
					t.Errorf("%s with the right key: %s %v: %s", o.What, r.Status, r.Counts, r.Detail)
				}
			}
			if looks := b.fake.Calls("/things/"); looks != 0 {
				t.Errorf("%d looks, though an event shows whose the key is", looks)
			}
			none(t, b.differs(t))
		})
	}
}
