package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/versioning"
)

// A failing run can be made again: its seed and its times make the same schedule, and another seed
// another one. Each kind of fault has its turn before long.
func TestScheduleIsMadeOfItsSeed(t *testing.T) {
	t.Parallel()
	text := func(seed uint64) (lines []string) {
		for _, lane := range schedule(seed, 10*time.Minute, 6*time.Second) {
			for _, f := range lane {
				lines = append(lines, fmt.Sprint(f))
			}
		}
		return lines
	}
	if diff := cmp.Diff(text(7), text(7)); diff != "" {
		t.Error(diff)
	}
	if cmp.Diff(text(7), text(8)) == "" {
		t.Error("two seeds make one schedule")
	}
	if n := len(text(7)); n < 200 {
		t.Errorf("%d faults in ten minutes, want 200", n)
	}
	seen := map[string]bool{}
	for _, lane := range schedule(7, 10*time.Minute, 6*time.Second) {
		for i, f := range lane {
			seen[f.kind.name] = true
			if i > 0 && f.at < lane[i-1].at+lane[i-1].lasts {
				t.Errorf("%v begins before %v has ended", f, lane[i-1])
			}
		}
	}
	for _, kinds := range lanes() {
		for _, k := range kinds {
			if !seen[k.name] {
				t.Errorf("%q never happens", k.name)
			}
		}
	}
}

// What may follow what was seen of an object, and what may not.
func TestSightsGoForward(t *testing.T) {
	t.Parallel()
	was := sight{version: versioning.Version{At: 10, Rank: 1}, revision: 3, members: 1, hash: [8]byte{1},
		exact: [8]byte{1}}
	tombstone := was
	tombstone.deleted, tombstone.hash, tombstone.exact = true, [8]byte{2}, [8]byte{2}
	final := tombstone
	final.version.Final = true
	for name, tc := range map[string]struct {
		was    sight
		change func(now *sight)
		want   string
	}{
		"nothing": {was, func(*sight) {}, ""},
		"a newer version": {was, func(now *sight) {
			now.version.At, now.revision, now.hash,
				now.exact = 11, 4, [8]byte{3}, [8]byte{3}
		}, ""},
		"a newer version of the same state": {was, func(now *sight) { now.version.At = 11 }, ""},
		"another state of the version": {was, func(now *sight) {
			now.members, now.revision, now.hash,
				now.exact = 2, 4, [8]byte{3}, [8]byte{3}
		}, ""},
		"alive again, newer": {tombstone, func(now *sight) {
			now.version.At, now.revision, now.deleted,
				now.exact = 11, 4, false, [8]byte{3}
		}, ""},
		"a person settles it": {was, func(now *sight) {
			now.settled, now.version.At, now.revision,
				now.exact = 1, 9, 4, [8]byte{3}
		}, ""},
		"an older version": {was, func(now *sight) { now.version.At, now.revision = 9, 4 },
			"from version"},
		"a lower rank": {was, func(now *sight) { now.version.Rank = 0 }, "from version"},
		"no longer final": {final,
			func(now *sight) { now.version = versioning.Version{At: 99}; now.revision = 9 }, "from version"},
		"an older revision": {was, func(now *sight) { now.version.At, now.revision = 11, 2 },
			"from revision"},
		"another state under one revision": {was, func(now *sight) { now.version.At, now.exact = 11, [8]byte{3} },
			"under revision"},
		"settled no more": {sight{settled: 5, revision: 1},
			func(now *sight) { now.settled, now.version.At = 0, 99 }, "from version"},
		"a state of the version is gone": {sight{members: 2, revision: 1},
			func(now *sight) { now.members = 1; now.revision = 2 }, "states of version"},
		"alive again, and no event says so": {tombstone, func(now *sight) {
			now.revision, now.deleted, now.exact = 4,
				false, [8]byte{3}
		}, "no event"},
		"another state, and no event has it": {was, func(now *sight) {
			now.revision, now.hash, now.exact = 4,
				[8]byte{3}, [8]byte{3}
		}, "no event"},
	} {
		now := tc.was
		tc.change(&now)
		got := tc.was.older(&now)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// What mutants replace is still there, once: a change of the product may ask for a mutant to be
// written anew.
func TestMutantsFit(t *testing.T) {
	t.Parallel()
	for _, m := range mutants() {
		if _, err := m.overlay(t.Context(), t.TempDir()); err != nil {
			t.Errorf("the product that %s: %v", m.name, err)
		}
	}
}
