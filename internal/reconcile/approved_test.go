package reconcile_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// approve lets a proposed run go on.
func (b *world) approve(t *testing.T, run int64, why string) {
	t.Helper()
	if err := runs.Approve(t.Context(), b.Operator, run, "me", why); err != nil {
		t.Fatal(err)
	}
}

// wants waits until a run has been approved so often and is proposed again, or ends, and says what for.
func (b *world) wants(t *testing.T, run int64, approvals int, words string) {
	t.Helper()
	r := b.Until(t, run, func(r *runs.Run) bool {
		return r.Status.Final() || r.Status == runs.Proposed && len(r.Approvals) == approvals
	})
	if r.Status != runs.Proposed || !strings.Contains(r.Detail, words) {
		t.Fatalf("%s, want %q: %s", r.Status, words, r.Detail)
	}
}

// Who approves that objects are deleted approves no key: where the key shows nothing any more, a person is asked for that alone before anything is believed, and again for each other key. What was
// approved is kept, each by itself.
func TestTombstonesAreApprovedAndNoKey(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 230, alive(40))
	b.deliver(t, b.api.h.Events)
	var shown atomic.Bool
	shown.Store(true)
	r := b.silently(t, 0, func(id string) bool { return shown.Load() && id >= "obj_30" && id <= "obj_39" })
	keyed := func(key string) {
		r.Sources.Replace(b.source(func(s *reconcile.Source) {
			s.Reader, s.API = silent{sim.Provider{}}, &provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(key)}}
		}))
	}
	keyed("key_of_ours")
	b.carry(t, r)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.wants(t, run, 0, "of 40 living objects of type thing are here, and missing")
	shown.Store(false)
	looks := b.looks(t)
	b.approve(t, run, "they are gone")
	b.wants(t, run, 1, "nothing shows that the key")
	keyed("key_of_others")
	b.approve(t, run, "the key is right")
	b.wants(t, run, 2, "nothing shows that the key")
	if dead, made := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted`), b.looks(t)-looks; len(dead) > 0 || made != 0 {
		t.Errorf("with a key that nobody has approved %q are deleted, %d looks made", dead, made)
	}
	b.approve(t, run, "this one too")
	got := b.ended(t, run)
	if got.Status != runs.Done || got.Counts[reconcile.Ghosts] != 30 || len(got.Approvals) != 3 {
		t.Fatalf("%s %v, %+v: %s", got.Status, got.Counts, got.Approvals, got.Detail)
	}
	for i, want := range []struct{ what, said, why string }{
		{"tombstones", "30 of 40 living objects of type thing", "they are gone"}, {"key ", "nothing shows that the key", "the key is right"},
		{"key ", "nothing shows that the key", "this one too"},
	} {
		a := got.Approvals[i]
		if !strings.HasPrefix(a.What, want.what) || !strings.Contains(a.Said, want.said) || a.Why != want.why || a.Who != "me" || a.At.IsZero() || strings.Contains(a.What, "key_of") {
			t.Errorf("approval %d is %+v, want %+v", i, a, want)
		}
	}
	if got.Approvals[1].What == got.Approvals[2].What {
		t.Errorf("two keys are approved as one: %s", got.Approvals[1].What)
	}
}
