package app_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A sweep costs a call for each page and one for each object that differs, and a few: one that shows that the key is good, and one before anything is believed to be missing.
func TestCallsOfASweep(t *testing.T) {
	t.Parallel()
	const objects, perPage, few = 730, 100, 4 // whether the key is good, whose it is, what time it is there, and which test clocks there are
	fake := stripefake.New(t, stripefake.Options{Seed: 11, Running: true, Start: time.Now().Add(-time.Hour)})
	ids := make([]string, objects)
	for i := range ids {
		ids[i] = fake.Create("", "customer", nil)
	}
	fake.Advance(time.Minute)
	r := startReconciling(t, fake)
	sweep := func(what string, there, changed int64, want map[string]int64) {
		t.Helper()
		fake.Forget()
		counts := r.done(t, reconcile.Order{What: reconcile.Objects, Type: "customer"}).Counts
		for name, n := range want {
			if counts[name] != n {
				t.Errorf("%s: %d are %s, want %d: %v", what, counts[name], name, n, counts)
			}
		}
		pages := (there + perPage - 1) / perPage
		if made := int64(len(fake.Requests())); made < pages+changed || made > pages+changed+few {
			t.Errorf("%s: %d calls for %d pages and %d objects that differ: %v", what, made, pages, changed, fake.Counts())
		}
	}
	sweep("an empty mirror, filled by the pages", objects, 0, map[string]int64{reconcile.Missing: objects, reconcile.Mended: objects})
	sweep("nothing has changed", objects, 0, map[string]int64{reconcile.Equal: objects})
	for i := range 7 {
		fake.Set("", ids[100*i], map[string]any{"name": fmt.Sprint("Ada ", i)})
	}
	fake.Do("", ids[5], "customer.deleted")
	fake.Create("", "customer", nil)
	fake.Advance(time.Minute)
	changed := map[string]int64{reconcile.Equal: objects - 8, reconcile.Missing: 1, reconcile.Ghosts: 1, reconcile.Mended: 9}
	sweep("a few have changed", objects, 8, changed) // the new one is told by its page
	if n := r.db.Rows(t, `SELECT count(*)::text FROM objects WHERE object_type = 'customer' AND state ->> 'name' LIKE 'Ada _'`)[0]; n != "7" {
		t.Errorf("%s of 7 changed objects are in the mirror as they are", n)
	}
	r.become(t, fake)
}

// Links are rendered anew in each answer, with a token that holds the time: an object of which nothing else is other is equal, and nobody is told of a change.
func TestLinksAreNoChange(t *testing.T) {
	t.Parallel()
	const objects = 5
	fake := stripefake.New(t, stripefake.Options{Seed: 12, Running: true, Start: time.Now().Add(-time.Hour)})
	for range objects {
		fake.Create("", "charge", map[string]any{"status": "succeeded"})
		fake.Do("", fake.Create("", "invoice", nil), "invoice.finalized")
	}
	fake.Advance(time.Minute)
	r := startReconciling(t, fake)
	revisions := func() string {
		return r.db.Rows(t, `SELECT jsonb_object_agg(object_id, revision)::text FROM objects WHERE object_type IN ('charge', 'invoice')`)[0]
	}
	var first string
	for i, kept := range []string{reconcile.Missing, reconcile.Equal, reconcile.Equal} {
		for _, objectType := range []string{"charge", "invoice"} {
			run := r.reconciled(t, reconcile.Order{What: reconcile.Objects, Type: objectType})
			if c := run.Counts; c[kept] != objects {
				t.Errorf("sweep %d of unchanged %ss: %v, want %d %s", i, objectType, c, objects, kept)
			}
		}
		if now := revisions(); i == 0 {
			first = now
		} else if now != first {
			t.Errorf("after sweep %d the revisions are %s, and were %s", i, now, first)
		}
		fake.Advance(time.Minute)
	}
}
