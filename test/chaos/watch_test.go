package main

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/versioning"
)

// What may follow what was seen of an object, and what may not.
func TestSightsGoForward(t *testing.T) {
	t.Parallel()
	was := sight{version: versioning.Version{At: 10, Rank: 1}, revision: 3, members: 1, hash: [8]byte{1}, exact: [8]byte{1}}
	tombstone := was
	tombstone.deleted, tombstone.hash, tombstone.exact = true, [8]byte{2}, [8]byte{2}
	final := tombstone
	final.version.Final = true
	for name, tc := range map[string]struct {
		was    sight
		change func(now *sight)
		want   string
	}{
		"nothing":                            {was, func(*sight) {}, ""},
		"a newer version":                    {was, func(now *sight) { now.version.At, now.revision, now.hash, now.exact = 11, 4, [8]byte{3}, [8]byte{3} }, ""},
		"a newer version of the same state":  {was, func(now *sight) { now.version.At = 11 }, ""},
		"another state of the version":       {was, func(now *sight) { now.members, now.revision, now.hash, now.exact = 2, 4, [8]byte{3}, [8]byte{3} }, ""},
		"alive again, newer":                 {tombstone, func(now *sight) { now.version.At, now.revision, now.deleted, now.exact = 11, 4, false, [8]byte{3} }, ""},
		"a person settles it":                {was, func(now *sight) { now.settled, now.version.At, now.revision, now.exact = 1, 9, 4, [8]byte{3} }, ""},
		"an older version":                   {was, func(now *sight) { now.version.At, now.revision = 9, 4 }, "from version"},
		"a lower rank":                       {was, func(now *sight) { now.version.Rank = 0 }, "from version"},
		"no longer final":                    {final, func(now *sight) { now.version = versioning.Version{At: 99}; now.revision = 9 }, "from version"},
		"an older revision":                  {was, func(now *sight) { now.version.At, now.revision = 11, 2 }, "from revision"},
		"another state under one revision":   {was, func(now *sight) { now.version.At, now.exact = 11, [8]byte{3} }, "under revision"},
		"settled no more":                    {sight{settled: 5, revision: 1}, func(now *sight) { now.settled, now.version.At = 0, 99 }, "from version"},
		"a state of the version is gone":     {sight{members: 2, revision: 1}, func(now *sight) { now.members = 1; now.revision = 2 }, "states of version"},
		"alive again, and no event says so":  {tombstone, func(now *sight) { now.revision, now.deleted, now.exact = 4, false, [8]byte{3} }, "no event"},
		"another state, and no event has it": {was, func(now *sight) { now.revision, now.hash, now.exact = 4, [8]byte{3}, [8]byte{3} }, "no event"},
	} {
		now := tc.was
		tc.change(&now)
		got := tc.was.older(&now)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
