package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A failing run can be made again: its seed and its times make the same schedule, and another seed another one. Each kind of fault has its turn before long.
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
