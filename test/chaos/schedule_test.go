package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/versioning"
)

// A failed run can be repeated: the same seed and durations give the same schedule, and another
// seed gives another one. Each kind of fault occurs within ten minutes.
func TestSchedule_seed_determinesFaults(t *testing.T) {
	t.Parallel()
	text := func(seed uint64) (lines []string) {
		for _, group := range schedule(seed, 10*time.Minute, 6*time.Second) {
			for _, f := range group {
				lines = append(lines, fmt.Sprint(f))
			}
		}
		return lines
	}
	if diff := cmp.Diff(text(7), text(7)); diff != "" {
		t.Error(diff)
	}
	if cmp.Diff(text(7), text(8)) == "" {
		t.Error("two seeds give the same schedule")
	}
	if n := len(text(7)); n < 200 {
		t.Errorf("%d faults in ten minutes, want 200", n)
	}
	seen := map[string]bool{}
	for _, group := range schedule(7, 10*time.Minute, 6*time.Second) {
		for i, f := range group {
			seen[f.kind.name] = true
			if i > 0 && f.at < group[i-1].at+group[i-1].lasts {
				t.Errorf("%v begins before %v has ended", f, group[i-1])
			}
		}
	}
	for _, kinds := range faultGroups() {
		for _, k := range kinds {
			if !seen[k.name] {
				t.Errorf("%q never occurs", k.name)
			}
		}
	}
}

func TestSnapshotRegression_changes_forwardOnly(t *testing.T) {
	t.Parallel()
	was := snapshot{version: versioning.Version{At: 10, Rank: 1}, revision: 3, members: 1, hash: [8]byte{1},
		exact: [8]byte{1}}
	tombstone := was
	tombstone.deleted, tombstone.hash, tombstone.exact = true, [8]byte{2}, [8]byte{2}
	final := tombstone
	final.version.Final = true
	for name, tc := range map[string]struct {
		was    snapshot
		change func(now *snapshot)
		want   string
	}{
		"no change": {was, func(*snapshot) {}, ""},
		"a newer version": {was, func(now *snapshot) {
			now.version.At, now.revision, now.hash, now.exact = 11, 4, [8]byte{3}, [8]byte{3}
		}, ""},
		"a newer version of the same state": {was, func(now *snapshot) { now.version.At = 11 }, ""},
		"another state of the version": {was, func(now *snapshot) {
			now.members, now.revision, now.hash, now.exact = 2, 4, [8]byte{3}, [8]byte{3}
		}, ""},
		"alive again, newer": {tombstone, func(now *snapshot) {
			now.version.At, now.revision, now.deleted, now.exact = 11, 4, false, [8]byte{3}
		}, ""},
		"an operator overwrites it": {was, func(now *snapshot) {
			now.overwrittenAt, now.version.At, now.revision, now.exact = 1, 9, 4, [8]byte{3}
		}, ""},
		"an older version": {was, func(now *snapshot) { now.version.At, now.revision = 9, 4 },
			"from version"},
		"a lower rank": {was, func(now *snapshot) { now.version.Rank = 0 }, "from version"},
		"no longer final": {final,
			func(now *snapshot) { now.version = versioning.Version{At: 99}; now.revision = 9 }, "from version"},
		"an older revision": {was, func(now *snapshot) { now.version.At, now.revision = 11, 2 },
			"from revision"},
		"another state under one revision": {was, func(now *snapshot) { now.version.At, now.exact = 11, [8]byte{3} },
			"under revision"},
		"no longer overwritten": {snapshot{overwrittenAt: 5, revision: 1},
			func(now *snapshot) { now.overwrittenAt, now.version.At = 0, 99 }, "from version"},
		"a tied state is missing": {snapshot{members: 2, revision: 1},
			func(now *snapshot) { now.members = 1; now.revision = 2 }, "states of version"},
		"alive again without an event": {tombstone, func(now *snapshot) {
			now.revision, now.deleted, now.exact = 4, false, [8]byte{3}
		}, "no event"},
		"another state without an event": {was, func(now *snapshot) {
			now.revision, now.hash, now.exact = 4, [8]byte{3}, [8]byte{3}
		}, "no event"},
	} {
		now := tc.was
		tc.change(&now)
		got := tc.was.regression(&now)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// The product must contain each replaced text exactly once. When it has changed, the mutant must be
// written again.
func TestMutants_each_appliesToProduct(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		if _, err := m.overlay(t.Context(), t.TempDir()); err != nil {
			t.Errorf("the mutant that %s: %v", m.name, err)
		}
	}
}
