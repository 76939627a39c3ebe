package rules_test

import (
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// The schedule that docs/configuration.md writes out.
func TestTheScheduleOfRetries(t *testing.T) {
	t.Parallel()
	retry := rules.Retry{First: 2 * time.Second, Factor: 2, Longest: 10 * time.Minute, Attempts: 20}
	var waits []int
	total := 0
	for attempt := 1; attempt < retry.Attempts; attempt++ {
		seconds := int(retry.Wait(attempt, 0.5).Round(time.Millisecond).Seconds())
		waits, total = append(waits, seconds), total+seconds
	}
	if want := append([]int{2, 4, 8, 16, 32, 64, 128, 256, 512}, slices.Repeat([]int{600}, 10)...); !slices.Equal(waits, want) || total/60 != 117 {
		t.Errorf("waits of %v, %d s in all, want %v", waits, total, want)
	}
	if least, most := retry.Wait(3, 0), retry.Wait(3, 1); least < 6*time.Second || most > 10*time.Second || least == most {
		t.Errorf("the third is between %s and %s, want 8 s, a fifth more or less", least, most)
	}
}
